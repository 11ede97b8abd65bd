//! Adapters, zones, regions, windows.

use super::{Caller, Chosen, MOST, NONE, some, unless};
use crate::dat::fuzz::model::{Evd, Lmr, Rmr};
use ReturnType::*;
use dat_nostd::*;
use harness::net::Node;
use harness::seeds::Random;
use std::collections::BTreeSet;

impl Caller {
    pub(super) fn memory(&mut self, node: &mut Node, random: &mut Random, draw: u64, chosen: &Chosen) {
        let Chosen { ia, evd, ep, pz, no_ia, no_ep, no_pz, foreign_pz, .. } = *chosen;
        use EpState::*;
        match draw {
            0 if self.model.ias.len() < 3 && random.one_in(20) => {
                let given = random.one_in(3).then_some(evd);
                let bad = unless(self.model.is_evd(given, EvdFlags::ASYNC), InvalidHandle);
                let answer = node.ia_open("ib0", 8, given);
                if self.judge("ia_open", &answer, &[bad], &[]) {
                    let (ia, async_evd) = answer.expect("judged");
                    self.model.ias.insert(ia, async_evd);
                    if given.is_none() {
                        let flags = EvdFlags::ASYNC;
                        let made = Evd { ia, flags, waitable: true, waiter: None, cno: None };
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
                    if self.judge("ia_close", &answer, &[no_ia, unless(!used, InvalidState)], &[]) {
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
                let memory = self.memory.as_slice();
                let memory = if random.one_in(10) { memory.slice(0, 0).expect("inside") } else { memory };
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
                    chosen.wrong(&[Connected, Disconnected]),
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
            _ => {}
        }
    }
}
