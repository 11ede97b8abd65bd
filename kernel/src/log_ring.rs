//! The console's text in memory that a warm reset leaves alone, so that the next boot can say how the one before ended.
//!
//! Memory is not promised to survive: firmware may use it, clear it, or train it anew. What is found is believed only if its header and
//! the sum over its text agree; otherwise there is no log.

/// Bytes that the ring takes.
pub const LEN: usize = 64 << 10;
/// Where it is: above what firmware unpacks itself to and below what it keeps for itself.
pub const ADDRESS: u64 = 32 << 20;

/// Bytes of text that it holds, the last ones written.
pub const CAPACITY: usize = LEN - HEADER;

const HEADER: usize = 64;
const MAGIC: u32 = 0x6c6f_6731;
/// The header's words.
const AT_MAGIC: usize = 0;
const AT_WRITTEN: usize = 4;
const AT_SUM: usize = 8;
const AT_CHECK: usize = 12;

/// The ring's bytes, all [`LEN`] of them, not cached.
pub trait Store {
    /// The byte at `at`.
    fn read(&self, at: usize) -> u8;
    /// Writes it.
    fn write(&mut self, at: usize, byte: u8);
}

/// The ring.
#[derive(Debug)]
pub struct LogRing<S> {
    store: S,
    /// Bytes of text since the beginning, as far as 32 bits count.
    written: u32,
    /// Over the text that is there: each byte times its place's weight.
    sum: u32,
}

fn word(store: &impl Store, at: usize) -> u32 {
    u32::from_le_bytes(core::array::from_fn(|i| store.read(at + i)))
}

fn put_word(store: &mut impl Store, at: usize, value: u32) {
    for (i, byte) in value.to_le_bytes().into_iter().enumerate() {
        store.write(at + i, byte);
    }
}

const fn check(written: u32, sum: u32) -> u32 {
    (MAGIC ^ written).rotate_left(7).wrapping_mul(0x9e37_79b1) ^ sum.rotate_left(13)
}

const fn weighted(place: usize, byte: u8) -> u32 {
    (byte as u32).wrapping_mul(2 * place as u32 + 1)
}

/// The text of the boot before, if it is all there.
#[derive(Debug)]
pub struct Previous<'s, S> {
    store: &'s S,
    written: u32,
}

impl<S: Store> Previous<'_, S> {
    /// Bytes from its beginning that were overwritten.
    #[must_use]
    pub const fn lost(&self) -> u32 {
        self.written.saturating_sub(CAPACITY as u32)
    }

    /// What is there, oldest first.
    pub fn bytes(&self) -> impl Iterator<Item = u8> + '_ {
        (self.lost()..self.written).map(|number| self.store.read(HEADER + number as usize % CAPACITY))
    }
}

/// The log that a boot left in `store`.
pub fn previous<S: Store>(store: &S) -> Option<Previous<'_, S>> {
    let (written, sum) = (word(store, AT_WRITTEN), word(store, AT_SUM));
    let header = word(store, AT_MAGIC) == MAGIC && word(store, AT_CHECK) == check(written, sum);
    if !header || written == 0 || written > u32::MAX - CAPACITY as u32 {
        return None;
    }
    let held = (written as usize).min(CAPACITY);
    let found =
        (0..held).fold(0u32, |sum, place| sum.wrapping_add(weighted(place, store.read(HEADER + place))));
    (found == sum).then_some(Previous { store, written })
}

impl<S: Store> LogRing<S> {
    /// A new log in place of what is there.
    pub fn new(store: S) -> Self {
        let mut ring = Self { store, written: 0, sum: 0 };
        put_word(&mut ring.store, AT_MAGIC, MAGIC);
        ring.commit();
        ring
    }

    /// Takes one byte of text; it counts from the next [`commit`](Self::commit) on.
    pub fn put(&mut self, byte: u8) {
        if self.written > u32::MAX - CAPACITY as u32 - 1 {
            // More than anybody reads, and the count must not come round.
            return;
        }
        let place = self.written as usize % CAPACITY;
        if self.written as usize >= CAPACITY {
            self.sum = self.sum.wrapping_sub(weighted(place, self.store.read(HEADER + place)));
        }
        self.store.write(HEADER + place, byte);
        self.sum = self.sum.wrapping_add(weighted(place, byte));
        self.written += 1;
    }

    /// Says in the header what was written.
    pub fn commit(&mut self) {
        put_word(&mut self.store, AT_WRITTEN, self.written);
        put_word(&mut self.store, AT_SUM, self.sum);
        put_word(&mut self.store, AT_CHECK, check(self.written, self.sum));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    impl Store for &mut Vec<u8> {
        fn read(&self, at: usize) -> u8 {
            self[at]
        }
        fn write(&mut self, at: usize, byte: u8) {
            self[at] = byte;
        }
    }

    fn write(memory: &mut Vec<u8>, text: &str) {
        let mut ring = LogRing::new(memory);
        text.bytes().for_each(|byte| ring.put(byte));
        ring.commit();
    }

    fn read(memory: &mut Vec<u8>) -> Option<(u32, String)> {
        let found = previous(&memory)?;
        Some((found.lost(), String::from_utf8(found.bytes().collect()).unwrap()))
    }

    #[test]
    fn the_next_boot_finds_what_was_written_last() {
        let mut memory = std::vec![0x5a; LEN];
        assert_eq!(read(&mut memory), None, "memory as it was at power-on");
        write(&mut memory, "one\ntwo\n");
        assert_eq!(read(&mut memory), Some((0, "one\ntwo\n".into())));
        let long: String = (0..20_000).map(|line| std::format!("line {line}\n")).collect();
        write(&mut memory, &long);
        let (lost, text) = read(&mut memory).unwrap();
        assert_eq!((lost as usize, text.len()), (long.len() - CAPACITY, CAPACITY));
        assert!(long.ends_with(&text));
        write(&mut memory, "");
        assert_eq!(read(&mut memory), None, "a boot that said nothing");
    }

    #[test]
    fn what_changed_is_not_believed() {
        let mut memory = std::vec![0; LEN];
        for at in [AT_MAGIC, AT_WRITTEN, AT_WRITTEN + 3, AT_SUM + 1, AT_CHECK, HEADER, HEADER + 7] {
            write(&mut memory, "one\ntwo\n");
            memory[at] ^= 0x10;
            assert_eq!(read(&mut memory), None, "byte {at}");
        }
        write(&mut memory, "one\ntwo\n");
        memory.swap(HEADER, HEADER + 1);
        assert_eq!(read(&mut memory), None, "two bytes changed places");
    }

    #[test]
    fn a_line_that_was_not_committed_makes_the_log_doubtful() {
        let mut memory = std::vec![0; LEN];
        let mut ring = LogRing::new(&mut memory);
        "one\n".bytes().for_each(|byte| ring.put(byte));
        ring.commit();
        ring.put(b't');
        assert_eq!(read(&mut memory), Some((0, "one\n".into())), "what is behind does no harm");
    }
}
