//! Commands that are begun and polled, so that their caller can serve others meanwhile.

use super::Hca;
use crate::cmd::Ticket;
use crate::platform::Platform;
use crate::types::Duration;

/// Bytes of output of the commands that can be begun.
pub(super) const OUT_LEN: usize = 16;

/// A command in flight: [`Hca::poll_pending`] finishes it.
///
/// A pending command that is dropped stays in flight. The object that it creates or destroys then
/// counts as existing until [`Hca::recover`]: its buffer cannot be freed, and foreign memory stays
/// mapped. Firmware's answer frees its slot.
#[derive(Debug)]
#[must_use = "the command's object is unknown until it is polled to its end"]
pub struct Pending<C> {
    /// `None` if the device has no such object any more, so that there is no command.
    ticket: Option<Ticket>,
    command: C,
}

impl<C> Pending<C> {
    pub(super) fn new(ticket: Option<Ticket>, command: C) -> Self {
        Self { ticket, command }
    }
}

/// A command that can be [`Pending`].
pub trait Operation<P: Platform>: sealed::Finish<P> {}

pub(super) mod sealed {
    use crate::error::Error;
    use crate::hca::Hca;
    use crate::platform::Platform;

    /// The end of a command.
    pub trait Finish<P: Platform> {
        /// The result that the caller gets.
        type Output;

        /// Takes the command's output, or the reason why there is none.
        fn finish(self, hca: &mut Hca<'_, P>, answer: Result<&[u8], Error>) -> Self::Output;
    }
}

impl<P: Platform> Hca<'_, P> {
    /// Finishes a command if firmware has answered. Returns `Err` with the command if not yet.
    ///
    /// A command that is not answered in time, or whose device fails or recovers, ends with an
    /// error. Call [`Hca::poll`] meanwhile, which finds a device that has failed.
    ///
    /// # Errors
    /// The output has those of the blocking call, and [`Error::Stale`](crate::Error::Stale) after a
    /// recovery.
    pub fn poll_pending<C: Operation<P>>(&mut self, pending: Pending<C>) -> Result<C::Output, Pending<C>> {
        let mut out = [0; OUT_LEN];
        let answer = match pending.ticket {
            None => self.firmware.usable().map(|_| ()),
            Some(ticket) => match self.poll_command(ticket, &mut out) {
                Ok(false) => return Err(pending),
                Ok(true) => Ok(()),
                Err(error) => Err(error),
            },
        };
        Ok(pending.command.finish(self, answer.map(|()| &out[..])))
    }

    /// Waits until firmware has answered.
    ///
    /// # Errors
    /// The output has those of the blocking call.
    pub fn finish<C: Operation<P>>(&mut self, mut pending: Pending<C>) -> C::Output {
        let mut pause = Duration::ZERO;
        loop {
            pending = match self.poll_pending(pending) {
                Ok(output) => return output,
                Err(pending) => pending,
            };
            pause = self.firmware.pause(&mut self.memory, pause);
        }
    }
}
