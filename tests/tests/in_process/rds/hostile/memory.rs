//! Memory that was offered, and peers that reach for more of it, for longer.

use crate::rds::hostile::peer::Hostile;
use dat_nostd::{DtoStatus, EpHandle};
use driver_mlx::DmaBuffer;
use rds_nostd::{RdmaCookie, RdmaFlags};

/// Where in a page the region begins, and its bytes: neither is a multiple of anything.
const BEGINS: usize = 1021;
const LEN: usize = 2001;
const BYTE: u8 = 0x3c;

struct Offered {
    hostile: Hostile,
    memory: DmaBuffer,
    cookie: RdmaCookie,
    ep: EpHandle,
}

impl Offered {
    fn new(seed: u64) -> Self {
        let mut hostile = Hostile::new(seed);
        let memory = hostile.adapters[0].dma_alloc(8192, 4096).expect("memory");
        memory.fill(0, 8192, BYTE).expect("inside");
        let region = memory.slice(BEGINS, LEN).expect("inside");
        let (rds, adapter) = (&mut hostile.rds, &mut hostile.adapters[0]);
        let cookie = rds.get_mr(adapter, hostile.socket, region, RdmaFlags::empty()).expect("room");
        let ep = hostile.connect();
        Self { hostile, memory, cookie, ep }
    }

    /// Denied, for reading and for writing, and nothing has changed.
    fn is_denied(&mut self, key: u32, at: u64, len: u64) {
        for write in [false, true] {
            let status = self.hostile.reach(self.ep, key, at, len, write);
            assert_eq!(status, DtoStatus::ErrRemoteAccess, "{len} bytes at {at}, key {key:#x}");
            // Which broke the connection.
            self.hostile.forget(self.ep);
            self.hostile.pass(5_000);
            self.ep = self.hostile.connect();
            self.is_untouched();
        }
    }

    fn is_untouched(&self) {
        let mut found = [0; 8192];
        self.memory.read(0, &mut found).expect("inside");
        assert!(found.iter().all(|byte| *byte == BYTE));
    }
}

#[test]
fn the_bytes_that_were_offered_and_no_other() {
    let mut offered = Offered::new(80);
    let (key, first) = (offered.cookie.rkey(), u64::from(offered.cookie.offset()));
    let len = LEN as u64;
    assert_eq!(offered.hostile.reach(offered.ep, key, first, len, false), DtoStatus::Success);
    assert_eq!(offered.hostile.reach(offered.ep, key, first + len - 1, 1, false), DtoStatus::Success);
    offered.is_denied(key, first.wrapping_sub(1), 1);
    offered.is_denied(key, first, len + 1);
    offered.is_denied(key, first + len, 1);
    offered.is_denied(key, first + (1 << 32), 1);
}

#[test]
fn no_key_but_those_that_were_given() {
    let mut offered = Offered::new(81);
    let (key, first) = (offered.cookie.rkey(), u64::from(offered.cookie.offset()));
    for wrong in [key ^ 1, key ^ 0x80, key.wrapping_add(0x100), 0, u32::MAX] {
        offered.is_denied(wrong, first, 1);
    }
}

#[test]
fn no_longer_than_it_is_offered() {
    let mut offered = Offered::new(82);
    let (key, first) = (offered.cookie.rkey(), u64::from(offered.cookie.offset()));
    assert_eq!(offered.hostile.reach(offered.ep, key, first, 1, false), DtoStatus::Success);
    let Hostile { rds, adapters, socket, .. } = &mut offered.hostile;
    rds.free_mr(&mut adapters[0], *socket, offered.cookie).expect("there");
    offered.is_denied(key, first, 1);
}

/// Neither the frames nor anything else of the node is within reach with the keys of its own memory.
#[test]
fn nothing_after_the_socket_is_closed() {
    let mut offered = Offered::new(83);
    let (key, first) = (offered.cookie.rkey(), u64::from(offered.cookie.offset()));
    let Hostile { rds, adapters, socket, .. } = &mut offered.hostile;
    rds.close(&mut adapters[0], *socket).expect("open");
    offered.is_denied(key, first, 1);
}
