//! A graceful disconnect right behind the posts: everything posted arrives, then come the flushes, DISCONNECTED last.

use dat_nostd::{
    CloseFlags, CompletionFlags, ConnectionEvent, DtoStatus, EpAttributes, EpHandle, EventData, Platform,
    ReturnType,
};

use super::party::{NONE, Party};
use super::scene::{Feature, Scene};
use crate::error::{DemoError, InCall};

/// Messages posted before the disconnect.
const MESSAGES: u64 = 16;
/// Receives posted; those that are left are flushed.
const RECEIVES: u64 = MESSAGES + 2;
/// Bytes of the longest message.
const SLOT: usize = 4096;

fn len(number: u64) -> usize {
    [0, 1, 1500, SLOT].get(number as usize % 4).copied().unwrap_or(0)
}

fn suppressed(number: u64) -> bool {
    number.is_multiple_of(3)
}

fn attributes() -> EpAttributes {
    EpAttributes {
        max_recv_dtos: RECEIVES as u32,
        max_request_dtos: MESSAGES as u32,
        ..EpAttributes::DEFAULT
    }
}

/// The server's side.
pub(super) struct Taker {
    ep: EpHandle,
    received: u64,
    flushed: u64,
    done: bool,
}

impl Taker {
    pub(super) fn open<P: Platform>(scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<Self, DemoError> {
        let ep = party.endpoint(scene.adapter, &attributes())?;
        for number in 0..RECEIVES {
            party.post_recv(scene.adapter, ep, (number as usize * SLOT, SLOT), number)?;
        }
        party.listen(scene.adapter, 0)?;
        Ok(Self { ep, received: 0, flushed: 0, done: false })
    }
}

impl<P: Platform> Feature<P> for Taker {
    fn event(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        event: EventData,
    ) -> Result<(), DemoError> {
        match event {
            EventData::ConnectionRequest { cr, .. } => party.accept(scene.adapter, cr, self.ep, &[]),
            EventData::Connection { event: ConnectionEvent::Established, .. } => Ok(()),
            EventData::Dto(done) if done.status == DtoStatus::Success => {
                let (number, len) = (self.received, len(self.received));
                let whole = done.user_cookie == number
                    && done.transferred_length == len as u64
                    && party.holds(number as usize * SLOT, len, scene.plan.theirs, number);
                scene.expect(whole && self.flushed == 0, "a message is not the next one")?;
                self.received += 1;
                scene.tally.verified += 1;
                Ok(())
            }
            EventData::Dto(done) => {
                let all = self.received == MESSAGES && done.status == DtoStatus::ErrFlushed;
                scene.expect(all, "something posted before the disconnect did not arrive")?;
                self.flushed += 1;
                Ok(())
            }
            EventData::Connection { event: ConnectionEvent::Disconnected, .. } => {
                let all = self.received + self.flushed == RECEIVES;
                scene.expect(all, "DISCONNECTED came before the completions")?;
                self.done = true;
                Ok(())
            }
            _ => Err(scene.unexpected("the connection ended otherwise")),
        }
    }

    fn advance(&mut self, _: &mut Scene<'_, '_, P>, _: &Party) -> Result<bool, DemoError> {
        Ok(self.done)
    }
}

/// The client's side.
pub(super) struct Leaver {
    ep: EpHandle,
    asked: bool,
    /// Number of the next message whose completion is told.
    next: u64,
    done: bool,
}

impl Leaver {
    pub(super) fn open<P: Platform>(scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<Self, DemoError> {
        let ep = party.endpoint(scene.adapter, &attributes())?;
        Ok(Self { ep, asked: false, next: 0, done: false })
    }

    fn skip_suppressed(&mut self) {
        while self.next < MESSAGES && suppressed(self.next) {
            self.next += 1;
        }
    }

    fn leave<P: Platform>(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<(), DemoError> {
        for number in 0..MESSAGES {
            let (offset, len) = (number as usize * SLOT, len(number));
            party.fill(offset, len, scene.plan.own, number);
            let flags = if suppressed(number) { CompletionFlags::SUPPRESS } else { NONE };
            party.post_send(scene.adapter, self.ep, (offset, len), number, flags)?;
            scene.tally.messages += 1;
            scene.tally.bytes += len as u64;
        }
        scene.adapter.ep_disconnect(self.ep, CloseFlags::Graceful).in_call("ep_disconnect")?;
        let more = scene.adapter.ep_post_send(self.ep, &[], 0, NONE);
        let refused = more.is_err_and(|error| error.is(ReturnType::InvalidState));
        scene.expect(refused, "a send was taken after the disconnect")
    }
}

impl<P: Platform> Feature<P> for Leaver {
    fn event(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        event: EventData,
    ) -> Result<(), DemoError> {
        self.skip_suppressed();
        match event {
            EventData::Connection { event: ConnectionEvent::Established, .. } => self.leave(scene, party),
            EventData::Dto(done) => {
                let right = done.status == DtoStatus::Success && done.user_cookie == self.next;
                scene.expect(right, "a completion is not the next one, or a failure")?;
                self.next += 1;
                Ok(())
            }
            EventData::Connection { event: ConnectionEvent::Disconnected, .. } => {
                scene.expect(self.next == MESSAGES, "DISCONNECTED came before the completions")?;
                self.done = true;
                Ok(())
            }
            _ => Err(scene.unexpected("the connection ended otherwise")),
        }
    }

    fn advance(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<bool, DemoError> {
        if scene.told > 0 && !self.asked {
            self.asked = true;
            party.connect(scene.adapter, self.ep, &[])?;
        }
        Ok(self.done)
    }
}
