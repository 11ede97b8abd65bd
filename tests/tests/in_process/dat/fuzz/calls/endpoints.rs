//! Shared receive queues, endpoints, transfers.

use super::{Caller, Chosen, MOST, NONE, some, unless};
use crate::dat::fuzz::model::Ep;
use ReturnType::*;
use dat_nostd::*;
use harness::net::{Node, address};
use harness::seeds::Random;

impl Caller {
    pub(super) fn endpoints(&mut self, node: &mut Node, random: &mut Random, draw: u64, chosen: &Chosen) {
        let Chosen { ia, ep, pz, srq, state, no_ia, no_ep, no_pz, no_srq, foreign_pz, .. } = *chosen;
        use EpState::*;
        match draw {
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
                let empty = segment.segment_length == 0;
                let violated = [
                    no_srq,
                    unless(empty || region.is_some() && writable, PrivilegesViolation),
                    unless(
                        empty || region.is_none() || zone.is_none() || region.map(|region| region.0) == zone,
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
                if self.judge("ep_free", &answer, &[no_ep, chosen.wrong(&legal)], &[]) {
                    self.model.eps.remove(&ep);
                    self.model.bury(ep);
                }
            }
            43 => {
                let answer = node.ep_reset(ep);
                if self.judge("ep_reset", &answer, &[no_ep, chosen.wrong(&[Unconnected, Disconnected])], &[])
                {
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
                    chosen.wrong(&[Unconnected]),
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
                    chosen.wrong(&[Unconnected]),
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
                if self.judge("ep_disconnect", &answer, &[no_ep, chosen.wrong(&legal)], &[]) {
                    self.update(node, ep, &[DisconnectPending, Disconnected]);
                }
            }
            49..56 => self.post(node, ep, state, random),
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
        // Context and address of an empty segment are not looked at.
        let empty = segment.segment_length == 0;
        let violated = [
            unless(state.is_some(), InvalidHandle),
            unless(legal, InvalidState),
            unless(!receive || known.is_none() || (zone.is_some() && srq.is_none()), InvalidState),
            unless(empty || region.is_some() && (writable || !(receive || read)), PrivilegesViolation),
            unless(
                empty || region.is_none() || known.is_none() || region.map(|region| region.0) == zone,
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
        self.judge("ep_post", &answer, &violated, &[InsufficientResources]);
    }
}
