//! Sending and receiving of RDS: 32 sockets of one node with 32 of another.

use crate::dat::{BenchAdapter, adapters, step};
use crate::{HANDLES, OPERATIONS};
use driver_mlx::{Duration, Instant, Wake};
use harness::dat::address;
use harness::rds::GENERATION;
use rds_nostd::{
    Arrival, Msg, MsgFlags, RdmaCookie, Rds, RdsConfig, RdsError, RdsStorage, Received, SocketHandle,
};
use std::net::SocketAddr;

const LEN: usize = 64;

#[inline(never)]
fn measured_rds_sendmsg(
    rds: &mut Rds<'_>,
    adapter: &mut BenchAdapter,
    socket: SocketHandle,
    to: SocketAddr,
    bytes: &[u8],
) -> Result<Option<RdmaCookie>, RdsError> {
    rds.sendmsg(adapter, socket, Msg::to(&to, bytes))
}

#[inline(never)]
fn measured_rds_poll(rds: &mut Rds<'_>, adapter: &mut BenchAdapter, now: u64) -> Wake {
    rds.poll(adapter, Instant::from_nanos(now))
}

// Not word for word as the one of the receiver, or the compiler makes one function of both.
#[inline(never)]
fn measured_rds_sender(rds: &mut Rds<'_>, adapter: &mut BenchAdapter, now: &Instant) -> Wake {
    rds.poll(adapter, *now)
}

#[inline(never)]
fn measured_rds_recvmsg(
    rds: &mut Rds<'_>,
    adapter: &mut BenchAdapter,
    socket: SocketHandle,
    buffer: &mut [u8],
) -> Result<Arrival, RdsError> {
    rds.recvmsg(adapter, socket, buffer, MsgFlags::empty())
}

fn payload(operation: usize) -> [u8; LEN] {
    std::array::from_fn(|i| (operation * 31 + i * 7) as u8)
}

/// Makes and checks the operations.
pub fn run() {
    let mut adapters = adapters(3);
    let mut nodes = adapters.each_mut().map(|adapter| {
        let storage = Box::leak(Box::new(RdsStorage::<40, 4, 2048>::new()));
        Rds::start(adapter, storage.parts(), RdsConfig::new(GENERATION)).expect("starts")
    });
    let port = |handle: usize| 4000 + handle as u16;
    let mut side = 0;
    let sockets = nodes.each_mut().map(|rds| {
        let here = address(side);
        side += 1;
        [(); HANDLES].map({
            let mut handle = 0;
            move |()| {
                handle += 1;
                rds.bind(SocketAddr::new(here, port(handle - 1))).expect("binds")
            }
        })
    });

    // The connection is made by the first message, outside the count.
    let first = payload(0);
    nodes[0]
        .sendmsg(&mut adapters[0], sockets[0][0], Msg::to(&SocketAddr::new(address(1), port(0)), &first))
        .expect("sends");
    let mut buffer = [0; 2 * LEN];
    while nodes[1].recvmsg(&mut adapters[1], sockets[1][0], &mut buffer, MsgFlags::empty()).is_err() {
        round(&mut adapters, &mut nodes);
    }

    let mut done = 0;
    while done < OPERATIONS {
        let batch = HANDLES.min(OPERATIONS - done);
        for (handle, &socket) in sockets[0].iter().enumerate().take(batch) {
            let bytes = payload(done + handle);
            let to = SocketAddr::new(address(1), port(handle));
            let sent = measured_rds_sendmsg(&mut nodes[0], &mut adapters[0], socket, to, &bytes);
            assert_eq!(sent, Ok(None));
            adapters[0].platform().ring();
        }
        adapters[0].platform().settle();
        let now = adapters[1].now();
        let _ = measured_rds_poll(&mut nodes[1], &mut adapters[1], now.as_nanos());
        for (handle, &socket) in sockets[1].iter().enumerate().take(batch) {
            let received = measured_rds_recvmsg(&mut nodes[1], &mut adapters[1], socket, &mut buffer);
            let from = SocketAddr::new(address(0), port(handle));
            let whole = Received { from, len: LEN, message_len: LEN, cookie: None };
            assert_eq!(received, Ok(Arrival::Message(whole)));
            assert_eq!(buffer[..LEN], payload(done + handle));
        }
        // The sender hears of the acknowledgements. The receiver does all that it does inside the count.
        adapters[1].platform().settle();
        let now = adapters[0].now();
        let _ = adapters[0].poll(now);
        let _ = measured_rds_sender(&mut nodes[0], &mut adapters[0], &now);
        adapters[0].idle(now + Duration::from_micros(100));
        done += batch;
    }
}

/// Runs both nodes twice.
fn round(adapters: &mut [BenchAdapter; 2], nodes: &mut [Rds<'_>; 2]) {
    for _ in 0..2 {
        step(adapters);
        let now = adapters[0].now();
        for (rds, adapter) in nodes.iter_mut().zip(adapters.iter_mut()) {
            let _ = rds.poll(adapter, now);
        }
    }
}
