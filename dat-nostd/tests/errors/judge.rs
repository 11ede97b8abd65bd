//! The runner itself: it sees what a row gets wrong.

use crate::bench::Bench;
use crate::registry::{Call, Row, judge, refused, succeeds};
use crate::{call, ok};
use dat_nostd::ReturnType::*;
use dat_nostd::*;

const REFUSAL: DatReturn = DatReturn::new(InvalidState);

fn judged(row: Row) {
    judge(row.function, &[row]);
}

/// A call that does `work` and then says that it was refused.
fn dishonest(work: fn(&mut crate::common::Node, IaHandle, EvdHandle), b: &mut Bench) -> Vec<Call> {
    let h = b.here;
    let evd = b.a().evd_create(h.ia, 8, None, EvdFlags::SOFTWARE).unwrap();
    b.a().evd_post_se(evd, 1).unwrap();
    vec![Call::new("evd_enable", move |a| {
        work(a, h.ia, evd);
        Err(REFUSAL)
    })]
}

#[test]
fn an_honest_refusal_passes() {
    judged(refused("evd_enable", InvalidState, "", |b| dishonest(|_, _, _| {}, b)));
}

#[test]
#[should_panic(expected = "DISABLED")]
fn a_changed_state_is_seen() {
    judged(refused("evd_enable", InvalidState, "", |b| {
        dishonest(|a, _, evd| a.evd_disable(evd).unwrap(), b)
    }));
}

#[test]
#[should_panic(expected = "[1, 2], then")]
fn an_event_more_is_seen() {
    judged(refused("evd_enable", InvalidState, "", |b| {
        dishonest(|a, _, evd| a.evd_post_se(evd, 2).unwrap(), b)
    }));
}

#[test]
#[should_panic(expected = "before: [")]
fn an_event_lost_is_seen() {
    judged(refused("evd_enable", InvalidState, "", |b| {
        dishonest(|a, _, evd| assert!(a.evd_dequeue(evd).is_ok()), b)
    }));
}

#[test]
#[should_panic(expected = "pds: ")]
fn an_object_left_is_seen() {
    judged(refused("evd_enable", InvalidState, "", |b| {
        dishonest(|a, ia, _| assert!(a.pz_create(ia).is_ok()), b)
    }));
}

#[test]
#[should_panic(expected = "instead of InvalidParameter")]
fn another_code_is_seen() {
    judged(refused("evd_enable", InvalidParameter, "", |b| dishonest(|_, _, _| {}, b)));
}

#[test]
#[should_panic(expected = "Ok(()) instead of")]
fn a_success_is_no_refusal() {
    judged(refused("pz_create", InvalidState, "", |b| {
        let ia = b.here.ia;
        vec![call!(pz_create(ia))]
    }));
}

#[test]
#[should_panic(expected = "no call")]
fn a_row_makes_a_call() {
    judged(refused("pz_create", InvalidState, "", |_| Vec::new()));
}

#[test]
#[should_panic(expected = "evd_enable is called")]
fn a_row_calls_its_function() {
    judged(refused("pz_create", InvalidState, "", |b| dishonest(|_, _, _| {}, b)));
}

#[test]
#[should_panic(expected = "was not called")]
fn a_success_calls_its_function() {
    judged(succeeds("pz_create", "", |b| {
        let h = b.here;
        ok!(b, pz_query(h.pz));
    }));
}
