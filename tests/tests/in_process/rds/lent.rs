//! Payloads that nobody copies: lent by the sender, taken as frames by the receiver.

use dat_nostd::{DmaBuffer, DmaSlice};
use harness::rds::{GENERATION, Nodes, at, message};
use rds_nostd::{
    Arrival, Control, FramesHandle, Lend, Msg, MsgFlags, RdmaCookie, RdmaFlags, RdmaNotify, RdmaStatus,
    RdsConfig, RdsError, SocketHandle,
};
use std::rc::Rc;

const MEMORY: usize = (1 << 20) + 4096;

/// Node 0 lends what it sends to node 1.
struct Ground {
    nodes: Nodes,
    sockets: Vec<SocketHandle>,
    memory: Rc<DmaBuffer>,
}

const fn config(seed: u64) -> RdsConfig {
    RdsConfig { seed, send_buffer: 4 << 20, receive_buffer: 4 << 20, ..RdsConfig::new(GENERATION) }
}

/// All of it, to be sent in place of a payload.
fn lending<'a>(payload: &'a [DmaSlice<'a>], user_token: u64) -> Control<'a> {
    let lend = Lend { payload, flags: RdmaFlags::NOTIFY_ME, user_token };
    Control { lend: Some(lend), ..Control::default() }
}

impl Ground {
    fn new(seed: u64, faults: &str, count: usize, config: RdsConfig) -> Self {
        let mut nodes = Nodes::with(seed, faults, count, config);
        let sockets = (0..count).map(|node| nodes.bind(node, 4000)).collect();
        let memory = Rc::new(nodes.adapters[0].dma_alloc(MEMORY, 4096).expect("memory"));
        Self { nodes, sockets, memory }
    }

    /// Sends bytes of the memory to node 1.
    fn lend(&mut self, offset: usize, len: usize, user_token: u64) -> Result<(), RdsError> {
        let memory = Rc::clone(&self.memory);
        let payload = [memory.slice(offset, len).expect("inside")];
        self.lend_pieces(&payload, user_token)
    }

    fn lend_pieces(&mut self, payload: &[DmaSlice<'_>], user_token: u64) -> Result<(), RdsError> {
        let control = lending(payload, user_token);
        let (rds, adapter) = (&mut self.nodes.rds[0], &mut self.nodes.adapters[0]);
        rds.sendmsg(adapter, self.sockets[0], Msg::to(&at(1, 4000), &[]).with(&control)).map(|cookie| {
            assert_eq!(cookie, None);
        })
    }

    /// The next end of a loan.
    fn told(&mut self) -> RdmaNotify {
        let (mut told, socket) = (None, self.sockets[0]);
        self.nodes.until("a loan ends", |nodes| {
            told = nodes.rds[0].take_notification(socket).expect("open");
            told.is_some()
        });
        told.expect("one")
    }

    /// The next message of a node, with its frames.
    fn take(&mut self, node: usize) -> (FramesHandle, Vec<u8>) {
        let (mut got, socket) = (None, self.sockets[node]);
        self.nodes.until("a message arrives", |nodes| {
            let (rds, adapter) = (&mut nodes.rds[node], &mut nodes.adapters[node]);
            match rds.recvmsg(adapter, socket, &mut [], MsgFlags::ZEROCOPY) {
                Ok(Arrival::Lent(lent)) => got = Some(lent),
                Ok(other) => panic!("{other:?}"),
                Err(RdsError::Again) => {}
                Err(error) => panic!("{error}"),
            }
            got.is_some()
        });
        let lent = got.expect("one");
        let mut bytes = vec![];
        for part in self.nodes.rds[node].frames(lent.frames).expect("lent") {
            let mut fragment = vec![0; part.len()];
            part.read(0, &mut fragment).expect("inside");
            bytes.extend(fragment);
        }
        assert_eq!(bytes.len(), lent.message_len);
        (lent.frames, bytes)
    }

    fn give_back(&mut self, node: usize, frames: FramesHandle) -> Result<(), RdsError> {
        self.nodes.rds[node].give_back(&mut self.nodes.adapters[node], frames)
    }

    fn close(self) {
        self.nodes.close_with([Rc::into_inner(self.memory).expect("nobody has it")]);
    }
}

/// Messages of any length, from an odd address: read by copying, and as frames. With registered memory they take no command of firmware.
#[test]
fn messages_of_every_length() {
    for isolate_peers in [true, false] {
        let mut ground = Ground::new(140, "none", 2, RdsConfig { isolate_peers, ..config(140) });
        let memory = Rc::clone(&ground.memory);
        let text = message(0, 1, MEMORY);
        memory.write(0, &text).expect("inside");
        ground.lend(0, 1, 0).expect("taken");
        assert_eq!(ground.nodes.receive(1, ground.sockets[1], &mut [0; 8]).len, 1);
        assert_eq!(ground.told(), RdmaNotify { user_token: 0, status: RdmaStatus::Success });
        let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
        let registered = rds.register_memory(adapter, ground.sockets[0], at(1, 4000), memory.as_slice());
        let (registered, free) = (registered.expect("room"), ground.nodes.rds[0].free_frames());
        let before = ground.nodes.adapters[0].hca().counters().commands;
        let mut buffer = vec![0; MEMORY];
        for (number, len) in [1, 63, 4095, 4096, 4097, 64 << 12, (64 << 12) + 1, (65 << 12) + 5, 1 << 20]
            .into_iter()
            .enumerate()
        {
            for frames in [false, true] {
                // A long message unread is more than the port should hold.
                while let Err(error) = ground.lend(3, len, number as u64) {
                    assert_eq!(error, RdsError::Congested);
                    ground.nodes.step();
                }
                if frames {
                    let (handle, found) = ground.take(1);
                    assert!(found == text[3..3 + len], "{len} bytes");
                    assert_eq!(ground.give_back(1, handle), Ok(()));
                    assert_eq!(ground.give_back(1, handle), Err(RdsError::InvalidArgument));
                    assert!(ground.nodes.rds[1].frames(handle).is_err());
                } else {
                    let received = ground.nodes.receive(1, ground.sockets[1], &mut buffer);
                    assert!(received.len == len && buffer[..len] == text[3..3 + len], "{len} bytes");
                }
                let status = RdmaStatus::Success;
                assert_eq!(ground.told(), RdmaNotify { user_token: number as u64, status });
            }
        }
        assert_eq!(ground.nodes.adapters[0].hca().counters().commands, before);
        // But for a few receives that are posted at another time.
        assert!(ground.nodes.rds[0].free_frames() + 10 > free, "{} were free", free);
        let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
        assert_eq!(rds.unregister_memory(adapter, ground.sockets[0], registered), Ok(()));
        drop(memory);
        ground.close();
    }
}

/// Nothing may go along with a lent payload, which has to be there and to go to another node.
#[test]
fn what_is_refused() {
    let mut ground = Ground::new(141, "none", 2, config(141));
    let memory = Rc::clone(&ground.memory);
    let socket = ground.sockets[0];
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    let piece = [memory.slice(0, 100).expect("inside")];
    let control = lending(&piece, 0);
    let mut refused = |to, payload: &[u8], control: &Control<'_>| {
        rds.sendmsg(adapter, socket, Msg::to(&to, payload).with(control)).expect_err("refused")
    };
    assert_eq!(refused(at(1, 4000), b"x", &control), RdsError::InvalidArgument);
    let and_dest = Control { dest: Some(RdmaCookie(0x300)), ..control };
    assert_eq!(refused(at(1, 4000), &[], &and_dest), RdsError::InvalidArgument);
    let piece = [memory.slice(0, 0).expect("inside")];
    let empty = lending(&piece, 0);
    assert_eq!(refused(at(1, 4000), &[], &empty), RdsError::InvalidArgument);
    assert_eq!(refused(at(0, 4001), &[], &control), RdsError::NotSupported);
    let piece = [memory.slice(0, (1 << 20) + 1).expect("inside")];
    let long = lending(&piece, 0);
    assert_eq!(refused(at(1, 4000), &[], &long), RdsError::MessageSize);
    drop(memory);
    ground.close();
}

/// Over connections that break all the time each message arrives once, in order and whole, and each loan ends once and well.
#[test]
fn broken_connections_lose_and_double_nothing() {
    const SLOTS: usize = 8;
    const LEN: usize = 20_000;
    const COUNT: usize = 300;
    let mut ground = Ground::new(142, "loss=0.3%,dup=1%", 2, RdsConfig { retry_count: 0, ..config(142) });
    let memory = Rc::clone(&ground.memory);
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    rds.register_memory(adapter, ground.sockets[0], at(1, 4000), memory.as_slice()).expect("room");
    let (mut sent, mut ended, mut arrived) = (0, 0, 0);
    while ended < COUNT || arrived < COUNT {
        while sent < COUNT && sent - ended < SLOTS {
            let len = LEN - sent;
            memory.write(sent % SLOTS * LEN, &message(0, sent, len)).expect("inside");
            ground.lend(sent % SLOTS * LEN, len, sent as u64).expect("taken");
            sent += 1;
        }
        while let Some(told) = ground.nodes.rds[0].take_notification(ground.sockets[0]).expect("open") {
            assert_eq!(told, RdmaNotify { user_token: ended as u64, status: RdmaStatus::Success });
            ended += 1;
        }
        if ground.nodes.rds[1].is_readable(ground.sockets[1]).expect("open") {
            let (frames, found) = ground.take(1);
            assert!(found == message(0, arrived, LEN - arrived), "message {arrived}");
            ground.give_back(1, frames).expect("lent");
            arrived += 1;
        }
        ground.nodes.step();
    }
    let counters = ground.nodes.rds[0].counters();
    assert!(counters.conn_reset > 3 && counters.send_retransmitted > 3, "{counters:?}");
    drop(memory);
    ground.close();
}

/// A loan ends when its message is given up: then nothing uses the memory, though the peer has not answered.
#[test]
fn given_up() {
    let mut ground = Ground::new(143, "none", 2, config(143));
    let memory = Rc::clone(&ground.memory);
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    let registered =
        rds.register_memory(adapter, ground.sockets[0], at(1, 4000), memory.as_slice()).expect("room");
    ground.lend(0, 5, 0).expect("taken");
    ground.take(1);
    ground.told();
    ground.nodes.world.set_cable(1, false);
    // Some of it is posted, more than the send queue takes is not.
    for token in 1..4 {
        ground.lend(0, 1 << 20, token).expect("taken");
    }
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    let socket = ground.sockets[0];
    assert_eq!(rds.unregister_memory(adapter, socket, registered), Err(RdsError::Again));
    ground.nodes.cancel(0, socket, at(1, 4000));
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    let mut told: Vec<_> = std::iter::from_fn(|| rds.take_notification(socket).expect("open"))
        .map(|told| (told.user_token, told.status))
        .collect();
    told.sort_unstable_by_key(|told| told.0);
    assert_eq!(told, [1, 2, 3].map(|token| (token, RdmaStatus::Canceled)));
    assert_eq!(rds.unregister_memory(adapter, socket, registered), Ok(()));
    // What is registered for the message is no longer so when the socket is closed.
    let piece = [memory.slice(0, 5).expect("inside")];
    let lent = lending(&piece, 4);
    rds.sendmsg(adapter, socket, Msg::to(&at(1, 4000), &[]).with(&lent)).expect("taken");
    rds.close(adapter, socket).expect("open");
    drop(memory);
    let memory = Rc::into_inner(ground.memory).expect("nobody has it");
    ground.nodes.adapters[0].dma_free(memory).expect("nothing leads to it");
    ground.nodes.world.set_cable(1, true);
    ground.nodes.close();
}

/// Frames that are lent count as messages that nobody read: the sender is held back until they come back, even if the socket is gone by
/// then.
#[test]
fn frames_count_until_they_come_back() {
    let receive_buffer = 20_000;
    let mut ground = Ground::new(144, "none", 2, RdsConfig { receive_buffer, ..config(144) });
    ground.lend(0, 5000, 0).expect("taken");
    let mut taken = vec![ground.take(1).0];
    let free = ground.nodes.rds[1].free_frames();
    let mut refused = false;
    for _ in 0..100 {
        match ground.lend(0, 5000, 0) {
            Ok(()) => taken.push(ground.take(1).0),
            Err(error) => {
                assert_eq!(error, RdsError::Congested);
                refused = true;
                break;
            }
        }
        for _ in 0..20 {
            ground.nodes.step();
        }
    }
    assert!(refused && taken.len() >= 4, "{} messages", taken.len());
    while taken.len() > 1 {
        let frames = taken.pop().expect("one");
        ground.give_back(1, frames).expect("lent");
    }
    let mut sent = false;
    for _ in 0..1000 {
        ground.nodes.step();
        if ground.lend(0, 5000, 0).is_ok() {
            sent = true;
            break;
        }
    }
    assert!(sent, "the port is clear again");
    // Full again when it is closed: the port is free for the next one all the same.
    taken.push(ground.take(1).0);
    while ground.lend(0, 5000, 0).is_ok() {
        taken.push(ground.take(1).0);
        for _ in 0..20 {
            ground.nodes.step();
        }
    }
    let [_, socket] = ground.sockets[..] else { panic!("two") };
    ground.nodes.rds[1].close(&mut ground.nodes.adapters[1], socket).expect("open");
    ground.sockets[1] = ground.nodes.bind(1, 4000);
    ground.nodes.until("the port clears", |nodes| {
        nodes.rds[0].sendmsg(&mut nodes.adapters[0], ground.sockets[0], Msg::to(&at(1, 4000), b"x")).is_ok()
    });
    assert_eq!(ground.nodes.receive(1, ground.sockets[1], &mut [0; 1]).len, 1);
    for frames in taken {
        assert_eq!(ground.give_back(1, frames), Ok(()));
    }
    for _ in 0..50 {
        ground.nodes.step();
    }
    assert!(ground.nodes.rds[1].free_frames() >= free);
    ground.close();
}

/// A program that keeps all frames of one peer starves that one, nobody else.
#[test]
fn kept_frames_are_those_of_one_peer() {
    let mut ground = Ground::new(145, "none", 3, config(145));
    let text = message(0, 1, 4000);
    let [victim, keeper, other] = ground.sockets[..] else { panic!("three") };
    let mut kept = vec![];
    for _ in 0..3000 {
        let _ = ground.nodes.send(0, victim, at(1, 4000), &text);
        let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
        while let Ok(Arrival::Lent(lent)) = rds.recvmsg(adapter, keeper, &mut [], MsgFlags::ZEROCOPY) {
            kept.push(lent.frames);
        }
        ground.nodes.step();
    }
    assert!(kept.len() > 30, "{}", kept.len());
    // It says that its port takes no more; another of the node does.
    let free = ground.nodes.bind(1, 4001);
    for number in 0..200 {
        ground.nodes.send(2, other, at(1, 4001), &message(2, number, 64)).expect("taken");
        let mut buffer = [0; 64];
        ground.nodes.receive(1, free, &mut buffer);
        assert_eq!(buffer[..], message(2, number, 64));
    }
    for frames in kept {
        ground.give_back(1, frames).expect("lent");
    }
    ground.nodes.until("the port clears", |nodes| nodes.send(2, other, at(1, 4000), b"x").is_ok());
    ground.close();
}

/// An adapter that fails takes the registration with it: what the peer had not acknowledged ends as dropped, once, when the adapter is
/// recovered and not before, whether it was begun or not; what was given up before stays given up. Then memory can be lent again.
#[test]
fn loans_end_with_a_recovery() {
    let mut ground = Ground::new(146, "none", 2, config(146));
    let memory = Rc::clone(&ground.memory);
    let text = message(0, 3, MEMORY);
    memory.write(0, &text).expect("inside");
    let socket = ground.sockets[0];
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    let registered = rds.register_memory(adapter, socket, at(1, 4000), memory.as_slice()).expect("room");
    ground.lend(0, 5, 0).expect("taken");
    ground.take(1);
    ground.told();
    ground.nodes.world.set_cable(1, false);
    // Some of it is posted, more than the send queue takes is not; to another port, so that these are given up alone.
    for (token, port) in [(1, 4000), (2, 4000), (3, 4001), (4, 4000)] {
        let piece = [memory.slice(0, 1 << 20).expect("inside")];
        let control = lending(&piece, token);
        let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
        rds.sendmsg(adapter, socket, Msg::to(&at(1, port), &[]).with(&control)).expect("taken");
    }
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    rds.cancel_sent_to(adapter, socket, at(1, 4001)).expect("bound");
    assert_eq!(ground.told(), RdmaNotify { user_token: 3, status: RdmaStatus::Canceled });
    ground.nodes.world.lose_hca(0, 20_000_000_000);
    ground.nodes.until("the end", |nodes| nodes.adapters[0].is_dead());
    let end = ground.nodes.world.now() + 1_000_000_000;
    ground.nodes.until("a second", |nodes| nodes.world.now() > end);
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    assert_eq!(rds.take_notification(socket), Ok(None));
    assert_eq!(rds.unregister_memory(adapter, socket, registered), Err(RdsError::Again));
    adapter.recover(dat_nostd::Duration::from_secs(30)).expect("recovers");
    rds.adapter_recovered(adapter).expect("goes on");
    let mut told: Vec<_> = std::iter::from_fn(|| rds.take_notification(socket).expect("open"))
        .map(|told| (told.user_token, told.status))
        .collect();
    told.sort_unstable_by_key(|told| told.0);
    assert_eq!(told, [1, 2, 4].map(|token| (token, RdmaStatus::Dropped)));
    assert_eq!(rds.unregister_memory(adapter, socket, registered), Err(RdsError::InvalidArgument), "gone");
    assert_eq!(rds.unacknowledged(socket), Ok(0));
    ground.nodes.world.set_cable(1, true);
    ground.lend(7, 9000, 5).expect("taken");
    let (frames, found) = ground.take(1);
    assert!(found == text[7..9007]);
    ground.give_back(1, frames).expect("lent");
    assert_eq!(ground.told(), RdmaNotify { user_token: 5, status: RdmaStatus::Success });
    drop(memory);
    ground.close();
}

/// A device that dies while pieces are registered for an operation may still write to those that were: the message is refused, and the
/// socket is not closed before the device was reset. Nothing is told of it, and nothing of it is lost.
#[test]
fn pieces_of_what_came_to_nothing() {
    let mut ground = Ground::new(148, "none", 2, config(148));
    let socket = ground.sockets[0];
    ground.lend(0, 5, 0).expect("taken");
    ground.take(1);
    ground.told();
    let own = harness::foreign(1 << 16);
    let pieces = [0, 1].map(|half| own.slice(half << 15, 1 << 15).expect("inside"));
    let before = ground.nodes.world.now();
    ground.lend_pieces(&pieces, 1).expect("taken");
    let both = ground.nodes.world.now() - before;
    ground.take(1);
    ground.told();
    // In the second of the commands: they take less than half of the call's time.
    ground.nodes.world.later(0, both / 3, hca_model::Hca::kill);
    ground.nodes.world.later(0, 20_000_000_000, hca_model::Hca::revive);
    let commands = ground.nodes.adapters[0].hca().counters().commands;
    let refused = ground.lend_pieces(&pieces, 2);
    assert!(matches!(refused, Err(RdsError::Dat(_))), "{refused:?}");
    assert_eq!(ground.nodes.adapters[0].hca().counters().commands, commands + 2);
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    assert_eq!(rds.close(adapter, socket), Err(RdsError::Again));
    adapter.recover(dat_nostd::Duration::from_secs(30)).expect("recovers");
    rds.adapter_recovered(adapter).expect("goes on");
    assert_eq!(rds.take_notification(socket), Ok(None));
    assert_eq!(rds.close(adapter, socket), Ok(()));
    ground.close();
}

/// Payloads of pieces of any length, in memory that is registered and that is not, between messages that are not lent: each arrives whole.
/// Over connections that break, too.
#[test]
fn several_pieces() {
    for faults in ["none", "loss=0.3%,dup=1%"] {
        let mut ground = Ground::new(147, faults, 2, RdsConfig { retry_count: 0, ..config(147) });
        let memory = Rc::clone(&ground.memory);
        let text = message(0, 1, MEMORY);
        memory.write(0, &text).expect("inside");
        let half = memory.slice(0, MEMORY / 2).expect("inside");
        let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
        rds.register_memory(adapter, ground.sockets[0], at(1, 4000), half).expect("room");
        let shapes: [&[usize]; 7] = [
            &[1, 1],
            &[4096, 4096, 4096],
            &[4095, 2, 4095],
            &[1000, 1000, 1000, 1000, 97, 900],
            &[100_000, 3, 200_000, 5],
            &[8192, 1, 1, 1, 4093, 20_000],
            &[300_001, 4097, 2, 40_000],
        ];
        let mut buffer = vec![0; MEMORY];
        for (number, shape) in shapes.into_iter().enumerate() {
            // Backwards through the memory, so that no piece lies behind the one before it.
            let mut at_end = MEMORY - number;
            let (mut pieces, mut expected) = (vec![], vec![]);
            for len in shape {
                at_end -= len + 7;
                pieces.push(memory.slice(at_end, *len).expect("inside"));
                expected.extend_from_slice(&text[at_end..at_end + len]);
            }
            let send = |ground: &mut Ground, plain: bool| {
                let sent = if plain {
                    ground.nodes.send(0, ground.sockets[0], at(1, 4000), &[9; 5000]).map(|_| ())
                } else {
                    ground.lend_pieces(&pieces, number as u64)
                };
                sent.is_ok()
            };
            for plain in [false, true, false] {
                while !send(&mut ground, plain) {
                    ground.nodes.step();
                }
            }
            for plain in [false, true, false] {
                let received = ground.nodes.receive(1, ground.sockets[1], &mut buffer);
                if plain {
                    assert!(buffer[..received.len] == [9; 5000]);
                    continue;
                }
                assert!(buffer[..received.len] == expected, "{shape:?}");
                let status = RdmaStatus::Success;
                assert_eq!(ground.told(), RdmaNotify { user_token: number as u64, status });
            }
        }
        // As many as there may be; one more, and too short ones, are refused.
        let many: Vec<_> = (0..513).map(|index| memory.slice(index * 1025, 1024).expect("inside")).collect();
        assert_eq!(ground.lend_pieces(&many, 0), Err(RdsError::MessageSize));
        ground.nodes.rds[0].set_send_buffer(ground.sockets[0], 1 << 20).expect("open");
        ground.nodes.until("the port is clear", |nodes| {
            let payload: Vec<_> = many[..512].to_vec();
            let control = lending(&payload, 1);
            let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
            rds.sendmsg(adapter, ground.sockets[0], Msg::to(&at(1, 4000), &[]).with(&control)).is_ok()
        });
        let received = ground.nodes.receive(1, ground.sockets[1], &mut buffer);
        let expected: Vec<u8> = (0..512).flat_map(|index| text[index * 1025..][..1024].to_vec()).collect();
        assert!(buffer[..received.len] == expected);
        ground.told();
        for cuts in [&[4000, 20, 20, 20, 20, 20][..], &[819; 6], &[4096, 1, 1, 1, 1, 1, 4090]] {
            let pieces: Vec<_> = cuts.iter().map(|len| memory.slice(0, *len).expect("inside")).collect();
            assert_eq!(ground.lend_pieces(&pieces, 0), Err(RdsError::InvalidArgument), "{cuts:?}");
        }
        let empty = [memory.slice(0, 10).expect("inside"), memory.slice(0, 0).expect("inside")];
        assert_eq!(ground.lend_pieces(&empty, 0), Err(RdsError::InvalidArgument));
        let breaks = ground.nodes.rds[0].counters().conn_reset;
        assert_eq!(breaks > 0, faults != "none", "{breaks} with {faults}");
        drop(memory);
        ground.close();
    }
}
