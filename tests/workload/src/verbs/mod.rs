//! Two sides of a reliable connection on the driver only take turns at the steps of a [`PROGRAM`].
//! Their addresses travel by hand.
//!
//! A turn is one operation and, except for a send, a notice. The peer then
//! compares the effect and takes its own turn, so that at most one message is in flight.

mod address;
mod endpoint;
mod error;
mod program;

pub use address::{Address, AddressError};
pub use error::VerbsError;
pub use program::{Op, PROGRAM, Step};

use core::ops::ControlFlow;

use apps::{Role, Status};
use driver_mlx::{Completion, Duration, Hca, Instant, Platform, Psn, SendOp, Wake};

use self::endpoint::{Area, Endpoint};
use self::program::{NOTICE_LEN, notice, payload};
use crate::report::StepResult;

/// Time that the client stays after the end. A server whose last message lost its
/// acknowledgement sends it again.
const LINGER: Duration = Duration::from_millis(300);

/// Parameters of a side.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Side.
    pub role: Role,
    /// Sequence number of the first packet.
    pub psn: Psn,
    /// Limit for the peer's first message after [`Verbs::connect`].
    pub connect_timeout: Duration,
    /// Limit for each later message.
    pub stall_timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// For the peer's address.
    Address,
    /// For the peer's turn.
    Peer,
    /// For the completion of an own read or atomic.
    Own,
    /// For everything posted to complete.
    End,
    /// For this time.
    Linger(Instant),
}

/// A side in the middle of a run.
pub struct Verbs<P: Platform> {
    config: Config,
    endpoint: Endpoint<P>,
    waiting: Waiting,
    /// Index of the step, number of the turn in it, and true in the server's half of that.
    step: usize,
    number: u32,
    second: bool,
    /// The word of the atomics on either side, before this turn.
    word: u64,
    result: StepResult,
    finished: Option<StepResult>,
    began_at: Instant,
    moved_at: Instant,
    heard: bool,
    now: Instant,
}

impl<P: Platform> Verbs<P> {
    /// Creates the objects of a side.
    ///
    /// # Errors
    /// [`VerbsError::Driver`], [`VerbsError::NoAtomics`].
    pub fn new(hca: &mut Hca<'_, P>, config: Config) -> Result<Self, VerbsError> {
        if !hca.caps().atomic {
            return Err(VerbsError::NoAtomics);
        }
        let endpoint = Endpoint::new(hca)?;
        // The peer may read as soon as it has finished the step before.
        endpoint.fill(Area::Source, Op::Read.len(0), payload(config.role, Op::Read, 0))?;
        let now = hca.now();
        Ok(Self {
            config,
            endpoint,
            waiting: Waiting::Address,
            step: 0,
            number: 0,
            second: false,
            word: 0,
            result: StepResult::new(PROGRAM[0].op.name()),
            finished: None,
            began_at: now,
            moved_at: now,
            heard: false,
            now,
        })
    }

    /// Returns what the peer needs.
    ///
    /// # Errors
    /// [`VerbsError::Driver`].
    pub fn address(&self, hca: &mut Hca<'_, P>) -> Result<Address, VerbsError> {
        self.endpoint.address(hca, self.config.psn)
    }

    /// Connects to the peer. The client takes its first turn.
    ///
    /// # Errors
    /// [`VerbsError`]: the address is not usable.
    pub fn connect(&mut self, hca: &mut Hca<'_, P>, peer: &Address) -> Result<(), VerbsError> {
        self.endpoint.connect(hca, peer, self.config.psn)?;
        self.now = hca.now();
        (self.began_at, self.moved_at) = (self.now, self.now);
        self.begin_turn()
    }

    /// Returns the result of a step that ended in the last [`Verbs::poll`], once.
    pub fn take_result(&mut self) -> Option<StepResult> {
        self.finished.take()
    }

    /// Makes progress, at most to the end of a step. The caller polls the HCA before.
    ///
    /// # Errors
    /// [`VerbsError`]: the run failed.
    pub fn poll(&mut self, hca: &mut Hca<'_, P>, now: Instant) -> Result<Status, VerbsError> {
        self.now = now;
        self.endpoint.notified(hca);
        while self.finished.is_none() {
            let Some(completion) = self.endpoint.completion()? else { break };
            self.moved_at = now;
            match completion {
                Completion::Sent(_) if self.waiting == Waiting::Own && self.endpoint.is_idle() => {
                    self.own_done()?;
                }
                Completion::Sent(_) => {}
                Completion::Received(message) => self.arrived(message.length as usize)?,
                Completion::Failed(failed) => {
                    return Err(VerbsError::Transfer { error: failed.error, during: self.op() });
                }
            }
        }
        if self.finished.is_some() {
            return Ok(ControlFlow::Continue(Wake::Now));
        }
        if self.waiting == Waiting::End && self.endpoint.is_idle() {
            let linger = if self.config.role == Role::Client { LINGER } else { Duration::ZERO };
            self.waiting = Waiting::Linger(now + linger);
        }
        let limit = match self.waiting {
            Waiting::Address => return Ok(ControlFlow::Continue(Wake::Idle)),
            Waiting::Linger(until) if now >= until => return Ok(ControlFlow::Break(())),
            Waiting::Linger(until) => return Ok(ControlFlow::Continue(Wake::At(until))),
            _ if self.heard => self.config.stall_timeout,
            _ => self.config.connect_timeout,
        };
        let waited = now - self.moved_at;
        if waited > limit {
            return Err(VerbsError::Stalled { during: self.op(), waited_ms: waited.as_millis() as u64 });
        }
        Ok(ControlFlow::Continue(Wake::At(self.moved_at + limit + Duration::from_nanos(1))))
    }

    /// Requests an interrupt. Returns whether the caller may idle: nothing arrived meanwhile.
    pub fn prepare_idle(&mut self, hca: &mut Hca<'_, P>) -> bool {
        self.endpoint.arm(hca);
        !self.endpoint.notified(hca)
    }

    /// Destroys the objects.
    ///
    /// # Errors
    /// [`VerbsError::Driver`].
    pub fn close(self, hca: &mut Hca<'_, P>) -> Result<(), VerbsError> {
        self.endpoint.close(hca)
    }

    fn op(&self) -> Op {
        PROGRAM[self.step.min(PROGRAM.len() - 1)].op
    }

    fn begin_turn(&mut self) -> Result<(), VerbsError> {
        self.waiting = Waiting::Peer;
        if self.step == PROGRAM.len() {
            self.waiting = Waiting::End;
        } else if self.second == (self.config.role == Role::Server) {
            self.act()?;
        }
        Ok(())
    }

    /// Takes this side's turn.
    fn act(&mut self) -> Result<(), VerbsError> {
        let (op, number) = (self.op(), self.number);
        let len = op.len(number);
        let (_, operand) = op.apply(number, self.word);
        let own = payload(self.config.role, op, number);
        let (raddr, rkey) = self.endpoint.remote(match op {
            Op::Send | Op::Write => Area::Target,
            Op::Read => Area::Source,
            Op::CompareSwap | Op::RefusedSwap | Op::FetchAdd => Area::Word,
        })?;
        let (request, area) = match op {
            Op::Send => (SendOp::Send, Area::Out),
            Op::Write => (SendOp::Write { raddr, rkey }, Area::Out),
            Op::Read => (SendOp::Read { raddr, rkey }, Area::In),
            Op::CompareSwap | Op::RefusedSwap => {
                let compare = if op == Op::CompareSwap { self.word } else { !self.word };
                (SendOp::CompareSwap { raddr, rkey, compare, swap: operand }, Area::Fetched)
            }
            Op::FetchAdd => (SendOp::FetchAdd { raddr, rkey, add: operand }, Area::Fetched),
        };
        if area == Area::Out {
            self.endpoint.fill(area, len, own)?;
        }
        self.endpoint.post(request, area, len)?;
        match op {
            Op::Send => self.acted(),
            Op::Write => {
                self.endpoint.send(&notice(op, number))?;
                self.acted()
            }
            _ => {
                self.waiting = Waiting::Own;
                Ok(())
            }
        }
    }

    /// A read or atomic of this side completed.
    fn own_done(&mut self) -> Result<(), VerbsError> {
        let (op, number) = (self.op(), self.number);
        if op == Op::Read {
            self.check(Area::In)?;
        } else {
            self.compare(Area::Fetched, self.word)?;
        }
        self.endpoint.send(&notice(op, number))?;
        self.acted()
    }

    fn acted(&mut self) -> Result<(), VerbsError> {
        self.result.messages += 1;
        self.result.bytes += self.op().len(self.number) as u64;
        self.end_turn()
    }

    /// The peer's turn ended: compares its effect.
    fn arrived(&mut self, len: usize) -> Result<(), VerbsError> {
        let (op, number) = (self.op(), self.number);
        if self.waiting != Waiting::Peer {
            return Err(VerbsError::OutOfTurn { during: op });
        }
        if op == Op::Send {
            if len != op.len(number) {
                return Err(VerbsError::Mismatch { op, number, position: len });
            }
            self.check(Area::Receive)?;
        } else {
            let mut bytes = [0; NOTICE_LEN];
            self.endpoint.read(Area::Receive, &mut bytes)?;
            if len != NOTICE_LEN || bytes != notice(op, number) {
                return Err(VerbsError::OutOfTurn { during: op });
            }
        }
        match op {
            Op::Send => {}
            Op::Write => self.check(Area::Target)?,
            Op::Read => {
                let next = number + 1;
                self.endpoint.fill(Area::Source, op.len(next), payload(self.config.role, op, next))?;
            }
            Op::CompareSwap | Op::RefusedSwap | Op::FetchAdd => {
                self.compare(Area::Word, op.apply(number, self.word).0)?;
            }
        }
        self.heard = true;
        self.endpoint.post_receive()?;
        self.result.verified += 1;
        self.end_turn()
    }

    /// Compares the peer's payload of this turn.
    fn check(&self, area: Area) -> Result<(), VerbsError> {
        let (op, number) = (self.op(), self.number);
        let peer = if self.config.role == Role::Server { Role::Client } else { Role::Server };
        match self.endpoint.mismatch(area, op.len(number), payload(peer, op, number)) {
            None => Ok(()),
            Some(position) => Err(VerbsError::Mismatch { op, number, position }),
        }
    }

    fn compare(&self, area: Area, expected: u64) -> Result<(), VerbsError> {
        let mut bytes = [0; 8];
        self.endpoint.read(area, &mut bytes)?;
        let found = u64::from_ne_bytes(bytes);
        if found == expected {
            return Ok(());
        }
        Err(VerbsError::Word { op: self.op(), number: self.number, found, expected })
    }

    /// Moves on to the next turn, which is the other side's.
    fn end_turn(&mut self) -> Result<(), VerbsError> {
        self.second = !self.second;
        if !self.second {
            self.word = self.op().apply(self.number, self.word).0;
            self.number += 1;
            if self.number == PROGRAM[self.step].count {
                self.result.ns = (self.now - self.began_at).as_nanos() as u64;
                self.finished = Some(self.result);
                (self.step, self.number, self.began_at) = (self.step + 1, 0, self.now);
                self.result = StepResult::new(self.op().name());
            }
        }
        self.begin_turn()
    }
}
