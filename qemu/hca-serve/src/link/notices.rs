//! Lines for the user about cables, whose peers can cause any number of them.

use crate::server::NoticeSink;
use std::fmt;
use std::time::{Duration, Instant};

/// Lines in a window.
const BURST: u32 = 32;
/// Length of a window.
const WINDOW: Duration = Duration::from_secs(1);

/// A sink of lines that takes 32 in a second and counts the rest.
pub struct Notices {
    sink: NoticeSink,
    /// End of the window.
    end: Option<Instant>,
    /// Lines in the window.
    told: u32,
    /// Lines of the window that were withheld.
    withheld: u64,
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices").field("withheld", &self.withheld).finish_non_exhaustive()
    }
}

impl Notices {
    /// Gives lines to `sink`.
    pub fn new(sink: NoticeSink) -> Self {
        Self { sink, end: None, told: 0, withheld: 0 }
    }

    /// Prints a line, unless the window has 32.
    pub fn tell(&mut self, line: &str, now: Instant) {
        self.tick(now);
        self.end.get_or_insert(now + WINDOW);
        if self.told < BURST {
            self.told += 1;
            (self.sink)(line);
        } else {
            self.withheld += 1;
        }
    }

    /// Ends a window whose time is over, and prints how many lines it withheld.
    pub fn tick(&mut self, now: Instant) {
        if self.end.is_some_and(|end| end <= now) {
            if self.withheld != 0 {
                (self.sink)(&format!("{} more lines about cables withheld", self.withheld));
            }
            (self.end, self.told, self.withheld) = (None, 0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn lines_beyond_the_burst_are_counted() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let mut notices =
            Notices::new(Arc::new(move |line| kept.lock().expect("lines").push(line.to_owned())));
        let now = Instant::now();
        (0..1_000).for_each(|n| notices.tell(&n.to_string(), now));
        notices.tick(now + WINDOW / 2);
        assert_eq!(lines.lock().expect("lines").len(), 32);
        notices.tick(now + WINDOW);
        notices.tick(now + 2 * WINDOW);
        notices.tell("later", now + 2 * WINDOW);
        let last = lines.lock().expect("lines").split_off(32);
        assert_eq!(last, ["968 more lines about cables withheld", "later"]);
    }
}
