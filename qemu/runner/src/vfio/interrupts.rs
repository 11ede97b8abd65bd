//! MSI-X vectors as event descriptors.

use hca_model::Interrupts;
use std::fs::File;
use std::io::Write;

#[derive(Debug, Default)]
struct Vector {
    event: Option<File>,
    /// Raised while there was no descriptor to tell.
    pending: bool,
}

/// The vectors of one device. The client owns table, masks and pending bits of MSI-X; here is only whom to tell.
#[derive(Debug)]
pub struct Vectors {
    vectors: Vec<Vector>,
}

impl Vectors {
    /// `count` vectors without descriptors.
    pub fn new(count: u16) -> Self {
        Self { vectors: (0..count).map(|_| Vector::default()).collect() }
    }

    /// Gives vectors from `start` on the descriptors of `events`; a raise that came earlier is told now.
    pub fn connect(&mut self, start: u32, events: Vec<Option<File>>) {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        for (vector, event) in self.vectors.iter_mut().skip(start).zip(events) {
            vector.event = event;
            if vector.pending && vector.event.is_some() {
                vector.pending = false;
                signal(&vector.event);
            }
        }
    }

    /// Takes all descriptors away and forgets what is pending: MSI-X was disabled, or the device reset.
    pub fn disconnect(&mut self) {
        self.vectors.fill_with(Vector::default);
    }
}

fn signal(event: &Option<File>) {
    if let Some(mut event) = event.as_ref() {
        // An eventfd counts: the only failure is a full counter, and then the client is told already.
        let _ = event.write(&1u64.to_ne_bytes());
    }
}

impl Interrupts for Vectors {
    fn raise(&mut self, vector: u16) {
        if let Some(vector) = self.vectors.get_mut(usize::from(vector)) {
            if vector.event.is_some() {
                signal(&vector.event);
            } else {
                vector.pending = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn event() -> (File, File) {
        let descriptor = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("eventfd");
        let file = File::from(descriptor);
        (file.try_clone().expect("descriptor"), file)
    }

    fn count(file: &mut File) -> u64 {
        let mut bytes = [0; 8];
        file.read_exact(&mut bytes).map_or(0, |()| u64::from_ne_bytes(bytes))
    }

    #[test]
    fn a_raise_without_a_descriptor_waits_for_one() {
        let mut vectors = Vectors::new(4);
        let (one, mut one_seen) = event();
        let (two, mut two_seen) = event();
        vectors.raise(2);
        vectors.raise(9);
        vectors.connect(1, vec![Some(one), Some(two)]);
        assert_eq!((count(&mut one_seen), count(&mut two_seen)), (0, 1));
        vectors.raise(1);
        vectors.raise(1);
        assert_eq!((count(&mut one_seen), count(&mut two_seen)), (2, 0));
        vectors.raise(3);
        vectors.disconnect();
        let (three, mut three_seen) = event();
        vectors.connect(3, vec![Some(three)]);
        assert_eq!(count(&mut three_seen), 0, "forgotten with the disconnection");
    }
}
