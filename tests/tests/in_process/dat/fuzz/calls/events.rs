//! Event dispatchers and notification objects.

use super::{Caller, Chosen, MOST, unless};
use crate::dat::fuzz::model::Evd;
use ReturnType::*;
use dat_nostd::*;
use harness::net::Node;
use harness::seeds::Random;

impl Caller {
    pub(super) fn events(&mut self, node: &mut Node, random: &mut Random, draw: u64, chosen: &Chosen) {
        let Chosen { ia, evd, cno, now, no_ia, no_evd, no_cno, foreign_cno, .. } = *chosen;
        match draw {
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
                    let made = Evd { ia, flags, waitable: true, waiter: None, cno };
                    self.model.evds.insert(answer.expect("judged"), made);
                }
            }
            12 if random.one_in(8) => {
                let answer = node.evd_free(evd);
                let fed = unless(!self.model.evd_is_fed(evd), InvalidState);
                if self.judge("evd_free", &answer, &[no_evd, fed], &[]) {
                    self.model.evds.remove(&evd);
                    self.model.bury(evd);
                    // Requests in it are rejected, as nobody could answer them, and free the EPs they had come for.
                    let brought = |ep: &EpHandle| self.model.crs.values().any(|cr| cr.1 == Some(*ep));
                    let waiting: Vec<EpHandle> =
                        self.model.waiting_for_answer().filter(|ep| !brought(ep)).collect();
                    for ep in waiting {
                        self.update(node, ep, &[EpState::PassiveConnectionPending, EpState::Unconnected]);
                    }
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
                let waited = self.model.evds.get(&evd).is_some_and(|evd| evd.waiter.is_some());
                let answer = node.evd_dequeue(evd);
                let overflow: &[ReturnType] =
                    if node.counters().overflows > 0 { &[QueueEmpty, InvalidState] } else { &[QueueEmpty] };
                if self.judge("evd_dequeue", &answer, &[no_evd, unless(!waited, InvalidState)], overflow) {
                    self.event(node, evd, answer.expect("judged"));
                }
            }
            26 => {
                let threshold = random.pick(&[0, 1, 2, 1 << 20]);
                let (waited, waitable) = self
                    .model
                    .evds
                    .get(&evd)
                    .map_or((false, true), |evd| (evd.waiter.is_some(), evd.waitable));
                let violated = [
                    no_evd,
                    unless(!waited && waitable, InvalidState),
                    unless((1..1 << 20).contains(&threshold), InvalidParameter),
                ];
                let besides: &[ReturnType] =
                    if node.counters().overflows > 0 { &[InvalidState] } else { &[] };
                let answer = node.evd_wait_begin(
                    evd,
                    Instant::from_nanos(now),
                    random.below(3_000_000) as u32,
                    threshold,
                );
                if self.judge("evd_wait_begin", &answer, &violated, besides) {
                    self.model.evds.get_mut(&evd).expect("judged").waiter = Some(answer.expect("judged"));
                }
            }
            27..29 | 64..66 => {
                let Some(known) = self.model.evds.get_mut(&evd) else { return };
                let waitable = known.waitable;
                let Some(mut waiter) = known.waiter.take() else { return };
                let answer = node.evd_wait_poll(&mut waiter, Instant::from_nanos(now));
                if self.judge("evd_wait_poll", &answer, &[unless(waitable, InvalidState)], &[InvalidState]) {
                    match answer.expect("judged") {
                        Wait::Pending(_) => {
                            self.model.evds.get_mut(&evd).expect("known").waiter = Some(waiter);
                        }
                        Wait::Ready(event, _) => self.event(node, evd, event),
                        Wait::TimedOut(_) => {}
                    }
                }
            }
            29 | 66..68 => {
                let Some(known) = self.model.evds.get_mut(&evd) else { return };
                let Some(waiter) = known.waiter.take() else { return };
                if random.one_in(2) {
                    drop(waiter);
                    return;
                }
                let besides: &[ReturnType] =
                    if node.counters().overflows > 0 { &[InvalidState] } else { &[] };
                let answer = node.evd_wait_end(waiter);
                self.judge("evd_wait_end", &answer, &[], besides);
            }
            30 if self.model.cnos.len() < MOST => {
                let answer = node.cno_create(ia, None);
                if self.judge("cno_create", &answer, &[no_ia], &[]) {
                    self.model.cnos.insert(answer.expect("judged"), (ia, Vec::new()));
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
            _ => {}
        }
    }

    fn wait_on_cno(&mut self, node: &mut Node, cno: CnoHandle, random: &mut Random, now: u64) {
        let Some((_, waiters)) = self.model.cnos.get_mut(&cno) else {
            let answer = node.cno_wait_begin(cno, Instant::from_nanos(now), 0);
            self.judge("cno_wait_begin", &answer, &[Some(InvalidHandle)], &[]);
            return;
        };
        let index = random.below(waiters.len().max(1) as u64) as usize;
        match random.below(4) {
            0 => {
                let answer =
                    node.cno_wait_begin(cno, Instant::from_nanos(now), random.below(1_000_000) as u32);
                if self.judge("cno_wait_begin", &answer, &[], &[]) {
                    self.model.cnos.get_mut(&cno).expect("known").1.push(answer.expect("judged"));
                }
            }
            1 if !waiters.is_empty() => {
                let answer = node.cno_wait_poll(&mut waiters[index], Instant::from_nanos(now));
                if !matches!(answer, Ok(CnoWait::Pending(_))) {
                    drop(waiters.swap_remove(index));
                }
                self.judge("cno_wait_poll", &answer, &[], &[QueueEmpty]);
            }
            2 if !waiters.is_empty() => {
                let answer = node.cno_wait_end(waiters.swap_remove(index));
                self.judge("cno_wait_end", &answer, &[], &[]);
            }
            3 if !waiters.is_empty() => drop(waiters.swap_remove(index)),
            _ => {}
        }
    }
}
