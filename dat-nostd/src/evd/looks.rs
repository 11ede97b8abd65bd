//! How far the completions of a CQ have been taken, and looked at before that.

/// Counts of the completions of one CQ. None of them wraps.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// Completions taken, and those of them that gave the consumer no event.
    taken: u64,
    silent: u64,
    /// Completions looked at; without meaning while behind `taken`.
    looked: u64,
    /// Completions up to which every look was counted, at most `looked`. Without meaning while
    /// behind `taken`.
    counted: u64,
    /// Events delivered once everything counted is taken.
    ready_end: u64,
    /// Events among the completions counted that notify, at most.
    notifying: u32,
}

impl Looks {
    /// Completions taken, circular.
    #[inline]
    pub(crate) fn taken(&self) -> u32 {
        self.taken as u32
    }

    /// So many were taken that became events: all that an ordinary dequeue has to count.
    #[inline]
    pub(crate) fn delivered(&mut self, count: usize) {
        self.taken += count as u64;
    }

    /// One was taken of which the consumer hears nothing.
    pub(crate) fn dropped(&mut self, count: u32) {
        self.taken += u64::from(count);
        self.silent += u64::from(count);
    }

    /// Completions looked at and not yet taken.
    pub(crate) fn ahead(&self) -> u32 {
        self.looked.saturating_sub(self.taken) as u32
    }

    /// After everything taken and looked at, circular.
    pub(crate) fn position(&self) -> u32 {
        self.looked.max(self.taken) as u32
    }

    /// Events among the completions counted and not yet taken.
    pub(crate) fn ready(&self) -> u32 {
        let is_none = self.counted <= self.taken;
        if is_none { 0 } else { self.ready_end.saturating_sub(self.taken - self.silent) as u32 }
    }

    /// How many of those events notify, at most.
    pub(crate) fn notifying(&self) -> u32 {
        self.notifying.min(self.ready())
    }

    /// One more completion was looked at. It is counted if all before it are: `event` says whether
    /// it will be an event, and whether that notifies.
    pub(crate) fn look(&mut self, event: Option<bool>) {
        let (ready, notifying) = (self.ready(), self.notifying());
        let first = self.looked.max(self.taken);
        self.looked = first + 1;
        if self.counted.max(self.taken) < first {
            return;
        }
        self.counted = self.looked;
        self.ready_end = self.taken - self.silent + u64::from(ready) + u64::from(event.is_some());
        self.notifying = notifying + u32::from(event == Some(true));
    }

    /// One more completion was looked at, and not counted.
    pub(crate) fn glance(&mut self) {
        self.looked = self.looked.max(self.taken) + 1;
    }

    /// From now on looks begin where counting ended. Draining by waits stays linear, because a
    /// completion is counted once.
    pub(crate) fn count_on(&mut self) {
        self.looked = self.counted.max(self.taken);
    }

    /// Counts as if nothing had been looked at.
    pub(crate) fn look_again(&mut self) {
        (self.looked, self.counted) = (self.taken, self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_no_longer_ready() {
        let mut looks = Looks::default();
        for event in [Some(true), None, Some(false), Some(true)] {
            looks.look(event);
        }
        assert_eq!((looks.ahead(), looks.ready(), looks.notifying(), looks.position()), (4, 3, 2, 4));
        looks.delivered(1);
        assert_eq!((looks.ahead(), looks.ready(), looks.notifying()), (3, 2, 2));
        looks.dropped(1);
        looks.delivered(1);
        assert_eq!((looks.ahead(), looks.ready(), looks.notifying()), (1, 1, 1));
        looks.look(Some(false));
        assert_eq!((looks.ahead(), looks.ready(), looks.notifying(), looks.position()), (2, 2, 1, 5));
    }

    #[test]
    fn what_was_taken_without_a_look_does_not_count() {
        let mut looks = Looks::default();
        looks.delivered(5);
        looks.dropped(1);
        assert_eq!((looks.ahead(), looks.ready(), looks.position(), looks.taken()), (0, 0, 6, 6));
        looks.look(Some(true));
        looks.look(None);
        assert_eq!((looks.ahead(), looks.ready(), looks.notifying(), looks.position()), (2, 1, 1, 8));
        looks.delivered(3);
        assert_eq!((looks.ahead(), looks.ready(), looks.notifying(), looks.position()), (0, 0, 0, 9));
    }

    #[test]
    fn looking_again_forgets() {
        let mut looks = Looks::default();
        looks.look(Some(true));
        looks.look_again();
        assert_eq!((looks.ahead(), looks.ready(), looks.notifying(), looks.position()), (0, 0, 0, 0));
        looks.look(Some(false));
        assert_eq!((looks.ready(), looks.notifying()), (1, 0));
    }

    #[test]
    fn counting_goes_on_behind_what_was_counted() {
        let mut looks = Looks::default();
        looks.look(Some(true));
        looks.look(Some(false));
        looks.glance();
        looks.look(Some(true));
        assert_eq!((looks.ahead(), looks.ready(), looks.notifying()), (4, 2, 1));
        looks.count_on();
        assert_eq!((looks.ahead(), looks.ready(), looks.position()), (2, 2, 2));
        looks.look(Some(true));
        assert_eq!((looks.ahead(), looks.ready(), looks.notifying()), (3, 3, 2));
        // Taken beyond what was counted.
        looks.glance();
        looks.glance();
        looks.delivered(4);
        assert_eq!((looks.ahead(), looks.ready(), looks.notifying()), (1, 0, 0));
        looks.count_on();
        assert_eq!(looks.ahead(), 0);
        looks.look(Some(true));
        assert_eq!((looks.ahead(), looks.ready(), looks.notifying()), (1, 1, 1));
    }
}
