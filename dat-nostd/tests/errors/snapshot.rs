//! Everything that can be observed of node 0: every object that its tables can name, by every query; how many events each
//! EVD holds; and what the emulated HCAs hold.

use crate::bench::Bench;
use crate::common::Node;
use dat_nostd::*;
use std::fmt::Debug;

/// Objects of one kind that are looked for, and how often each place may have been used before.
const SLOTS: u64 = 72;
const GENERATIONS: u64 = 24;

/// One line per object and query.
pub struct Snapshot(Vec<String>);

/// All handles of a kind that node 0 could have given out. Their layout is documented with the handles.
fn handles(kind: HandleType) -> impl Iterator<Item = u64> {
    let base = (kind as u64 + 1) << 56;
    (0..SLOTS).flat_map(move |slot| (1..=GENERATIONS).map(move |generation| base | generation << 16 | slot))
}

impl Snapshot {
    pub fn take(bench: &mut Bench) -> Self {
        let now = bench.net.world.now();
        let mut lines = vec![
            format!("HCA of node 0: {:?}", bench.net.world.census(0)),
            format!("HCA of node 1: {:?}", bench.net.world.census(1)),
        ];
        let adapter = &mut bench.net.nodes[0];
        lines.push(format!("counters: {:?}", adapter.counters()));
        // Connections that have ended leave TimeWait by themselves.
        lines.push(format!("tables: {:?}", AdapterCensus { connections: 0, ..adapter.census() }));
        objects(&mut lines, adapter, HandleType::Ia, |a, bits| {
            a.ia_query(IaHandle::from_bits(bits)).map(|all| format!("{all:?}"))
        });
        objects(&mut lines, adapter, HandleType::Pz, |a, bits| shown(a.pz_query(PzHandle::from_bits(bits))));
        objects(&mut lines, adapter, HandleType::Lmr, |a, bits| {
            shown(a.lmr_query(LmrHandle::from_bits(bits)))
        });
        objects(&mut lines, adapter, HandleType::Psp, |a, bits| {
            shown(a.psp_query(PspHandle::from_bits(bits)))
        });
        objects(&mut lines, adapter, HandleType::Rsp, |a, bits| {
            shown(a.rsp_query(RspHandle::from_bits(bits)))
        });
        objects(&mut lines, adapter, HandleType::Cno, |a, bits| {
            shown(a.cno_query(CnoHandle::from_bits(bits)))
        });
        objects(&mut lines, adapter, HandleType::Cr, |a, bits| {
            a.cr_query(CrHandle::from_bits(bits)).map(|all| format!("{all:?}"))
        });
        objects(&mut lines, adapter, HandleType::Srq, |a, bits| {
            shown(a.srq_query(SrqHandle::from_bits(bits)))
        });
        objects(&mut lines, adapter, HandleType::Rmr, |a, bits| {
            shown(a.rmr_query(RmrHandle::from_bits(bits)))
        });
        objects(&mut lines, adapter, HandleType::Ep, |a, bits| {
            let ep = EpHandle::from_bits(bits);
            let (all, status) = (a.ep_query(ep)?, a.ep_get_status(ep)?);
            Ok(format!("{all:?} {status:?} {:?} {:?}", a.ep_recv_query(ep)?, a.ep_private_data(ep)?))
        });
        objects(&mut lines, adapter, HandleType::Evd, |a, bits| {
            let evd = EvdHandle::from_bits(bits);
            let all = a.evd_query(evd)?;
            Ok(format!("{all:?} holds {}", events(a, evd, &all, now)))
        });
        Self(lines)
    }

    #[track_caller]
    pub fn assert_same(&self, after: &Self, what: &str) {
        let gone: Vec<&String> = self.0.iter().filter(|line| !after.0.contains(line)).collect();
        let new: Vec<&String> = after.0.iter().filter(|line| !self.0.contains(line)).collect();
        assert!(gone.is_empty() && new.is_empty(), "{what}: before: {gone:#?}\nafter: {new:#?}");
    }
}

fn shown<T: Debug>(result: DatResult<T>) -> DatResult<String> {
    result.map(|value| format!("{value:?}"))
}

fn objects(
    lines: &mut Vec<String>,
    adapter: &mut Node,
    kind: HandleType,
    query: impl Fn(&mut Node, u64) -> DatResult<String>,
) {
    for bits in handles(kind) {
        match query(adapter, bits) {
            Ok(text) => {
                let context = adapter.get_consumer_context(Handle::from_bits(bits));
                lines.push(format!("{kind:?} {bits:x}: {text}, context {context:?}"));
            }
            Err(error) => assert!(error.is(ReturnType::InvalidHandle), "{kind:?} {bits:x}: {error}"),
        }
    }
}

/// The events of an EVD. Software events are taken and put back; others are counted, by a wait for more than there can be
/// that is over at once.
fn events(adapter: &mut Node, evd: EvdHandle, parameters: &EvdParameters, now: u64) -> String {
    if parameters.evd_flags == EvdFlags::SOFTWARE {
        let mut values = Vec::new();
        let end = loop {
            match adapter.evd_dequeue(evd) {
                Ok(Event { data: EventData::Software { value }, .. }) => values.push(value),
                Ok(other) => panic!("{other:?} among software events"),
                Err(error) => break error,
            }
        };
        for value in &values {
            adapter.evd_post_se(evd, *value).unwrap();
        }
        return format!("{values:?}, then {end}");
    }
    if !parameters.evd_state.contains(EvdState::CONFIG_THRESHOLD) {
        return "an unknown number: waits here are for one event".into();
    }
    let mut waiter = match adapter.evd_wait_begin(evd, Instant::from_nanos(now), 0, parameters.evd_qlen) {
        Ok(waiter) => waiter,
        Err(error) => return error.to_string(),
    };
    match adapter.evd_wait_poll(&mut waiter, Instant::from_nanos(now)) {
        Ok(Wait::TimedOut(count)) => count.to_string(),
        other => panic!("a wait for a full EVD: {other:?}"),
    }
}
