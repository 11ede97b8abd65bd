//! MSI-X vectors as event descriptors.

use super::watchdog::Watchdog;
use hca_model::Interrupts;
use rustix::io::Errno;
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// `f_type` of event descriptors: the file system of anonymous inodes.
const ANONYMOUS: u32 = 0x0904_1934;

#[derive(Debug, Default)]
struct Vector {
    event: Option<OwnedFd>,
    /// Raised while no descriptor was connected.
    pending: bool,
}

/// Vectors of one device. The client owns the table, masks and pending bits of MSI-X. This type
/// stores only the descriptors to signal.
#[derive(Debug)]
pub struct Vectors {
    vectors: Vec<Vector>,
    watchdog: Rc<Watchdog>,
    /// True after a write to a descriptor blocked.
    blocked: Cell<bool>,
    raised: u64,
}

impl Vectors {
    /// Creates `count` vectors without descriptors.
    pub fn new(count: u16, watchdog: Rc<Watchdog>) -> Self {
        let vectors = (0..count).map(|_| Vector::default()).collect();
        Self { vectors, watchdog, blocked: Cell::new(false), raised: 0 }
    }

    /// Number of vectors.
    pub fn len(&self) -> usize {
        self.vectors.len()
    }

    /// Connects the vectors from `start` on with the descriptors in `events`. Signals vectors that
    /// were raised before.
    ///
    /// # Errors
    /// `EINVAL`: a descriptor is not an event descriptor; no vector is connected then. A pipe or a
    /// file could block its writer.
    pub fn connect(&mut self, start: usize, events: Vec<Option<OwnedFd>>) -> Result<(), Errno> {
        for event in events.iter().flatten() {
            if rustix::fs::fstatfs(event)?.f_type as u32 != ANONYMOUS {
                return Err(Errno::INVAL);
            }
        }
        for (place, event) in (start..).zip(events) {
            let Some(vector) = self.vectors.get_mut(place) else { break };
            vector.event = event;
            if vector.event.is_some() && std::mem::take(&mut vector.pending) {
                self.signal(place);
            }
        }
        Ok(())
    }

    /// Removes all descriptors and clears pending vectors, because MSI-X was disabled or the device
    /// was reset.
    pub fn disconnect(&mut self) {
        self.vectors.fill_with(Vector::default);
        self.blocked.set(false);
    }

    /// Returns whether a write to a descriptor has blocked since the last call.
    pub fn take_blocked(&self) -> bool {
        self.blocked.take()
    }

    /// Returns the number of signalled interrupts.
    pub fn raised(&self) -> u64 {
        self.raised
    }

    fn signal(&mut self, place: usize) {
        let Some(vector) = self.vectors.get_mut(place) else { return };
        let Some(event) = &vector.event else {
            vector.pending = true;
            return;
        };
        self.raised += 1;
        // An event descriptor counts up to 2^64 - 2. Only a client that fills it itself makes this
        // block.
        if self.watchdog.guard(|| rustix::io::write(event, &1u64.to_ne_bytes())) == Err(Errno::INTR) {
            vector.event = None;
            self.blocked.set(true);
        }
    }
}

impl Interrupts for Vectors {
    fn raise(&mut self, vector: u16) {
        self.signal(usize::from(vector));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::time::{Duration, Instant};

    fn vectors(count: u16) -> Vectors {
        Vectors::new(count, Rc::new(Watchdog::start().expect("watchdog")))
    }

    fn event() -> (OwnedFd, OwnedFd) {
        let descriptor = eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd");
        (descriptor.try_clone().expect("descriptor"), descriptor)
    }

    fn count(event: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(event, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
    }

    #[test]
    fn a_raise_without_a_descriptor_waits_for_one() {
        let mut vectors = vectors(4);
        let (one, one_seen) = event();
        let (two, two_seen) = event();
        vectors.raise(2);
        vectors.raise(9);
        vectors.connect(1, vec![Some(one), Some(two)]).expect("connected");
        assert_eq!((count(&one_seen), count(&two_seen)), (0, 1));
        vectors.raise(1);
        vectors.raise(1);
        assert_eq!((count(&one_seen), count(&two_seen)), (2, 0));
        vectors.raise(3);
        vectors.disconnect();
        let (three, three_seen) = event();
        vectors.connect(3, vec![Some(three)]).expect("connected");
        assert_eq!(count(&three_seen), 0, "forgotten with the disconnection");
    }

    #[test]
    fn what_is_no_event_descriptor_is_refused() {
        let mut vectors = vectors(2);
        let (read, write) = rustix::pipe::pipe().expect("pipe");
        let (good, seen) = event();
        assert_eq!(vectors.connect(0, vec![Some(good), Some(write)]), Err(Errno::INVAL));
        vectors.raise(0);
        assert_eq!(count(&seen), 0, "nothing was connected");
        drop(read);
    }

    #[test]
    fn a_full_descriptor_that_blocks_is_dropped() {
        let mut vectors = vectors(2);
        let full = eventfd(0, EventfdFlags::empty()).expect("eventfd");
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).expect("filled");
        let (good, seen) = event();
        vectors.connect(0, vec![Some(full.try_clone().expect("descriptor")), Some(good)]).expect("connected");
        let begin = Instant::now();
        vectors.raise(0);
        assert!(begin.elapsed() < Duration::from_secs(10), "the writer was freed");
        assert!(vectors.take_blocked() && !vectors.take_blocked());
        vectors.raise(0);
        vectors.raise(1);
        assert_eq!(count(&seen), 1, "the others go on");
        assert!(!vectors.take_blocked());
    }
}
