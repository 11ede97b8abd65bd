//! Random calls with good and bad arguments in every order, against the [`Model`]: a call must succeed if nothing forbids it,
//! and otherwise answer with a code of something that does.

use crate::model::{Ep, Evd, Lmr, Model, Rmr, reachable};
use ReturnType::*;
use dat_nostd::*;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tests::WorldConfig;
use tests::net::{Net, Node, address};
use tests::player::NODE_MEMORY;
use tests::seeds::{Random, ci, in_processes, long, only_seed, with_seed};

/// Steps of one seed.
const STEPS: u64 = 12_000;
const NONE: CompletionFlags = CompletionFlags::empty();
/// More of a kind are not made.
const MOST: usize = 10;

/// The consumer of one node.
struct Caller {
    index: usize,
    model: Model,
    memory: DmaSlice,
    calls: u64,
    refused: u64,
    established: u64,
}

/// A handle: mostly one that lives, else nonsense.
macro_rules! some {
    ($self:ident, $random:ident, $table:ident, $handle:ident) => {{
        let live: Vec<$handle> = $self.model.$table.keys().copied().collect();
        if live.is_empty() || $random.one_in(12) {
            $handle::from_bits($self.nonsense($random))
        } else {
            $random.pick(&live)
        }
    }};
}

/// The code if a condition is violated.
fn unless(legal: bool, code: ReturnType) -> Option<ReturnType> {
    (!legal).then_some(code)
}

impl Caller {
    fn nonsense(&self, random: &mut Random) -> u64 {
        let dead = &self.model.dead;
        match random.below(4) {
            0 if !dead.is_empty() => dead[random.below(dead.len() as u64) as usize],
            1 => random.next(),
            2 => random.below(3),
            // A plausible kind, place and generation; not of what comes into being unasked, requests and the endpoints of the
            // provider, which a guess could name before their event tells of them.
            _ => {
                let kind = random.below(12);
                let late = if kind < 2 { 1 << 20 } else { 0 };
                (1 + kind) << 56 | random.below(3) << 48 | random.below(80) << 32 | (late + random.below(6))
            }
        }
    }

    /// Judges an answer by what was violated and what may happen besides; whether it is success.
    #[track_caller]
    fn judge<T>(
        &mut self,
        call: &str,
        answer: &DatResult<T>,
        violated: &[Option<ReturnType>],
        besides: &[ReturnType],
    ) -> bool {
        self.calls += 1;
        let violated: Vec<ReturnType> = violated.iter().copied().flatten().collect();
        match answer {
            Ok(_) => {
                assert!(violated.is_empty(), "{call} succeeded in spite of {violated:?}");
                true
            }
            Err(code) => {
                self.refused += 1;
                let kind = code.kind().expect("a code of the specification");
                let allowed = violated.contains(&kind) || besides.contains(&kind);
                assert!(allowed, "{call}: {code} instead of {violated:?}, besides {besides:?}");
                false
            }
        }
    }

    /// The endpoint's state now, which it must be able to have come to.
    fn state(&mut self, node: &Node, ep: EpHandle) -> Option<EpState> {
        let known = self.model.eps.get_mut(&ep)?;
        let now = node.ep_get_status(ep).expect("lives").state;
        assert!(reachable(known.state).contains(&now), "{ep:?} came from {:?} to {now:?}", known.state);
        known.state = now;
        Some(now)
    }

    fn update(&mut self, node: &Node, ep: EpHandle, may_be: &[EpState]) {
        let now = node.ep_get_status(ep).expect("lives").state;
        assert!(may_be.contains(&now), "{now:?} instead of {may_be:?}");
        self.model.eps.get_mut(&ep).expect("known").state = now;
    }

    /// What an event says is true of objects that live.
    fn event(&mut self, node: &Node, from: EvdHandle, event: Event) {
        assert_eq!(event.evd, from);
        let flags = self.model.evds[&from].flags;
        match event.data {
            EventData::Software { .. } => assert!(flags.contains(EvdFlags::SOFTWARE)),
            EventData::Async { .. } => assert!(flags.contains(EvdFlags::ASYNC)),
            EventData::Dto(done) => {
                let ep = self.model.eps.get(&done.ep).expect("a completion of an EP that lives");
                let receive = done.operation == DtoOperation::Receive;
                assert_eq!(if receive { ep.recv } else { ep.request }, Some(from));
            }
            EventData::RmrBind(_) => assert!(flags.contains(EvdFlags::RMR_BIND)),
            EventData::Connection { ep, event, .. } => {
                self.established += u64::from(event == ConnectionEvent::Established);
                let ep = self.model.eps.get(&ep).expect("an event of an EP that lives");
                assert_eq!(ep.connect, Some(from));
            }
            EventData::ConnectionRequest { cr, sp, .. } => {
                let ia = match sp {
                    ServicePoint::Psp(psp) => self.model.psps.get(&psp).map(|psp| psp.0),
                    ServicePoint::Rsp(rsp) => self.model.rsps.get(&rsp).map(|rsp| rsp.0),
                };
                let asked = node.cr_query(cr).expect("a request that waits");
                if let Some(ep) = asked.local_ep
                    && !self.model.eps.contains_key(&ep)
                {
                    let made = node.ep_query(ep).expect("the provider's EP");
                    assert_eq!(made.state, EpState::TentativeConnectionPending);
                    let ia = made.ia;
                    let (pz, recv, request) = (made.pz, made.recv_evd, made.request_evd);
                    let connect = made.connect_evd;
                    let state = made.state;
                    self.model.eps.insert(ep, Ep { ia, pz, recv, request, connect, srq: None, state });
                }
                self.model.crs.insert(cr, (ia, asked.local_ep));
            }
        }
    }

    fn segment(&self, random: &mut Random) -> (LmrTriplet, Option<(PzHandle, MemPriv)>) {
        let lmrs: Vec<&Lmr> = self.model.lmrs.values().collect();
        if lmrs.is_empty() || random.one_in(15) {
            return (LmrTriplet::new(random.next() as u32 | 0x4000_0000, random.next(), 8), None);
        }
        let lmr = lmrs[random.below(lmrs.len() as u64) as usize];
        (LmrTriplet { segment_length: random.below(4096), ..lmr.triplet }, Some((lmr.pz, lmr.rights)))
    }

    /// An IA with something of everything that connections need.
    fn populate(&mut self, node: &mut Node) {
        let (ia, evd) = node.ia_open("ib0", 8, None).expect("there is room");
        self.model.ias.insert(ia, evd);
        let made = Evd { ia, flags: EvdFlags::ASYNC, waitable: true, waited: false, cno: None };
        self.model.evds.insert(evd, made);
        let pz = node.pz_create(ia).expect("there is room");
        self.model.pzs.insert(pz, ia);
        let lmr = node.lmr_create(ia, self.memory, pz, MemPriv::ALL).expect("there is room");
        let triplet = LmrTriplet::new(lmr.lmr_context, lmr.registered_address, 0);
        self.model.lmrs.insert(lmr.lmr, Lmr { ia, pz, triplet, rights: MemPriv::ALL });
        let flags = EvdFlags::all() - EvdFlags::ASYNC;
        for _ in 0..2 {
            let evd = node.evd_create(ia, 32, None, flags).expect("there is room");
            self.model.evds.insert(evd, Evd { ia, flags, waitable: true, waited: false, cno: None });
        }
    }

    #[allow(clippy::too_many_lines)] // One arm for each function.
    fn step(&mut self, node: &mut Node, random: &mut Random, now: u64) {
        if self.model.ias.is_empty() {
            self.populate(node);
        }
        let ia = some!(self, random, ias, IaHandle);
        let evd = some!(self, random, evds, EvdHandle);
        let ep = some!(self, random, eps, EpHandle);
        let pz = some!(self, random, pzs, PzHandle);
        let cno = some!(self, random, cnos, CnoHandle);
        let srq = some!(self, random, srqs, SrqHandle);
        let no_ia = unless(self.model.ias.contains_key(&ia), InvalidHandle);
        let no_evd = unless(self.model.evds.contains_key(&evd), InvalidHandle);
        let no_pz = unless(self.model.pzs.contains_key(&pz), InvalidHandle);
        let no_cno = unless(self.model.cnos.contains_key(&cno), InvalidHandle);
        let no_srq = unless(self.model.srqs.contains_key(&srq), InvalidHandle);
        let state = self.state(node, ep);
        let no_ep = unless(state.is_some(), InvalidHandle);
        // Whether the EP is in one of these states, if it lives.
        let wrong = |legal: &[EpState]| state.and_then(|state| unless(legal.contains(&state), InvalidState));
        // Objects of one IA are made of its own.
        let not_of =
            |of: Option<IaHandle>| of.and_then(|of| unless(of == ia || no_ia.is_some(), InvalidHandle));
        let foreign_pz = not_of(self.model.pzs.get(&pz).copied());
        let foreign_evd = not_of(self.model.evds.get(&evd).map(|evd| evd.ia));
        let foreign_cno = not_of(self.model.cnos.get(&cno).map(|cno| cno.0));
        let foreign_ep = not_of(self.model.eps.get(&ep).map(|ep| ep.ia));
        use EpState::*;
        match random.below(68) {
            0 if self.model.ias.len() < 3 && random.one_in(20) => {
                let given = random.one_in(3).then_some(evd);
                let bad = unless(self.model.is_evd(given, EvdFlags::ASYNC), InvalidHandle);
                let answer = node.ia_open("ib0", 8, given);
                if self.judge("ia_open", &answer, &[bad], &[]) {
                    let (ia, async_evd) = answer.expect("judged");
                    self.model.ias.insert(ia, async_evd);
                    if given.is_none() {
                        let flags = EvdFlags::ASYNC;
                        let made = Evd { ia, flags, waitable: true, waited: false, cno: None };
                        self.model.evds.insert(async_evd, made);
                    }
                }
            }
            1 if random.one_in(40) => {
                // One IA's objects may be used by another's here, so that all of them close together.
                let graceful = random.one_in(2);
                let flags = if graceful { CloseFlags::Graceful } else { CloseFlags::Abrupt };
                if graceful || self.model.ias.len() == 1 {
                    let used = graceful && no_ia.is_none() && self.model.objects_of(ia) > 0;
                    let answer = node.ia_close(ia, flags);
                    // A request that nobody has seen yet may have brought an EP.
                    let besides: &[ReturnType] = if graceful { &[InvalidState] } else { &[] };
                    if self.judge("ia_close", &answer, &[no_ia, unless(!used, InvalidState)], besides) {
                        self.model.close(ia);
                    }
                }
            }
            2 if self.model.pzs.len() < MOST => {
                let answer = node.pz_create(ia);
                if self.judge("pz_create", &answer, &[no_ia], &[]) {
                    self.model.pzs.insert(answer.expect("judged"), ia);
                }
            }
            3 if random.one_in(4) => {
                let answer = node.pz_free(pz);
                let used = unless(!self.model.pz_is_used(pz), InvalidState);
                if self.judge("pz_free", &answer, &[no_pz, used], &[]) {
                    self.model.pzs.remove(&pz);
                    self.model.bury(pz);
                }
            }
            4 if self.model.lmrs.len() < MOST => {
                let rights = random.pick(&[MemPriv::ALL, MemPriv::ALL, MemPriv::READ, MemPriv::REMOTE_WRITE]);
                let memory =
                    if random.one_in(10) { self.memory.slice(0, 0).expect("inside") } else { self.memory };
                let bad = unless(rights != MemPriv::REMOTE_WRITE, InvalidParameter);
                let empty = unless(!memory.is_empty(), LengthError);
                let answer = node.lmr_create(ia, memory, pz, rights);
                if self.judge("lmr_create", &answer, &[no_ia, no_pz, foreign_pz, bad, empty], &[]) {
                    let made = answer.expect("judged");
                    let triplet = LmrTriplet::new(made.lmr_context, made.registered_address, 0);
                    self.model.lmrs.insert(made.lmr, Lmr { ia, pz, triplet, rights });
                }
            }
            5 if random.one_in(4) => {
                let lmr = some!(self, random, lmrs, LmrHandle);
                let none = unless(self.model.lmrs.contains_key(&lmr), InvalidHandle);
                let besides: &[ReturnType] = if self.model.was_bound(lmr) { &[InvalidState] } else { &[] };
                let answer = node.lmr_free(lmr);
                if self.judge("lmr_free", &answer, &[none], besides) {
                    self.model.lmrs.remove(&lmr);
                    self.model.bury(lmr);
                }
            }
            6 if self.model.rmrs.len() < MOST => {
                let answer = node.rmr_create(pz);
                if self.judge("rmr_create", &answer, &[no_pz], &[]) {
                    let ia = self.model.pzs[&pz];
                    self.model.rmrs.insert(answer.expect("judged"), Rmr { ia, pz, bound: BTreeSet::new() });
                }
            }
            7 if random.one_in(4) => {
                let rmr = some!(self, random, rmrs, RmrHandle);
                let answer = node.rmr_free(rmr);
                let none = unless(self.model.rmrs.contains_key(&rmr), InvalidHandle);
                if self.judge("rmr_free", &answer, &[none], &[]) {
                    self.model.rmrs.remove(&rmr);
                    self.model.bury(rmr);
                }
            }
            8..10 => {
                let rmr = some!(self, random, rmrs, RmrHandle);
                let (segment, region) = self.segment(random);
                let rights = random.pick(&[MemPriv::REMOTE_READ, MemPriv::REMOTE_WRITE]);
                let window = self.model.rmrs.get(&rmr).map(|rmr| rmr.pz);
                let endpoint = self.model.eps.get(&ep);
                let takes = endpoint.is_none_or(|ep| {
                    ep.request.is_some() && self.model.is_evd(ep.request, EvdFlags::RMR_BIND)
                });
                let unbinds = segment.segment_length == 0;
                let zones =
                    window.zip(endpoint.map(|ep| ep.pz)).is_none_or(|(window, ep)| ep == Some(window));
                let violated = [
                    no_ep,
                    unless(window.is_some(), InvalidHandle),
                    wrong(&[Connected, Disconnected]),
                    unless(takes, InvalidState),
                    unless(zones, ProtectionViolation),
                    unless(unbinds || region.is_some(), PrivilegesViolation),
                    unless(
                        unbinds || region.is_none() || region.map(|region| region.0) == window,
                        ProtectionViolation,
                    ),
                    unless(
                        unbinds
                            || rights != MemPriv::REMOTE_WRITE
                            || region.is_none_or(|region| region.1.contains(MemPriv::LOCAL_WRITE)),
                        PrivilegesViolation,
                    ),
                ];
                let lmr =
                    self.model.lmrs.iter().find(|(_, lmr)| lmr.triplet.lmr_context == segment.lmr_context);
                let lmr = lmr.map(|(handle, _)| *handle);
                let answer = node.rmr_bind(rmr, &segment, rights, ep, 1, NONE);
                if self.judge("rmr_bind", &answer, &violated, &[InsufficientResources, InvalidState])
                    && let Some(lmr) = lmr
                {
                    self.model.rmrs.get_mut(&rmr).expect("judged").bound.insert(lmr);
                }
            }
            10..12 if self.model.evds.len() < 2 * MOST => {
                let all = EvdFlags::all() - EvdFlags::ASYNC;
                let flags = random.pick(&[
                    all,
                    all,
                    all,
                    all,
                    EvdFlags::DTO | EvdFlags::RMR_BIND,
                    EvdFlags::CONNECTION | EvdFlags::CR,
                    EvdFlags::SOFTWARE,
                    EvdFlags::ASYNC,
                    EvdFlags::ASYNC | EvdFlags::DTO,
                    EvdFlags::empty(),
                ]);
                let length = random.pick(&[0, 8, 16, 32]);
                let cno = random.one_in(3).then_some(cno);
                let bad_flags = flags.is_empty() || flags == EvdFlags::ASYNC | EvdFlags::DTO;
                let violated = [
                    no_ia,
                    cno.and(no_cno),
                    cno.and(foreign_cno),
                    unless(length > 0, InvalidParameter),
                    unless(!bad_flags, InvalidParameter),
                ];
                let answer = node.evd_create(ia, length, cno, flags);
                if self.judge("evd_create", &answer, &violated, &[InsufficientResources]) {
                    let made = Evd { ia, flags, waitable: true, waited: false, cno };
                    self.model.evds.insert(answer.expect("judged"), made);
                }
            }
            12 if random.one_in(8) => {
                let answer = node.evd_free(evd);
                let fed = unless(!self.model.evd_is_fed(evd), InvalidState);
                if self.judge("evd_free", &answer, &[no_evd, fed], &[]) {
                    self.model.evds.remove(&evd);
                    self.model.bury(evd);
                }
            }
            13 => {
                let answer = if random.one_in(2) { node.evd_enable(evd) } else { node.evd_disable(evd) };
                self.judge("evd_enable", &answer, &[no_evd], &[]);
            }
            14 => {
                let waitable = !random.one_in(4);
                let answer =
                    if waitable { node.evd_clear_unwaitable(evd) } else { node.evd_set_unwaitable(evd) };
                if self.judge("evd_set_unwaitable", &answer, &[no_evd], &[]) {
                    self.model.evds.get_mut(&evd).expect("judged").waitable = waitable;
                }
            }
            15 => {
                let cno = random.one_in(2).then_some(cno);
                let answer = node.evd_modify_cno(evd, cno);
                let kin = cno.and_then(|cno| self.model.cnos.get(&cno)).map(|cno| cno.0);
                let own = self.model.evds.get(&evd).map(|evd| evd.ia);
                let foreign = unless(kin.is_none() || own.is_none() || kin == own, InvalidHandle);
                if self.judge("evd_modify_cno", &answer, &[no_evd, cno.and(no_cno), foreign], &[]) {
                    self.model.evds.get_mut(&evd).expect("judged").cno = cno;
                }
            }
            16 => {
                let length = random.pick(&[0, 1, 9, 40]);
                let answer = node.evd_resize(evd, length);
                let violated = [no_evd, unless(length > 0, InvalidParameter)];
                self.judge("evd_resize", &answer, &violated, &[InvalidState, InsufficientResources]);
            }
            17..19 => {
                let takes = no_evd.is_some() || self.model.is_evd(Some(evd), EvdFlags::SOFTWARE);
                let answer = node.evd_post_se(evd, 5);
                self.judge("evd_post_se", &answer, &[no_evd, unless(takes, InvalidParameter)], &[QueueFull]);
            }
            19..26 => {
                let waited = self.model.evds.get(&evd).is_some_and(|evd| evd.waited);
                let answer = node.evd_dequeue(evd);
                let overflow: &[ReturnType] =
                    if node.counters().overflows > 0 { &[QueueEmpty, InvalidState] } else { &[QueueEmpty] };
                if self.judge("evd_dequeue", &answer, &[no_evd, unless(!waited, InvalidState)], overflow) {
                    self.event(node, evd, answer.expect("judged"));
                }
            }
            26 => {
                let threshold = random.pick(&[0, 1, 2, 1 << 20]);
                let (waited, waitable) =
                    self.model.evds.get(&evd).map_or((false, true), |evd| (evd.waited, evd.waitable));
                let violated = [
                    no_evd,
                    unless(!waited && waitable, InvalidState),
                    unless((1..1 << 20).contains(&threshold), InvalidParameter),
                ];
                let besides: &[ReturnType] =
                    if node.counters().overflows > 0 { &[InvalidState] } else { &[] };
                let answer = node.evd_wait_begin(evd, now, random.below(3_000_000) as u32, threshold);
                if self.judge("evd_wait_begin", &answer, &violated, besides) {
                    self.model.evds.get_mut(&evd).expect("judged").waited = true;
                }
            }
            27..29 | 64..66 => {
                // Only what is known not to have been an EVD under a wait: that one would be ABORT.
                let Some(known) = self.model.evds.get(&evd) else { return };
                let (waited, waitable) = (known.waited, known.waitable);
                let answer = node.evd_wait_poll(evd, now);
                if self.judge(
                    "evd_wait_poll",
                    &answer,
                    &[unless(waited && waitable, InvalidState)],
                    &[InvalidState],
                ) {
                    match answer.expect("judged") {
                        Wait::Pending(_) => return,
                        Wait::Ready(event, _) => self.event(node, evd, event),
                        Wait::TimedOut(_) => {}
                    }
                }
                self.model.evds.get_mut(&evd).expect("known").waited = false;
            }
            29 | 66..68 => {
                let waited = self.model.evds.get(&evd).is_none_or(|evd| evd.waited);
                let answer = node.evd_wait_end(evd);
                let besides: &[ReturnType] =
                    if node.counters().overflows > 0 { &[InvalidState] } else { &[] };
                if self.judge("evd_wait_end", &answer, &[no_evd, unless(waited, InvalidState)], besides) {
                    self.model.evds.get_mut(&evd).expect("judged").waited = false;
                }
            }
            30 if self.model.cnos.len() < MOST => {
                let answer = node.cno_create(ia, None);
                if self.judge("cno_create", &answer, &[no_ia], &[]) {
                    self.model.cnos.insert(answer.expect("judged"), (ia, false));
                }
            }
            31 if random.one_in(4) => {
                let answer = node.cno_free(cno);
                if self.judge(
                    "cno_free",
                    &answer,
                    &[no_cno, unless(!self.model.cno_is_used(cno), InvalidState)],
                    &[],
                ) {
                    self.model.cnos.remove(&cno);
                    self.model.bury(cno);
                }
            }
            32..34 => self.wait_on_cno(node, cno, random, now),
            34 if self.model.srqs.len() < MOST => {
                let count = random.pick(&[0, 4, 4, 4]);
                let attributes = SrqAttributes { max_recv_dtos: count, max_recv_iov: 2, low_watermark: 0 };
                let violated = [no_ia, no_pz, foreign_pz, unless(count > 0, InvalidParameter)];
                let answer = node.srq_create(ia, pz, &attributes);
                if self.judge("srq_create", &answer, &violated, &[]) {
                    self.model.srqs.insert(answer.expect("judged"), (ia, pz));
                }
            }
            35 if random.one_in(4) => {
                let answer = node.srq_free(srq);
                if self.judge(
                    "srq_free",
                    &answer,
                    &[no_srq, unless(!self.model.srq_is_used(srq), InvalidState)],
                    &[],
                ) {
                    self.model.srqs.remove(&srq);
                    self.model.bury(srq);
                }
            }
            36 => {
                let answer = node.srq_set_lw(srq, random.below(6) as u32);
                self.judge("srq_set_lw", &answer, &[no_srq], &[InvalidParameter]);
                let answer = node.srq_resize(srq, random.pick(&[1, 4, 6, 100]));
                self.judge("srq_resize", &answer, &[no_srq], &[InvalidState, InsufficientResources]);
            }
            37..39 => {
                let (segment, region) = self.segment(random);
                let zone = self.model.srqs.get(&srq).map(|srq| srq.1);
                let writable = region.is_none_or(|region| region.1.contains(MemPriv::LOCAL_WRITE));
                let violated = [
                    no_srq,
                    unless(region.is_some() && writable, PrivilegesViolation),
                    unless(
                        region.is_none() || zone.is_none() || region.map(|region| region.0) == zone,
                        ProtectionViolation,
                    ),
                ];
                let answer = node.srq_post_recv(srq, &[segment], 1);
                self.judge("srq_post_recv", &answer, &violated, &[InsufficientResources]);
            }
            39..42 if self.model.eps.len() < 2 * MOST => self.make_ep(node, random, (ia, pz, srq)),
            42 if random.one_in(4) => {
                let answer = node.ep_free(ep);
                let legal = [
                    Unconnected,
                    ActiveConnectionPending,
                    CompletionPending,
                    Connected,
                    DisconnectPending,
                    Disconnected,
                ];
                if self.judge("ep_free", &answer, &[no_ep, wrong(&legal)], &[]) {
                    self.model.eps.remove(&ep);
                    self.model.bury(ep);
                }
            }
            43 => {
                let answer = node.ep_reset(ep);
                if self.judge("ep_reset", &answer, &[no_ep, wrong(&[Unconnected, Disconnected])], &[]) {
                    self.update(node, ep, &[Unconnected]);
                }
            }
            44..47 => {
                let (to, timeout) = (
                    address(random.pick(&[self.index, 1 - self.index, 1 - self.index, 1 - self.index, 99])),
                    random.pick(&[0, 300_000, u32::MAX]),
                );
                let qualifier = random.pick(&[0, 5, 5, 6, 6, 7]);
                let answer = node.ep_connect(
                    ep,
                    &to,
                    qualifier,
                    timeout,
                    b"fuzz",
                    Qos::BestEffort,
                    ConnectFlags::Default,
                );
                let ready = self.model.eps.get(&ep).is_none_or(|ep| ep.pz.is_some() && ep.connect.is_some());
                let violated = [
                    no_ep,
                    wrong(&[Unconnected]),
                    unless(ready, InvalidState),
                    unless(timeout > 0, InvalidParameter),
                    unless(qualifier > 0, InvalidParameter),
                ];
                if self.judge("ep_connect", &answer, &violated, &[]) {
                    self.update(node, ep, &[ActiveConnectionPending, Disconnected]);
                }
            }
            47 => {
                let pattern = some!(self, random, eps, EpHandle);
                let pattern_state = self.state(node, pattern);
                let answer = node.ep_dup_connect(ep, pattern, 1_000_000, b"", Qos::BestEffort);
                let ready = self.model.eps.get(&ep).is_none_or(|ep| ep.pz.is_some() && ep.connect.is_some());
                let violated = [
                    no_ep,
                    unless(pattern_state.is_some(), InvalidHandle),
                    wrong(&[Unconnected]),
                    unless(pattern_state.is_none_or(|state| state == Connected), InvalidState),
                    unless(ready, InvalidState),
                ];
                // A passive side's remote port need not be one that anybody could listen on.
                if self.judge("ep_dup_connect", &answer, &violated, &[InvalidParameter]) {
                    self.update(node, ep, &[ActiveConnectionPending, Disconnected]);
                }
            }
            48 => {
                let graceful = random.one_in(2);
                let flags = if graceful { CloseFlags::Graceful } else { CloseFlags::Abrupt };
                let answer = node.ep_disconnect(ep, flags);
                let legal =
                    [ActiveConnectionPending, CompletionPending, Connected, DisconnectPending, Disconnected];
                if self.judge("ep_disconnect", &answer, &[no_ep, wrong(&legal)], &[]) {
                    self.update(node, ep, &[DisconnectPending, Disconnected]);
                }
            }
            49..56 => self.post(node, ep, state, random),
            56 => {
                let (kind, violated) =
                    (random.below(2), unless(self.model.is_evd(Some(evd), EvdFlags::CR), InvalidHandle));
                let qualifier = random.pick(&[0, 5, 6, 7, 8]);
                let listening = self.model.psps.values().any(|psp| psp.1 == qualifier);
                let flags = if kind == 0 { PspFlags::Consumer } else { PspFlags::Provider };
                if self.model.psps.len() < MOST {
                    let answer = node.psp_create(ia, qualifier, evd, flags);
                    let violated = [
                        no_ia,
                        violated,
                        foreign_evd,
                        unless(qualifier > 0, InvalidParameter),
                        unless(!listening, ConnQualInUse),
                    ];
                    if self.judge("psp_create", &answer, &violated, &[ConnQualInUse]) {
                        self.model.psps.insert(answer.expect("judged"), (ia, qualifier, evd));
                    }
                }
            }
            57 if random.one_in(4) => {
                let psp = some!(self, random, psps, PspHandle);
                let answer = node.psp_free(psp);
                let none = unless(self.model.psps.contains_key(&psp), InvalidHandle);
                if self.judge("psp_free", &answer, &[none], &[]) {
                    self.model.psps.remove(&psp);
                    self.model.bury(psp);
                }
            }
            58 if self.model.rsps.len() < MOST => {
                let qualifier = random.pick(&[5, 6, 7, 8]);
                let given = (!random.one_in(4)).then_some(ep);
                let listening = self.model.psps.values().any(|psp| psp.1 == qualifier);
                let violated = [
                    no_ia,
                    foreign_evd,
                    given.and(foreign_ep),
                    given.and(no_ep),
                    given.and(wrong(&[Unconnected])),
                    unless(self.model.is_evd(Some(evd), EvdFlags::CR), InvalidHandle),
                    unless(!listening, ConnQualInUse),
                ];
                let answer = node.rsp_create(ia, qualifier, given, evd);
                if self.judge("rsp_create", &answer, &violated, &[ConnQualInUse]) {
                    self.model.rsps.insert(answer.expect("judged"), (ia, qualifier, evd, given));
                    if let Some(ep) = given {
                        self.update(node, ep, &[Reserved]);
                    }
                }
            }
            59 => {
                let rsp = some!(self, random, rsps, RspHandle);
                let reserved = self.model.rsps.get(&rsp).and_then(|rsp| rsp.3);
                let before = reserved.and_then(|ep| self.state(node, ep));
                let answer = node.rsp_free(rsp);
                let none = unless(self.model.rsps.contains_key(&rsp), InvalidHandle);
                if self.judge("rsp_free", &answer, &[none], &[]) {
                    self.model.rsps.remove(&rsp);
                    self.model.bury(rsp);
                    if let (Some(ep), Some(Reserved)) = (reserved, before) {
                        // After the request of one service point was refused, another may have reserved the EP.
                        let again = self.model.rsps.values().any(|other| other.3 == Some(ep));
                        self.update(node, ep, if again { &[Unconnected, Reserved] } else { &[Unconnected] });
                    }
                }
            }
            60..63 => self.answer(node, ep, state, random),
            63 => self.context(node, random),
            _ => {}
        }
    }

    fn wait_on_cno(&mut self, node: &mut Node, cno: CnoHandle, random: &mut Random, now: u64) {
        let known = self.model.cnos.get(&cno).map(|cno| cno.1);
        let none = unless(known.is_some(), InvalidHandle);
        let waited = known == Some(true);
        match random.below(3) {
            0 => {
                let answer = node.cno_wait_begin(cno, now, random.below(1_000_000) as u32);
                if self.judge("cno_wait_begin", &answer, &[none, unless(!waited, InvalidState)], &[]) {
                    self.model.cnos.get_mut(&cno).expect("judged").1 = true;
                }
            }
            1 if known.is_some() => {
                let answer = node.cno_wait_poll(cno, now);
                self.judge("cno_wait_poll", &answer, &[unless(waited, InvalidState)], &[QueueEmpty]);
                if !matches!(answer, Ok(CnoWait::Pending(_))) {
                    self.model.cnos.get_mut(&cno).expect("known").1 = false;
                }
            }
            2 => {
                let answer = node.cno_wait_end(cno);
                if self.judge(
                    "cno_wait_end",
                    &answer,
                    &[none, unless(waited || known.is_none(), InvalidState)],
                    &[],
                ) {
                    self.model.cnos.get_mut(&cno).expect("judged").1 = false;
                }
            }
            _ => {}
        }
    }

    fn make_ep(
        &mut self,
        node: &mut Node,
        random: &mut Random,
        (ia, pz, srq): (IaHandle, PzHandle, SrqHandle),
    ) {
        let attributes = EpAttributes { max_recv_dtos: 4, max_request_dtos: 4, ..EpAttributes::DEFAULT };
        // Mostly EVDs that fit.
        let fitting: Vec<EvdHandle> = self
            .model
            .evds
            .iter()
            .filter(|(_, evd)| evd.ia == ia && evd.flags.contains(EvdFlags::DTO | EvdFlags::CONNECTION))
            .map(|(evd, _)| *evd)
            .collect();
        let evds = [0; 3].map(|_| {
            if fitting.is_empty() || random.one_in(15) {
                some!(self, random, evds, EvdHandle)
            } else {
                random.pick(&fitting)
            }
        });
        let recv = Some(evds[0]);
        let (request, connect) = (Some(evds[1]), (!random.one_in(8)).then_some(evds[2]));
        let model = &self.model;
        let mut violated = vec![
            unless(model.ias.contains_key(&ia), InvalidHandle),
            unless(model.is_evd(recv, EvdFlags::DTO), InvalidHandle),
            unless(model.is_evd(request, EvdFlags::DTO), InvalidHandle),
            unless(model.is_evd(connect, EvdFlags::CONNECTION), InvalidHandle),
        ];
        let known_pz = unless(model.pzs.get(&pz).is_some_and(|of| *of == ia), InvalidHandle);
        let kin = [recv, request, connect].into_iter().flatten().filter_map(|evd| model.evds.get(&evd));
        violated.extend(kin.map(|evd| unless(evd.ia == ia, InvalidHandle)));
        let (answer, pz, srq) = if random.one_in(3) {
            violated.push(known_pz);
            violated.push(unless(model.srqs.get(&srq).is_some_and(|of| of.0 == ia), InvalidHandle));
            let zone = model.srqs.get(&srq).is_none_or(|srq| srq.1 == pz);
            violated.push(unless(zone, InvalidParameter));
            let answer = node.ep_create_with_srq(ia, pz, recv, request, connect, srq, &attributes);
            (answer, Some(pz), Some(srq))
        } else {
            let pz = (!random.one_in(8)).then_some(pz);
            violated.push(pz.and(known_pz));
            (node.ep_create(ia, pz, recv, request, connect, Some(&attributes)), pz, None)
        };
        if self.judge("ep_create", &answer, &violated, &[InsufficientResources]) {
            let state = EpState::Unconnected;
            self.model.eps.insert(answer.expect("judged"), Ep { ia, pz, recv, request, connect, srq, state });
        }
    }

    fn post(&mut self, node: &mut Node, ep: EpHandle, state: Option<EpState>, random: &mut Random) {
        let (segment, region) = self.segment(random);
        let receive = random.one_in(2);
        let read = !receive && random.one_in(3);
        let known = self.model.eps.get(&ep);
        let (zone, srq) = known.map_or((None, None), |ep| (ep.pz, ep.srq));
        let legal =
            receive || state.is_none_or(|state| matches!(state, EpState::Connected | EpState::Disconnected));
        let writable = region.is_none_or(|region| region.1.contains(MemPriv::LOCAL_WRITE));
        let violated = [
            unless(state.is_some(), InvalidHandle),
            unless(legal, InvalidState),
            unless(!receive || known.is_none() || (zone.is_some() && srq.is_none()), InvalidState),
            unless(region.is_some() && (writable || !(receive || read)), PrivilegesViolation),
            unless(
                region.is_none() || known.is_none() || region.map(|region| region.0) == zone,
                ProtectionViolation,
            ),
        ];
        let remote = RmrTriplet::new(segment.lmr_context, segment.virtual_address, segment.segment_length);
        let iov = [segment];
        let answer = match random.below(2) {
            _ if receive => node.ep_post_recv(ep, &iov, 1, NONE),
            _ if read => node.ep_post_rdma_read(ep, &iov, 1, &remote, NONE),
            0 => node.ep_post_rdma_write(ep, &iov, 1, &remote, NONE),
            _ => node.ep_post_send(ep, &iov, 1, NONE),
        };
        // A full queue, or a poll for room that has ended the connection.
        self.judge("ep_post", &answer, &violated, &[InsufficientResources, InvalidState]);
    }

    /// Answers a request.
    fn answer(&mut self, node: &mut Node, ep: EpHandle, state: Option<EpState>, random: &mut Random) {
        let cr = some!(self, random, crs, CrHandle);
        let brought = self.model.crs.get(&cr).map(|cr| cr.1);
        let none = unless(brought.is_some(), InvalidHandle);
        let own = brought.flatten();
        match random.below(4) {
            0 => {
                let answer = node.cr_query(cr).map(|asked| asked.local_ep);
                if self.judge("cr_query", &answer, &[none], &[]) {
                    assert_eq!(answer, Ok(own));
                }
            }
            1 | 2 => {
                let given = own.is_none().then_some(ep);
                let used = own.unwrap_or(ep);
                let used_state = if own.is_some() { self.state(node, used) } else { state };
                let ready =
                    self.model.eps.get(&used).is_none_or(|ep| ep.pz.is_some() && ep.connect.is_some());
                let legal = own.is_some() || used_state.is_none_or(|state| state == EpState::Unconnected);
                let violated = [
                    none,
                    unless(used_state.is_some(), InvalidHandle),
                    unless(ready, InvalidHandle),
                    unless(legal, InvalidState),
                ];
                let answer = node.cr_accept(cr, given, b"so be it");
                // A request of one IA is not for another's EP.
                if self.judge("cr_accept", &answer, &violated, &[InvalidHandle]) {
                    self.model.crs.remove(&cr);
                    self.model.bury(cr);
                    self.update(node, used, &[EpState::CompletionPending, EpState::Disconnected]);
                }
            }
            _ => {
                let handoff = random.one_in(3);
                let answer = if handoff { node.cr_handoff(cr, 6) } else { node.cr_reject(cr) };
                let besides: &[ReturnType] = if handoff { &[InvalidParameter] } else { &[] };
                if self.judge("cr_reject", &answer, &[none], besides) {
                    self.model.crs.remove(&cr);
                    self.model.bury(cr);
                    match own.map(|ep| (ep, self.model.eps[&ep].state)) {
                        Some((ep, EpState::TentativeConnectionPending)) => {
                            assert!(node.ep_query(ep).is_err(), "the provider's EP ends with its request");
                            self.model.eps.remove(&ep);
                            self.model.bury(ep);
                        }
                        // Handed on to a service point of the same EP it may be passive again.
                        Some((ep, _)) => {
                            self.update(node, ep, &[EpState::Unconnected, EpState::PassiveConnectionPending])
                        }
                        None => {}
                    }
                }
            }
        }
    }

    fn context(&mut self, node: &mut Node, random: &mut Random) {
        let live: Vec<Handle> = self.model.eps.keys().map(|ep| Handle::from(*ep)).collect();
        let live = live.into_iter().chain(self.model.evds.keys().map(|evd| Handle::from(*evd)));
        let live: Vec<Handle> = live.chain(self.model.pzs.keys().map(|pz| Handle::from(*pz))).collect();
        if live.is_empty() {
            return;
        }
        let handle = random.pick(&live);
        let known = self.model.contexts.get(&handle).copied().unwrap_or(0);
        assert_eq!(node.get_consumer_context(handle), Ok(known));
        let context = random.next();
        node.set_consumer_context(handle, context).expect("lives");
        self.model.contexts.insert(handle, context);
        assert_eq!(Some(node.get_handle_type(handle).expect("lives")), handle.kind());
    }

    /// Everything that should live does, as it should; nothing else does.
    fn check(&mut self, node: &Node) {
        for (evd, known) in &self.model.evds {
            let found = node.evd_query(*evd).expect("lives");
            assert_eq!((found.ia, found.evd_flags, found.cno), (known.ia, known.flags, known.cno));
            assert_eq!(found.evd_state.contains(EvdState::WAITABLE), known.waitable);
        }
        for (ep, known) in &self.model.eps {
            let found = node.ep_query(*ep).expect("lives");
            assert_eq!((found.ia, found.pz, found.srq), (known.ia, known.pz, known.srq));
            assert_eq!(
                (found.recv_evd, found.request_evd, found.connect_evd),
                (known.recv, known.request, known.connect)
            );
        }
        for bits in &self.model.dead {
            assert!(node.get_handle_type(Handle::from_bits(*bits)).is_err(), "{bits:x} is dead");
        }
        let census = node.census();
        let found = [census.ias, census.pzs, census.lmrs, census.rmrs, census.evds];
        let model = &self.model;
        let known = [model.ias.len(), model.pzs.len(), model.lmrs.len(), model.rmrs.len(), model.evds.len()];
        assert_eq!(found, known, "IAs, zones, regions, windows, EVDs");
        let found = [census.cnos, census.srqs, census.psps, census.rsps];
        let known = [model.cnos.len(), model.srqs.len(), model.psps.len(), model.rsps.len()];
        assert_eq!(found, known, "CNOs, SRQs, service points");
        // Requests that nobody has seen yet may have brought EPs.
        assert!(census.eps >= model.eps.len() && census.crs >= model.crs.len());
    }
}

/// One seed: calls made and refused, and ends of connections established.
fn run(seed: u64) -> [u64; 3] {
    let mut random = Random::new(seed);
    let mut config = WorldConfig::new(seed);
    config.fabric.faults = "loss=0.3%,dup=1%,reorder=1%,delay=1us..20us".parse().unwrap();
    let mut net = Net::with_memory(&config, 2, NODE_MEMORY);
    let memory: Vec<DmaSlice> =
        net.nodes.iter_mut().map(|node| node.dma_alloc(1 << 16, 4096).unwrap()).collect();
    let baseline: Vec<_> = (0..2).map(|index| (net.nodes[index].census(), net.world.census(index))).collect();
    let mut callers: Vec<Caller> = memory
        .iter()
        .enumerate()
        .map(|(index, memory)| Caller {
            index,
            model: Model::default(),
            memory: *memory,
            calls: 0,
            refused: 0,
            established: 0,
        })
        .collect();
    for step in 0..STEPS {
        // Now and then long enough for a connection to be set up.
        let turns = if random.one_in(10) { 80 } else { random.below(4) };
        for _ in 0..turns {
            net.step();
        }
        let index = random.below(2) as usize;
        let now = net.world.now();
        callers[index].step(&mut net.nodes[index], &mut random, now);
        if step % 200 == 0 {
            callers[index].check(&net.nodes[index]);
        }
    }
    for (index, caller) in callers.iter_mut().enumerate() {
        caller.check(&net.nodes[index]);
        let ias: Vec<IaHandle> = caller.model.ias.keys().copied().collect();
        // The newest first: they may use what the older ones have.
        for ia in ias.into_iter().rev() {
            net.nodes[index].ia_close(ia, CloseFlags::Abrupt).expect("always succeeds");
        }
    }
    // TimeWait and what is on its way comes to an end.
    net.pass(20_000_000_000);
    for (index, (before, devices)) in baseline.into_iter().enumerate() {
        assert_eq!(net.nodes[index].census(), before, "nothing is left in node {index}'s tables");
        assert_eq!(net.world.census(index), devices, "nothing is left in node {index}'s HCA");
        assert_eq!(net.nodes[index].counters().bad_completions, 0);
    }
    for index in 0..2 {
        // Keys and lengths that transfers named wrongly are the device's to refuse, and the last step of a connection whose queue
        // pair failed in between (the peer may be gone by then), and the freeing of a region to which a bind that was flushed has
        // bound a window all the same; nothing else is.
        let named = |line: &String| {
            let late = line.starts_with("RTR2RTS_QP: bad QP state") && line.ends_with("is in error (0x6)");
            let bound = line.starts_with("DESTROY_MKEY: resource busy") && line.ends_with("is bound to it");
            line.contains("mkc.") || line.contains("wqe_data_seg.") || late || bound
        };
        let refusals: Vec<String> =
            net.world.refusals(index).into_iter().filter(|line| !named(line)).collect();
        assert_eq!(refusals, Vec::<String>::new(), "node {index}");
    }
    let sum = |of: fn(&Caller) -> u64| callers.iter().map(of).sum();
    [sum(|caller| caller.calls), sum(|caller| caller.refused), sum(|caller| caller.established)]
}

#[test]
fn random_calls_answer_as_the_specification_says() {
    const NAME: &str = "calls::random_calls_answer_as_the_specification_says";
    if let Some(seed) = only_seed() {
        println!("seed {seed}: {:?}", with_seed(NAME, seed, || run(seed)));
        return;
    }
    let end = Instant::now()
        + Duration::from_secs(if long() {
            600
        } else if ci() {
            60
        } else {
            5
        });
    // Another part of the seeds every day would be another test every day: the same ones, in order.
    let (mut seed, mut tally) = (1000, [0; 3]);
    while Instant::now() < end {
        if long() {
            in_processes(NAME, seed..seed + 1);
        } else {
            let found = with_seed(NAME, seed, || run(seed));
            tally.iter_mut().zip(found).for_each(|(sum, found)| *sum += found);
        }
        seed += 1;
    }
    let [calls, refused, established] = tally;
    println!(
        "{} seeds, {calls} calls, {refused} of them refused, {established} times ESTABLISHED",
        seed - 1000
    );
    assert!(long() || calls > 10_000 && refused > 1_000 && refused < calls && established > 0, "{tally:?}");
}
