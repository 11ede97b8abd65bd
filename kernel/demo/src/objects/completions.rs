//! Notification, counted: receives whose sender did not ask for it and requests posted UNSIGNALLED are there and wake nobody,
//! suppressed ones that succeed are not told at all.

use dat_nostd::{
    CnoHandle, CnoWait, CompletionFlags, ConnectionEvent, DtoCompletion, DtoOperation, DtoStatus,
    EpAttributes, EpHandle, EvdFlags, EvdHandle, EventData, Platform, ReturnType, RmrTriplet,
    TIMEOUT_INFINITE,
};

use super::party::{NONE, Party, take};
use super::scene::{Feature, Scene};
use crate::error::{DemoError, InCall};

/// Rounds of messages, and after them of writes.
const ROUNDS: u64 = 3;
/// Messages of a round, the last of them solicited.
const MESSAGES: u64 = 4;
/// Bytes of a message.
const LEN: usize = 200;
/// Where the writes go.
const TARGET: usize = 64 << 10;
/// Bytes of the server's word of its memory.
const GREETING: usize = 12;

/// An EVD for completions alone that feeds a CNO.
struct Bell {
    evd: EvdHandle,
    cno: CnoHandle,
}

impl Bell {
    fn new<P: Platform>(scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<Self, DemoError> {
        let cno = scene.adapter.cno_create(party.ia, None).in_call("cno_create")?;
        let evd = scene.adapter.evd_create(party.ia, 32, Some(cno), EvdFlags::DTO).in_call("evd_create")?;
        Ok(Self { evd, cno })
    }

    /// Whether it has rung since it was last asked.
    fn rang<P: Platform>(&mut self, scene: &mut Scene<'_, '_, P>) -> Result<bool, DemoError> {
        let mut waiter = scene.adapter.cno_wait_begin(self.cno, scene.now, 0).in_call("cno_wait_begin")?;
        match scene.adapter.cno_wait_poll(&mut waiter, scene.now) {
            Ok(CnoWait::Triggered(by)) => {
                scene.expect(by == Some(self.evd), "another EVD woke")?;
                Ok(true)
            }
            Ok(CnoWait::Pending(_)) => Err(scene.unexpected("a wait without time does not end")),
            Err(error) if error.is(ReturnType::QueueEmpty) => Ok(false),
            Err(error) => Err(DemoError::Dat { call: "cno_wait_poll", error }),
        }
    }

    /// Waits for it; whether it has rung. If not, the wait is given up until the next step.
    fn rings<P: Platform>(&mut self, scene: &mut Scene<'_, '_, P>) -> Result<bool, DemoError> {
        let waiter = scene.adapter.cno_wait_begin(self.cno, scene.now, TIMEOUT_INFINITE);
        let mut waiter = waiter.in_call("cno_wait_begin")?;
        match scene.adapter.cno_wait_poll(&mut waiter, scene.now).in_call("cno_wait_poll")? {
            CnoWait::Triggered(by) => {
                scene.expect(by == Some(self.evd), "another EVD woke")?;
                Ok(true)
            }
            CnoWait::Pending(_) => {
                scene.adapter.cno_wait_end(waiter).in_call("cno_wait_end")?;
                Ok(false)
            }
        }
    }

    fn next<P: Platform>(&self, scene: &mut Scene<'_, '_, P>) -> Result<Option<DtoCompletion>, DemoError> {
        match take(scene.adapter.evd_dequeue(self.evd))?.map(|event| event.data) {
            None => Ok(None),
            Some(EventData::Dto(done)) if done.status == DtoStatus::Success => Ok(Some(done)),
            Some(_) => Err(scene.unexpected("a transfer failed")),
        }
    }
}

/// The server's side: sleeps through what is not solicited.
pub(super) struct Sleeper {
    ep: EpHandle,
    bell: Bell,
    round: u64,
    /// The round's solicited message has been asked for.
    asked: bool,
    received: u64,
    wakes: u64,
}

impl Sleeper {
    pub(super) fn open<P: Platform>(scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<Self, DemoError> {
        let bell = Bell::new(scene, party)?;
        let attributes =
            EpAttributes { recv_completion_flags: CompletionFlags::SOLICITED_WAIT, ..EpAttributes::DEFAULT };
        let (pz, evd) = (Some(party.pz), Some(party.evd));
        let ep = scene
            .adapter
            .ep_create(party.ia, pz, Some(bell.evd), evd, evd, Some(&attributes))
            .in_call("ep_create")?;
        for number in 0..ROUNDS * MESSAGES {
            party.post_recv(scene.adapter, ep, (number as usize * LEN, LEN), number)?;
        }
        party.listen(scene.adapter, 0)?;
        Ok(Self { ep, bell, round: 0, asked: false, received: 0, wakes: 0 })
    }

    /// Awake: the whole round is there, and no more.
    fn awake<P: Platform>(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<(), DemoError> {
        self.wakes += 1;
        let before = self.received;
        while let Some(done) = self.bell.next(scene)? {
            let whole = done.user_cookie == self.received
                && done.transferred_length == LEN as u64
                && party.holds(self.received as usize * LEN, LEN, scene.plan.theirs, self.received);
            scene.expect(whole, "a message is not the next one")?;
            self.received += 1;
            scene.tally.verified += 1;
        }
        scene.expect(
            self.received == before + MESSAGES,
            "the wake-up came with other messages than its round's",
        )?;
        self.round += 1;
        self.asked = false;
        scene.tell()
    }
}

impl<P: Platform> Feature<P> for Sleeper {
    fn event(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        event: EventData,
    ) -> Result<(), DemoError> {
        match event {
            EventData::ConnectionRequest { cr, .. } => {
                let mut greeting = [0; GREETING];
                let context = party.memory.registered.rmr_context;
                greeting[..4].copy_from_slice(&context.to_le_bytes());
                greeting[4..].copy_from_slice(&party.address(TARGET).to_le_bytes());
                party.accept(scene.adapter, cr, self.ep, &greeting)
            }
            EventData::Connection { event: ConnectionEvent::Established, .. } => Ok(()),
            _ => Err(scene.unexpected("the connection ended")),
        }
    }

    fn advance(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<bool, DemoError> {
        if self.round == ROUNDS {
            // The writes need nothing of this side; the client says when they are done.
            if scene.told <= ROUNDS {
                return Ok(false);
            }
            for number in 0..ROUNDS * 3 {
                let offset = TARGET + number as usize * LEN;
                let there = party.holds(offset, LEN, scene.plan.theirs, 1000 + number);
                scene.expect(there, "a write is not there")?;
                scene.tally.verified += 1;
            }
            scene.expect(self.wakes == ROUNDS, "not as many wake-ups as solicited messages")?;
            return Ok(true);
        }
        if scene.told > self.round && !self.asked {
            // The plain messages of the round are there: the client has heard of their arrival.
            let woken = self.bell.rang(scene)?;
            scene.expect(!woken, "a message woke that nobody solicited")?;
            self.asked = true;
            scene.tell()?;
        }
        if self.asked && self.bell.rings(scene)? {
            self.awake(scene, party)?;
        }
        Ok(false)
    }
}

/// The client's side.
pub(super) struct Waker {
    ep: EpHandle,
    bell: Bell,
    asked: bool,
    target: Option<(u32, u64)>,
    stage: Stage,
    round: u64,
    sent: u64,
    completed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// For the connection, or the server to have taken a round.
    Ready,
    /// The plain messages are on their way.
    Plain,
    /// For the server to have seen that they do not wake.
    Unnoticed,
    /// The solicited message is on its way.
    Solicited,
    /// A suppressed and an unsignalled write are on their way.
    Silent,
    /// A plain write is.
    Loud,
    /// All is done.
    Done,
}

impl Waker {
    pub(super) fn open<P: Platform>(scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<Self, DemoError> {
        let bell = Bell::new(scene, party)?;
        let attributes =
            EpAttributes { request_completion_flags: CompletionFlags::UNSIGNALLED, ..EpAttributes::DEFAULT };
        let (pz, evd) = (Some(party.pz), Some(party.evd));
        let ep = scene
            .adapter
            .ep_create(party.ia, pz, evd, Some(bell.evd), evd, Some(&attributes))
            .in_call("ep_create")?;
        let (round, sent, completed) = (0, 0, 0);
        Ok(Self { ep, bell, asked: false, target: None, stage: Stage::Ready, round, sent, completed })
    }

    fn send<P: Platform>(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        flags: CompletionFlags,
    ) -> Result<(), DemoError> {
        let place = (self.sent as usize * LEN, LEN);
        party.fill(place.0, LEN, scene.plan.own, self.sent);
        let flags = flags | CompletionFlags::UNSIGNALLED;
        party.post_send(scene.adapter, self.ep, place, self.sent, flags)?;
        self.sent += 1;
        scene.tally.messages += 1;
        scene.tally.bytes += LEN as u64;
        Ok(())
    }

    fn write<P: Platform>(
        &self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        part: u64,
        flags: CompletionFlags,
    ) -> Result<(), DemoError> {
        let number = self.round * 3 + part;
        let offset = number as usize * LEN;
        let (context, address) = self.target.ok_or(scene.unexpected("no word of the server's memory"))?;
        party.fill(offset, LEN, scene.plan.own, 1000 + number);
        let remote = RmrTriplet::new(context, address + offset as u64, LEN as u64);
        scene.tally.messages += 1;
        scene.tally.bytes += LEN as u64;
        scene
            .adapter
            .ep_post_rdma_write(self.ep, &[party.segment(offset, LEN)], number, &remote, flags)
            .in_call("ep_post_rdma_write")
    }

    /// The sends that are complete.
    fn sent<P: Platform>(&mut self, scene: &mut Scene<'_, '_, P>) -> Result<bool, DemoError> {
        while self.completed < self.sent {
            let Some(done) = self.bell.next(scene)? else { return Ok(false) };
            scene.expect(done.operation == DtoOperation::Send, "a completion of something else")?;
            self.completed += 1;
        }
        Ok(true)
    }

    fn begin_round<P: Platform>(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
    ) -> Result<Stage, DemoError> {
        if self.round < ROUNDS {
            for _ in 1..MESSAGES {
                self.send(scene, party, NONE)?;
            }
            return Ok(Stage::Plain);
        }
        self.round = 0;
        self.write_silently(scene, party)
    }

    fn write_silently<P: Platform>(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
    ) -> Result<Stage, DemoError> {
        self.write(scene, party, 0, CompletionFlags::SUPPRESS)?;
        self.write(scene, party, 1, CompletionFlags::UNSIGNALLED)?;
        Ok(Stage::Silent)
    }

    /// The one completion that is there is of this write; a suppressed one is not told.
    fn wrote<P: Platform>(
        &self,
        scene: &mut Scene<'_, '_, P>,
        done: &DtoCompletion,
        part: u64,
    ) -> Result<(), DemoError> {
        let right = done.user_cookie == self.round * 3 + part && done.operation == DtoOperation::RdmaWrite;
        scene.expect(right, "a suppressed completion was told")
    }

    /// Whether the stage is over.
    fn step<P: Platform>(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<bool, DemoError> {
        let stage = self.stage;
        let next = match stage {
            // Tokens: one that somebody listens, and two for each round.
            Stage::Ready if self.target.is_some() && scene.told > 2 * self.round => {
                self.begin_round(scene, party)?
            }
            Stage::Plain if self.sent(scene)? => {
                scene.tell()?;
                Stage::Unnoticed
            }
            Stage::Unnoticed if scene.told > 2 * self.round + 1 => {
                self.send(scene, party, CompletionFlags::SOLICITED_WAIT)?;
                Stage::Solicited
            }
            Stage::Solicited if self.sent(scene)? => {
                self.round += 1;
                Stage::Ready
            }
            Stage::Silent => {
                let Some(done) = self.bell.next(scene)? else { return Ok(false) };
                self.wrote(scene, &done, 1)?;
                let woken = self.bell.rang(scene)?;
                scene.expect(!woken, "an unsignalled completion woke")?;
                self.write(scene, party, 2, NONE)?;
                Stage::Loud
            }
            Stage::Loud if self.bell.rings(scene)? => {
                let done = self.bell.next(scene)?.ok_or(scene.unexpected("woken for nothing"))?;
                self.wrote(scene, &done, 2)?;
                let more = self.bell.next(scene)?;
                scene.expect(more.is_none(), "a suppressed completion was told")?;
                self.round += 1;
                if self.round < ROUNDS {
                    self.write_silently(scene, party)?
                } else {
                    scene.tell()?;
                    Stage::Done
                }
            }
            _ => return Ok(false),
        };
        self.stage = next;
        Ok(true)
    }
}

impl<P: Platform> Feature<P> for Waker {
    fn event(&mut self, scene: &mut Scene<'_, '_, P>, _: &Party, event: EventData) -> Result<(), DemoError> {
        let EventData::Connection { event: ConnectionEvent::Established, ep, .. } = event else {
            return Err(scene.unexpected("the connection ended"));
        };
        let greeting = scene.adapter.ep_private_data(ep).in_call("ep_private_data")?;
        let Some((context, rest)) = greeting.split_first_chunk() else {
            return Err(scene.unexpected("no word of the server's memory"));
        };
        let Some((address, _)) = rest.split_first_chunk() else {
            return Err(scene.unexpected("no word of the server's memory"));
        };
        self.target = Some((u32::from_le_bytes(*context), u64::from_le_bytes(*address)));
        Ok(())
    }

    fn advance(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<bool, DemoError> {
        if scene.told > 0 && !self.asked {
            self.asked = true;
            party.connect(scene.adapter, self.ep, &[])?;
        }
        while self.step(scene, party)? {}
        Ok(self.stage == Stage::Done)
    }
}
