//! Device memory (PRM, "Device Memory"): bytes of the HCA's own that programs map through BAR0 and memory keys name.
//!
//! In BAR0 they lie three times, one after the other: as memory, and twice so that a byte written adds to the memory's and a byte
//! read is set to 1. The operation addresses of MODIFY_MEMIC are those of the second and third.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where it begins in BAR0: behind every UAR page that is handed out.
pub const BAR_OFFSET: usize = 0x0180_0000;
/// Bytes that there are, as a ConnectX-5 has them.
pub const SIZE: usize = 128 << 10;
/// log2 of the least allocation, to which all are rounded.
pub const LOG_UNIT: u32 = 6;
/// log2 of the largest alignment, in units of the least allocation.
pub const LOG_MAX_ALIGNMENT: u32 = 6;
/// Bytes of the window in BAR0.
const WINDOW: usize = 3 * SIZE;

/// What an access through an operation address does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A byte written adds to the memory's.
    Increment,
    /// A byte read is set to 1.
    TestAndSet,
}

impl Operation {
    /// All of them, as bits of `device_mem_cap.memic_operations`.
    pub const ALL: u32 = 0b11;

    /// The operation of `modify_memic_in.memic_operation_type`.
    #[must_use]
    pub const fn from_type(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Increment),
            1 => Some(Self::TestAndSet),
            _ => None,
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Where the operation is done on the byte at `start` of BAR0.
    #[must_use]
    pub const fn address(self, start: u64) -> u64 {
        start + ((self as u64 + 1) * SIZE as u64)
    }
}

/// Bit of [`Content::open`]: the unit is allocated.
const ALLOCATED: u8 = 1 << 7;

/// What lies in the memory, and what of it may be seen.
#[derive(Debug, Default)]
struct Content {
    /// Empty until something is allocated.
    bytes: Vec<u8>,
    /// For each unit of [`LOG_UNIT`] whether it is allocated, and the operations whose addresses were given out. As long as `bytes`.
    open: Vec<u8>,
}

impl Content {
    /// All there.
    fn make(&mut self) {
        if self.bytes.is_empty() {
            self.bytes.resize(SIZE, 0);
            self.open.resize(SIZE >> LOG_UNIT, 0);
        }
    }

    /// Changes what `len` bytes from `at` on are open for.
    fn change(&mut self, at: u64, len: u64, change: impl Fn(u8) -> u8) {
        self.make();
        let units = usize::try_from(len).ok().and_then(|len| range(at, len));
        let units = units.map(|bytes| bytes.start >> LOG_UNIT..bytes.end.div_ceil(1 << LOG_UNIT));
        if let Some(units) = units.and_then(|units| self.open.get_mut(units)) {
            units.iter_mut().for_each(|unit| *unit = change(*unit));
        }
    }

    /// The byte at `at` of the window, if it is allocated and can be reached there.
    fn window(&mut self, at: usize) -> Option<&mut u8> {
        let open = *self.open.get((at % SIZE) >> LOG_UNIT)?;
        let need = match at / SIZE {
            0 => ALLOCATED,
            1 => Operation::Increment.bit(),
            2 => Operation::TestAndSet.bit(),
            _ => return None,
        };
        if open & need == 0 { None } else { self.bytes.get_mut(at % SIZE) }
    }
}

/// The bytes, shared by the front of BAR0 and the device. No access sees another half done.
#[derive(Debug, Default)]
pub struct DeviceMemory {
    content: Mutex<Content>,
}

impl DeviceMemory {
    fn lock(&self) -> MutexGuard<'_, Content> {
        // Bytes have no state that a panic elsewhere could leave half done.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place in the window of byte `offset` of BAR0.
    #[inline]
    #[must_use]
    pub fn place(offset: usize) -> Option<usize> {
        offset.checked_sub(BAR_OFFSET).filter(|at| *at < WINDOW)
    }

    /// A guest's read at `at` of the window. What is not allocated, or lies beyond, reads as zero.
    pub fn window_read(&self, at: usize, buf: &mut [u8]) {
        let mut content = self.lock();
        buf.fill(0);
        for (at, to) in (at..WINDOW).zip(buf) {
            let Some(byte) = content.window(at) else { continue };
            *to = *byte;
            if at / SIZE == 2 {
                *byte = 1;
            }
        }
    }

    /// A guest's write at `at` of the window. What is for something not allocated, or lies beyond, is dropped.
    pub fn window_write(&self, at: usize, data: &[u8]) {
        let mut content = self.lock();
        for (at, from) in (at..WINDOW).zip(data) {
            let Some(byte) = content.window(at) else { continue };
            match at / SIZE {
                0 => *byte = *from,
                1 => *byte = byte.wrapping_add(*from),
                _ => {}
            }
        }
    }

    /// The device's read of `out.len()` bytes from `at` of the memory on; `None` where they are not all inside.
    #[must_use]
    pub fn read(&self, at: u64, out: &mut [u8]) -> Option<()> {
        let range = range(at, out.len())?;
        match self.lock().bytes.get(range) {
            Some(from) => out.copy_from_slice(from),
            None => out.fill(0),
        }
        Some(())
    }

    /// The device's write likewise.
    #[must_use]
    pub fn write(&self, at: u64, data: &[u8]) -> Option<()> {
        let range = range(at, data.len())?;
        let mut content = self.lock();
        content.make();
        content.bytes.get_mut(range)?.copy_from_slice(data);
        Some(())
    }

    /// Changes the 8 bytes at `at` of the memory to what `change` makes of them, if to anything; no other access comes between. Answers
    /// what they were, `None` where they are not all inside.
    #[must_use]
    pub fn update(&self, at: u64, change: impl FnOnce([u8; 8]) -> Option<[u8; 8]>) -> Option<[u8; 8]> {
        let range = range(at, 8)?;
        let mut content = self.lock();
        content.make();
        let bytes = content.bytes.get_mut(range)?.first_chunk_mut()?;
        let old = *bytes;
        if let Some(new) = change(old) {
            *bytes = new;
        }
        Some(old)
    }

    /// Forgets all content.
    fn clear(&self) {
        *self.lock() = Content::default();
    }

    /// Opens or closes `len` bytes from `at` on; they are zero then.
    fn open(&self, at: u64, len: u64, open: bool) {
        let mut content = self.lock();
        content.change(at, len, |_| if open { ALLOCATED } else { 0 });
        if let Some(range) = usize::try_from(len).ok().and_then(|len| range(at, len))
            && let Some(bytes) = content.bytes.get_mut(range)
        {
            bytes.fill(0);
        }
    }

    /// An operation on `len` bytes from `at` on can be reached from now on, or not any more.
    fn open_operation(&self, at: u64, len: u64, operation: Operation, open: bool) {
        let bit = operation.bit();
        self.lock().change(at, len, |unit| if open { unit | bit } else { unit & !bit });
    }
}

fn range(at: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let at = usize::try_from(at).ok()?;
    at.checked_add(len).filter(|end| *end <= SIZE).map(|end| at..end)
}

/// Why something cannot be done with device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemicError {
    /// The range does not lie in the device's memory.
    Outside,
    /// No part of the range is free that is large enough.
    Full,
    /// Nothing was allocated there in this length.
    Missing,
    /// Memory keys name it.
    Named(u32),
    /// An operation address of it is given out.
    Operation,
}

/// One allocation.
#[derive(Debug)]
struct Part {
    len: u64,
    /// Memory keys that name it.
    keys: u32,
    /// Operations that addresses were given out for.
    operations: u8,
}

/// The device memory that was allocated.
#[derive(Debug)]
pub struct Memic {
    memory: Arc<DeviceMemory>,
    /// By first byte of the memory.
    parts: BTreeMap<u64, Part>,
}

/// The place in the memory of byte `address` of BAR0.
fn inside(address: u64) -> Option<u64> {
    address.checked_sub(BAR_OFFSET as u64).filter(|at| *at < SIZE as u64)
}

impl Memic {
    /// Nothing allocated.
    #[must_use]
    pub const fn new(memory: Arc<DeviceMemory>) -> Self {
        Self { memory, parts: BTreeMap::new() }
    }

    /// The bytes.
    #[must_use]
    pub const fn memory(&self) -> &Arc<DeviceMemory> {
        &self.memory
    }

    /// Allocations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Frees everything, and forgets the content.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.memory.clear();
    }

    /// Allocates `len` bytes, not zero, in the `range` bytes from `start` of BAR0 on, aligned to `1 << log_align`. They are zero.
    ///
    /// # Errors
    /// [`MemicError::Outside`], [`MemicError::Full`].
    pub fn alloc(&mut self, start: u64, range: u64, len: u64, log_align: u32) -> Result<u64, MemicError> {
        let first = inside(start).ok_or(MemicError::Outside)?;
        let end = first.checked_add(range).filter(|end| *end <= SIZE as u64).ok_or(MemicError::Outside)?;
        let align = 1 << log_align;
        // A part that begins before the range may reach into it.
        let mut at = first.next_multiple_of(align);
        for (begin, part) in &self.parts {
            if at.checked_add(len).is_some_and(|free| free <= *begin) {
                break;
            }
            at = at.max((begin + part.len).next_multiple_of(align));
        }
        if at.checked_add(len).is_none_or(|last| last > end) {
            return Err(MemicError::Full);
        }
        self.parts.insert(at, Part { len, keys: 0, operations: 0 });
        self.memory.open(at, len, true);
        Ok(BAR_OFFSET as u64 + at)
    }

    fn part(&mut self, start: u64) -> Result<(u64, &mut Part), MemicError> {
        let at = inside(start).ok_or(MemicError::Missing)?;
        self.parts.get_mut(&at).map(|part| (at, part)).ok_or(MemicError::Missing)
    }

    /// Frees the `len` bytes at `start` of BAR0. Nobody sees their content afterwards.
    ///
    /// # Errors
    /// [`MemicError::Missing`], [`MemicError::Named`], [`MemicError::Operation`].
    pub fn free(&mut self, start: u64, len: u64) -> Result<(), MemicError> {
        let (at, part) = self.part(start)?;
        if part.len != len {
            return Err(MemicError::Missing);
        }
        if part.keys != 0 {
            return Err(MemicError::Named(part.keys));
        }
        if part.operations != 0 {
            return Err(MemicError::Operation);
        }
        self.parts.remove(&at);
        self.memory.open(at, len, false);
        Ok(())
    }

    /// Gives out the address at which `operation` is done on the allocation at `start` of BAR0.
    ///
    /// # Errors
    /// [`MemicError::Missing`]; [`MemicError::Operation`]: it was given out before.
    pub fn give_operation(&mut self, start: u64, operation: Operation) -> Result<u64, MemicError> {
        let (at, part) = self.part(start)?;
        if part.operations & operation.bit() != 0 {
            return Err(MemicError::Operation);
        }
        part.operations |= operation.bit();
        let len = part.len;
        self.memory.open_operation(at, len, operation, true);
        Ok(operation.address(start))
    }

    /// Takes it back.
    ///
    /// # Errors
    /// [`MemicError::Missing`]: there is none.
    pub fn take_operation(&mut self, start: u64, operation: Operation) -> Result<(), MemicError> {
        let (at, part) = self.part(start)?;
        if part.operations & operation.bit() == 0 {
            return Err(MemicError::Missing);
        }
        part.operations &= !operation.bit();
        let len = part.len;
        self.memory.open_operation(at, len, operation, false);
        Ok(())
    }

    /// The allocation that byte `at` of the memory lies in.
    fn around(&mut self, at: u64) -> Option<(u64, &mut Part)> {
        let (begin, part) = self.parts.range_mut(..=at).next_back()?;
        (at < begin + part.len).then_some((*begin, part))
    }

    /// The place in the memory of the `len` bytes at `address` of BAR0, if they lie in one allocation.
    pub fn place(&mut self, address: u64, len: u64) -> Option<u64> {
        let at = inside(address)?;
        let (begin, part) = self.around(at)?;
        at.checked_add(len).filter(|end| *end <= begin + part.len)?;
        Some(at)
    }

    /// One memory key more, or less, names the allocation around `at` of the memory.
    pub fn count_key(&mut self, at: u64, more: bool) {
        if let Some((_, part)) = self.around(at) {
            part.keys = if more { part.keys.saturating_add(1) } else { part.keys.saturating_sub(1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = BAR_OFFSET as u64;

    #[test]
    fn parts_are_found_in_their_range_and_freed_clean() {
        let mut memic = Memic::new(Arc::default());
        assert_eq!(memic.alloc(START, 0x1000, 0x40, 6), Ok(START));
        assert_eq!(memic.alloc(START, 0x1000, 0x40, 12), Err(MemicError::Full), "aligned to the range's end");
        assert_eq!(memic.alloc(START, 0x2000, 0x40, 12), Ok(START + 0x1000));
        assert_eq!(memic.alloc(START, 0x1000, 0xfc0, 6), Ok(START + 0x40), "all that is left between them");
        assert_eq!(memic.alloc(START, 0x1000, 0x40, 6), Err(MemicError::Full));
        assert_eq!(memic.alloc(START + 0x1000, 0x1000, 0x40, 6), Ok(START + 0x1040), "behind the one there");
        for (start, range) in
            [(START - 1, 1), (START, SIZE as u64 + 1), (START + SIZE as u64, 0), (START, u64::MAX)]
        {
            assert_eq!(memic.alloc(start, range, 64, 6), Err(MemicError::Outside), "{start:#x} {range:#x}");
        }
        assert_eq!(memic.alloc(START, SIZE as u64, u64::MAX - 63, 6), Err(MemicError::Full));
        let memory = Arc::clone(memic.memory());
        memory.window_write(0x40, &[7; 8]);
        assert_eq!(memic.free(START + 0x40, 0x40), Err(MemicError::Missing), "another length");
        assert_eq!(memic.free(START + 0x40, 0xfc0), Ok(()));
        assert_eq!(memic.free(START + 0x40, 0xfc0), Err(MemicError::Missing));
        let mut seen = [1; 8];
        memory.window_read(0x40, &mut seen);
        assert_eq!((seen, memic.len()), ([0; 8], 3));
    }

    #[test]
    fn what_is_named_stays() {
        let mut memic = Memic::new(Arc::default());
        let start = memic.alloc(START, 0x1000, 0x80, 6).expect("room");
        assert_eq!(memic.place(start + 0x40, 0x40), Some(0x40));
        assert_eq!((memic.place(start + 0x40, 0x41), memic.place(start + 0x80, 1)), (None, None));
        assert_eq!(memic.place(start, u64::MAX), None);
        memic.count_key(0x40, true);
        assert_eq!(memic.free(start, 0x80), Err(MemicError::Named(1)));
        memic.count_key(0x40, false);
        let add = Operation::Increment;
        assert_eq!(memic.take_operation(start, add), Err(MemicError::Missing));
        assert_eq!(memic.give_operation(start, add), Ok(start + SIZE as u64));
        assert_eq!(memic.give_operation(start, add), Err(MemicError::Operation));
        assert_eq!(memic.give_operation(start + 0x40, add), Err(MemicError::Missing), "not its first byte");
        assert_eq!(memic.free(start, 0x80), Err(MemicError::Operation));
        assert_eq!((memic.take_operation(start, add), memic.free(start, 0x80)), (Ok(()), Ok(())));
    }

    #[test]
    fn the_window_adds_tests_and_sets_and_ends() {
        let memory = DeviceMemory::default();
        let byte = |at: usize| {
            let mut byte = [0];
            memory.window_read(at, &mut byte);
            byte[0]
        };
        // Nothing is allocated: nothing answers, and what is written is lost.
        memory.window_write(5, &[254]);
        assert_eq!((byte(5), byte(2 * SIZE + 5)), (0, 0));
        memory.open(0, SIZE as u64, true);
        assert_eq!(byte(5), 0);
        // Operations have addresses where they were given out.
        memory.window_write(SIZE + 5, &[1]);
        assert_eq!((byte(2 * SIZE + 5), byte(5)), (0, 0));
        memory.open_operation(0, SIZE as u64, Operation::Increment, true);
        memory.open_operation(0, SIZE as u64, Operation::TestAndSet, true);
        memory.window_write(5, &[254]);
        memory.window_write(SIZE + 5, &[1]);
        assert_eq!((byte(5), byte(SIZE + 5)), (255, 255));
        memory.window_write(2 * SIZE + 5, &[9]);
        assert_eq!((byte(2 * SIZE + 5), byte(2 * SIZE + 5), byte(5)), (255, 1, 1));
        memory.window_write(SIZE + 5, &[255]);
        assert_eq!(byte(5), 0);
        // Over the window's end, and far beyond.
        memory.window_write(WINDOW - 4, &[1; 8]);
        let mut seen = [0xee; 8];
        memory.window_read(WINDOW - 4, &mut seen);
        assert_eq!(seen, [0; 8]);
        memory.window_read(usize::MAX, &mut seen);
        assert_eq!(
            (DeviceMemory::place(BAR_OFFSET - 1), DeviceMemory::place(BAR_OFFSET + WINDOW)),
            (None, None)
        );
        // What was freed is clean, and what was there before it is not seen by who allocates next.
        memory.window_write(64, &[9; 64]);
        memory.open(64, 64, false);
        assert_eq!((byte(64), byte(63)), (0, 0));
        memory.window_write(64, &[9; 64]);
        assert_eq!(memory.write(100, &[7]), Some(()));
        memory.open(64, 64, true);
        assert_eq!((byte(64), byte(100), byte(SIZE + 64)), (0, 0, 0));
        // One update, whoever else looks.
        assert_eq!(memory.update(SIZE as u64 - 16, |old| Some([old[0] + 3; 8])), Some([0; 8]));
        assert_eq!(memory.update(SIZE as u64 - 16, |_| None), Some([3; 8]));
        assert_eq!(memory.update(SIZE as u64 - 7, |_| None), None);
        // The device's own accesses are within the memory, or are none.
        assert_eq!(memory.write(SIZE as u64 - 4, &[3; 4]), Some(()));
        assert_eq!((memory.write(SIZE as u64 - 4, &[3; 5]), memory.write(u64::MAX, &[0])), (None, None));
        let mut end = [0; 4];
        assert_eq!((memory.read(SIZE as u64 - 4, &mut end), end), (Some(()), [3; 4]));
        assert_eq!(memory.read(SIZE as u64 - 3, &mut end), None);
    }
}
