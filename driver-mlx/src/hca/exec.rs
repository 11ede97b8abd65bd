//! Issuing commands and waiting for them, while the device's own requests are served.

use super::Hca;
use super::device_state::health_syndrome;
use crate::barrier;
use crate::cmd::{self, Answer, IssueError, Request, Tail, Ticket};
use crate::error::{CommandError, Error, FatalCause, Step};
use crate::life::Object;
use crate::platform::Platform;
use crate::trace::TraceKind;
use crate::types::{Duration, Instant};
use mlx5_prm::cmd::cmd_in;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CmdStatus, DeliveryStatus};

/// The first wait for a command's answer. Most take this long at least.
const FIRST_WAIT: Duration = Duration::from_micros(10);
/// The longest wait between two looks.
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// The start of a command input of `N` bytes.
pub(crate) fn input<const N: usize>(opcode: Opcode, op_mod: u16) -> [u8; N] {
    let mut bytes = [0; N];
    cmd_in::opcode.set(&mut bytes, opcode.0);
    cmd_in::op_mod.set(&mut bytes, op_mod);
    bytes
}

impl<P: Platform> Hca<'_, P> {
    /// Looks whether a command has been answered: `Ok(true)` with the output in `out`, `Ok(false)` if not yet.
    ///
    /// # Errors
    /// [`Error::Command`] if firmware refused, [`Error::Timeout`] when the limit has passed (the slot comes back when the device answers after all),
    /// [`Error::BadTicket`].
    pub fn poll_command(&mut self, ticket: Ticket, out: &mut [u8]) -> Result<bool, Error> {
        let now = self.platform.now();
        self.drain_async(now);
        let Some((issued, opcode)) = self.cmd.issued(ticket) else { return Err(Error::BadTicket) };
        if let Some(answer) = self.cmd.take(ticket, out)? {
            return self.finish(now, answer).map(|()| true);
        }
        let took = now - issued;
        if let Some(cause) = self.fatal {
            self.cmd.lose(ticket);
            return Err(Error::Fatal(cause));
        }
        if took < self.limits.command {
            return Ok(false);
        }
        self.cmd.lose(ticket);
        self.counters.command_timeouts += 1;
        self.trace.push(now, TraceKind::CommandTimeout { opcode, took });
        // Firmware gets no more pages, and what it cannot do without them times out as well. While
        // the device comes up or goes down the caller undoes as much as can be undone.
        if self.step == Step::Running && self.cmd.serves_pages(ticket) {
            self.set_fatal(now, FatalCause::CommandsLost);
        }
        Err(Error::Timeout {
            step: self.step,
            opcode: Some(opcode),
            waited_ms: took.as_millis() as u64,
            syndrome: health_syndrome(self.platform.bar()),
        })
    }

    pub(super) fn issue(
        &mut self,
        input: &[u8],
        tail: Tail<'_>,
        out_len: usize,
        pages: bool,
    ) -> Result<Ticket, Error> {
        if let Some(cause) = self.fatal {
            return Err(Error::Fatal(cause));
        }
        if out_len > 16 + 4096 {
            return Err(Error::InvalidArgument("output length"));
        }
        while let Some(lent) = self.cmd.reclaim() {
            if let Some(memory) = lent {
                self.release(memory)?;
            }
        }
        if self.cmd.all_lost() {
            self.set_fatal(self.platform.now(), FatalCause::CommandsLost);
            return Err(Error::Fatal(FatalCause::CommandsLost));
        }
        let lent = match cmd::lent_bytes(input.len() + tail.bytes()) {
            0 => None,
            bytes => Some(self.take_memory(bytes, 4096)?),
        };
        let now = self.platform.now();
        let request = Request { input, tail, out_len, lent, pages };
        match self.cmd.issue(self.platform.bar(), &request, now) {
            Ok(ticket) => {
                self.counters.commands += 1;
                Ok(ticket)
            }
            Err(error) => {
                if let Some(memory) = lent {
                    self.release(memory)?;
                }
                Err(match error {
                    IssueError::NoSlot => Error::NoCommandSlot,
                    IssueError::TooLong => Error::InvalidArgument("input length"),
                })
            }
        }
    }

    /// Books an answer.
    fn finish(&mut self, now: Instant, answer: Answer) -> Result<(), Error> {
        if let Some(memory) = answer.lent {
            self.release(memory)?;
        }
        let Answer { opcode, op_mod, delivery, status, syndrome, issued, .. } = answer;
        let took = now - issued;
        self.trace.push(now, TraceKind::Command { opcode, op_mod, delivery, status, syndrome, took });
        if delivery == DeliveryStatus::OK && status == CmdStatus::OK {
            return Ok(());
        }
        self.counters.command_errors += 1;
        Err(Error::Command(CommandError { step: self.step, opcode, op_mod, delivery, status, syndrome }))
    }

    /// Issues a command and waits for its answer.
    pub(super) fn exec(&mut self, input: &[u8], out: &mut [u8]) -> Result<(), Error> {
        self.exec_with(input, Tail::NONE, out)
    }

    /// As [`Hca::exec`], for a command that destroys an object. A device that has failed, or was reset since, has no objects: their memory
    /// comes back, and nothing is made of it before the device was reset.
    pub(super) fn end(&mut self, object: &impl Object, input: &[u8], out: &mut [u8]) -> Result<(), Error> {
        match self.named(object) {
            Err(Error::Stale) => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) if self.fatal.is_some() => return Ok(()),
            Ok(_) => {}
        }
        match self.exec(input, out) {
            Err(Error::Fatal(_)) => Ok(()),
            result => result,
        }
    }

    /// As [`Hca::exec`], with a list at the end of the input.
    pub(super) fn exec_with(&mut self, input: &[u8], tail: Tail<'_>, out: &mut [u8]) -> Result<(), Error> {
        let ticket = self.issue(input, tail, out.len(), false)?;
        self.wait(ticket, out)
    }

    /// As [`Hca::exec_with`], in the slot kept for MANAGE_PAGES.
    pub(super) fn exec_pages(&mut self, input: &[u8], tail: Tail<'_>, out: &mut [u8]) -> Result<(), Error> {
        let ticket = self.issue(input, tail, out.len(), true)?;
        self.wait(ticket, out)
    }

    fn wait(&mut self, ticket: Ticket, out: &mut [u8]) -> Result<(), Error> {
        let mut pause = FIRST_WAIT;
        loop {
            if self.poll_command(ticket, out)? {
                return Ok(());
            }
            let now = self.platform.now();
            self.look_at_health(now);
            barrier::full();
            self.platform.idle(now + pause);
            pause = (pause * 2).min(LONGEST_WAIT);
        }
    }
}
