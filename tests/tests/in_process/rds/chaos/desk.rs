//! A node's RDMA: it offers memory to peers, and uses what it is offered, once each.

use crate::rds::chaos::ledger::{Kind, Ledger, Offer, Operation, payload};
use crate::rds::chaos::model::content;
use crate::rds::chaos::node::Shared;
use crate::rds::chaos::plan::RdmaJob;
use crate::rds::chaos::trace::Event;
use driver_mlx::{DmaBuffer, DmaSlice};
use harness::dat::ModelAdapter;
use harness::rds::at;
use harness::seeds::Random;
use rds_nostd::{
    AtomicArgs, AtomicOp, Control, Msg, RdmaArgs, RdmaCookie, RdmaFlags, RdmaNotify, RdmaStatus, Rds,
    RdsError, Received, SocketHandle,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The port of every node's desk.
pub const PORT: u16 = 3998;
/// Regions that are offered at a time, and operations that are under way.
const SLOTS: usize = 4;
/// Bytes of each of them.
pub const SLOT: usize = 8192;

/// What all calls need.
pub struct Hand<'a> {
    pub shared: &'a Shared,
    pub index: usize,
    pub incarnation: u32,
    /// Of each node.
    pub time: u64,
    pub adapter: &'a mut ModelAdapter,
    pub rds: &'a mut Rds<'static>,
}

pub struct Desk {
    pub socket: SocketHandle,
    memory: DmaBuffer,
    /// Offers of this node, and where in its slot each begins.
    served: [Option<(usize, usize)>; SLOTS],
    /// Operations of this node.
    used: [Option<usize>; SLOTS],
    /// Offers of which the access is ending: peers may use their memory until it has ended.
    revoking: Vec<usize>,
    /// Offers of others that were not used yet.
    heard: VecDeque<usize>,
}

/// Refusals that pass.
fn is_full(error: RdsError) -> bool {
    matches!(error, RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested | RdsError::Exhausted)
}

impl Desk {
    pub fn open(index: usize, adapter: &mut ModelAdapter, rds: &mut Rds<'static>) -> Self {
        let memory = adapter.dma_alloc(2 * SLOTS * SLOT, 4096).expect("memory");
        let socket = rds.bind(at(index, PORT)).expect("binds");
        Self {
            socket,
            memory,
            served: [None; SLOTS],
            used: [None; SLOTS],
            revoking: Vec::new(),
            heard: VecDeque::new(),
        }
    }

    /// Registers all memory for operations on that of a node.
    pub fn register_all(&self, adapter: &mut ModelAdapter, rds: &mut Rds<'static>, node: usize) {
        rds.register_memory(adapter, self.socket, at(node, PORT), self.memory.as_slice()).expect("room");
    }

    pub fn close(self, adapter: &mut ModelAdapter) {
        adapter.dma_free(self.memory).expect("frees");
    }

    /// Nothing is under way that this node began, or is to begin.
    pub fn is_idle(&self) -> bool {
        self.heard.is_empty() && self.used.iter().all(Option::is_none)
    }

    pub fn offers(&self) -> usize {
        self.served.iter().flatten().count()
    }

    fn slice(&self, slot: usize, offset: usize, len: usize) -> DmaSlice<'_> {
        self.memory.slice(slot * SLOT + offset, len).expect("inside")
    }

    /// For its destination where peers are isolated, else for all.
    fn register(
        &self,
        hand: &mut Hand<'_>,
        to: SocketAddr,
        region: DmaSlice<'_>,
        rights: RdmaFlags,
    ) -> Result<RdmaCookie, RdsError> {
        if hand.shared.isolates() {
            hand.rds.get_mr_for_dest(hand.adapter, self.socket, to, region, rights)
        } else {
            hand.rds.get_mr(hand.adapter, self.socket, region, rights)
        }
    }

    /// Offers what is due; whether something was accepted.
    pub fn offer(
        &mut self,
        hand: &mut Hand<'_>,
        jobs: &mut VecDeque<RdmaJob>,
        deadlines: &mut Vec<Option<u64>>,
    ) -> bool {
        let mut moved = false;
        // Also without a job that is due, so that later operations count as denied.
        self.has_revoked(hand, &mut hand.shared.ledger.borrow_mut());
        while let Some(&job) = jobs.front() {
            if job.at > hand.time {
                deadlines.push(Some(job.at + hand.shared.began.get()));
                break;
            }
            let mut model = hand.shared.model.borrow_mut();
            let mut ledger = hand.shared.ledger.borrow_mut();
            if !self.has_revoked(hand, &mut ledger) {
                break;
            }
            let Some(slot) = self.served.iter().position(Option::is_none) else {
                self.revoke_oldest(hand, &mut ledger);
                continue;
            };
            let number = ledger.offers.len();
            let len = if job.kind == Kind::Add { 8 } else { job.len };
            let region = self.slice(slot, job.offset, len);
            let (from, to) = (at(hand.index, PORT), at(job.to, PORT));
            let announcement = content(from, to, model.next_number(from, to), 20);
            // For what will be done with it, and no more. Registered by the message, or before.
            let rights = match job.kind {
                Kind::Read => RdmaFlags::PEER_READS,
                Kind::Write => RdmaFlags::PEER_WRITES,
                Kind::Add => RdmaFlags::PEER_ATOMICS,
            };
            let own = match job.map {
                true => None,
                false => match self.register(hand, to, region, rights) {
                    Ok(cookie) => Some(cookie),
                    Err(error) if is_full(error) => break,
                    Err(error) => panic!("{error}"),
                },
            };
            let control =
                Control { map: own.is_none().then_some((region, rights)), dest: own, ..Control::default() };
            let sent =
                hand.rds.sendmsg(hand.adapter, self.socket, Msg::to(&to, &announcement).with(&control));
            let cookie = match (sent, own) {
                (Ok(mapped), own) => own.or(mapped).expect("one of both"),
                (Err(error), own) => {
                    assert!(is_full(error), "{error}");
                    if let Some(own) = own {
                        hand.rds.free_mr(hand.adapter, self.socket, own).expect("there");
                    }
                    break;
                }
            };
            // No packet has left since. Refused attempts, which may be many, do not pay for it.
            region.write(0, &payload(true, number, len)).expect("inside");
            if job.withheld {
                self.revoke(hand, number, cookie);
            } else {
                self.served[slot] = Some((number, job.offset));
            }
            let message = model.accepted(from, to, hand.incarnation, announcement.len(), false);
            ledger.offered.insert((from, to, message), number);
            let (server, incarnation) = (hand.index, hand.incarnation);
            let withheld = job.withheld;
            hand.shared
                .trace
                .note(hand.time, Event::Offered { number, from, to, cookie, kind: job.kind, withheld });
            ledger.offers.push(Offer {
                server,
                incarnation,
                cookie,
                kind: job.kind,
                len,
                revoked: withheld,
                ended: false,
                used: false,
            });
            jobs.pop_front();
            moved = true;
        }
        moved
    }

    /// Begins to end the access to an offer.
    fn revoke(&mut self, hand: &mut Hand<'_>, offer: usize, cookie: RdmaCookie) {
        hand.rds.free_mr(hand.adapter, self.socket, cookie).expect("there");
        self.revoking.push(offer);
    }

    /// Returns whether all revoked access has ended. Only then may memory be reused.
    fn has_revoked(&mut self, hand: &mut Hand<'_>, ledger: &mut Ledger) -> bool {
        if self.revoking.is_empty() {
            return true;
        }
        match hand.rds.free_mr(hand.adapter, self.socket, RdmaCookie(0)) {
            Ok(()) => {
                self.revoking.drain(..).for_each(|offer| ledger.offers[offer].ended = true);
                true
            }
            Err(RdsError::Again) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Begins to end the access to what was offered first, used or not.
    fn revoke_oldest(&mut self, hand: &mut Hand<'_>, ledger: &mut Ledger) {
        let oldest = |slot: &usize| self.served[*slot];
        let slot = (0..SLOTS).min_by_key(oldest).expect("there are slots");
        if let Some((offer, _)) = self.served[slot].take() {
            ledger.offers[offer].revoked = true;
            self.revoke(hand, offer, ledger.offers[offer].cookie);
        }
    }

    /// A message came.
    pub fn received(&mut self, hand: &mut Hand<'_>, to: SocketAddr, number: usize, received: &Received) {
        let mut ledger = hand.shared.ledger.borrow_mut();
        let name = (received.from, to, number);
        match ledger.offered.get(&name) {
            Some(&offer) => {
                assert_eq!(received.cookie, Some(ledger.offers[offer].cookie), "{name:?}: as it was sent");
                self.heard.push_back(offer);
            }
            None => assert_eq!(received.cookie, None, "{name:?} offers nothing"),
        }
        if let Some(&operation) = ledger.done.get(&name) {
            self.was_used(hand, &mut ledger, operation);
        }
    }

    /// A peer says that it used an offer of this node: what is there is what it did. Nothing of it is left to be done.
    fn was_used(&mut self, hand: &mut Hand<'_>, ledger: &mut Ledger, operation: usize) {
        let Operation { offer, offset, len, .. } = ledger.operations[operation];
        let Offer { server, incarnation, cookie, kind, len: all, .. } = ledger.offers[offer];
        assert_eq!(server, hand.index, "its own offers");
        let slot = self.served.iter().position(|served| served.is_some_and(|(served, _)| served == offer));
        let Some(slot) = slot.filter(|_| incarnation == hand.incarnation) else { return };
        let begins = self.served[slot].take().map_or(0, |(_, begins)| begins);
        ledger.offers[offer].used = true;
        let mut found = vec![0; all];
        self.slice(slot, begins, all).read(0, &mut found).expect("inside");
        let mut expected = payload(true, offer, all);
        match kind {
            Kind::Read => {}
            Kind::Write => expected[offset..offset + len].copy_from_slice(&payload(false, operation, len)),
            Kind::Add => expected = added(&expected, operation as u64).to_vec(),
        }
        assert!(
            found == expected || ledger.is_disturbed(offer),
            "offer {offer} after operation {operation}, which is {kind:?} of {len} bytes at {offset}: the memory differs"
        );
        hand.rds.free_mr(hand.adapter, self.socket, cookie).expect("there");
    }

    /// Uses what was offered; whether something was accepted.
    pub fn use_offers(&mut self, hand: &mut Hand<'_>) -> bool {
        let mut moved = false;
        while let Some(&offer) = self.heard.front() {
            let Some(slot) = self.used.iter().position(Option::is_none) else { break };
            let mut model = hand.shared.model.borrow_mut();
            let mut ledger = hand.shared.ledger.borrow_mut();
            let number = ledger.operations.len();
            let Offer { server, cookie, kind, len: all, .. } = ledger.offers[offer];
            let mut random = Random::new(hand.shared.seed << 20 | number as u64);
            let offset = if kind == Kind::Add { 0 } else { random.below(all as u64) as usize };
            let len = if kind == Kind::Add { 8 } else { 1 + random.below((all - offset) as u64) as usize };
            let own = SLOTS + slot;
            let local = self.slice(own, 0, len);
            let bytes = if kind == Kind::Write { payload(false, number, len) } else { vec![0xee; len] };
            local.write(0, &bytes).expect("inside");
            let cut = random.below(len as u64) as usize;
            let pieces = [self.slice(own, 0, cut), self.slice(own, cut, len - cut)];
            let silent = random.one_in(4);
            let mut flags = RdmaFlags::NOTIFY_ME;
            flags.set(RdmaFlags::READWRITE, kind == Kind::Write);
            // Without it, word of a read can come before its answer has, and the peer may free the memory then.
            flags.set(RdmaFlags::FENCE, kind != Kind::Write || random.one_in(2));
            flags.set(RdmaFlags::SILENT, silent);
            let (remote_offset, user_token) = (offset as u64, number as u64);
            let control = match kind {
                Kind::Add => {
                    let op = AtomicOp::FetchAdd { add: user_token };
                    let atomic = AtomicArgs { cookie, remote_offset, local, op, flags, user_token };
                    Control { atomic: Some(atomic), ..Control::default() }
                }
                Kind::Read | Kind::Write => {
                    let local = &pieces[usize::from(cut == 0)..];
                    let remote_bytes = len as u64;
                    let rdma = RdmaArgs { cookie, remote_offset, remote_bytes, local, flags, user_token };
                    Control { rdma: Some(rdma), ..Control::default() }
                }
            };
            let (from, to) = (at(hand.index, PORT), at(server, PORT));
            let len_of_message = if silent { 0 } else { 1 + random.below(6000) as usize };
            let len_of_message = len_of_message.min(hand.shared.settings.send_buffer);
            let payload = content(from, to, model.next_number(from, to), len_of_message);
            match hand.rds.sendmsg(hand.adapter, self.socket, Msg::to(&to, &payload).with(&control)) {
                Ok(None) => {}
                Ok(Some(cookie)) => panic!("{cookie:?} of what is no offer"),
                Err(error) => {
                    assert!(is_full(error), "{from} to {to}: {error}");
                    break;
                }
            }
            if !silent {
                let message = model.accepted(from, to, hand.incarnation, payload.len(), true);
                ledger.done.insert((from, to, message), number);
            }
            hand.shared.trace.note(hand.time, Event::Operation { number, offer, from, to, silent });
            let is_denied = ledger.offers[offer].ended;
            ledger.operations.push(Operation { offer, offset, len, is_denied, status: None });
            self.used[slot] = Some(number);
            self.heard.pop_front();
            moved = true;
        }
        moved
    }

    /// Hears how operations ended; whether one did.
    pub fn hear(&mut self, hand: &mut Hand<'_>) -> bool {
        let mut moved = false;
        while let Some(notify) = hand.rds.take_notification(self.socket).expect("open") {
            moved = true;
            self.ended(hand, notify);
        }
        moved
    }

    /// An operation ended.
    pub fn ended(&mut self, hand: &mut Hand<'_>, notify: RdmaNotify) {
        let number = notify.user_token as usize;
        hand.shared.trace.note(hand.time, Event::Ended { number, status: notify.status });
        let slot = self.used.iter().position(|used| *used == Some(number));
        let slot =
            slot.unwrap_or_else(|| panic!("operation {number} ended twice, or is not of this incarnation"));
        self.used[slot] = None;
        let mut ledger = hand.shared.ledger.borrow_mut();
        ledger.operations[number].status = Some(notify.status);
        let Operation { offer, offset, len, is_denied, .. } = ledger.operations[number];
        let Offer { server, incarnation, kind, revoked, used, .. } = ledger.offers[offer];
        let stands = !revoked && !used && hand.shared.incarnations.borrow()[server] == incarnation;
        match notify.status {
            RdmaStatus::Success => {
                assert!(
                    !is_denied || ledger.key_comes_again(offer),
                    "operation {number} succeeded on memory that was not offered any more"
                );
                let mut found = vec![0; len];
                self.slice(SLOTS + slot, 0, len).read(0, &mut found).expect("inside");
                let expected = match kind {
                    Kind::Write => payload(false, number, len),
                    Kind::Read | Kind::Add => payload(true, offer, offset + len).split_off(offset),
                };
                assert!(
                    !stands || ledger.is_disturbed(offer) || found == expected,
                    "operation {number}, {kind:?} of offer {offer}: the memory differs"
                );
            }
            RdmaStatus::RemoteError => {
                let refusals = hand.shared.world.refusals(server);
                assert!(
                    !stands,
                    "operation {number}, {len} bytes at {offset} of offer {offer}, which stands, was denied: {refusals:?}"
                );
            }
            RdmaStatus::Dropped | RdmaStatus::OtherError => {}
            RdmaStatus::Canceled => panic!("nobody cancelled operation {number}"),
        }
    }
}

fn added(bytes: &[u8], add: u64) -> [u8; 8] {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    u64::from_ne_bytes(word).wrapping_add(add).to_ne_bytes()
}
