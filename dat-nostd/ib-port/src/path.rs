//! Paths to other ports: asked of the subnet administrator, remembered for a while.

use ib_mgmt::Gid;
use ib_mgmt::path::Path;
use ib_mgmt::sa::QueryError;

/// How long a path is believed, nanoseconds. A change of LID or subnet manager ends it earlier.
const KNOWN_NS: u64 = 300_000_000_000;
/// How long a failure is remembered, so that everybody who waits hears of it; nanoseconds.
const FAILED_NS: u64 = 100_000_000;

/// What is known about the way to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The path.
    Known(Path),
    /// The subnet administrator was asked; ask again when [`Port::poll`](crate::Port::poll) has run.
    Pending,
    /// It does not know, or does not answer.
    Failed(QueryError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    Empty = 0,
    Asked,
    Known(Path),
    Failed(QueryError),
}

/// Room for one path.
#[derive(Clone, Copy, Debug)]
pub struct PathEntry {
    dgid: Gid,
    /// End of what is remembered.
    until: u64,
    state: State,
}

impl PathEntry {
    /// A free entry.
    pub const EMPTY: PathEntry = PathEntry { dgid: Gid::ZERO, until: 0, state: State::Empty };
}

/// The remembered paths.
#[derive(Debug)]
pub(crate) struct PathCache<'s> {
    entries: &'s mut [PathEntry],
}

/// What a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    Found(Resolution),
    /// Nothing; this entry is reserved for the answer.
    Ask(u32),
    /// Nothing, and every entry waits for an answer.
    Full,
}

impl<'s> PathCache<'s> {
    pub(crate) fn new(entries: &'s mut [PathEntry]) -> Self {
        entries.fill(PathEntry::EMPTY);
        Self { entries }
    }

    pub(crate) fn lookup(&mut self, now: u64, dgid: Gid) -> Lookup {
        let live = |entry: &&mut PathEntry| {
            entry.dgid == dgid
                && (entry.state == State::Asked || entry.until > now && entry.state != State::Empty)
        };
        if let Some(entry) = self.entries.iter_mut().find(live) {
            return match entry.state {
                State::Known(path) => Lookup::Found(Resolution::Known(path)),
                State::Failed(error) => Lookup::Found(Resolution::Failed(error)),
                State::Asked | State::Empty => Lookup::Found(Resolution::Pending),
            };
        }
        // The entry whose content ends first makes room.
        let oldest = self
            .entries
            .iter_mut()
            .enumerate()
            .filter(|(_, entry)| entry.state != State::Asked)
            .min_by_key(|(_, entry)| if entry.state == State::Empty { 0 } else { entry.until });
        match oldest {
            Some((index, entry)) => {
                *entry = PathEntry { dgid, until: 0, state: State::Asked };
                Lookup::Ask(index as u32)
            }
            None => Lookup::Full,
        }
    }

    /// The answer for an entry that was asked for.
    pub(crate) fn answer(&mut self, now: u64, index: u32, result: Result<Path, QueryError>) {
        let Some(entry) = self.entries.get_mut(index as usize) else { return };
        if entry.state != State::Asked {
            return;
        }
        match result {
            Ok(path) => (entry.state, entry.until) = (State::Known(path), now.saturating_add(KNOWN_NS)),
            Err(error) => (entry.state, entry.until) = (State::Failed(error), now.saturating_add(FAILED_NS)),
        }
    }

    /// Nothing was asked after all.
    pub(crate) fn unask(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index as usize) {
            *entry = PathEntry::EMPTY;
        }
    }

    /// Forgets what is known; questions under way stay.
    pub(crate) fn clear(&mut self) {
        for entry in self.entries.iter_mut().filter(|entry| entry.state != State::Asked) {
            *entry = PathEntry::EMPTY;
        }
    }

    /// Forgets one path, because it did not lead anywhere.
    pub(crate) fn forget(&mut self, dgid: Gid) {
        for entry in self.entries.iter_mut().filter(|entry| entry.dgid == dgid && entry.state != State::Asked)
        {
            *entry = PathEntry::EMPTY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(number: u64) -> Gid {
        Gid::new(Gid::DEFAULT_PREFIX, number)
    }

    #[test]
    fn asks_once_remembers_and_forgets() {
        let mut entries = [PathEntry::EMPTY; 2];
        let mut cache = PathCache::new(&mut entries);
        assert_eq!(cache.lookup(0, gid(1)), Lookup::Ask(0));
        assert_eq!(cache.lookup(0, gid(1)), Lookup::Found(Resolution::Pending));
        assert_eq!(cache.lookup(0, gid(2)), Lookup::Ask(1));
        assert_eq!(cache.lookup(0, gid(3)), Lookup::Full);
        let path = Path { dlid: 7, ..Path::ZERO };
        cache.answer(10, 0, Ok(path));
        assert_eq!(cache.lookup(11, gid(1)), Lookup::Found(Resolution::Known(path)));
        assert_eq!(cache.lookup(11 + KNOWN_NS, gid(1)), Lookup::Ask(0));
        cache.answer(12, 1, Err(QueryError::Timeout));
        assert_eq!(cache.lookup(13, gid(2)), Lookup::Found(Resolution::Failed(QueryError::Timeout)));
        assert_eq!(cache.lookup(13 + FAILED_NS, gid(2)), Lookup::Ask(1));
        cache.answer(20, 1, Ok(path));
        cache.clear();
        assert_eq!(cache.lookup(21, gid(2)), Lookup::Ask(1));
        assert_eq!(cache.lookup(21, gid(1)), Lookup::Found(Resolution::Pending));
    }

    #[test]
    fn the_entry_that_ends_first_makes_room() {
        let mut entries = [PathEntry::EMPTY; 2];
        let mut cache = PathCache::new(&mut entries);
        for (number, now) in [(1, 0), (2, 5)] {
            let Lookup::Ask(index) = cache.lookup(now, gid(number)) else { panic!() };
            cache.answer(now, index, Ok(Path::ZERO));
        }
        assert_eq!(cache.lookup(6, gid(3)), Lookup::Ask(0));
        assert_eq!(cache.lookup(6, gid(2)), Lookup::Found(Resolution::Known(Path::ZERO)));
    }
}
