//! Service points: a request that is handed on to another one with its private data, and connections made after the pattern of
//! the first. A message on each connection shows that it is there.

use dat_nostd::{
    ConnectionEvent, CrHandle, DtoCompletion, DtoOperation, DtoStatus, EpAttributes, EpHandle, EventData,
    Platform, Qos, TIMEOUT_INFINITE,
};

use super::party::{NONE, Party};
use super::scene::{Feature, Scene};
use crate::error::{DemoError, InCall};

/// Service points that the request goes through.
const HOPS: u64 = 3;
/// Bytes of private data.
const ASKING: usize = 40;
/// Their sequence; messages count from 0.
const ASKING_SEQUENCE: u64 = 1 << 40;
/// Bytes of a message, and of its place.
const MESSAGE: usize = 1000;
const SLOT: usize = 1024;
/// Connections, the first included.
const GUESTS: usize = 4;

/// Judges the message on connection `index`.
fn received<P: Platform>(
    scene: &mut Scene<'_, '_, P>,
    party: &Party,
    done: &DtoCompletion,
    index: usize,
) -> Result<(), DemoError> {
    let whole = done.status == DtoStatus::Success
        && done.operation == DtoOperation::Receive
        && done.transferred_length == MESSAGE as u64
        && party.holds(index * SLOT, MESSAGE, scene.plan.theirs, index as u64);
    scene.expect(whole, "a message is not its connection's")?;
    scene.tally.verified += 1;
    Ok(())
}

/// Sends the message of connection `index`.
fn send<P: Platform>(
    scene: &mut Scene<'_, '_, P>,
    party: &Party,
    ep: EpHandle,
    index: usize,
) -> Result<(), DemoError> {
    let place = (index * SLOT, MESSAGE);
    party.fill(place.0, place.1, scene.plan.own, index as u64);
    scene.tally.messages += 1;
    scene.tally.bytes += MESSAGE as u64;
    party.post_send(scene.adapter, ep, place, index as u64, NONE)
}

/// The server's side of the request that is handed on.
pub(super) struct Clerk {
    ep: EpHandle,
    hops: u64,
    done: bool,
}

impl Clerk {
    pub(super) fn open<P: Platform>(scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<Self, DemoError> {
        let ep = party.endpoint(scene.adapter, &EpAttributes::DEFAULT)?;
        party.post_recv(scene.adapter, ep, (0, MESSAGE), 0)?;
        for hop in 0..HOPS {
            party.listen(scene.adapter, hop)?;
        }
        Ok(Self { ep, hops: 0, done: false })
    }

    fn requested<P: Platform>(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        cr: CrHandle,
        qualifier: u64,
    ) -> Result<(), DemoError> {
        scene.expect(qualifier == party.qualifier + self.hops, "a request is at another service point")?;
        let asked = scene.adapter.cr_query(cr).in_call("cr_query")?;
        let mut expected = [0; ASKING];
        scene.plan.theirs.payload(ASKING_SEQUENCE).fill(0, &mut expected);
        scene.expect(asked.private_data.starts_with(&expected), "a request has other private data")?;
        self.hops += 1;
        if self.hops == HOPS {
            return party.accept(scene.adapter, cr, self.ep, &[]);
        }
        scene.counts();
        scene.adapter.cr_handoff(cr, party.qualifier + self.hops).in_call("cr_handoff")
    }
}

impl<P: Platform> Feature<P> for Clerk {
    fn event(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        event: EventData,
    ) -> Result<(), DemoError> {
        match event {
            EventData::ConnectionRequest { cr, conn_qual, .. } => self.requested(scene, party, cr, conn_qual),
            EventData::Connection { event: ConnectionEvent::Established, .. } => Ok(()),
            EventData::Dto(done) => {
                self.done = true;
                received(scene, party, &done, 0)
            }
            _ => Err(scene.unexpected("the connection ended")),
        }
    }

    fn advance(&mut self, _: &mut Scene<'_, '_, P>, _: &Party) -> Result<bool, DemoError> {
        Ok(self.done)
    }
}

/// The client's side of it.
pub(super) struct Asker {
    ep: EpHandle,
    asked: bool,
    done: bool,
}

impl Asker {
    pub(super) fn open<P: Platform>(scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<Self, DemoError> {
        let ep = party.endpoint(scene.adapter, &EpAttributes::DEFAULT)?;
        Ok(Self { ep, asked: false, done: false })
    }
}

impl<P: Platform> Feature<P> for Asker {
    fn event(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        event: EventData,
    ) -> Result<(), DemoError> {
        match event {
            EventData::Connection { event: ConnectionEvent::Established, .. } => {
                send(scene, party, self.ep, 0)
            }
            EventData::Dto(done) if done.status == DtoStatus::Success => {
                self.done = true;
                Ok(())
            }
            _ => Err(scene.unexpected("the connection ended")),
        }
    }

    fn advance(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<bool, DemoError> {
        if scene.told > 0 && !self.asked {
            self.asked = true;
            let mut asking = [0; ASKING];
            scene.plan.own.payload(ASKING_SEQUENCE).fill(0, &mut asking);
            party.connect(scene.adapter, self.ep, &asking)?;
        }
        Ok(self.done)
    }
}

/// The server's side of the connections made after a pattern, which cannot tell them from others.
pub(super) struct Host {
    eps: [Option<EpHandle>; GUESTS],
    received: usize,
}

impl Host {
    pub(super) fn open<P: Platform>(scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<Self, DemoError> {
        party.listen(scene.adapter, 0)?;
        Ok(Self { eps: [None; GUESTS], received: 0 })
    }
}

impl<P: Platform> Feature<P> for Host {
    fn event(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        event: EventData,
    ) -> Result<(), DemoError> {
        match event {
            EventData::ConnectionRequest { cr, .. } => {
                let Some(index) = self.eps.iter().position(Option::is_none) else {
                    return Err(scene.unexpected("a request too many"));
                };
                let ep = party.endpoint(scene.adapter, &EpAttributes::DEFAULT)?;
                party.post_recv(scene.adapter, ep, (index * SLOT, MESSAGE), index as u64)?;
                party.accept(scene.adapter, cr, ep, &[])?;
                if let Some(place) = self.eps.get_mut(index) {
                    *place = Some(ep);
                }
                Ok(())
            }
            EventData::Connection { event: ConnectionEvent::Established, .. } => Ok(()),
            EventData::Dto(done) => {
                let index = self.eps.iter().position(|ep| *ep == Some(done.ep));
                let index = index.ok_or(scene.unexpected("a message of nobody"))?;
                self.received += 1;
                received(scene, party, &done, index)
            }
            _ => Err(scene.unexpected("a connection ended")),
        }
    }

    fn advance(&mut self, _: &mut Scene<'_, '_, P>, _: &Party) -> Result<bool, DemoError> {
        Ok(self.received == GUESTS)
    }
}

/// The client's side of them.
pub(super) struct Guests {
    first: Option<EpHandle>,
    last: Option<EpHandle>,
    asked: usize,
    sent: usize,
}

impl Guests {
    pub(super) fn new() -> Self {
        Self { first: None, last: None, asked: 0, sent: 0 }
    }
}

impl<P: Platform> Feature<P> for Guests {
    fn event(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        event: EventData,
    ) -> Result<(), DemoError> {
        match event {
            EventData::Connection { event: ConnectionEvent::Established, ep, .. } => {
                scene.expect(self.last == Some(ep), "a connection that nobody asked for")?;
                send(scene, party, ep, self.sent)
            }
            EventData::Dto(done) if done.status == DtoStatus::Success => {
                self.sent += 1;
                Ok(())
            }
            _ => Err(scene.unexpected("a connection ended")),
        }
    }

    fn advance(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<bool, DemoError> {
        // One after the other, so that the messages' numbers are those of the connections.
        if scene.told > 0 && self.asked == self.sent && self.asked < GUESTS {
            let ep = party.endpoint(scene.adapter, &EpAttributes::DEFAULT)?;
            match self.first {
                None => party.connect(scene.adapter, ep, &[])?,
                Some(first) => scene
                    .adapter
                    .ep_dup_connect(ep, first, TIMEOUT_INFINITE, &[], Qos::BestEffort)
                    .in_call("ep_dup_connect")?,
            }
            self.first.get_or_insert(ep);
            self.last = Some(ep);
            self.asked += 1;
        }
        Ok(self.sent == GUESTS)
    }
}
