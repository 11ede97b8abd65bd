//! Registry of the cables with work. Idle cables cost nothing.

use rdma_fabric::ports::PortIndex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Cables by token: those with work, and the times at which others have.
#[derive(Debug, Default)]
pub struct Roster {
    ready: BTreeSet<u64>,
    ports: BTreeMap<u32, u64>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// Each cable's deadline.
    due: BTreeMap<u64, Instant>,
    /// Cables whose socket events may have to change.
    touched: BTreeSet<u64>,
}

impl Roster {
    /// Gives a cable a turn.
    pub fn wake(&mut self, token: u64) {
        self.ready.insert(token);
    }

    /// Gives the cable of `port` a turn, if there is one.
    pub fn wake_port(&mut self, port: PortIndex) {
        if let Some(token) = self.ports.get(&port.0) {
            self.ready.insert(*token);
        }
    }

    /// Notes the port of a cable.
    pub fn plug(&mut self, token: u64, port: PortIndex) {
        self.ports.insert(port.0, token);
    }

    /// Forgets a cable.
    pub fn forget(&mut self, token: u64) {
        self.ready.remove(&token);
        self.touched.remove(&token);
        self.ports.retain(|_, other| *other != token);
        self.set_deadline(token, None);
    }

    /// Sets the time at which a cable has work without an event.
    pub fn set_deadline(&mut self, token: u64, deadline: Option<Instant>) {
        let before = match deadline {
            Some(deadline) => self.due.insert(token, deadline),
            None => self.due.remove(&token),
        };
        if before == deadline {
            return;
        }
        if let Some(before) = before {
            self.deadlines.remove(&(before, token));
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, token));
        }
    }

    /// Returns the earliest time at which a cable has work without an event.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Takes the cables that have work at `now`.
    pub fn take_ready(&mut self, now: Instant) -> BTreeSet<u64> {
        let mut ready = std::mem::take(&mut self.ready);
        ready.extend(self.deadlines.iter().take_while(|(due, _)| *due <= now).map(|(_, token)| *token));
        self.touched.extend(&ready);
        ready
    }

    /// Takes the cables that have had a turn since the last call.
    pub fn take_touched(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.touched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_cables_with_work_have_turns() {
        let (now, mut roster) = (Instant::now(), Roster::default());
        let later = now + Duration::from_secs(1);
        for token in [1, 2, 3] {
            roster.plug(token, PortIndex(10 + token as u32));
            roster.set_deadline(token, Some(later));
        }
        assert!(roster.take_ready(now).is_empty());
        roster.wake(2);
        roster.wake_port(PortIndex(13));
        roster.wake_port(PortIndex(99));
        assert!(roster.take_ready(now).into_iter().eq([2, 3]));
        assert!(roster.take_touched().into_iter().eq([2, 3]));
        assert!(roster.take_ready(now).is_empty() && roster.take_touched().is_empty());
        roster.set_deadline(1, Some(now));
        assert_eq!(roster.deadline(), Some(now));
        assert!(roster.take_ready(now).into_iter().eq([1]));
        roster.set_deadline(1, None);
        roster.forget(2);
        roster.wake_port(PortIndex(12));
        assert!(roster.take_ready(later).into_iter().eq([3]), "1 has no deadline, 2 is gone");
    }
}
