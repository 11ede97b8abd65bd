//! Device memory on the data path: peers read, write and change it as they do with memory, as packets and without.

use mlx5_prm::datapath::{CqeOpcode, SendOpcode};
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::AccessFlags;

use super::bed::{Bed, Handle, Options, PD, pattern};
use super::requests::Request;
use crate::object::memic::BAR_OFFSET;
use crate::object::mkey::{Mkey, Translation};

const LEN: usize = 0x3000;

/// Memory of node `node`'s device, `LEN` bytes from `page` on: where it lies in BAR0, and a key of all of it.
fn device_memory(bed: &mut Bed, node: usize, page: u64) -> (usize, u32) {
    let memic = &mut bed.hca(node).device.objects.memic;
    let start = memic.alloc(BAR_OFFSET as u64 + page * 0x1000, LEN as u64, LEN as u64, 12).unwrap();
    let place = memic.place(start, LEN as u64).unwrap();
    let key = bed.hca(node).device.objects.mkeys.insert(|index| Mkey {
        key: index << 8 | 0x42,
        pd: PD,
        qpn: None,
        access: AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::ATOMIC,
        free: false,
        remote_invalidate: false,
        start_addr: 0,
        len: LEN as u64,
        length64: false,
        translation: Translation::Device { start: place, len: LEN as u64 },
        octowords: 0,
        context: Vec::new(),
    });
    (start as usize, key.unwrap() << 8 | 0x42)
}

fn bar(bed: &mut Bed, node: usize, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bed.hca(node).bar().read(at, &mut bytes);
    bytes
}

fn succeeds(bed: &mut Bed, qp: &mut Handle, request: &Request) {
    bed.send(qp, request);
    let completion = bed.wait(qp);
    assert_eq!(completion.opcode, CqeOpcode::REQ, "{completion:?}");
}

/// All that a peer does. Answers what both see afterwards.
fn traffic(packets_only: bool) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let mut bed = Bed::without_latency(2);
    bed.world.set_packets_only(packets_only);
    let (mut a, mut b) = bed.pair(&Options::default());
    let (local, lkey) = bed.buffer(0, 2 * LEN);
    let (start, rkey) = device_memory(&mut bed, 1, 1);
    let data = pattern(1, 2, LEN);
    bed.guests[0].write(local, &data);
    let (len, here) = (LEN as u32, local);
    // Addresses count from the key's first byte.
    succeeds(&mut bed, &mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(here, len, lkey)]).to(0, rkey));
    assert_eq!(bar(&mut bed, 1, start, LEN), data);
    assert_eq!(bar(&mut bed, 1, start - 64, 64), [0; 64]);
    // What the peer's processor writes is read.
    bed.hca(1).bar().write(start + 0x1ff8, &100u64.to_be_bytes());
    let back = local + LEN as u64;
    succeeds(&mut bed, &mut a, &Request::new(SendOpcode::RDMA_READ, &[(back, len, lkey)]).to(0, rkey));
    let read = bed.guests[0].read(back, LEN);
    assert_eq!(read[0x1ff8..0x2000], 100u64.to_be_bytes());
    let mut add = Request::new(SendOpcode::ATOMIC_FA, &[(here, 8, lkey)]).to(0x1ff8, rkey);
    add.atomic = (23, 0);
    succeeds(&mut bed, &mut a, &add);
    assert_eq!(bed.guests[0].read(here, 8), 100u64.to_be_bytes());
    assert_eq!(bar(&mut bed, 1, start + 0x1ff8, 8), 123u64.to_be_bytes());
    // As a local buffer: sent from, and received into.
    let (own, own_key) = device_memory(&mut bed, 0, 4);
    bed.hca(0).bar().write(own + 0x10, b"from the device");
    bed.receive(&mut b, &[(0x20, 15, rkey)]);
    succeeds(&mut bed, &mut a, &Request::new(SendOpcode::SEND, &[(0x10, 15, own_key)]));
    assert_eq!(bed.wait(&b).bytes, 15);
    assert_eq!(bar(&mut bed, 1, start + 0x20, 15), b"from the device");
    (bar(&mut bed, 1, start, LEN), read, bar(&mut bed, 0, own, LEN))
}

#[test]
fn a_peer_uses_device_memory_as_any_other() {
    assert_eq!(traffic(true), traffic(false));
}

#[test]
fn a_peer_gets_no_further_than_the_key() {
    for packets_only in [true, false] {
        for (address, len) in [(LEN as u64 - 8, 9), (LEN as u64, 1), (u64::MAX, 2), (BAR_OFFSET as u64, 8)] {
            let mut bed = Bed::without_latency(2);
            bed.world.set_packets_only(packets_only);
            let (mut a, _) = bed.pair(&Options::default());
            let (local, lkey) = bed.buffer(0, LEN);
            let (start, rkey) = device_memory(&mut bed, 1, 1);
            bed.guests[0].write(local, &[7; 16]);
            let request = Request::new(SendOpcode::RDMA_WRITE, &[(local, len, lkey)]).to(address, rkey);
            bed.send(&mut a, &request);
            let completion = bed.wait(&a);
            assert_eq!(completion.syndrome, CqeSyndrome::REMOTE_ACCESS_ERR.0, "{len} bytes at {address:#x}");
            assert!(bar(&mut bed, 1, start - 0x1000, LEN + 0x2000).iter().all(|byte| *byte == 0));
        }
    }
}
