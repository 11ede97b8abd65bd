//! Issuing commands and waiting for them, while the device's own requests are served.

use super::device_state::health_syndrome;
use super::{Firmware, Memory};
use crate::barrier;
use crate::cmd::{self, Answer, CommandQueue, IssueError, Request, Tail, Ticket, User};
use crate::error::{CommandError, Error, FatalCause, Step};
use crate::generation::Object;
use crate::platform::Platform;
use crate::trace::TraceKind;
use crate::types::{Duration, Instant};
use mlx5_prm::status::{CmdStatus, DeliveryStatus};

/// The first wait for a command's answer. Most take this long at least.
const FIRST_WAIT: Duration = Duration::from_micros(10);
/// The longest wait between two looks.
const LONGEST_WAIT: Duration = Duration::from_millis(1);

impl<P: Platform> Firmware<'_, P> {
    /// As [`Hca::poll_command`](super::super::Hca::poll_command).
    pub(in crate::hca) fn poll_command(
        &mut self,
        memory: &mut Memory<'_>,
        ticket: Ticket,
        out: &mut [u8],
    ) -> Result<bool, Error> {
        let now = self.platform.now();
        self.drain_async(memory, now);
        let Some((issued, opcode)) = self.cmd.issued(ticket) else { return Err(Error::BadTicket) };
        if let Some(answer) = self.cmd.take(ticket, out)? {
            return self.finish(memory, now, answer).map(|()| true);
        }
        let took = now - issued;
        if let Some(cause) = self.fatal {
            self.cmd.lose(ticket);
            return Err(Error::Fatal(cause));
        }
        if took < self.limits.command() {
            return Ok(false);
        }
        self.cmd.lose(ticket);
        self.log.counters_mut().command_timeouts += 1;
        self.log.trace(now, TraceKind::CommandTimeout { opcode, took });
        // Firmware gets no more pages, and what it cannot do without them times out as well. While
        // the device comes up or goes down the caller undoes as much as can be undone.
        if self.step() == Step::Running && self.cmd.serves_pages(ticket) {
            self.set_fatal(now, FatalCause::CommandsLost);
        }
        Err(Error::Timeout {
            step: self.step(),
            opcode: Some(opcode),
            waited_ms: took.as_millis() as u64,
            syndrome: health_syndrome(self.platform.bar()),
        })
    }

    pub(in crate::hca) fn issue(
        &mut self,
        memory: &mut Memory<'_>,
        input: &[u8],
        tail: Tail<'_>,
        out_len: usize,
        user: User,
    ) -> Result<Ticket, Error> {
        let usable = self.usable()?;
        if out_len > 16 + 4096 {
            return Err(Error::InvalidArgument("output length"));
        }
        reclaim_slots(&mut self.cmd, memory)?;
        if self.cmd.all_lost() {
            self.set_fatal(self.platform.now(), FatalCause::CommandsLost);
            return Err(Error::Fatal(FatalCause::CommandsLost));
        }
        let lent = match cmd::lent_bytes(input.len() + tail.bytes()) {
            0 => None,
            bytes => Some(memory.take(usable, bytes, 4096)?),
        };
        let now = self.platform.now();
        let request = Request { input, tail, out_len, lent, user };
        let mut issued = self.cmd.issue(self.platform.bar(), &request, now);
        if issued == Err(IssueError::NoSlot) && self.cmd.lose_forgotten(now, self.limits.command()) {
            reclaim_slots(&mut self.cmd, memory)?;
            issued = self.cmd.issue(self.platform.bar(), &request, now);
        }
        match issued {
            Ok(ticket) => {
                self.log.counters_mut().commands += 1;
                Ok(ticket)
            }
            Err(error) => {
                if let Some(mailboxes) = lent {
                    memory.release(mailboxes)?;
                }
                Err(match error {
                    IssueError::NoSlot => Error::NoCommandSlot,
                    IssueError::TooLong => Error::InvalidArgument("input length"),
                })
            }
        }
    }

    /// Counts and traces an answer.
    fn finish(&mut self, memory: &mut Memory<'_>, now: Instant, answer: Answer) -> Result<(), Error> {
        if let Some(mailboxes) = answer.lent {
            memory.release(mailboxes)?;
        }
        let Answer { opcode, op_mod, delivery, status, syndrome, issued, .. } = answer;
        let took = now - issued;
        self.log.trace(now, TraceKind::Command { opcode, op_mod, delivery, status, syndrome, took });
        if delivery == DeliveryStatus::OK && status == CmdStatus::OK {
            return Ok(());
        }
        self.log.counters_mut().command_errors += 1;
        Err(Error::Command(CommandError { step: self.step(), opcode, op_mod, delivery, status, syndrome }))
    }

    /// Issues a command and waits for its answer.
    pub(in crate::hca) fn exec(
        &mut self,
        memory: &mut Memory<'_>,
        input: &[u8],
        out: &mut [u8],
    ) -> Result<(), Error> {
        self.exec_with(memory, input, Tail::NONE, out)
    }

    /// As [`Firmware::exec`], for a command that destroys an object.
    ///
    /// Succeeds for a device that has failed, or was reset since: it has no objects. The driver
    /// takes no memory before the reset, so that the object's can be given back.
    pub(in crate::hca) fn destroy(
        &mut self,
        memory: &mut Memory<'_>,
        object: &impl Object,
        input: &[u8],
        out: &mut [u8],
    ) -> Result<(), Error> {
        let Some(ticket) = self.begin_destroy(memory, object, input, out.len(), User::Waiter)? else {
            return Ok(());
        };
        match self.wait(memory, ticket, out) {
            Err(Error::Fatal(_)) => Ok(()),
            result => result,
        }
    }

    /// Issues a command that destroys an object, unless the device has failed or was reset since.
    pub(in crate::hca) fn begin_destroy(
        &mut self,
        memory: &mut Memory<'_>,
        object: &impl Object,
        input: &[u8],
        out_len: usize,
        user: User,
    ) -> Result<Option<Ticket>, Error> {
        match self.resolve(object) {
            Err(Error::Stale) => return Ok(None),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        match self.issue(memory, input, Tail::NONE, out_len, user) {
            Ok(ticket) => Ok(Some(ticket)),
            Err(Error::Fatal(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// As [`Firmware::exec`], with a list at the end of the input.
    pub(in crate::hca) fn exec_with(
        &mut self,
        memory: &mut Memory<'_>,
        input: &[u8],
        tail: Tail<'_>,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let ticket = self.issue(memory, input, tail, out.len(), User::Waiter)?;
        self.wait(memory, ticket, out)
    }

    /// As [`Firmware::exec_with`], in the slot kept for MANAGE_PAGES.
    pub(super) fn exec_pages(
        &mut self,
        memory: &mut Memory<'_>,
        input: &[u8],
        tail: Tail<'_>,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let ticket = self.issue(memory, input, tail, out.len(), User::Pages)?;
        self.wait(memory, ticket, out)
    }

    fn wait(&mut self, memory: &mut Memory<'_>, ticket: Ticket, out: &mut [u8]) -> Result<(), Error> {
        let mut pause = Duration::ZERO;
        while !self.poll_command(memory, ticket, out)? {
            pause = self.pause(memory, pause);
        }
        Ok(())
    }

    /// Waits between two looks for an answer, longer than the `last` time. Returns for how long.
    pub(in crate::hca) fn pause(&mut self, memory: &mut Memory<'_>, last: Duration) -> Duration {
        let pause = (last * 2).max(FIRST_WAIT).min(LONGEST_WAIT);
        let now = self.platform.now();
        self.poll_health(memory, now);
        barrier::full();
        self.platform.idle(now + pause);
        pause
    }
}

/// Frees the slots of lost commands that firmware has answered since.
fn reclaim_slots(cmd: &mut CommandQueue, memory: &mut Memory<'_>) -> Result<(), Error> {
    while let Some(lent) = cmd.reclaim() {
        if let Some(mailboxes) = lent {
            memory.release(mailboxes)?;
        }
    }
    Ok(())
}
