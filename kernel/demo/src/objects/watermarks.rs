//! Watermarks of a shared receive queue and of an endpoint on it: each is told once, and above the hard one the connection breaks.

use dat_nostd::{
    ConnectionEvent, DtoStatus, EpAttributes, EpHandle, EvdFlags, EvdHandle, EventData, Handle, Platform,
    SrqAttributes, SrqHandle, states,
};

use super::party::{NONE, Party, take};
use super::scene::{Feature, Scene};
use crate::error::{DemoError, InCall};

/// Buffers of the queue.
const BUFFERS: u32 = 16;
/// Told when fewer are left.
const LOW: u32 = 14;
/// Told when the endpoint holds more.
const SOFT: i32 = 5;
/// The connection breaks when it holds more.
const HARD: i32 = 8;
/// Bytes of a buffer, and of a message.
const SLOT: usize = 256;

/// Messages that have come, and how often the low and the soft high watermark have been told by then.
const STEPS: [(u64, u32, u32); 6] = [(2, 0, 0), (3, 1, 0), (5, 1, 0), (6, 1, 1), (8, 1, 1), (9, 1, 1)];
const LAST: (u64, u32, u32) = STEPS[STEPS.len() - 1];

/// The server's side, which dequeues nothing before the connection is broken.
pub(super) struct Keeper {
    srq: SrqHandle,
    ep: EpHandle,
    recv: EvdHandle,
    up: bool,
    broken: bool,
    step: usize,
    /// The client has been told to send the step's messages.
    asked: bool,
    low: u32,
    soft: u32,
    received: u64,
}

impl Keeper {
    pub(super) fn open<P: Platform>(scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<Self, DemoError> {
        let adapter = &mut *scene.adapter;
        let recv = adapter.evd_create(party.ia, BUFFERS, None, EvdFlags::DTO).in_call("evd_create")?;
        let attributes = SrqAttributes { max_recv_dtos: BUFFERS, max_recv_iov: 1, low_watermark: 0 };
        let srq = adapter.srq_create(party.ia, party.pz, &attributes).in_call("srq_create")?;
        for buffer in 0..BUFFERS as usize {
            let iov = [party.segment(buffer * SLOT, SLOT)];
            adapter.srq_post_recv(srq, &iov, buffer as u64).in_call("srq_post_recv")?;
        }
        adapter.srq_set_lw(srq, LOW).in_call("srq_set_lw")?;
        let (attributes, evd) = (EpAttributes::DEFAULT, Some(party.evd));
        let ep = adapter
            .ep_create_with_srq(party.ia, party.pz, Some(recv), evd, evd, srq, &attributes)
            .in_call("ep_create_with_srq")?;
        adapter.ep_set_watermark(ep, SOFT, HARD).in_call("ep_set_watermark")?;
        party.listen(adapter, 0)?;
        let (up, broken, asked) = (false, false, false);
        Ok(Self { srq, ep, recv, up, broken, step: 0, asked, low: 0, soft: 0, received: 0 })
    }

    /// Buffers whose messages have come and that nobody has dequeued.
    fn held<P: Platform>(&self, scene: &Scene<'_, '_, P>) -> Result<u64, DemoError> {
        let queue = scene.adapter.srq_query(self.srq).in_call("srq_query")?;
        Ok((queue.outstanding_dto_count - queue.available_dto_count) as u64)
    }
}

impl<P: Platform> Feature<P> for Keeper {
    fn event(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        event: EventData,
    ) -> Result<(), DemoError> {
        match event {
            EventData::ConnectionRequest { cr, .. } => party.accept(scene.adapter, cr, self.ep, &[])?,
            EventData::Connection { event: ConnectionEvent::Established, .. } => self.up = true,
            EventData::Connection { event: ConnectionEvent::Broken, .. } if self.step == STEPS.len() - 1 => {
                self.broken = true;
            }
            EventData::Async { handle, reason, .. }
                if handle == Handle::from(self.srq) && reason == states::SRQ_LOW_WATERMARK_EVENT =>
            {
                self.low += 1;
            }
            EventData::Async { handle, reason, .. }
                if handle == Handle::from(self.ep) && reason == states::SRQ_SOFT_HIGH_WATERMARK_EVENT =>
            {
                self.soft += 1;
            }
            _ => return Err(scene.unexpected("the connection ended before the hard watermark")),
        }
        Ok(())
    }

    fn advance(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<bool, DemoError> {
        let (count, low, soft) = STEPS.get(self.step).copied().unwrap_or(LAST);
        scene.expect(self.low <= low && self.soft <= soft, "a watermark was told too early, or twice")?;
        if self.up && !self.asked {
            self.asked = true;
            scene.tell()?;
        }
        if !self.broken {
            let reached = self.asked && self.held(scene)? == count && (self.low, self.soft) == (low, soft);
            if reached && self.step + 1 < STEPS.len() {
                self.step += 1;
                self.asked = false;
            }
            return Ok(false);
        }
        // What came before the break is there.
        while let Some(event) = take(scene.adapter.evd_dequeue(self.recv))? {
            let EventData::Dto(done) = event.data else { continue };
            let offset = done.user_cookie as usize * SLOT;
            let whole = done.status == DtoStatus::Success
                && done.transferred_length == SLOT as u64
                && party.holds(offset, SLOT, scene.plan.theirs, self.received);
            scene.expect(whole, "a message is not the next one")?;
            self.received += 1;
            scene.tally.verified += 1;
        }
        scene.expect(self.received == LAST.0, "messages are missing")?;
        // The low, the soft and the hard one.
        scene.expect((self.low, self.soft) == (LAST.1, LAST.2), "a watermark was not told")?;
        (0..3).for_each(|_| scene.counts());
        Ok(true)
    }
}

/// The client's side, which sends as many as it is told to.
pub(super) struct Pusher {
    ep: EpHandle,
    asked: bool,
    up: bool,
    ended: bool,
    sent: u64,
}

impl Pusher {
    pub(super) fn open<P: Platform>(scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<Self, DemoError> {
        let ep = party.endpoint(scene.adapter, &EpAttributes::DEFAULT)?;
        Ok(Self { ep, asked: false, up: false, ended: false, sent: 0 })
    }
}

impl<P: Platform> Feature<P> for Pusher {
    fn event(&mut self, scene: &mut Scene<'_, '_, P>, _: &Party, event: EventData) -> Result<(), DemoError> {
        match event {
            EventData::Connection { event: ConnectionEvent::Established, .. } => self.up = true,
            EventData::Connection { .. } => {
                scene.expect(self.sent == LAST.0, "the connection ended before the hard watermark")?;
                self.ended = true;
            }
            // The last one's acknowledgement may be lost with the connection.
            EventData::Dto(done) => {
                let last = self.sent == LAST.0;
                scene.expect(done.status == DtoStatus::Success || last, "a message failed")?;
            }
            _ => return Err(scene.unexpected("an event that nobody asked for")),
        }
        Ok(())
    }

    fn advance(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<bool, DemoError> {
        if scene.told > 0 && !self.asked {
            self.asked = true;
            party.connect(scene.adapter, self.ep, &[])?;
        }
        // The first token said that somebody listens.
        let target = match (scene.told as usize).checked_sub(2) {
            Some(step) if self.up && !self.ended => STEPS.get(step).copied().unwrap_or(LAST).0,
            _ => 0,
        };
        while self.sent < target {
            let offset = self.sent as usize * SLOT;
            party.fill(offset, SLOT, scene.plan.own, self.sent);
            party.post_send(scene.adapter, self.ep, (offset, SLOT), self.sent, NONE)?;
            self.sent += 1;
            scene.tally.messages += 1;
            scene.tally.bytes += SLOT as u64;
        }
        Ok(self.ended)
    }
}
