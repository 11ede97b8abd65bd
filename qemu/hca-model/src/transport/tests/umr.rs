//! Memory registration, windows and invalidation by work request.

use mlx5_prm::contexts::{mkc, qpc};
use mlx5_prm::datapath::{
    CqeOpcode, FmCeSe, MkeyMask, SendOpcode, UmrFlags, ctrl_opmod_idx_opcode, ctrl_qpn_ds, klm, wqe_ctrl_seg,
    wqe_data_seg, wqe_umr_ctrl_seg,
};
use mlx5_prm::event::EventType;
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{AccessFlags, QpState, ServiceType};

use super::bed::{Bed, Completion, Handle, Options, PD, pattern};
use super::requests::Request;
use crate::log::{Entry, Level};
use crate::object::mkey::{KlmList, Mkey, Segments, Translation};

const ALL: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_WRITE);
/// What Linux changes with a fast registration.
const REGISTER: MkeyMask = MkeyMask::LEN
    .union(MkeyMask::PAGE_SIZE)
    .union(MkeyMask::START_ADDR)
    .union(MkeyMask::EN_RINVAL)
    .union(MkeyMask::KEY)
    .union(MkeyMask::LR)
    .union(MkeyMask::LW)
    .union(MkeyMask::RR)
    .union(MkeyMask::RW)
    .union(MkeyMask::SMALL_FENCE)
    .union(MkeyMask::FREE);
/// What libmlx5 changes with a bind.
const BIND: MkeyMask = MkeyMask::FREE
    .union(MkeyMask::KEY)
    .union(MkeyMask::LEN)
    .union(MkeyMask::START_ADDR)
    .union(MkeyMask::LW)
    .union(MkeyMask::RR)
    .union(MkeyMask::RW)
    .union(MkeyMask::A);

/// A UMR under construction.
#[derive(Clone)]
pub(super) struct Change {
    key: u32,
    flags: UmrFlags,
    mask: MkeyMask,
    context: [u8; 64],
    list: Vec<u8>,
    memory: Option<(u64, u32)>,
    offset: u32,
}

impl Change {
    fn new(key: u32, flags: UmrFlags, mask: MkeyMask) -> Self {
        Self { key, flags, mask, context: [0; 64], list: Vec::new(), memory: None, offset: 0 }
    }

    fn set(mut self, field: mlx5_prm::Field, value: impl Into<u64>) -> Self {
        field.set(&mut self.context, value);
        self
    }

    fn access(mut self, access: AccessFlags) -> Self {
        self.context[2] |= access.bits();
        self
    }

    /// As Linux registers pages: all but the list.
    pub(super) fn register(key: u32, start: u64, len: u64, access: AccessFlags) -> Self {
        Self::new(key, UmrFlags::INLINE | UmrFlags::FAIL_IF_NOT_FREE, REGISTER)
            .set(mkc::qpn, 0xff_ffffu32)
            .set(mkc::mkey_7_0, key & 0xff)
            .set(mkc::start_addr, start)
            .set(mkc::len, len)
            .set(mkc::log_page_size, 12u32)
            .set(mkc::en_rinval, 1u32)
            .access(access | AccessFlags::LOCAL_READ)
    }

    pub(super) fn pages(mut self, pages: &[u64]) -> Self {
        self.list = pages.iter().flat_map(|page| (page | 3).to_be_bytes()).collect();
        self.list.resize(self.list.len().next_multiple_of(64), 0);
        self
    }

    /// As libmlx5 binds a window of type 2 to part of `region`.
    fn bind(window: u32, qpn: u32, region: u32, address: u64, len: u32, access: AccessFlags) -> Self {
        let flags = UmrFlags::INLINE | UmrFlags::TRANSLATION_OFFSET_EN | UmrFlags::FAIL_IF_NOT_FREE;
        let mut change = Self::new(window, flags, BIND | MkeyMask::QPN)
            .set(mkc::qpn, qpn)
            .set(mkc::mkey_7_0, window.wrapping_add(1) & 0xff)
            .set(mkc::start_addr, address)
            .set(mkc::len, len)
            .access(access);
        change.list = vec![0; 64];
        klm::bcount.set(&mut change.list, len);
        klm::key.set(&mut change.list, region);
        klm::va.set(&mut change.list, address);
        change
    }

    /// As Linux invalidates a key.
    fn invalidate(key: u32) -> Self {
        Self::new(key, UmrFlags::INLINE, MkeyMask::FREE).set(mkc::free, 1u32)
    }
}

pub(super) fn post(bed: &mut Bed, qp: &mut Handle, change: &Change) -> u16 {
    let mut wqe = vec![0; 64];
    wqe[..4].copy_from_slice(&ctrl_opmod_idx_opcode(0, qp.posted, SendOpcode::UMR).to_be_bytes());
    wqe[11] = FmCeSe::CQ_UPDATE.bits();
    wqe_ctrl_seg::imm.set(&mut wqe, change.key);
    let control = &mut wqe[16..];
    wqe_umr_ctrl_seg::flags.set(control, change.flags.bits());
    wqe_umr_ctrl_seg::xlt_octowords.set(control, (change.list.len() / 16) as u32);
    wqe_umr_ctrl_seg::xlt_offset.set(control, change.offset);
    wqe_umr_ctrl_seg::mkey_mask.set(control, change.mask.bits());
    wqe.extend(change.context);
    match change.memory {
        None => wqe.extend(&change.list),
        Some((at, lkey)) => {
            bed.guests[qp.node].write(at, &change.list);
            let mut segment = [0; 16];
            wqe_data_seg::byte_count.set(&mut segment, change.list.len() as u32);
            wqe_data_seg::lkey.set(&mut segment, lkey);
            wqe_data_seg::addr.set(&mut segment, at);
            wqe.extend(segment);
        }
    }
    let ds = (wqe.len() / 16) as u32;
    wqe[4..8].copy_from_slice(&ctrl_qpn_ds(qp.qpn, ds).to_be_bytes());
    let index = bed.post_raw(qp, &wqe);
    bed.ring(qp);
    index
}

/// Carries out a change and answers with its completion.
fn change(bed: &mut Bed, qp: &mut Handle, change: &Change) -> Completion {
    let index = post(bed, qp, change);
    let got = bed.wait(qp);
    assert_eq!(got.counter, index);
    got
}

fn good(bed: &mut Bed, qp: &mut Handle, request: &Change) {
    let got = change(bed, qp, request);
    assert_eq!((got.opcode, got.syndrome), (CqeOpcode::REQ, 0), "{got:?}\n{:?}", bed.hca(qp.node).device.log);
    assert_eq!(got.wqe_opcode, SendOpcode::UMR.0);
}

/// The change is refused as a bind error, and the QP is in error.
fn bad(bed: &mut Bed, qp: &mut Handle, request: &Change) {
    let got = change(bed, qp, request);
    assert_eq!((got.opcode, got.syndrome), (CqeOpcode::REQ_ERR, CqeSyndrome::MW_BIND_ERR.0), "{got:?}");
    assert_eq!(bed.qp(qp).state(), QpState::ERR);
}

/// The field that node 1 refused last.
fn last_refused(bed: &mut Bed) -> String {
    let refused = |entry: &&Entry| entry.level == Level::Refusal;
    bed.hca(1).log().entries().rfind(refused).expect("a refusal").field.clone()
}

fn free_key(bed: &mut Bed, node: usize, translation: Translation, octowords: u32) -> u32 {
    let key = bed.hca(node).device.objects.mkeys.insert(|index| Mkey {
        key: index << 8 | 0x10,
        pd: PD,
        qpn: None,
        access: AccessFlags::LOCAL_READ | AccessFlags::UMR_EN,
        free: true,
        remote_invalidate: false,
        start_addr: 0,
        len: 0,
        length64: false,
        translation,
        octowords,
        context: vec![0; 64],
    });
    key.unwrap() << 8 | 0x10
}

pub(super) fn free_mtt(bed: &mut Bed, node: usize) -> u32 {
    free_key(bed, node, Translation::Mtt { entries: Vec::new(), log_page_size: 12, page_access: false }, 8)
}

fn window(bed: &mut Bed, node: usize) -> u32 {
    let key = free_key(bed, node, Translation::Klm(KlmList::default()), 4);
    bed.hca(node).device.objects.mkeys.change(key >> 8, |mkey| mkey.remote_invalidate = true).unwrap();
    key
}

/// A pair whose second may register memory.
pub(super) fn pair(bed: &mut Bed) -> (Handle, Handle) {
    let (a, b) = bed.pair(&Options::default());
    bed.set(&b, qpc::fre, 1);
    (a, b)
}

/// Writes `data` from node 0 and answers with the syndrome of the completion.
fn write(bed: &mut Bed, qp: &mut Handle, data: &[u8], to: u64, rkey: u32) -> u8 {
    let mut request = Request::new(SendOpcode::RDMA_WRITE, &[]).to(to, rkey);
    request.inline = Some(data.to_vec());
    bed.send(qp, &request);
    bed.wait(qp).syndrome
}

const ACCESS: u8 = CqeSyndrome::REMOTE_ACCESS_ERR.0;

#[test]
fn pages_are_registered_used_and_invalidated() {
    for from_memory in [false, true] {
        let mut bed = Bed::new(2);
        let (mut a, mut b) = pair(&mut bed);
        let key = free_mtt(&mut bed, 1);
        let at = bed.guests[1].alloc(0x4000);
        // Pages out of order, the region starting inside its first page; the key gets a new variant.
        let rkey = key + 0x21;
        let mut register =
            Change::register(rkey, 0x7_0123, 0x2000, ALL).pages(&[at + 0x3000, at + 0x1000, at]);
        if from_memory {
            let (list, lkey) = bed.buffer(1, 0x1000);
            register.memory = Some((list + 0x40, lkey));
            register.flags.remove(UmrFlags::INLINE);
        }
        good(&mut bed, &mut b, &register);
        let data = pattern(1, 2, 0x1f00);
        let (from, lkey) = bed.buffer(0, 0x2000);
        bed.guests[0].write(from, &data);
        let request = Request::new(SendOpcode::RDMA_WRITE, &[(from, 0x1f00, lkey)]).to(0x7_0123, rkey);
        bed.send(&mut a, &request);
        assert_eq!(bed.wait(&a).syndrome, 0);
        assert_eq!(bed.guests[1].read(at + 0x3123, 0xedd), data[..0xedd]);
        assert_eq!(bed.guests[1].read(at + 0x1000, 0x1000), data[0xedd..0x1edd]);
        assert_eq!(bed.guests[1].read(at, 0x23), data[0x1edd..]);
        good(&mut bed, &mut b, &Change::invalidate(rkey));
        assert_eq!(write(&mut bed, &mut a, &[1], 0x7_0123, rkey), ACCESS);
        assert_eq!(bed.events(1), [(EventType::WQ_ACCESS_ERROR, b.qpn)]);
    }
}

#[test]
fn a_registration_that_must_not_be() {
    type Case = (&'static str, fn(&mut Bed, &Handle, u32) -> Change);
    let cases: &[Case] = &[
        ("mkc.free", |bed, _, key| {
            bed.hca(1).device.objects.mkeys.change(key >> 8, |mkey| mkey.free = false).unwrap();
            Change::register(key, 0, 0x1000, ALL).pages(&[0x1000])
        }),
        ("mkc.pd", |bed, _, key| {
            bed.hca(1).device.objects.mkeys.change(key >> 8, |mkey| mkey.pd = PD + 1).unwrap();
            Change::register(key, 0, 0x1000, ALL).pages(&[0x1000])
        }),
        ("mkc.umr_en", |bed, _, key| {
            bed.hca(1)
                .device
                .objects
                .mkeys
                .change(key >> 8, |mkey| mkey.access.remove(AccessFlags::UMR_EN))
                .unwrap();
            Change::register(key, 0, 0x1000, ALL).pages(&[0x1000])
        }),
        ("qpc.fre", |bed, qp, key| {
            bed.set(qp, qpc::fre, 0);
            Change::register(key, 0, 0x1000, ALL).pages(&[0x1000])
        }),
        ("wqe_ctrl_seg.imm", |_, _, _| Change::register(0x9999_9900, 0, 0x1000, ALL).pages(&[0x1000])),
        ("mkc.translations_octword_size", |_, _, key| {
            Change::register(key, 0, 0x1000, ALL).pages(&[0x1000; 24])
        }),
        ("mkc.len", |_, _, key| Change::register(key, 0, 0x1_0001, ALL).pages(&[0x1000])),
        ("mkc.log_page_size", |_, _, key| {
            Change::register(key, 0, 0x1000, ALL).set(mkc::log_page_size, 11u32).pages(&[0x1000])
        }),
        ("wqe_umr_ctrl_seg.mkey_mask", |_, _, key| {
            let mut change = Change::register(key, 0, 0x1000, ALL).pages(&[0x1000]);
            change.mask |= MkeyMask::PD;
            change
        }),
        ("wqe_umr_ctrl_seg.mkey_mask", |_, _, key| {
            let mut change = Change::register(key, 0, 0x1000, ALL).pages(&[0x1000]);
            change.mask |= MkeyMask::from_bits_retain(1 << 40);
            change
        }),
    ];
    for (field, case) in cases {
        let mut bed = Bed::new(2);
        let (_, mut b) = pair(&mut bed);
        let key = free_mtt(&mut bed, 1);
        let request = case(&mut bed, &b, key);
        bad(&mut bed, &mut b, &request);
        assert_eq!(last_refused(&mut bed), *field);
        assert!(
            bed.hca(1).device.objects.mkeys.get(key).unwrap().len == 0,
            "{field}: a refused change changes nothing"
        );
    }
}

/// As libmlx5 unbinds a window of type 2, or invalidates it.
fn unbind(window: u32, qpn: u32) -> Change {
    let flags = UmrFlags::INLINE | UmrFlags::TRANSLATION_OFFSET_EN | UmrFlags::CHECK_QPN;
    Change::new(window, flags, MkeyMask::FREE | MkeyMask::KEY | MkeyMask::QPN)
        .set(mkc::free, 1u32)
        .set(mkc::qpn, qpn)
}

#[test]
fn a_window_of_type_two() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = pair(&mut bed);
    let (at, lkey) = bed.buffer(1, 0x2000);
    let mw = window(&mut bed, 1);
    let rights = AccessFlags::REMOTE_WRITE;
    // No physical addresses are involved: a user's QP, without fast registration, binds too.
    bed.set(&b, qpc::fre, 0);
    let first = Change::bind(mw, b.qpn, lkey, at + 0x100, 0x800, rights);
    good(&mut bed, &mut b, &first);
    let rkey = mw + 1;
    assert_eq!(write(&mut bed, &mut a, &[7; 16], at + 0x8f0, rkey), 0);
    assert_eq!(bed.guests[1].read(at + 0x8f0, 17), [[7; 16].as_slice(), &[0]].concat());
    // Bound is not free: it must be invalidated first.
    let (_, mut c) = pair(&mut bed);
    let again = Change::bind(rkey, c.qpn, lkey, at, 0x800, rights);
    bad(&mut bed, &mut c, &again);
    // It belongs to its QP: another can neither be reached through it nor unbind it.
    let (mut d, _) = pair(&mut bed);
    assert_eq!(write(&mut bed, &mut d, &[7; 16], at + 0x100, rkey), ACCESS);
    let (_, mut e) = pair(&mut bed);
    let foreign = unbind(rkey, e.qpn);
    bad(&mut bed, &mut e, &foreign);
    assert_eq!(write(&mut bed, &mut a, &[8; 16], at + 0x100, rkey), 0, "all that changed nothing");
    // Unbound by its own QP it is free for another.
    let own = unbind(rkey, b.qpn);
    good(&mut bed, &mut b, &own);
    let (mut f, mut g) = pair(&mut bed);
    let next = Change::bind(rkey, g.qpn, lkey, at, 0x800, AccessFlags::REMOTE_READ);
    good(&mut bed, &mut g, &next);
    let (to, local) = bed.buffer(0, 0x1000);
    let read = |len, rkey| Request::new(SendOpcode::RDMA_READ, &[(to, len, local)]).to(at + 0x100, rkey);
    bed.send(&mut f, &read(16, rkey + 1));
    assert_eq!(bed.wait(&f).syndrome, 0);
    assert_eq!(bed.guests[0].read(to, 16), [8; 16]);
    assert_eq!(write(&mut bed, &mut a, &[9], at + 0x100, rkey), ACCESS, "the old key is gone");
}

#[test]
fn a_window_grants_no_more_than_was_asked() {
    // Beyond its end, before its start, and a right that it does not give.
    for (from, len, reads) in [(0x1f8u64, 9u32, false), (0xff, 1, false), (0x100, 1, true)] {
        let mut bed = Bed::new(2);
        let (mut a, mut b) = pair(&mut bed);
        let (at, lkey) = bed.buffer(1, 0x1000);
        let mw = window(&mut bed, 1);
        let request = Change::bind(mw, b.qpn, lkey, at + 0x100, 0x100, AccessFlags::REMOTE_WRITE);
        good(&mut bed, &mut b, &request);
        let (local, key) = bed.buffer(0, 0x1000);
        let opcode = if reads { SendOpcode::RDMA_READ } else { SendOpcode::RDMA_WRITE };
        bed.send(&mut a, &Request::new(opcode, &[(local, len, key)]).to(at + from, mw + 1));
        assert_eq!(bed.wait(&a).syndrome, ACCESS);
        assert_eq!(bed.events(1), [(EventType::WQ_ACCESS_ERROR, b.qpn)]);
    }
}

#[test]
fn a_window_of_type_one_moves_without_invalidation() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = pair(&mut bed);
    let (at, lkey) = bed.buffer(1, 0x2000);
    let mw = window(&mut bed, 1);
    let bind = |key: u32, address: u64, len: u32| {
        let mut change = Change::bind(key, 0xff_ffff, lkey, address, len, AccessFlags::REMOTE_WRITE);
        change.flags.remove(UmrFlags::FAIL_IF_NOT_FREE);
        change.mask.remove(MkeyMask::QPN);
        change
    };
    // Behind its length the list may hold anything.
    let mut first = bind(mw, at, 0x100);
    first.list[16..32].fill(0x77);
    good(&mut bed, &mut b, &first);
    assert_eq!(write(&mut bed, &mut a, b"first", at, mw + 1), 0);
    // Zero-based: offsets instead of addresses. Any QP of the domain is reached through a window of type 1.
    good(&mut bed, &mut b, &bind(mw + 1, at + 0x1000, 0x100).set(mkc::start_addr, 0u32));
    let (mut c, _) = pair(&mut bed);
    assert_eq!(write(&mut bed, &mut c, b"second", 0xfa, mw + 2), 0);
    assert_eq!(bed.guests[1].read(at + 0x10fa, 6), b"second");
    // Length zero unbinds.
    let flags = UmrFlags::INLINE | UmrFlags::TRANSLATION_OFFSET_EN;
    let unbind = Change::new(mw + 2, flags, MkeyMask::FREE | MkeyMask::KEY).set(mkc::free, 1u32);
    good(&mut bed, &mut b, &unbind.set(mkc::mkey_7_0, mw.wrapping_add(3) & 0xff));
    assert_eq!(write(&mut bed, &mut a, b"third", 0, mw + 3), ACCESS);
}

#[test]
fn a_window_needs_a_region_that_allows_it() {
    type Case = (&'static str, fn(&mut Bed, u64, u32) -> (u32, u64, u32));
    let cases: &[Case] = &[
        ("klm.key", |_, at, _| (0x7777_7700, at, 8)),
        ("klm.key", |bed, at, lkey| {
            bed.hca(1).device.objects.mkeys.change(lkey >> 8, |mkey| mkey.pd = PD + 1).unwrap();
            (lkey, at, 8)
        }),
        ("klm.key", |bed, at, lkey| {
            bed.hca(1).device.objects.mkeys.change(lkey >> 8, |mkey| mkey.free = true).unwrap();
            (lkey, at, 8)
        }),
        ("klm.va", |_, at, lkey| (lkey, at + 0xff9, 8)),
        ("mkc.lw", |bed, at, lkey| {
            bed.hca(1)
                .device
                .objects
                .mkeys
                .change(lkey >> 8, |mkey| mkey.access.remove(AccessFlags::LOCAL_WRITE))
                .unwrap();
            (lkey, at, 8)
        }),
    ];
    for (field, case) in cases {
        let mut bed = Bed::new(2);
        let (_, mut b) = pair(&mut bed);
        let (at, lkey) = bed.buffer(1, 0x1000);
        let mw = window(&mut bed, 1);
        let (region, address, len) = case(&mut bed, at, lkey);
        let request = Change::bind(mw, b.qpn, region, address, len, AccessFlags::REMOTE_WRITE);
        bad(&mut bed, &mut b, &request);
        assert_eq!(last_refused(&mut bed), *field);
        assert!(bed.hca(1).device.objects.mkeys.get(mw).is_some_and(|mkey| mkey.free));
    }
}

#[test]
fn a_send_invalidates_what_it_may() {
    let mut bed = Bed::new(2);
    let (mut a, mut b) = pair(&mut bed);
    let (at, lkey) = bed.buffer(1, 0x1000);
    let mw = window(&mut bed, 1);
    let bind = Change::bind(mw, b.qpn, lkey, at, 0x100, AccessFlags::REMOTE_WRITE);
    good(&mut bed, &mut b, &bind);
    let rkey = mw + 1;
    bed.receive(&mut b, &[(at + 0x800, 0x100, lkey)]);
    let invalidate = |key: u32| {
        let mut request = Request::new(SendOpcode::SEND_INVAL, &[]).immediate(key);
        request.inline = Some(b"done".to_vec());
        request
    };
    bed.send(&mut a, &invalidate(rkey));
    assert_eq!(bed.wait(&a).syndrome, 0);
    let got = bed.wait(&b);
    assert_eq!((got.opcode, got.immediate, got.bytes), (CqeOpcode::RESP_SEND_INV, rkey, 4));
    assert!(bed.hca(1).device.objects.mkeys.get(rkey).is_some_and(|mkey| mkey.free));
    assert_eq!(write(&mut bed, &mut a, &[1], at, rkey), ACCESS);
    // Without the permission, or what belongs to another QP, it is an access violation.
    for foreign in [false, true] {
        let (mut c, mut d) = pair(&mut bed);
        let (_, mut owner) = pair(&mut bed);
        let mw = window(&mut bed, 1);
        bed.hca(1).device.objects.mkeys.change(mw >> 8, |mkey| mkey.remote_invalidate = foreign).unwrap();
        let holder = if foreign { &mut owner } else { &mut d };
        let bind = Change::bind(mw, holder.qpn, lkey, at, 0x100, AccessFlags::REMOTE_WRITE);
        good(&mut bed, holder, &bind);
        bed.receive(&mut d, &[(at + 0x800, 0x100, lkey)]);
        bed.send(&mut c, &invalidate(mw + 1));
        assert_eq!(bed.wait(&c).syndrome, ACCESS);
        assert!(bed.hca(1).device.objects.mkeys.get(mw + 1).is_some_and(|mkey| !mkey.free));
    }
}

#[test]
fn the_registration_qp_changes_every_key() {
    let mut bed = Bed::new(1);
    let mut qp = bed.make_qp(0, ServiceType::REG_UMR, &Options::default());
    bed.set(&qp, qpc::pd, 0);
    bed.set(&qp, qpc::rlky, 1);
    bed.modify(&qp, QpState::RTR);
    bed.modify(&qp, QpState::RTS);
    let key = free_mtt(&mut bed, 0);
    let list = bed.guests[0].alloc(0x1000);
    let reserved = bed.hca(0).device.objects.mkeys.reserved_lkey;
    // The list in two parts, as Linux loads a long one: the first without enabling.
    let mut first = Change::register(key, 0x5000, 0xa000, ALL).pages(&[0x8000; 8]);
    first.mask = MkeyMask::empty();
    first.flags = UmrFlags::FAIL_IF_NOT_FREE;
    first.memory = Some((list, reserved));
    good(&mut bed, &mut qp, &first);
    assert!(bed.hca(0).device.objects.mkeys.get(key).is_some_and(|mkey| mkey.free && mkey.len == 0));
    let mut second = Change::register(key, 0x5000, 0xa000, ALL).set(mkc::pd, 9u32).pages(&[0x2_0000; 8]);
    second.mask |= MkeyMask::PD;
    second.flags = UmrFlags::FAIL_IF_NOT_FREE | UmrFlags::TRANSLATION_OFFSET_EN;
    second.offset = 4;
    second.memory = Some((list, reserved));
    good(&mut bed, &mut qp, &second);
    let user = crate::object::mkey::User { pd: 9, qpn: 0x99, reserved_lkey: false };
    let mut out = Segments::default();
    let keys = &bed.hca(0).device.objects.mkeys;
    assert_eq!(keys.translate(key, user, 0xc800, 0x1000, AccessFlags::REMOTE_WRITE, &mut out), Ok(()));
    assert_eq!(out.list.iter().map(|range| range.address).collect::<Vec<_>>(), [0x8800, 0x2_0000]);
    // It sends nothing.
    let got = bed.send(&mut qp, &Request::new(SendOpcode::SEND, &[]));
    let completion = bed.wait(&qp);
    assert_eq!((completion.counter, completion.syndrome), (got, CqeSyndrome::LOCAL_QP_OP_ERR.0));
    assert_eq!(bed.qp(&qp).state(), QpState::ERR);
}

#[test]
fn an_invalidation_waits_for_what_needs_the_key() {
    let mut bed = Bed::new(2);
    let (mut a, _) = bed.pair(&Options { ack_timeout: 8, retry_count: 7, ..Options::default() });
    bed.set(&a, qpc::fre, 1);
    let key = free_mtt(&mut bed, 0);
    let at = bed.guests[0].alloc(0x1000);
    let data = pattern(3, 1, 0x1000);
    bed.guests[0].write(at, &data);
    good(&mut bed, &mut a, &Change::register(key, 0, 0x1000, ALL).pages(&[at]));
    let (to, rkey) = bed.buffer(1, 0x1000);
    // The write is lost at first, and must find its key when it is sent again.
    bed.faults("loss=100%", 1);
    bed.post(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(0, 0x1000, key)]).to(to, rkey));
    let last = post(&mut bed, &mut a, &Change::invalidate(key));
    bed.run_for(500_000);
    bed.faults("", 1);
    assert_eq!(bed.wait(&a).syndrome, 0);
    let got = bed.wait(&a);
    assert_eq!((got.counter, got.syndrome), (last, 0));
    assert_eq!(bed.guests[1].read(to, 0x1000), data);
    bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(0, 1, key)]).to(to, rkey));
    assert_eq!(bed.wait(&a).syndrome, CqeSyndrome::LOCAL_PROT_ERR.0);
}

#[test]
fn a_key_is_registered_once_whatever_is_sent_again() {
    let mut bed = Bed::new(2);
    let (mut a, _) = bed.pair(&Options { ack_timeout: 8, retry_count: 7, ..Options::default() });
    bed.set(&a, qpc::fre, 1);
    let key = free_mtt(&mut bed, 0);
    let (at, lkey) = bed.buffer(0, 0x1000);
    let (to, rkey) = bed.buffer(1, 0x1000);
    bed.faults("loss=100%", 1);
    bed.post(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(at, 8, lkey)]).to(to, rkey));
    // Linux asks that the key be free: a second time it is not.
    let last = post(&mut bed, &mut a, &Change::register(key, 0, 0x1000, ALL).pages(&[at]));
    bed.run_until("it is sent again", |bed| bed.counters(0).retransmitted > 0);
    bed.faults("", 1);
    assert_eq!(bed.wait(&a).syndrome, 0);
    let got = bed.wait(&a);
    assert_eq!((got.counter, got.syndrome), (last, 0));
}

/// What was sent before it is acknowledged, late, while it waits to be sent again.
#[test]
fn an_invalidation_that_completes_was_carried_out() {
    for seed in 0..100 {
        let mut bed = Bed::new(2);
        let (mut a, mut b) = bed.pair(&Options { ack_timeout: 5, retry_count: 7, ..Options::default() });
        bed.set(&a, qpc::fre, 1);
        let key = free_mtt(&mut bed, 0);
        let (at, lkey) = bed.buffer(0, 0x1000);
        let (to, taken) = bed.buffer(1, 0x1000);
        good(&mut bed, &mut a, &Change::register(key, 0, 0x1000, ALL).pages(&[at]));
        bed.faults("delay=1us..300us", seed);
        bed.post(&mut a, &Request::new(SendOpcode::SEND, &[(at, 8, lkey)]));
        let last = post(&mut bed, &mut a, &Change::invalidate(key));
        bed.run_for(250_000);
        bed.receive(&mut b, &[(to, 8, taken)]);
        assert_eq!(bed.wait(&a).syndrome, 0);
        let got = bed.wait(&a);
        assert_eq!((got.counter, got.syndrome), (last, 0));
        let mkeys = &bed.hca(0).device.objects.mkeys;
        assert!(mkeys.table.get(key >> 8).is_some_and(|mkey| mkey.free), "seed {seed}");
    }
}
