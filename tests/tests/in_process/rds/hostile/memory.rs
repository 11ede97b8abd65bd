//! Memory that was offered, and peers that reach for more of it, for longer.

use crate::rds::hostile::peer::{Frame, Hostile, data, frame};
use dat_nostd::{DtoStatus, EpHandle};
use driver_mlx::DmaBuffer;
use harness::dat::address;
use harness::rds::{GENERATION, finish};
use rds_nostd::wire::{Extension, Header};
use rds_nostd::{Control, Msg, RdmaArgs, RdmaCookie, RdmaFlags, RdmaNotify, RdmaStatus, RdsConfig, RdsError};
use std::net::SocketAddr;

/// Where in a page the region begins, and its bytes: neither is a multiple of anything.
const BEGINS: usize = 1021;
const LEN: usize = 2001;
const BYTE: u8 = 0x3c;

/// What is offered is registered by itself, or it is a window on memory that was registered before.
const BOTH: [bool; 2] = [false, true];

struct Offered {
    hostile: Hostile,
    memory: DmaBuffer,
    cookie: RdmaCookie,
    ep: EpHandle,
}

impl Offered {
    fn new(seed: u64, window: bool) -> Self {
        Self::with(seed, window, RdmaFlags::empty())
    }

    fn with(seed: u64, window: bool, flags: RdmaFlags) -> Self {
        let mut hostile = Hostile::new(seed);
        let memory = hostile.adapters[0].dma_alloc(8192, 4096).expect("memory");
        memory.fill(0, 8192, BYTE).expect("inside");
        let region = memory.slice(BEGINS, LEN).expect("inside");
        let ep = hostile.connect();
        hostile.pass(1);
        let (rds, adapter) = (&mut hostile.rds, &mut hostile.adapters[0]);
        let to = SocketAddr::new(address(1), 4000);
        if window {
            rds.register_memory(adapter, hostile.socket, to, memory.as_slice()).expect("room");
        }
        let cookie = rds.get_mr_for_dest(adapter, hostile.socket, to, region, flags).expect("room");
        assert_eq!(rds.counters().windows_bound, u64::from(window));
        // The HCA comes to the bind.
        hostile.pass(1);
        Self { hostile, memory, cookie, ep }
    }

    /// Denied, for reading and for writing, and nothing has changed.
    fn is_denied(&mut self, key: u32, at: u64, len: u64) {
        self.is_denied_to(false, key, at, len);
        self.is_denied_to(true, key, at, len);
    }

    fn is_denied_to(&mut self, write: bool, key: u32, at: u64, len: u64) {
        let status = self.hostile.reach(self.ep, key, at, len, write);
        assert_eq!(status, DtoStatus::ErrRemoteAccess, "{len} bytes at {at}, key {key:#x}, write: {write}");
        // Which broke the connection.
        self.hostile.forget(self.ep);
        self.hostile.pass(5_000);
        self.ep = self.hostile.connect();
        self.is_untouched();
    }

    fn is_untouched(&self) {
        let mut found = [0; 8192];
        self.memory.read(0, &mut found).expect("inside");
        assert!(found.iter().all(|byte| *byte == BYTE));
    }
}

#[test]
fn the_bytes_that_were_offered_and_no_other() {
    BOTH.into_iter().for_each(bytes_and_no_other);
}

fn bytes_and_no_other(window: bool) {
    let mut offered = Offered::new(80, window);
    let (key, first) = (offered.cookie.rkey(), u64::from(offered.cookie.offset()));
    let len = LEN as u64;
    assert_eq!(offered.hostile.reach(offered.ep, key, first, len, false), DtoStatus::Success);
    assert_eq!(offered.hostile.reach(offered.ep, key, first + len - 1, 1, false), DtoStatus::Success);
    offered.is_denied(key, first.wrapping_sub(1), 1);
    offered.is_denied(key, first, len + 1);
    offered.is_denied(key, first + len, 1);
    offered.is_denied(key, first + (1 << 32), 1);
}

/// An offer to read is none to write, and the other way round; and one without a word is none to do atomic operations.
#[test]
fn no_more_than_the_offer_says() {
    BOTH.into_iter().for_each(no_more_than_said);
}

fn no_more_than_said(window: bool) {
    let mut offered = Offered::with(85, window, RdmaFlags::PEER_READS);
    let (key, first) = (offered.cookie.rkey(), u64::from(offered.cookie.offset()));
    assert_eq!(offered.hostile.reach(offered.ep, key, first, 8, false), DtoStatus::Success);
    offered.is_denied_to(true, key, first, 8);
    for flags in [RdmaFlags::PEER_WRITES, RdmaFlags::PEER_ATOMICS] {
        let mut offered = Offered::with(86, window, flags);
        let (key, first) = (offered.cookie.rkey(), u64::from(offered.cookie.offset()));
        offered.is_denied_to(false, key, first, 8);
    }
    let mut offered = Offered::with(87, window, RdmaFlags::PEER_ATOMICS);
    let (key, first) = (offered.cookie.rkey(), u64::from(offered.cookie.offset()));
    offered.is_denied(key, first, 8);
}

#[test]
fn no_key_but_those_that_were_given() {
    BOTH.into_iter().for_each(no_other_key);
}

fn no_other_key(window: bool) {
    let mut offered = Offered::new(81, window);
    let (key, first) = (offered.cookie.rkey(), u64::from(offered.cookie.offset()));
    for wrong in [key ^ 1, key ^ 0x80, key.wrapping_add(0x100), 0, u32::MAX] {
        offered.is_denied(wrong, first, 1);
    }
}

#[test]
fn no_longer_than_it_is_offered() {
    BOTH.into_iter().for_each(no_longer);
}

fn no_longer(window: bool) {
    let mut offered = Offered::new(82, window);
    let (key, first) = (offered.cookie.rkey(), u64::from(offered.cookie.offset()));
    assert_eq!(offered.hostile.reach(offered.ep, key, first, 1, false), DtoStatus::Success);
    let Hostile { rds, adapters, socket, .. } = &mut offered.hostile;
    rds.free_mr(&mut adapters[0], *socket, offered.cookie).expect("there");
    // A window lasts until the HCA comes to the unbind.
    let ended = rds.free_mr(&mut adapters[0], *socket, RdmaCookie(0));
    assert_eq!(ended, if window { Err(RdsError::Again) } else { Ok(()) });
    let ended = finish(rds, &mut adapters[0], |rds, adapter| rds.free_mr(adapter, *socket, RdmaCookie(0)));
    assert_eq!(ended, Ok(()));
    offered.is_denied(key, first, 1);
}

/// Neither the frames nor anything else of the node is within reach with the keys of its own memory.
#[test]
fn nothing_after_the_socket_is_closed() {
    BOTH.into_iter().for_each(nothing_after_close);
}

fn nothing_after_close(window: bool) {
    let mut offered = Offered::new(83, window);
    let (key, first) = (offered.cookie.rkey(), u64::from(offered.cookie.offset()));
    let Hostile { rds, adapters, socket, .. } = &mut offered.hostile;
    finish(rds, &mut adapters[0], |rds, adapter| rds.close(adapter, *socket)).expect("open");
    offered.is_denied(key, first, 1);
}

/// A peer accepts no messages, so that binds wait after them, and reports the unbound regions as used up. No call waits, and no connection
/// breaks. The regions end once they are bound, or when the connection breaks because a call waits for the end.
#[test]
fn what_is_used_up_before_it_is_bound() {
    for waits in [false, true] {
        let config = RdsConfig { send_depth: 32, ..RdsConfig::new(GENERATION) };
        let mut hostile = Hostile::with(88, config);
        let ep = hostile.connect();
        hostile.pass(1);
        let memory = hostile.adapters[0].dma_alloc(8192, 4096).expect("memory");
        let (socket, to) = (hostile.socket, SocketAddr::new(address(1), 4000));
        let Hostile { rds, adapters, .. } = &mut hostile;
        rds.register_memory(&mut adapters[0], socket, to, memory.as_slice()).expect("room");
        for _ in 0..48 {
            hostile.victim_sends(b"stuck");
            hostile.let_time_pass(1);
            hostile.victim_looks();
        }
        let keys = [0, 1].map(|number| {
            let part = memory.slice(number * 100, 100).expect("inside");
            let control = Control { map: Some((part, RdmaFlags::USE_ONCE)), ..Control::default() };
            let Hostile { rds, adapters, .. } = &mut hostile;
            let sent = rds.sendmsg(&mut adapters[0], socket, Msg::to(&to, b"use").with(&control));
            sent.expect("room").expect("mapped").rkey()
        });
        assert_eq!(hostile.rds.counters().windows_bound, 2);
        let used = |sequence, rkey| {
            let extensions = Extension::Rdma { rkey }.encode();
            frame(Header { extensions, ..data(sequence, 8) }, 8)
        };
        hostile.send(ep, &[used(1, keys[0]), used(2, keys[1])]);
        hostile.let_time_pass(1);
        let duration = hostile.victim_looks();
        assert!(duration < 1_000_000, "{duration} ns");
        assert_eq!(hostile.received(), [8, 8]);
        assert_eq!((hostile.rds.counters().mr_8k_free, hostile.rds.counters().conn_reset), (2, 0));
        if waits {
            for milliseconds in 0.. {
                hostile.let_time_pass(1);
                hostile.victim_looks();
                let Hostile { rds, adapters, .. } = &mut hostile;
                let ended = rds.free_mr(&mut adapters[0], socket, RdmaCookie(0));
                assert_eq!(
                    ended,
                    if milliseconds < 100 { Err(RdsError::Again) } else { Ok(()) },
                    "{milliseconds}"
                );
                if ended.is_ok() {
                    break;
                }
            }
            assert_eq!(hostile.rds.counters().conn_reset, 1);
            assert_ne!(hostile.reach(ep, keys[0], 0, 8, true), DtoStatus::Success);
            continue;
        }
        hostile.pass(5);
        assert_eq!((hostile.rds.counters().mr_8k_free, hostile.rds.counters().conn_reset), (2, 0));
        assert_eq!(hostile.reach(ep, keys[0], 0, 8, true), DtoStatus::ErrRemoteAccess);
    }
}

/// A peer denies an operation and breaks the protocol at once: that ends the connection, but the denial was there before.
#[test]
fn a_denial_is_told_whatever_else_ends_the_connection() {
    let mut hostile = Hostile::new(84);
    let ep = hostile.connect();
    hostile.pass(1);
    let memory = hostile.adapters[0].dma_alloc(4096, 4096).expect("memory");
    let args = RdmaArgs {
        cookie: RdmaCookie(0x5a5a_5a00),
        remote_offset: 0,
        remote_bytes: 8,
        local: &[memory.slice(0, 8).expect("inside")],
        flags: RdmaFlags::NOTIFY_ME | RdmaFlags::READWRITE,
        user_token: 7,
    };
    let (to, control) =
        (SocketAddr::new(address(1), 4000), Control { rdma: Some(args), ..Control::default() });
    hostile.send(ep, &[Frame { spoilt: true, ..frame(data(1, 10), 10) }]);
    let Hostile { rds, adapters, socket, .. } = &mut hostile;
    rds.sendmsg(&mut adapters[0], *socket, Msg::to(&to, b"after it").with(&control)).expect("accepted");
    // Both have come when the victim looks.
    hostile.let_time_pass(1);
    hostile.until("the frame is seen", |counters| counters.recv_drop_bad_checksum == 1);
    let told = hostile.rds.take_notification(hostile.socket).expect("open");
    assert_eq!(told, Some(RdmaNotify { user_token: 7, status: RdmaStatus::RemoteError }));
}
