//! Shared receive queues.

use mlx5_prm::datapath::{CqeOpcode, SendOpcode, wqe_data_seg, wqe_srq_next_seg};
use mlx5_prm::event::EventType;
use mlx5_prm::value::{QpState, RqType};

use super::bed::{Bed, Options, PD, Request, pattern};
use crate::object::pages::PageList;
use crate::object::srq::{Srq, SrqKind};

const ENTRIES: u64 = 8;

#[test]
fn two_connections_share_a_linked_list() {
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
    let srqn = bed
        .hca(1)
        .srqs
        .insert(|srqn| Srq {
            srqn,
            kind: SrqKind::Rmp,
            pd: PD,
            cqn: 0,
            xrcd: 0,
            buffer: PageList::new(vec![at], 12, 0, 64 * ENTRIES).unwrap(),
            log_size: 3,
            log_stride: 6,
            linked: true,
            dbr_addr: dbr,
            reserved_lkey: false,
            user_index: 0,
            limit: 3,
            taken: 0,
            head: 0,
            context: Vec::new(),
        })
        .unwrap();
    let mut pairs = [bed.pair(&Options::default()), bed.pair(&Options::default())];
    for (_, b) in &pairs {
        let qp = bed.qp(b);
        qp.rq_type = RqType::SRQ_RQ;
        qp.rq = None;
        qp.srqn = srqn;
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
        index = (index + 5) % ENTRIES as u16;
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
