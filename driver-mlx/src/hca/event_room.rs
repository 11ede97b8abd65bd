//! Room for events: an overrun of an event queue stops the whole card, so no more objects are made
//! than have room for what each may send.

use super::Hca;
use crate::eq::{self, Eq};
use crate::error::Error;
use crate::platform::Platform;
use crate::types::EqNumber;

/// An error, and that it took its last receive from a shared queue.
pub(super) const EVENTS_OF_QP: u32 = 2;
/// An error.
pub(super) const EVENTS_OF_CQ: u32 = 1;
/// An error, and the limit.
pub(super) const EVENTS_OF_SRQ: u32 = 2;
/// Of no object: the port, pages, the card. Each of these says something new or waits for an answer.
const OTHER_EVENTS: u32 = 64;

/// The EQ that reports a new CQ.
///
/// An armed CQ writes one EQE and then none until it is armed again, which its owner does only
/// after the driver has taken the EQE. So a CQ needs one entry, whatever its length.
///
/// # Errors
/// [`Error::InvalidArgument`] without such an EQ, [`Error::Limit`] if it has no entry left.
pub(super) fn eq_with_room(eqs: &mut [Option<Eq>], index: u8) -> Result<EqNumber, Error> {
    let eq = eqs.get_mut(usize::from(index)).and_then(Option::as_mut).ok_or(Error::InvalidArgument("eq"))?;
    let (asked, room) = (eq.expected().saturating_add(1), eq.size().saturating_sub(eq::SPARE));
    if asked > room {
        return Err(Error::Limit { what: "log_eq_size", asked: asked.into(), limit: room.into() });
    }
    Ok(eq.number())
}

impl<P: Platform> Hca<'_, P> {
    /// Makes an object that may send so many events.
    pub(super) fn expecting<T>(
        &mut self,
        events: u32,
        make: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let asked = self.expected_events.saturating_add(events);
        let room = (1u32 << self.config.log_async_eq_size).saturating_sub(OTHER_EVENTS);
        if asked > room {
            return Err(Error::Limit { what: "log_async_eq_size", asked: asked.into(), limit: room.into() });
        }
        let made = make(self)?;
        self.expected_events = asked;
        Ok(made)
    }

    /// An object is gone, if it is: what it sent still takes room until it has been looked at.
    pub(super) fn expect_no_more(&mut self, events: u32, destroyed: &Result<(), Error>) {
        if destroyed.is_ok() {
            self.drain_async(self.platform.now());
            self.expected_events = self.expected_events.saturating_sub(events);
        }
    }
}
