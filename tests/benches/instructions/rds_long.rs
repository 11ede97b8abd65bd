//! Long messages of RDS: copied into frames and out of them, and lent at both sides.

use crate::OPERATIONS;
use crate::dat::{BenchAdapter, adapters, step};
use dat_nostd::DmaBuffer;
use driver_mlx::{Instant, Wake};
use harness::dat::address;
use harness::rds::GENERATION;
use rds_nostd::{
    Arrival, Control, FramesHandle, Lend, Msg, MsgFlags, RdmaCookie, RdmaFlags, RdmaNotify, RdmaStatus, Rds,
    RdsConfig, RdsError, RdsStorage, SocketHandle,
};
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
    rds.sendmsg(adapter, *socket, Msg::to(to, bytes))
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

#[inline(never)]
fn measured_rds_lent_sendmsg(
    rds: &mut Rds<'_>,
    adapter: &mut BenchAdapter,
    socket: &SocketHandle,
    to: &SocketAddr,
    control: &Control<'_>,
) -> Result<Option<RdmaCookie>, RdsError> {
    rds.sendmsg(adapter, *socket, Msg::to(to, &[]).with(control))
}

#[inline(never)]
fn measured_rds_lent_poll(rds: &mut Rds<'_>, adapter: &mut BenchAdapter, milliseconds: f64) -> Wake {
    rds.poll(adapter, Instant::from_nanos((milliseconds * 1e6) as u64))
}

#[inline(never)]
fn measured_rds_lent_recvmsg(
    rds: &mut Rds<'_>,
    adapter: &mut BenchAdapter,
    socket: &SocketHandle,
) -> Result<Arrival, RdsError> {
    rds.recvmsg(adapter, *socket, &mut [], MsgFlags::ZEROCOPY)
}

#[inline(never)]
fn measured_rds_lent_give_back(
    rds: &mut Rds<'_>,
    adapter: &mut BenchAdapter,
    frames: &FramesHandle,
) -> Result<(), RdsError> {
    rds.give_back(adapter, *frames)
}

/// Two nodes with a socket each, connected.
struct Ground {
    adapters: [BenchAdapter; 2],
    nodes: Vec<Rds<'static>>,
    sockets: Vec<SocketHandle>,
    to: SocketAddr,
}

impl Ground {
    fn new(seed: u64) -> Self {
        let mut adapters = adapters(seed);
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
        // The connection is made by the first message, outside the count.
        nodes[0].sendmsg(&mut adapters[0], sockets[0], Msg::to(&to, &[7; 64])).expect("sends");
        let mut ground = Self { adapters, nodes, sockets, to };
        let mut buffer = [0; 64];
        while ground.receive(&mut buffer).is_err() {
            ground.settle();
        }
        ground
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<Arrival, RdsError> {
        self.nodes[1].recvmsg(&mut self.adapters[1], self.sockets[1], buffer, MsgFlags::empty())
    }

    fn settle(&mut self) {
        step(&mut self.adapters);
        let now = self.adapters[0].now();
        for (rds, adapter) in self.nodes.iter_mut().zip(&mut self.adapters) {
            let _ = rds.poll(adapter, now);
        }
    }

    /// Polls both nodes by `poll` until a message has arrived.
    fn arrives(&mut self, message: usize, mut poll: impl FnMut(&mut Rds<'_>, &mut BenchAdapter, Instant)) {
        let mut rounds = 0;
        while !self.nodes[1].is_readable(self.sockets[1]).expect("open") {
            rounds += 1;
            assert!(rounds < 10_000, "message {message} arrives");
            self.adapters[0].platform().settle();
            let now = self.adapters[0].now();
            for (rds, adapter) in self.nodes.iter_mut().zip(&mut self.adapters).rev() {
                poll(rds, adapter, now);
                adapter.platform().ring();
            }
        }
    }
}

fn text(message: usize) -> Vec<u8> {
    (0..LONG).map(|i| (i * 31 + i / 251 + message) as u8).collect()
}

/// Ten long messages, from one node to another: all that both do for them.
pub fn run() {
    let mut ground = Ground::new(5);
    let mut buffer = vec![0; LONG];
    for message in 0..OPERATIONS / (LONG >> 10) {
        let bytes = text(message);
        let Ground { adapters, nodes, sockets, to } = &mut ground;
        let sent = measured_rds_long_sendmsg(&mut nodes[0], &mut adapters[0], &sockets[0], to, &bytes);
        assert_eq!(sent, Ok(None));
        ground.arrives(message, |rds, adapter, now| {
            let _ = measured_rds_long_poll(rds, adapter, now.as_nanos() / 1000);
        });
        let Ground { adapters, nodes, sockets, .. } = &mut ground;
        let received = measured_rds_long_recvmsg(&mut nodes[1], &mut adapters[1], &sockets[1], &mut buffer);
        assert_eq!(received.map(|received| received.value(MsgFlags::empty())), Ok(LONG));
        assert!(buffer == bytes);
        for _ in 0..3 {
            ground.settle();
        }
    }
}

/// The same from memory that the sender lends, and taken as frames.
pub fn run_lent() {
    let mut ground = Ground::new(6);
    let memory = ground.adapters[0].dma_alloc(LONG, 4096).expect("memory");
    let to = ground.to;
    let (rds, adapter) = (&mut ground.nodes[0], &mut ground.adapters[0]);
    rds.register_memory(adapter, ground.sockets[0], to, memory.as_slice()).expect("room");
    for message in 0..OPERATIONS / (LONG >> 10) {
        let bytes = text(message);
        memory.write(0, &bytes).expect("inside");
        exchange(&mut ground, &memory, message, &bytes);
        for _ in 0..3 {
            ground.settle();
        }
        let told = ground.nodes[0].take_notification(ground.sockets[0]).expect("open");
        assert_eq!(told, Some(RdmaNotify { user_token: message as u64, status: RdmaStatus::Success }));
    }
}

fn exchange(ground: &mut Ground, memory: &DmaBuffer, message: usize, bytes: &[u8]) {
    let (flags, user_token) = (RdmaFlags::NOTIFY_ME, message as u64);
    let lend = Lend { payload: &[memory.as_slice()], flags, user_token };
    let control = Control { lend: Some(lend), ..Control::default() };
    let Ground { adapters, nodes, sockets, to } = ground;
    let sent = measured_rds_lent_sendmsg(&mut nodes[0], &mut adapters[0], &sockets[0], to, &control);
    assert_eq!(sent, Ok(None));
    ground.arrives(message, |rds, adapter, now| {
        let _ = measured_rds_lent_poll(rds, adapter, now.as_nanos() as f64 / 1e6);
    });
    let Ground { adapters, nodes, sockets, .. } = ground;
    let received = measured_rds_lent_recvmsg(&mut nodes[1], &mut adapters[1], &sockets[1]);
    let Ok(Arrival::Lent(lent)) = received else { panic!("{received:?}") };
    let mut found = vec![0; LONG];
    for (fragment, part) in found.chunks_mut(4096).zip(nodes[1].frames(lent.frames).expect("lent")) {
        part.read(0, fragment).expect("inside");
    }
    assert!(found == bytes);
    assert_eq!(measured_rds_lent_give_back(&mut nodes[1], &mut adapters[1], &lent.frames), Ok(()));
}
