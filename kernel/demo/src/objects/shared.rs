//! 64 endpoints of the server take their receives from one queue; the client sends on all of them in an order that is nobody's.
//! Every message arrives once, whole, and in the order of its connection.

use dat_nostd::{
    ConnectionEvent, CrHandle, DtoCompletion, DtoOperation, DtoStatus, EpAttributes, EpHandle, EventData,
    Platform, SrqAttributes, SrqHandle,
};

use super::party::{NONE, Party};
use super::scene::{Feature, Scene};
use crate::error::{DemoError, InCall};
use ib_types::mix;

/// Endpoints on the queue.
pub(crate) const EPS: usize = 64;
/// Messages that a connection has under way at most.
const WINDOW: usize = 2;
/// Buffers of the queue: as many as can be under way.
const BUFFERS: usize = EPS * WINDOW;
/// Bytes of a buffer.
const SLOT: usize = 256;
/// Connections being set up at once.
const CONNECTING: usize = 4;
/// Sends begun in one poll.
const BURST: usize = 32;

fn sequence(endpoint: usize, number: u64) -> u64 {
    (endpoint as u64) << 32 | number
}

/// Bytes of a message: enough to tell it from all others.
fn len(seed: u64, endpoint: usize, number: u64) -> usize {
    8 + (mix(seed ^ sequence(endpoint, number)) % (SLOT as u64 - 8)) as usize
}

/// The server's side.
pub(super) struct Collector {
    srq: SrqHandle,
    eps: [Option<EpHandle>; EPS],
    received: [u64; EPS],
    total: u64,
}

impl Collector {
    pub(super) fn open<P: Platform>(scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<Self, DemoError> {
        let attributes = SrqAttributes { max_recv_dtos: BUFFERS as u32, max_recv_iov: 1, low_watermark: 0 };
        let srq = scene.adapter.srq_create(party.ia, party.pz, &attributes).in_call("srq_create")?;
        let collector = Self { srq, eps: [None; EPS], received: [0; EPS], total: 0 };
        for buffer in 0..BUFFERS {
            collector.post(scene, party, buffer)?;
        }
        party.listen(scene.adapter, 0)?;
        Ok(collector)
    }

    fn post<P: Platform>(
        &self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        buffer: usize,
    ) -> Result<(), DemoError> {
        let iov = [party.segment(buffer * SLOT, SLOT)];
        scene.adapter.srq_post_recv(self.srq, &iov, buffer as u64).in_call("srq_post_recv")
    }

    /// The peer's private data say which of its endpoints asks.
    fn accept<P: Platform>(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        cr: CrHandle,
    ) -> Result<(), DemoError> {
        let asked = scene.adapter.cr_query(cr).in_call("cr_query")?;
        let index = asked.private_data.first().copied();
        let free = index.and_then(|index| self.eps.get_mut(usize::from(index))).filter(|ep| ep.is_none());
        let Some(place) = free else { return Err(scene.unexpected("a request of nobody who should ask")) };
        let (attributes, evd) = (attributes(), Some(party.evd));
        let ep = scene
            .adapter
            .ep_create_with_srq(party.ia, party.pz, evd, evd, evd, self.srq, &attributes)
            .in_call("ep_create_with_srq")?;
        *place = Some(ep);
        party.accept(scene.adapter, cr, ep, &[])
    }

    fn received<P: Platform>(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        done: &DtoCompletion,
    ) -> Result<(), DemoError> {
        let right = done.status == DtoStatus::Success && done.operation == DtoOperation::Receive;
        let from = self.eps.iter().position(|ep| *ep == Some(done.ep));
        let buffer = done.user_cookie as usize;
        let Some((index, number)) =
            from.and_then(|index| Some((index, self.received.get_mut(index)?))).filter(|_| right)
        else {
            return Err(scene.unexpected("a message failed"));
        };
        let (stream, len) = (scene.plan.theirs, len(scene.plan.sizes.seed, index, *number));
        let whole = done.transferred_length == len as u64
            && party.holds(buffer * SLOT, len, stream, sequence(index, *number));
        scene.expect(whole, "a message is not the next one of its connection")?;
        *number += 1;
        self.total += 1;
        scene.tally.verified += 1;
        self.post(scene, party, buffer)
    }
}

impl<P: Platform> Feature<P> for Collector {
    fn event(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        event: EventData,
    ) -> Result<(), DemoError> {
        match event {
            EventData::ConnectionRequest { cr, .. } => self.accept(scene, party, cr),
            EventData::Connection { event: ConnectionEvent::Established, .. } => Ok(()),
            EventData::Dto(done) => self.received(scene, party, &done),
            _ => Err(scene.unexpected("a connection ended")),
        }
    }

    fn advance(&mut self, scene: &mut Scene<'_, '_, P>, _: &Party) -> Result<bool, DemoError> {
        if self.total < scene.plan.count * EPS as u64 {
            return Ok(false);
        }
        let found = scene.adapter.srq_query(self.srq).in_call("srq_query")?;
        let counts = (found.available_dto_count, found.outstanding_dto_count);
        scene.expect(counts == (BUFFERS as i32, BUFFERS as i32), "the queue lacks buffers")?;
        Ok(true)
    }
}

fn attributes() -> EpAttributes {
    EpAttributes {
        max_recv_dtos: 1,
        max_request_dtos: WINDOW as u32,
        max_recv_iov: 1,
        max_request_iov: 1,
        ..EpAttributes::DEFAULT
    }
}

/// The client's side.
pub(super) struct Crowd {
    eps: [Option<EpHandle>; EPS],
    /// Connections asked for, and those that stand.
    asked: usize,
    up: usize,
    sent: [u64; EPS],
    completed: [u64; EPS],
    /// Sends begun: what the order is drawn from.
    turns: u64,
}

impl Crowd {
    pub(super) fn new() -> Self {
        Self { eps: [None; EPS], asked: 0, up: 0, sent: [0; EPS], completed: [0; EPS], turns: 0 }
    }

    /// Whose turn it is: anybody's, if it may send.
    fn next(&mut self, seed: u64, count: u64) -> Option<(usize, EpHandle, u64)> {
        self.turns += 1;
        let from = mix(seed ^ self.turns) as usize % EPS;
        (from..EPS).chain(0..from).find_map(|index| {
            let (sent, completed) = (*self.sent.get(index)?, *self.completed.get(index)?);
            let may = sent < count && sent - completed < WINDOW as u64;
            may.then_some((index, (*self.eps.get(index)?)?, sent))
        })
    }
}

impl<P: Platform> Feature<P> for Crowd {
    fn event(&mut self, scene: &mut Scene<'_, '_, P>, _: &Party, event: EventData) -> Result<(), DemoError> {
        match event {
            EventData::Connection { event: ConnectionEvent::Established, .. } => self.up += 1,
            EventData::Dto(done) if done.status == DtoStatus::Success => {
                if let Some(completed) = self.completed.get_mut(done.user_cookie as usize) {
                    *completed += 1;
                }
            }
            _ => return Err(scene.unexpected("a connection ended or a message failed")),
        }
        Ok(())
    }

    fn advance(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<bool, DemoError> {
        if scene.told == 0 {
            return Ok(false);
        }
        while self.asked < EPS && self.asked - self.up < CONNECTING {
            let ep = party.endpoint(scene.adapter, &attributes())?;
            party.connect(scene.adapter, ep, &[self.asked as u8])?;
            if let Some(place) = self.eps.get_mut(self.asked) {
                *place = Some(ep);
            }
            self.asked += 1;
        }
        if self.up < EPS {
            return Ok(false);
        }
        let (seed, count) = (scene.plan.sizes.seed, scene.plan.count);
        for _ in 0..BURST {
            let Some((index, ep, number)) = self.next(seed, count) else { break };
            let offset = (index * WINDOW + number as usize % WINDOW) * SLOT;
            let len = len(seed, index, number);
            party.fill(offset, len, scene.plan.own, sequence(index, number));
            party.post_send(scene.adapter, ep, (offset, len), index as u64, NONE)?;
            if let Some(sent) = self.sent.get_mut(index) {
                *sent += 1;
            }
            scene.tally.messages += 1;
            scene.tally.bytes += len as u64;
        }
        Ok(self.completed.iter().all(|completed| *completed == count))
    }
}
