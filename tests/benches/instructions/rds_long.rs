//! Long messages of RDS.

use crate::OPERATIONS;
use crate::dat::{BenchAdapter, adapters, step};
use dat_nostd::Platform;
use driver_mlx::{Instant, Wake};
use harness::dat::address;
use harness::rds::GENERATION;
use rds_nostd::{Arrival, Msg, MsgFlags, RdmaCookie, Rds, RdsConfig, RdsError, RdsStorage, SocketHandle};
use std::net::SocketAddr;

/// Bytes of a long message.
const LONG: usize = 1000 << 10;

#[inline(never)]
fn measured_rds_long_sendmsg(
    rds: &mut Rds<'_>,
    adapter: &mut BenchAdapter,
    socket: &SocketHandle,
    to: &SocketAddr,
    bytes: &[u8],
) -> Result<Option<RdmaCookie>, RdsError> {
    rds.sendmsg(adapter, *socket, Msg::to(*to, bytes))
}

// Not word for word as those for short messages, or the compiler makes one function of both.
#[inline(never)]
fn measured_rds_long_poll(rds: &mut Rds<'_>, adapter: &mut BenchAdapter, microseconds: u64) -> Wake {
    rds.poll(adapter, Instant::from_nanos(microseconds * 1000))
}

#[inline(never)]
fn measured_rds_long_recvmsg(
    rds: &mut Rds<'_>,
    adapter: &mut BenchAdapter,
    socket: &SocketHandle,
    buffer: &mut [u8],
) -> Result<Arrival, RdsError> {
    rds.recvmsg(adapter, *socket, buffer, MsgFlags::empty())
}

/// Ten long messages, from one node to another: all that both do for them.
pub fn run() {
    let mut adapters = adapters(5);
    let mut nodes: Vec<Rds<'static>> = adapters
        .iter_mut()
        .map(|adapter| {
            let storage = Box::leak(Box::new(RdsStorage::<4, 2, 2048>::new()));
            Rds::start(adapter, storage.parts(), RdsConfig::new(GENERATION)).expect("starts")
        })
        .collect();
    let sockets: Vec<SocketHandle> = (0..2)
        .map(|node| {
            let socket = nodes[node].bind(SocketAddr::new(address(node), 4000)).expect("binds");
            nodes[node].set_send_buffer(socket, 2 * LONG).expect("open");
            let adapter = &mut adapters[node];
            nodes[node].set_receive_buffer(adapter, socket, 4 * LONG).expect("open");
            socket
        })
        .collect();
    let to = SocketAddr::new(address(1), 4000);
    let mut buffer = vec![0; LONG];
    // The connection is made by the first message, outside the count.
    nodes[0].sendmsg(&mut adapters[0], sockets[0], Msg::to(to, &[7; 64])).expect("sends");
    while nodes[1].recvmsg(&mut adapters[1], sockets[1], &mut buffer, MsgFlags::empty()).is_err() {
        step(&mut adapters);
        let now = adapters[0].platform().now();
        for (rds, adapter) in nodes.iter_mut().zip(&mut adapters) {
            let _ = rds.poll(adapter, now);
        }
    }
    for message in 0..OPERATIONS / (LONG >> 10) {
        let bytes: Vec<u8> = (0..LONG).map(|i| (i * 31 + i / 251 + message) as u8).collect();
        let sent = measured_rds_long_sendmsg(&mut nodes[0], &mut adapters[0], &sockets[0], &to, &bytes);
        assert_eq!(sent, Ok(None));
        let mut rounds = 0;
        while !nodes[1].is_readable(sockets[1]).expect("open") {
            rounds += 1;
            assert!(rounds < 10_000, "message {message} arrives");
            adapters[0].platform().settle();
            let now = adapters[0].platform().now().as_nanos() / 1000;
            for (rds, adapter) in nodes.iter_mut().zip(&mut adapters).rev() {
                let _ = measured_rds_long_poll(rds, adapter, now);
                adapter.platform().ring();
            }
        }
        let received = measured_rds_long_recvmsg(&mut nodes[1], &mut adapters[1], &sockets[1], &mut buffer);
        assert_eq!(received.map(|received| received.value(MsgFlags::empty())), Ok(LONG));
        assert!(buffer == bytes);
        for _ in 0..3 {
            step(&mut adapters);
            let now = adapters[0].platform().now();
            for (rds, adapter) in nodes.iter_mut().zip(&mut adapters) {
                let _ = rds.poll(adapter, now);
            }
        }
    }
}
