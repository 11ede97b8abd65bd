//! The order of things.

use driver_mlx::{CompletionError, DmaSlice, Hca, Platform, Psn};

use super::address::Address;
use super::agreement::{
    CONTROL_LEN, Control, MAX_MESSAGE, Operation, TARGET, added, addend, fill, mismatch, size, swapped,
};
use super::endpoint::{Arrival, Endpoint};
use super::error::VerbsError;
use crate::{Role, Status};

/// Completions taken in one poll.
const COMPLETIONS_PER_POLL: usize = 32;
/// How long the client stays after the end, so that a peer whose last message lost its answer gets it again.
const LINGER: u64 = 300_000_000;

/// What a node is told.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Which side.
    pub role: Role,
    /// Sequence number of the first packet.
    pub psn: Psn,
    /// How long to wait for the peer's first message once its address is known, nanoseconds.
    pub connect_timeout: u64,
    /// How long nothing may move, nanoseconds.
    pub stall_timeout: u64,
}

/// One operation, done and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationResult {
    /// Which.
    pub operation: Operation,
    /// How often this side did it.
    pub messages: u32,
    /// Payload bytes that this side moved.
    pub bytes: u64,
    /// How often the peer did it, each time looked at here.
    pub verified: u32,
    /// How long it took, nanoseconds.
    pub ns: u64,
}

/// What this side waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// The peer's address.
    Address,
    /// The peer's part of the current step.
    Peer,
    /// A read or atomic operation of its own.
    Own(Own),
    /// The other control message of the beginning or the end.
    Control(Control),
    /// Everything posted to complete.
    Flush,
    /// The time.
    Linger(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    Read,
    Swap,
    RefusedSwap,
    Add,
}

/// A node in the middle of a run.
pub struct Verbs<P: Platform> {
    config: Config,
    endpoint: Endpoint<P>,
    waiting: Waiting,
    /// The current step: operation, number, and whether one of its two halves is done.
    operation: Option<Operation>,
    number: u32,
    half: bool,
    result: OperationResult,
    finished: Option<OperationResult>,
    began_at: u64,
    moved_at: u64,
    now: u64,
}

impl<P: Platform> Verbs<P> {
    /// Makes the node's objects.
    ///
    /// # Errors
    /// [`VerbsError::Driver`], [`VerbsError::NoAtomics`].
    pub fn new(hca: &mut Hca<'_, P>, config: Config) -> Result<Self, VerbsError> {
        if !hca.caps().atomic {
            return Err(VerbsError::NoAtomics);
        }
        let endpoint = Endpoint::new(hca)?;
        endpoint.set_word(swapped(0))?;
        let now = hca.now().as_nanos();
        Ok(Self {
            config,
            endpoint,
            waiting: Waiting::Address,
            operation: None,
            number: 0,
            half: false,
            result: no_result(Operation::Send),
            finished: None,
            began_at: now,
            moved_at: now,
            now,
        })
    }

    /// What the peer has to know.
    ///
    /// # Errors
    /// [`VerbsError::Driver`].
    pub fn address(&self, hca: &mut Hca<'_, P>) -> Result<Address, VerbsError> {
        self.endpoint.address(hca, self.config.psn)
    }

    /// Connects to the peer; the client begins.
    ///
    /// # Errors
    /// [`VerbsError`]: the address cannot be used.
    pub fn connect(&mut self, hca: &mut Hca<'_, P>, peer: &Address) -> Result<(), VerbsError> {
        self.endpoint.connect(hca, peer, self.config.psn)?;
        self.moved_at = hca.now().as_nanos();
        if self.config.role == Role::Client {
            self.endpoint.send_control(Control::Hello)?;
        }
        self.waiting = Waiting::Control(Control::Hello);
        Ok(())
    }

    /// The operation that was finished in the last [`Verbs::poll`], if any; each is told once.
    pub fn take_result(&mut self) -> Option<OperationResult> {
        self.finished.take()
    }

    /// Moves on, at most to the end of an operation; the caller polls the HCA before.
    ///
    /// # Errors
    /// [`VerbsError`]: the run is over without success.
    pub fn poll(&mut self, hca: &mut Hca<'_, P>, now: u64) -> Result<Status, VerbsError> {
        self.now = now;
        self.endpoint.notified(hca);
        for left in (0..COMPLETIONS_PER_POLL).rev() {
            if left == 0 || self.finished.is_some() {
                return Ok(Status::Working(now));
            }
            // Own completions first: the reason of a failure is there.
            if let Some(sent) = self.endpoint.sent()? {
                sent.map_err(|error| self.failed(error))?;
                self.moved_at = now;
                self.own_done()?;
                continue;
            }
            // What arrives early stays where it is until it is waited for.
            if !matches!(self.waiting, Waiting::Peer | Waiting::Control(_)) {
                break;
            }
            let Some(arrived) = self.endpoint.arrived()? else { break };
            let arrival = arrived.map_err(|error| self.failed(error))?;
            self.moved_at = now;
            self.arrived(arrival)?;
            self.endpoint.repost(arrival.buffer)?;
        }
        if self.waiting == Waiting::Flush && self.endpoint.is_idle() {
            self.waiting = Waiting::Linger(match self.config.role {
                Role::Client => now.saturating_add(LINGER),
                Role::Server => now,
            });
        }
        self.status(now)
    }

    fn status(&self, now: u64) -> Result<Status, VerbsError> {
        let limit = match self.waiting {
            Waiting::Address => return Ok(Status::Working(u64::MAX)),
            Waiting::Linger(until) if now >= until => return Ok(Status::Done),
            Waiting::Linger(until) => return Ok(Status::Working(until)),
            Waiting::Control(Control::Hello) => self.config.connect_timeout,
            _ => self.config.stall_timeout,
        };
        let waited = now.saturating_sub(self.moved_at);
        if waited > limit {
            return Err(VerbsError::Stalled { during: self.operation, waited_ms: waited / 1_000_000 });
        }
        Ok(Status::Working(self.moved_at.saturating_add(limit).saturating_add(1)))
    }

    /// Asks for interrupts, looks once more, and says whether the loop may idle.
    pub fn prepare_idle(&mut self, hca: &mut Hca<'_, P>) -> bool {
        self.endpoint.arm(hca);
        !self.endpoint.notified(hca)
    }

    /// Destroys everything.
    ///
    /// # Errors
    /// [`VerbsError::Driver`].
    pub fn close(self, hca: &mut Hca<'_, P>) -> Result<(), VerbsError> {
        self.endpoint.close(hca)
    }

    fn failed(&self, error: CompletionError) -> VerbsError {
        VerbsError::Transfer { error, during: self.operation }
    }

    fn out_of_turn(&self) -> VerbsError {
        VerbsError::Protocol { during: self.operation }
    }

    fn peer(&self) -> Role {
        match self.config.role {
            Role::Server => Role::Client,
            Role::Client => Role::Server,
        }
    }

    fn arrived(&mut self, arrival: Arrival) -> Result<(), VerbsError> {
        match (self.waiting, self.operation) {
            (Waiting::Control(Control::Done), _) => {
                self.expect(arrival, Control::Done)?;
                self.answer(Control::Done)?;
                self.waiting = Waiting::Flush;
                Ok(())
            }
            (Waiting::Control(control), _) => {
                self.expect(arrival, control)?;
                self.answer(control)?;
                self.enter(Operation::Send, 0)
            }
            (_, Some(operation)) => {
                if self.take(operation, arrival)? {
                    self.taken(operation)
                } else {
                    Ok(())
                }
            }
            _ => Err(self.out_of_turn()),
        }
    }

    /// The server's half of an exchange of control messages.
    fn answer(&mut self, control: Control) -> Result<(), VerbsError> {
        match self.config.role {
            Role::Server => self.endpoint.send_control(control),
            Role::Client => Ok(()),
        }
    }

    fn expect(&self, arrival: Arrival, control: Control) -> Result<(), VerbsError> {
        let mut bytes = [0; CONTROL_LEN];
        let read = self.endpoint.received(arrival.buffer)?.read(0, &mut bytes);
        if arrival.len == CONTROL_LEN && read.is_ok() && bytes == control.encode() {
            Ok(())
        } else {
            Err(self.out_of_turn())
        }
    }

    /// Looks at the peer's half of a step; whether the half is done with it.
    fn take(&mut self, operation: Operation, arrival: Arrival) -> Result<bool, VerbsError> {
        let m = self.number;
        let len = size(m);
        match operation {
            Operation::Send => {
                if arrival.len != len {
                    let position = arrival.len.min(len);
                    return Err(VerbsError::Mismatch { operation, message: m, position });
                }
                self.check(self.endpoint.received(arrival.buffer)?, operation, len)?;
            }
            Operation::Write => {
                self.expect(arrival, Control::Written(m))?;
                let target = self.endpoint.exposed().slice(TARGET, MAX_MESSAGE);
                self.check(target.ok_or(self.out_of_turn())?, operation, len)?;
            }
            Operation::Read => {
                self.expect(arrival, Control::Ready(m))?;
                self.endpoint.rdma_read(len)?;
                self.waiting = Waiting::Own(Own::Read);
                return Ok(false);
            }
            Operation::CompareSwap => {
                self.expect(arrival, Control::Swapped(m))?;
                self.compare(operation, self.endpoint.word()?, swapped(m + 1))?;
            }
            Operation::FetchAdd => {
                self.expect(arrival, Control::Added(m))?;
                self.compare(operation, self.endpoint.word()?, added(m + 1))?;
            }
        }
        Ok(true)
    }

    fn check(&self, memory: DmaSlice<'_>, operation: Operation, len: usize) -> Result<(), VerbsError> {
        let message = operation.message(self.number);
        match mismatch(memory, self.peer(), message, len) {
            Ok(None) => Ok(()),
            Ok(Some(position)) => Err(VerbsError::Mismatch { operation, message: self.number, position }),
            Err(_) => Err(self.out_of_turn()),
        }
    }

    fn compare(&self, operation: Operation, found: u64, expected: u64) -> Result<(), VerbsError> {
        if found == expected {
            return Ok(());
        }
        Err(VerbsError::Word { operation, message: self.number, found, expected })
    }

    /// Begins step `number` of an operation.
    fn enter(&mut self, operation: Operation, number: u32) -> Result<(), VerbsError> {
        if self.operation != Some(operation) {
            self.result = no_result(operation);
            self.began_at = self.now;
        }
        self.operation = Some(operation);
        self.number = number;
        self.half = false;
        if self.is_first(operation) {
            return self.act(operation);
        }
        self.waiting = Waiting::Peer;
        Ok(())
    }

    /// Whether this side moves first in each step. Who reads waits for the other's word: the server gives the first.
    fn is_first(&self, operation: Operation) -> bool {
        let first = if operation == Operation::Read { Role::Server } else { Role::Client };
        self.config.role == first
    }

    /// This side's half of a step.
    fn act(&mut self, operation: Operation) -> Result<(), VerbsError> {
        let (m, role) = (self.number, self.config.role);
        let (len, message) = (size(m), operation.message(m));
        let bounds = |_| VerbsError::Protocol { during: Some(operation) };
        match operation {
            Operation::Send => {
                fill(self.endpoint.outgoing()?, role, message, len).map_err(bounds)?;
                self.endpoint.send(len)?;
                self.acted(operation, len)
            }
            Operation::Write => {
                fill(self.endpoint.outgoing()?, role, message, len).map_err(bounds)?;
                self.endpoint.rdma_write(len)?;
                self.endpoint.send_control(Control::Written(m))?;
                self.acted(operation, len)
            }
            Operation::Read => {
                fill(self.endpoint.source()?, role, message, len).map_err(bounds)?;
                self.endpoint.send_control(Control::Ready(m))?;
                self.acted(operation, len)
            }
            Operation::CompareSwap => {
                self.endpoint.compare_swap(swapped(m), swapped(m + 1))?;
                self.waiting = Waiting::Own(Own::Swap);
                Ok(())
            }
            Operation::FetchAdd => {
                self.endpoint.fetch_add(addend(m))?;
                self.waiting = Waiting::Own(Own::Add);
                Ok(())
            }
        }
    }

    /// A work request of this side has completed: perhaps the one that is waited for. While a read or an atomic operation is
    /// waited for it is the only one whose completion is still to come behind those of earlier control messages.
    fn own_done(&mut self) -> Result<(), VerbsError> {
        let (Waiting::Own(own), Some(operation)) = (self.waiting, self.operation) else { return Ok(()) };
        if !self.endpoint.is_idle() {
            return Ok(());
        }
        let m = self.number;
        match own {
            Own::Read => {
                self.check(self.endpoint.read()?, operation, size(m))?;
                self.taken(operation)
            }
            Own::Swap => {
                self.compare(operation, self.endpoint.fetched()?, swapped(m))?;
                // The word is another by now: this one must change nothing.
                self.endpoint.compare_swap(!swapped(m), 0)?;
                self.waiting = Waiting::Own(Own::RefusedSwap);
                Ok(())
            }
            Own::RefusedSwap => {
                self.compare(operation, self.endpoint.fetched()?, swapped(m + 1))?;
                self.endpoint.send_control(Control::Swapped(m))?;
                self.acted(operation, 16)
            }
            Own::Add => {
                self.compare(operation, self.endpoint.fetched()?, added(m))?;
                self.endpoint.send_control(Control::Added(m))?;
                self.acted(operation, 8)
            }
        }
    }

    fn acted(&mut self, operation: Operation, len: usize) -> Result<(), VerbsError> {
        self.result.messages += 1;
        self.result.bytes += len as u64;
        self.half_done(operation)
    }

    fn taken(&mut self, operation: Operation) -> Result<(), VerbsError> {
        self.result.verified += 1;
        self.half_done(operation)
    }

    /// One side's half of the step is done; who moves next follows from who moved first.
    fn half_done(&mut self, operation: Operation) -> Result<(), VerbsError> {
        if self.half {
            return self.next(operation);
        }
        self.half = true;
        if self.is_first(operation) {
            self.waiting = Waiting::Peer;
            return Ok(());
        }
        self.act(operation)
    }

    fn next(&mut self, operation: Operation) -> Result<(), VerbsError> {
        if self.number + 1 < operation.count() {
            return self.enter(operation, self.number + 1);
        }
        self.result.ns = self.now.saturating_sub(self.began_at);
        self.finished = Some(self.result);
        match operation.next() {
            Some(next) => self.enter(next, 0),
            None => {
                if self.config.role == Role::Client {
                    self.endpoint.send_control(Control::Done)?;
                }
                self.waiting = Waiting::Control(Control::Done);
                Ok(())
            }
        }
    }
}

const fn no_result(operation: Operation) -> OperationResult {
    OperationResult { operation, messages: 0, bytes: 0, verified: 0, ns: 0 }
}
