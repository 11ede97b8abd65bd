//! Honest nodes: each sends numbered messages to each other one, and gets all of theirs once and in order.

use harness::dat::ModelAdapter;
use harness::rds::{GENERATION, at, message};
use harness::seeds::Random;
use rds_nostd::{Arrival, Msg, MsgFlags, Rds, RdsConfig, RdsError, RdsStorage, SocketHandle};
use std::net::SocketAddr;

/// The port that honest nodes talk to each other by.
pub const PORT: u16 = 4000;
/// A second socket of the victim, which talks to the hostile node.
pub const OTHER_PORT: u16 = 4001;
pub const SEND_BUFFER: usize = 60_000;

pub struct Honest {
    pub index: usize,
    pub adapter: ModelAdapter,
    pub rds: Rds<'static>,
    pub socket: SocketHandle,
    pub free_frames: usize,
    /// Messages sent to each honest node, and received from it.
    pub sent: Vec<usize>,
    pub received: Vec<usize>,
    buffer: Vec<u8>,
    /// Some messages are longer than a peer's share of frames.
    pub long: bool,
}

/// The length of a message, which the receiver can work out, too.
fn len(from: usize, to: usize, number: usize, long: bool) -> usize {
    let mut random = Random::new((from << 40 | to << 32 | number) as u64);
    if long && number % 32 == 31 {
        return 33_000 + random.below(24_000) as usize;
    }
    match random.below(8) {
        0 => 0,
        1..5 => random.below(300) as usize,
        5 => random.pick(&[4095, 4096, 4097]),
        _ => random.below(15_000) as usize,
    }
}

impl Honest {
    pub fn new(seed: u64, index: usize, mut adapter: ModelAdapter, count: usize) -> Self {
        // Two honest peers, and as many connections as the hostile one may have.
        let storage = Box::leak(Box::new(RdsStorage::<4, 6, 320>::new()));
        let config = RdsConfig {
            seed: seed << 8 | index as u64,
            send_buffer: SEND_BUFFER,
            receive_depth: 16,
            ..RdsConfig::new(GENERATION)
        };
        let mut rds = Rds::start(&mut adapter, storage.parts(), config).expect("starts");
        let free_frames = rds.free_frames();
        let socket = rds.bind(at(index, PORT)).expect("binds");
        let (sent, received) = (vec![0; count], vec![0; count]);
        Self {
            index,
            adapter,
            rds,
            socket,
            free_frames,
            sent,
            received,
            buffer: vec![0; 1 << 20],
            long: false,
        }
    }

    pub fn send(&mut self, to: usize) {
        let number = self.sent[to];
        let bytes = message(self.index, number, len(self.index, to, number, self.long));
        match self.rds.sendmsg(&mut self.adapter, self.socket, Msg::to(&at(to, PORT), &bytes)) {
            Ok(_) => self.sent[to] += 1,
            Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => {}
            Err(error) => panic!("{} to {to}: {error}", self.index),
        }
    }

    /// Prints what it is up to.
    pub fn describe(&self) {
        let Self { index, adapter, rds, sent, received, free_frames, .. } = self;
        eprintln!("node {index}: sent {sent:?}, received {received:?}");
        eprintln!("  {} of {free_frames} frames are free; {:?}", rds.free_frames(), rds.counters());
        rds.connections_info().for_each(|connection| eprintln!("  {connection:?}"));
        rds.ib_connections_info(adapter).for_each(|connection| eprintln!("  {connection:?}"));
        rds.sockets_info().for_each(|socket| eprintln!("  {socket:?}"));
        let waiting =
            rds.send_queue_info().chain(rds.retransmit_queue_info()).chain(rds.receive_queue_info());
        waiting.for_each(|message| eprintln!("  {message:?}"));
    }

    /// Reads all that there is. `hostile` is the address of the one node from which anything may come.
    pub fn read(&mut self, hostile: SocketAddr) {
        while let Ok(Arrival::Message(received)) =
            self.rds.recvmsg(&mut self.adapter, self.socket, &mut self.buffer, MsgFlags::empty())
        {
            if received.from.ip() == hostile.ip() {
                continue;
            }
            let from = (0..self.received.len()).find(|from| at(*from, PORT) == received.from);
            let from = from.unwrap_or_else(|| panic!("{} got a message from {}", self.index, received.from));
            let number = self.received[from];
            let expected = message(from, number, len(from, self.index, number, self.long));
            assert!(
                received.message_len == expected.len() && self.buffer[..received.len] == expected,
                "{} got {} bytes from {from} instead of message {number}",
                self.index,
                received.message_len
            );
            self.received[from] += 1;
        }
    }
}
