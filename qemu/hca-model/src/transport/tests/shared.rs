//! Shared receive queues.

use mlx5_prm::contexts::qpc;
use mlx5_prm::datapath::{CqeOpcode, SendOpcode, wqe_data_seg, wqe_srq_next_seg};
use mlx5_prm::event::EventType;
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{QpState, ServiceType};

use super::bed::{Bed, Handle, Options, PD, pattern};
use super::requests::{Request, data_segment};
use crate::object::pages::PageList;
use crate::object::srq::{Srq, SrqKind};

const ENTRIES: u64 = 8;

#[test]
fn two_connections_share_a_linked_list() {
    two_connections_share(true, 5);
}

#[test]
fn two_connections_share_a_ring_whose_entries_name_a_next_one_in_vain() {
    two_connections_share(false, 1);
}

/// A ring of [`ENTRIES`] entries of 64 bytes on node 1.
fn make_rmp(bed: &mut Bed, at: u64, dbr: u64, linked: bool) -> u32 {
    let srqn = bed.hca(1).device.objects.srqs.insert(|srqn| Srq {
        srqn,
        kind: SrqKind::Rmp,
        pd: PD,
        cqn: 0,
        xrcd: 0,
        buffer: PageList::new(vec![at], 12, 0, 64 * ENTRIES).unwrap(),
        log_size: 3,
        log_stride: 6,
        linked,
        dbr_addr: dbr,
        reserved_lkey: false,
        user_index: 0,
        limit: 3,
        taken: 0,
        head: 0,
        failed: false,
        context: Vec::new(),
    });
    srqn.unwrap()
}

/// Has `qp` take its receives from the shared queue.
fn share(bed: &mut Bed, qp: &Handle, srqn: u32) {
    bed.qp(qp).share(srqn, false);
}

/// The entry `step` further on is the next.
fn two_connections_share(linked: bool, step: u16) {
    let mut bed = Bed::new(2);
    let at = bed.guests[1].alloc(0x1000);
    let dbr = bed.guests[1].alloc(0x1000);
    let (to, key) = bed.buffer(1, 0x1_0000);
    // Each entry leads to the one five further on; each has a buffer of its own.
    for i in 0..ENTRIES {
        let mut wqe = [0; 64];
        wqe_srq_next_seg::next_wqe_index.set(&mut wqe, ((i + 5) % ENTRIES) as u32);
        let segment = &mut wqe[16..32];
        wqe_data_seg::byte_count.set(segment, 0x1000u32);
        wqe_data_seg::lkey.set(segment, key);
        wqe_data_seg::addr.set(segment, to + i * 0x1000);
        wqe[39] = 0;
        wqe[38] = 1;
        bed.guests[1].write(at + i * 64, &wqe);
    }
    let srqn = make_rmp(&mut bed, at, dbr, linked);
    let mut pairs = [bed.pair(&Options::default()), bed.pair(&Options::default())];
    for (_, b) in &pairs {
        share(&mut bed, b, srqn);
    }
    bed.guests[1].write(dbr, &7u32.to_be_bytes());
    let mut index = 0;
    for n in 0..7u32 {
        let (a, b) = &mut pairs[n as usize % 2];
        let mut request = Request::new(SendOpcode::SEND, &[]);
        request.inline = Some(pattern(9, n, 200));
        bed.send(a, &request);
        let got = bed.wait(b);
        assert_eq!((got.opcode, got.counter, got.bytes), (CqeOpcode::RESP_SEND, index, 200));
        assert_eq!(got.user, b.qpn ^ 0xabc);
        assert_eq!(bed.guests[1].read(to + u64::from(index) * 0x1000, 200), pattern(9, n, 200));
        assert_eq!(bed.wait(a).syndrome, 0);
        index = (index + step) % ENTRIES as u16;
        let limit = if n == 4 { vec![(EventType::SRQ_RQ_LIMIT, srqn)] } else { vec![] };
        assert_eq!(bed.events(1), limit, "after {n}: two are left");
    }
    // Nothing is left: the sender waits, and is served when an entry is posted.
    let (a, b) = &mut pairs[0];
    bed.send(a, &Request::new(SendOpcode::SEND, &[]));
    bed.run_for(3_000_000);
    assert!(bed.counters(1).rnr_naks_sent > 0);
    bed.guests[1].write(dbr, &8u32.to_be_bytes());
    assert_eq!(bed.wait(b).counter, index);
    // In error nothing of the shared queue is flushed; one event says that the QP takes no more.
    bed.guests[1].write(dbr, &9u32.to_be_bytes());
    let b = b.clone();
    bed.modify(&b, QpState::ERR);
    bed.run_for(1_000_000);
    assert_eq!(bed.poll_cq(1, b.cqn), None);
    assert_eq!(bed.events(1), [(EventType::SRQ_LAST_WQE, b.qpn)]);
}

#[test]
fn extended_connections_name_the_queue_at_the_other_side() {
    let mut bed = Bed::new(2);
    let (mut a, b) = bed.pair_of(ServiceType::XRC, 0, 1, &Options { mtu: 2, ..Options::default() });
    let (from, lkey) = bed.buffer(0, 0x1_0000);
    let (to, rkey) = bed.buffer(1, 0x1_0000);
    {
        // The target has neither a send queue nor receives of its own; its PD counts for nothing.
        let qp = bed.qp(&b);
        qp.share(0, true);
        qp.reconfigure(|context| {
            qpc::xrcd.set(context, 5u32);
            qpc::pd.set(context, 0x999u32);
        });
        qp.transport.queue.rung = false;
    }
    let mut queues = Vec::new();
    for n in 0..2u32 {
        let at = bed.guests[1].alloc(0x1000);
        let dbr = bed.guests[1].alloc(0x1000);
        let cqn = bed.make_cq(1, 6);
        for i in 0..8u64 {
            let mut wqe = [0; 32];
            wqe_srq_next_seg::next_wqe_index.set(&mut wqe, ((i + 1) % 8) as u32);
            let segment = &mut wqe[16..];
            wqe_data_seg::byte_count.set(segment, 0x1000u32);
            wqe_data_seg::lkey.set(segment, rkey);
            wqe_data_seg::addr.set(segment, to + (u64::from(n) * 8 + i) * 0x1000);
            bed.guests[1].write(at + i * 32, &wqe);
        }
        bed.guests[1].write(dbr, &6u32.to_be_bytes());
        let srqn = bed.hca(1).device.objects.srqs.insert(|srqn| Srq {
            srqn,
            kind: SrqKind::Xrc,
            pd: PD,
            cqn,
            xrcd: 5,
            buffer: PageList::new(vec![at], 12, 0, 32 * 8).unwrap(),
            log_size: 3,
            log_stride: 5,
            linked: true,
            dbr_addr: dbr,
            reserved_lkey: false,
            user_index: 0x700 + n,
            limit: 0,
            taken: 0,
            head: 0,
            failed: false,
            context: Vec::new(),
        });
        queues.push((srqn.unwrap(), cqn));
    }
    for n in 0..8u32 {
        let (srqn, cqn) = queues[n as usize % 2];
        let data = pattern(2, n, 900);
        bed.guests[0].write(from, &data);
        let mut request = Request::new(SendOpcode::SEND, &[(from, 900, lkey)]);
        request.xrc_srqn = Some(srqn);
        bed.send(&mut a, &request);
        assert_eq!(bed.wait(&a).syndrome, 0);
        let got = bed.poll_cq(1, cqn).unwrap();
        assert_eq!((got.opcode, got.bytes, got.qpn), (CqeOpcode::RESP_SEND, 900, b.qpn));
        assert_eq!((got.user, u32::from(got.counter)), (0x700 + n % 2, n / 2));
        let at = to + u64::from(n % 2 * 8 + n / 2) * 0x1000;
        assert_eq!(bed.guests[1].read(at, 900), data);
    }
    // Memory access is checked against the protection domain of the queue named.
    let (srqn, _) = queues[1];
    bed.guests[0].write(from, &pattern(5, 5, 3000));
    let mut write = Request::new(SendOpcode::RDMA_WRITE, &[(from, 3000, lkey)]).to(to, rkey);
    write.xrc_srqn = Some(srqn);
    bed.send(&mut a, &write);
    let mut read = Request::new(SendOpcode::RDMA_READ, &[(from + 0x8000, 3000, lkey)]).to(to, rkey);
    read.xrc_srqn = Some(srqn);
    bed.send(&mut a, &read);
    assert_eq!((bed.wait(&a).syndrome, bed.wait(&a).syndrome), (0, 0));
    assert_eq!(bed.guests[0].read(from + 0x8000, 3000), pattern(5, 5, 3000));
    // A queue of another domain is none of the QP's.
    bed.hca(1).device.objects.srqs.get_mut(srqn).unwrap().xrcd = 6;
    bed.send(&mut a, &write);
    assert_eq!(bed.wait(&a).syndrome, CqeSyndrome::REMOTE_INVAL_REQ_ERR.0);
}

/// Sends to a QP of domain `PD` whose receive is in a queue of domain `queue`, with a key of domain
/// `key`. Returns the sender's and the receiver's syndrome.
fn send_across_domains(mut bed: Bed, queue: u32, key: u32) -> (u8, u8) {
    let (mut a, b) = bed.pair(&Options::default());
    let (at, dbr) = (bed.guests[1].alloc(0x1000), bed.guests[1].alloc(0x1000));
    let (to, lkey) = bed.buffer(1, 0x1000);
    let srqn = make_rmp(&mut bed, at, dbr, false);
    share(&mut bed, &b, srqn);
    let objects = &mut bed.hca(1).device.objects;
    objects.srqs.get_mut(srqn).unwrap().pd = queue;
    objects.mkeys.change(lkey >> 8, |mkey| mkey.pd = key).unwrap();
    bed.guests[1].write(at + 16, &data_segment(&(to, 0x1000, lkey)));
    bed.guests[1].write(dbr, &1u32.to_be_bytes());
    let mut request = Request::new(SendOpcode::SEND, &[]);
    request.inline = Some(pattern(9, 9, 200));
    bed.send(&mut a, &request);
    let syndromes = (bed.wait(&a).syndrome, bed.wait(&b).syndrome);
    assert_eq!(bed.guests[1].read(to, 200) == pattern(9, 9, 200), syndromes == (0, 0));
    syndromes
}

#[test]
fn receives_of_a_shared_queue_use_keys_of_its_domain() {
    let failed = (CqeSyndrome::REMOTE_OP_ERR.0, CqeSyndrome::LOCAL_PROT_ERR.0);
    for (queue, key, expected) in [(PD, PD, (0, 0)), (PD + 1, PD + 1, (0, 0)), (PD + 1, PD, failed)] {
        // As packets, and from one guest's memory to the other's.
        for bed in [Bed::new(2), Bed::without_latency(2)] {
            assert_eq!(send_across_domains(bed, queue, key), expected, "queue {queue}, key {key}");
        }
    }
}
