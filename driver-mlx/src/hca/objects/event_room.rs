//! Room for events: an overrun of an event queue stops the whole card, so no more objects are made
//! than have room for what each may send.

use crate::eq::{self, Eq};
use crate::error::Error;
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

/// Entries of the asynchronous event queue that objects may need.
#[derive(Debug, Default)]
pub(super) struct EventRoom {
    expected: u32,
    room: u32,
}

impl EventRoom {
    /// Sets the size of the queue. Objects from before a recovery keep their entries until they are
    /// destroyed.
    pub(super) fn set_entries(&mut self, entries: u32) {
        self.room = entries.saturating_sub(OTHER_EVENTS);
    }

    /// # Errors
    /// [`Error::Limit`] if an object that sends `events` has no room.
    pub(super) fn check(&self, events: u32) -> Result<(), Error> {
        let (asked, room) = (self.expected.saturating_add(events), self.room);
        if asked > room {
            return Err(Error::Limit { what: "log_async_eq_size", asked: asked.into(), limit: room.into() });
        }
        Ok(())
    }

    /// Counts an object that was created.
    pub(super) fn add(&mut self, events: u32) {
        self.expected = self.expected.saturating_add(events);
    }

    /// Counts out an object that was destroyed, and whose events have been taken.
    pub(super) fn remove(&mut self, events: u32) {
        self.expected = self.expected.saturating_sub(events);
    }
}
