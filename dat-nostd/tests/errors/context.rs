//! Consumer contexts, handle types, names of codes (uDAPL 1.2, `dat_set_consumer_context`, `dat_strerror`).

use crate::bench::Bench;
use crate::registry::{BY_VALUE, Call, Row, impossible, refused, succeeds};
use crate::{call, ok, tests};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

/// Bits that are no handle, of every kind.
fn no_handles(b: &Bench) -> Vec<Handle> {
    let kinds = [
        HandleType::Ia,
        HandleType::Ep,
        HandleType::Evd,
        HandleType::Cr,
        HandleType::Rsp,
        HandleType::Psp,
        HandleType::Pz,
        HandleType::Lmr,
        HandleType::Cno,
        HandleType::Srq,
        HandleType::Rmr,
    ];
    let mut all: Vec<u64> = kinds.into_iter().flat_map(|kind| b.no_handles(kind)).collect();
    // Those of another kind than meant are handles here.
    all.retain(|bits| b.net.nodes[0].get_handle_type(Handle::from_bits(*bits)).is_err());
    all.extend((0..=255).map(|kind| kind << 56 | 0x00ff_fff0_0000_0001));
    all.into_iter().map(Handle::from_bits).collect()
}

/// A live handle of every kind, and its kind.
fn handles(b: &mut Bench) -> Vec<(Handle, HandleType)> {
    let h = b.here;
    let (_, cr, rsp, _) = b.passive();
    let psp = b.a().psp_create(h.ia, 90, h.cr, PspFlags::Consumer).unwrap();
    let cno = b.a().cno_create(h.ia, None).unwrap();
    let srq = b.a().srq_create(h.ia, h.pz, &crate::bench::SRQ).unwrap();
    let rmr = b.a().rmr_create(h.pz).unwrap();
    vec![
        (srq.into(), HandleType::Srq),
        (rmr.into(), HandleType::Rmr),
        (h.ia.into(), HandleType::Ia),
        (h.ep.into(), HandleType::Ep),
        (h.recv.into(), HandleType::Evd),
        (cr.into(), HandleType::Cr),
        (rsp.into(), HandleType::Rsp),
        (psp.into(), HandleType::Psp),
        (h.pz.into(), HandleType::Pz),
        (h.lmr.lmr.into(), HandleType::Lmr),
        (cno.into(), HandleType::Cno),
    ]
}

pub const ROWS: &[Row] = &[
    refused("set_consumer_context", InvalidHandle, "no object of any kind", |b| {
        no_handles(b).into_iter().map(|handle| call!(set_consumer_context(handle, 7))).collect()
    }),
    impossible("set_consumer_context", InvalidParameter, "the context is bad", "no value is invalid"),
    succeeds("set_consumer_context", "every kind of object keeps its own; the last one counts", |b| {
        let handles = handles(b);
        for round in [0, 1 << 40, u64::MAX >> 8] {
            for (number, (handle, _)) in handles.iter().enumerate() {
                ok!(b, set_consumer_context(*handle, round + number as u64));
            }
            for (number, (handle, _)) in handles.iter().enumerate() {
                assert_eq!(b.a().get_consumer_context(*handle), Ok(round + number as u64));
            }
        }
    }),
    refused("get_consumer_context", InvalidHandle, "no object of any kind", |b| {
        no_handles(b).into_iter().map(|handle| call!(get_consumer_context(handle))).collect()
    }),
    impossible("get_consumer_context", InvalidParameter, "the pointer for the context is null", BY_VALUE),
    succeeds("get_consumer_context", "0 until one is set, and for the next object in the same place", |b| {
        let h = b.here;
        let pz = b.a().pz_create(h.ia).unwrap();
        assert_eq!(ok!(b, get_consumer_context(pz)), 0);
        b.a().set_consumer_context(pz, 5).unwrap();
        assert_eq!(ok!(b, get_consumer_context(pz)), 5);
        b.a().pz_free(pz).unwrap();
        for _ in 0..Capacities::DEFAULT.pzs {
            let next = b.a().pz_create(h.ia).unwrap();
            assert_eq!(ok!(b, get_consumer_context(next)), 0);
            b.a().pz_free(next).unwrap();
        }
    }),
    refused("get_handle_type", InvalidHandle, "no object of any kind", |b| {
        no_handles(b).into_iter().map(|handle| call!(get_handle_type(handle))).collect()
    }),
    impossible("get_handle_type", InvalidParameter, "the pointer for the type is null", BY_VALUE),
    succeeds("get_handle_type", "every kind", |b| {
        for (handle, kind) in handles(b) {
            assert_eq!(ok!(b, get_handle_type(handle)), kind);
        }
    }),
    refused("strerror", InvalidParameter, "the code is unknown", |_| {
        [0x8333_0000, 0x8005_ffff, 0x8000_0001, 0x0015_0000, 0xffff_ffff, 1]
            .map(|code| Call::new("strerror", move |_| dat_nostd::strerror(code).map(|_| ())))
            .into()
    }),
    succeeds("strerror", "the names of every type with every subtype, and of DAT_SUCCESS", |b| {
        assert_eq!(dat_nostd::strerror(0), Ok(("DAT_SUCCESS", "DAT_NO_SUBTYPE")));
        for kind in ReturnType::ALL {
            for subtype in Subtype::ALL {
                let code = DatReturn::error(*kind, *subtype).value();
                assert_eq!(dat_nostd::strerror(code), Ok((kind.name(), subtype.name())));
            }
        }
        assert_eq!(
            dat_nostd::strerror(DatReturn::QUEUE_EMPTY.value()),
            Ok(("DAT_QUEUE_EMPTY", "DAT_NO_SUBTYPE"))
        );
        b.succeeded.push("strerror");
    }),
];

tests! { set_consumer_context get_consumer_context get_handle_type strerror }
