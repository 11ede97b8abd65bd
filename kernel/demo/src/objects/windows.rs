//! A window that the server binds for the client: it reaches the bytes while range, rights and time allow it, and is refused
//! outside of each. A refusal breaks the connection, so every round has a connection of its own.

use dat_nostd::{
    AsyncError, CompletionFlags, ConnectionEvent, CrHandle, DtoCompletion, DtoOperation, DtoStatus,
    EpAttributes, EpHandle, EventData, Handle, MemPriv, Platform, RmrHandle, RmrTriplet,
};

use super::party::{NONE, Party};
use super::scene::{Feature, Scene};
use crate::error::{DemoError, InCall};

/// What the last access of a round is refused for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outside {
    /// It reaches beyond the window.
    Range,
    /// It writes, and the window is for reading.
    Rights,
    /// The window has been bound to other bytes.
    Rebound,
    /// It has been unbound.
    Unbound,
    /// It is gone.
    Freed,
}

const ROUNDS: [Outside; 5] =
    [Outside::Range, Outside::Rights, Outside::Rebound, Outside::Unbound, Outside::Freed];

impl Outside {
    fn rights(self) -> MemPriv {
        match self {
            Self::Rights => MemPriv::REMOTE_READ,
            _ => MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE,
        }
    }

    fn may_write(self) -> bool {
        self.rights().contains(MemPriv::REMOTE_WRITE)
    }
}

/// The owner's memory: what it sends, and three parts of which the middle one is the window. Each part of each round has bytes
/// of its own.
const BEFORE: (usize, usize) = (8 << 10, 8 << 10);
const WINDOW: (usize, usize) = (16 << 10, 4 << 10);
const AFTER: (usize, usize) = (20 << 10, 8 << 10);
/// The visitor's: what it writes, and what it reads back.
const OUT: usize = 8 << 10;
const BACK: usize = 16 << 10;
/// Bytes of the message that says where the window is.
const MESSAGE: usize = 12;

const fn sequence(round: usize, part: u64) -> u64 {
    round as u64 * 3 + part
}

fn success(done: &DtoCompletion) -> bool {
    done.status == DtoStatus::Success
}

/// The server's side.
pub(super) struct Owner {
    ep: EpHandle,
    rmr: RmrHandle,
    round: usize,
    asked: Option<CrHandle>,
    stage: Owning,
    /// Refusals that the device has told.
    refused: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owning {
    /// For the visitor's connection.
    Unconnected,
    /// Until the visitor has used the window.
    Used,
    /// The window's end is being bound.
    Ending,
    /// For the end of the connection.
    Refused,
}

impl Owner {
    pub(super) fn open<P: Platform>(scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<Self, DemoError> {
        let ep = party.endpoint(scene.adapter, &EpAttributes::DEFAULT)?;
        let rmr = scene.adapter.rmr_create(party.pz).in_call("rmr_create")?;
        party.listen(scene.adapter, 0)?;
        Ok(Self { ep, rmr, round: 0, asked: None, stage: Owning::Unconnected, refused: 0 })
    }

    fn outside(&self) -> Outside {
        ROUNDS.get(self.round).copied().unwrap_or(Outside::Freed)
    }

    fn bind<P: Platform>(
        &self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        (offset, len): (usize, usize),
        flags: CompletionFlags,
    ) -> Result<u32, DemoError> {
        let rights = self.outside().rights();
        scene
            .adapter
            .rmr_bind(self.rmr, &party.segment(offset, len), rights, self.ep, 0, flags)
            .in_call("rmr_bind")
    }

    /// Binds, and sends the visitor word of it right behind.
    fn invite<P: Platform>(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<(), DemoError> {
        for (part, (offset, len)) in (0..).zip([BEFORE, WINDOW, AFTER]) {
            party.fill(offset, len, scene.plan.own, sequence(self.round, part));
        }
        let context = self.bind(scene, party, WINDOW, CompletionFlags::SUPPRESS)?;
        let mut message = [0; MESSAGE];
        message[..4].copy_from_slice(&context.to_le_bytes());
        message[4..].copy_from_slice(&party.address(WINDOW.0).to_le_bytes());
        let _ = party.memory.memory.write(0, &message);
        party.post_send(scene.adapter, self.ep, (0, MESSAGE), 0, NONE)
    }

    /// The window ends, if time is what the round is about.
    fn end_window<P: Platform>(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
    ) -> Result<Owning, DemoError> {
        match self.outside() {
            Outside::Range | Outside::Rights => {}
            Outside::Rebound => {
                self.bind(scene, party, AFTER, NONE)?;
                return Ok(Owning::Ending);
            }
            Outside::Unbound => {
                self.bind(scene, party, (0, 0), NONE)?;
                return Ok(Owning::Ending);
            }
            Outside::Freed => {
                scene.adapter.rmr_free(self.rmr).in_call("rmr_free")?;
                self.rmr = scene.adapter.rmr_create(party.pz).in_call("rmr_create")?;
            }
        }
        scene.tell()?;
        Ok(Owning::Refused)
    }

    /// The visitor was refused: its round's memory holds what was allowed, and nothing else.
    fn judge<P: Platform>(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<(), DemoError> {
        let plan = scene.plan;
        let inside = if self.outside().may_write() { plan.theirs } else { plan.own };
        for (part, (offset, len), stream) in
            [(0, BEFORE, plan.own), (1, WINDOW, inside), (2, AFTER, plan.own)]
        {
            let untouched = party.holds(offset, len, stream, sequence(self.round, part));
            scene.expect(untouched, "bytes changed that the window did not allow to change")?;
        }
        scene.counts();
        scene.adapter.ep_reset(self.ep).in_call("ep_reset")?;
        self.round += 1;
        self.stage = Owning::Unconnected;
        Ok(())
    }
}

impl<P: Platform> Feature<P> for Owner {
    fn event(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        event: EventData,
    ) -> Result<(), DemoError> {
        match event {
            EventData::ConnectionRequest { cr, .. } => self.asked = Some(cr),
            EventData::Connection { event: ConnectionEvent::Established, .. } => {
                self.stage = Owning::Used;
                self.invite(scene, party)?;
            }
            EventData::RmrBind(done) => {
                scene.expect(done.status == DtoStatus::Success, "a bind failed")?;
                scene.expect(self.stage == Owning::Ending, "word of a suppressed bind came")?;
                self.stage = Owning::Refused;
                scene.tell()?;
            }
            EventData::Connection { .. } => {
                scene.expect(
                    self.stage == Owning::Refused,
                    "the connection ended before anything was refused",
                )?;
                self.judge(scene, party)?;
            }
            EventData::Dto(done) => {
                // Its acknowledgement may be lost with the connection.
                let sent = success(&done) || self.stage == Owning::Refused;
                scene.expect(sent, "word of the window was not sent")?;
            }
            // The device tells of the access that it refused, perhaps when the connection's end has been told.
            EventData::Async { error: AsyncError::EpBroken, handle, .. }
                if handle == Handle::from(self.ep) =>
            {
                self.refused += 1;
                let rounds = self.round + usize::from(self.stage == Owning::Refused);
                scene.expect(self.refused <= rounds, "the device refused what the window allows")?;
            }
            _ => return Err(scene.unexpected("an event that nobody asked for")),
        }
        Ok(())
    }

    fn advance(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<bool, DemoError> {
        if self.stage == Owning::Unconnected
            && let Some(cr) = self.asked.take()
        {
            party.accept(scene.adapter, cr, self.ep, &[])?;
        }
        if self.stage == Owning::Used && scene.told > self.round as u64 {
            self.stage = self.end_window(scene, party)?;
        }
        Ok(self.round == ROUNDS.len())
    }
}

/// The client's side.
pub(super) struct Visitor {
    ep: EpHandle,
    round: usize,
    stage: Visiting,
    window: Option<(u32, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Visiting {
    /// For the owner to listen.
    Idle,
    /// For word of the window.
    Invited,
    /// Allowed: for what is written to arrive.
    Writing,
    /// Allowed: for what is read.
    Reading,
    /// For the owner to end the window.
    Used,
    /// For the refusal.
    Intruding,
    /// For the connection's end.
    Refused,
}

impl Visitor {
    pub(super) fn open<P: Platform>(scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<Self, DemoError> {
        let ep = party.endpoint(scene.adapter, &EpAttributes::DEFAULT)?;
        Ok(Self { ep, round: 0, stage: Visiting::Idle, window: None })
    }

    fn outside(&self) -> Outside {
        ROUNDS.get(self.round).copied().unwrap_or(Outside::Freed)
    }

    /// Writes into the window, or reads from it.
    fn access<P: Platform>(
        &self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        write: bool,
        len: usize,
    ) -> Result<(), DemoError> {
        let (context, address) = self.window.ok_or(scene.unexpected("no word of the window"))?;
        let remote = RmrTriplet::new(context, address, len as u64);
        scene.tally.messages += 1;
        scene.tally.bytes += len as u64;
        if write {
            let iov = [party.segment(OUT, len)];
            scene.adapter.ep_post_rdma_write(self.ep, &iov, 0, &remote, NONE).in_call("ep_post_rdma_write")
        } else {
            let iov = [party.segment(BACK, len)];
            scene.adapter.ep_post_rdma_read(self.ep, &iov, 0, &remote, NONE).in_call("ep_post_rdma_read")
        }
    }

    fn completed<P: Platform>(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        done: &DtoCompletion,
    ) -> Result<(), DemoError> {
        let own = sequence(self.round, 1);
        match (self.stage, done.operation) {
            (Visiting::Invited, DtoOperation::Receive) => {
                scene.expect(success(done), "word of the window did not come")?;
                let mut message = [0; MESSAGE];
                let read = party.memory.memory.read(0, &mut message);
                scene.expect(
                    read.is_ok() && done.transferred_length == MESSAGE as u64,
                    "word of the window",
                )?;
                let (context, address) = message.split_at(4);
                self.window = match (context.try_into(), address.try_into()) {
                    (Ok(context), Ok(address)) => {
                        Some((u32::from_le_bytes(context), u64::from_le_bytes(address)))
                    }
                    _ => None,
                };
                party.fill(OUT, WINDOW.1, scene.plan.own, own);
                let write = self.outside().may_write();
                self.stage = if write { Visiting::Writing } else { Visiting::Reading };
                self.access(scene, party, write, WINDOW.1)?;
            }
            (Visiting::Writing, DtoOperation::RdmaWrite) => {
                scene.expect(success(done), "a write that the window allows was refused")?;
                scene.tally.verified += 1;
                self.stage = Visiting::Reading;
                self.access(scene, party, false, WINDOW.1)?;
            }
            (Visiting::Reading, DtoOperation::RdmaRead) => {
                scene.expect(success(done), "a read that the window allows was refused")?;
                let stream = if self.outside().may_write() { scene.plan.own } else { scene.plan.theirs };
                scene.expect(party.holds(BACK, WINDOW.1, stream, own), "the window has other bytes")?;
                scene.tally.verified += 1;
                self.stage = Visiting::Used;
                scene.tell()?;
            }
            (Visiting::Intruding, DtoOperation::RdmaWrite) => {
                // ERR_REMOTE_ACCESS, unless the fabric loses the refusal: then nobody answers any more.
                let lost = matches!(done.status, DtoStatus::ErrTransport | DtoStatus::ErrFlushed);
                let refused = done.status == DtoStatus::ErrRemoteAccess;
                scene.expect(refused || lost, "an access outside the window was not refused")?;
                scene.tally.verified += 1;
                self.stage = Visiting::Refused;
            }
            _ => return Err(scene.unexpected("a completion that nobody asked for")),
        }
        Ok(())
    }
}

impl<P: Platform> Feature<P> for Visitor {
    fn event(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        event: EventData,
    ) -> Result<(), DemoError> {
        match event {
            EventData::Connection { event: ConnectionEvent::Established, .. } => Ok(()),
            EventData::Connection { .. } => {
                let refused = self.stage == Visiting::Refused;
                scene.expect(refused, "the connection ended before anything was refused")?;
                scene.adapter.ep_reset(self.ep).in_call("ep_reset")?;
                self.round += 1;
                self.stage = Visiting::Idle;
                Ok(())
            }
            EventData::Dto(done) => self.completed(scene, party, &done),
            _ => Err(scene.unexpected("an event that nobody asked for")),
        }
    }

    fn advance(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<bool, DemoError> {
        if self.round == ROUNDS.len() {
            return Ok(true);
        }
        if self.stage == Visiting::Idle && scene.told > 0 {
            party.post_recv(scene.adapter, self.ep, (0, MESSAGE), 0)?;
            party.connect(scene.adapter, self.ep, &[])?;
            self.stage = Visiting::Invited;
        }
        if self.stage == Visiting::Used && scene.told > self.round as u64 + 1 {
            self.stage = Visiting::Intruding;
            let len = if self.outside() == Outside::Range { WINDOW.1 + 1 } else { 64 };
            self.access(scene, party, true, len)?;
        }
        Ok(false)
    }
}
