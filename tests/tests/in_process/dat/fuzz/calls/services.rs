//! Service points and requests.

use super::{Caller, Chosen, MOST, some, unless};
use ReturnType::*;
use dat_nostd::*;
use harness::net::Node;
use harness::seeds::Random;

impl Caller {
    pub(super) fn services(&mut self, node: &mut Node, random: &mut Random, draw: u64, chosen: &Chosen) {
        let Chosen { ia, evd, ep, state, no_ia, no_ep, foreign_evd, foreign_ep, .. } = *chosen;
        use EpState::*;
        match draw {
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
                    given.and(chosen.wrong(&[Unconnected])),
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
            _ => {}
        }
    }

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
}
