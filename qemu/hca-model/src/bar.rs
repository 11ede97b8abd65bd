//! The thread-safe front of BAR0.
//!
//! Writes latch into a queue that the model drains in its own time, and into a register file so that a write shows in its
//! own read-back at once. Reads come from the register file alone; neither ever runs the model. Device memory is no register: it is
//! read and written at once.

use crate::object::memic::DeviceMemory;
use crate::profile::Profile;
use crate::scheduler::Waker;
use mlx5_prm::init_seg as reg;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Size of a physical function's BAR0: 32 MiB (`cmd_hca_cap.uar_sz` 5). Of others [`BarPort::len`] says it.
pub const BAR0_SIZE: usize = 32 << 20;
/// Why nothing is answered: the link is dead; memory accesses are not decoded.
const DEAD: u32 = 1;
const NOT_DECODING: u32 = 2;

/// Bytes at the start of BAR0 that are registers with a value: the initialization segment (PRM, "Initialization Segment").
/// Everything behind it except device memory is write-only and reads as zero.
pub const INIT_SEG_SIZE: usize = 0x4010;

/// Writes that may wait for the model. More are dropped and counted: only a guest that floods its own device while the
/// model is stopped gets there (the transport to the guest has no back pressure).
const QUEUE_LIMIT: usize = 1 << 20;

/// One write, as the guest made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarWrite {
    /// Bytes from the start of BAR0.
    pub offset: usize,
    /// The bytes in order of address; `len` of them count.
    pub data: [u8; 8],
    /// 1 to 8.
    pub len: u8,
}

impl BarWrite {
    /// The written bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.data.get(..usize::from(self.len)).unwrap_or(&self.data)
    }
}

/// The front of BAR0, shared between whoever receives the guest's accesses and the model.
#[derive(Debug)]
pub struct BarPort {
    /// Big-endian dwords of the initialization segment, as numbers.
    registers: Vec<AtomicU32>,
    queue: Mutex<VecDeque<BarWrite>>,
    pending: AtomicUsize,
    dropped: AtomicU64,
    /// Not zero while the device answers nothing, for a [reason](DEAD) or several: reads give all ones.
    dead: AtomicU32,
    /// `initializing` is set again at once when the command queue's address is written.
    initializing_again: AtomicBool,
    /// The command queue's address reads as 0.
    hidden_queue: AtomicBool,
    /// The part that is memory and not registers.
    memory: Arc<DeviceMemory>,
    len: usize,
    /// Tells the scheduler of writes.
    waker: OnceLock<Waker>,
}

impl Default for BarPort {
    fn default() -> Self {
        Self::new(&Profile::node(0), Arc::default())
    }
}

impl BarPort {
    /// A front with all registers zero.
    pub(crate) fn new(profile: &Profile, memory: Arc<DeviceMemory>) -> Self {
        Self {
            registers: (0..INIT_SEG_SIZE / 4).map(|_| AtomicU32::new(0)).collect(),
            queue: Mutex::new(VecDeque::new()),
            pending: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            dead: AtomicU32::new(0),
            initializing_again: AtomicBool::new(profile.habits.initializing_again.is_some()),
            hidden_queue: AtomicBool::new(profile.habits.hidden_queue),
            memory,
            len: profile.card.bar_size(),
            waker: OnceLock::new(),
        }
    }

    /// From now on, writes wake a node. Has no effect after the first call.
    pub(crate) fn set_waker(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    /// Bytes of BAR0.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub const fn len(&self) -> usize {
        self.len
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<BarWrite>> {
        // A poisoned lock only says that another thread panicked between two pushes; the queue itself is whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A guest's read of any size at any offset. Beyond BAR0 and in write-only registers it gives zero; device memory is read at
    /// once.
    pub fn read(&self, offset: usize, buf: &mut [u8]) {
        if self.dead.load(Ordering::Acquire) != 0 {
            buf.fill(0xff);
            return;
        }
        if let Some(at) = DeviceMemory::place(offset) {
            return self.memory.window_read(at, buf);
        }
        let known = INIT_SEG_SIZE.saturating_sub(offset).min(buf.len());
        let (registers, write_only) = buf.split_at_mut(known);
        write_only.fill(0);
        for (i, byte) in registers.iter_mut().enumerate() {
            let at = offset + i;
            let word = self.registers.get(at / 4).map_or(0, |r| r.load(Ordering::Acquire));
            *byte = word.to_be_bytes()[at % 4];
        }
    }

    /// A guest's write of any size at any offset. It never runs the model; it is queued in parts of at most 8 bytes, but device
    /// memory is written at once.
    pub fn write(&self, offset: usize, data: &[u8]) {
        if let Some(at) = DeviceMemory::place(offset) {
            if self.dead.load(Ordering::Acquire) == 0 {
                self.memory.window_write(at, data);
            }
            return;
        }
        let mut queue = self.lock();
        // A register of 64 bits is what is written most.
        if let Ok(register) = <[u8; 8]>::try_from(data) {
            self.queue_up(&mut queue, offset, register, 8);
        } else {
            self.queue_up_parts(&mut queue, offset, data);
        }
        self.pending.store(queue.len(), Ordering::Release);
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    #[inline(never)]
    fn queue_up_parts(&self, queue: &mut VecDeque<BarWrite>, offset: usize, data: &[u8]) {
        for (i, part) in data.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            for (to, from) in bytes.iter_mut().zip(part) {
                *to = *from;
            }
            self.queue_up(queue, offset.saturating_add(i * 8), bytes, part.len());
        }
    }

    #[inline(always)]
    fn queue_up(&self, queue: &mut VecDeque<BarWrite>, offset: usize, data: [u8; 8], len: usize) {
        if offset.saturating_add(len) > self.len {
            return;
        }
        if queue.len() >= QUEUE_LIMIT {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if offset < 0x018 && offset + len > 0x010 {
            self.latch(offset, data.get(..len).unwrap_or_default());
        }
        queue.push_back(BarWrite { offset, data, len: len as u8 });
    }

    /// Shows a write in the register file where the register keeps what is written: the command queue's address. `nic_interface` reads
    /// as written only when the device has done what it asks for, and the low byte of 0x014 is read-only.
    #[cold]
    #[inline(never)]
    fn latch(&self, offset: usize, data: &[u8]) {
        let kept = if self.hides_queue() { 0 } else { data.len() };
        for (i, byte) in data.iter().take(kept).enumerate() {
            let at = offset + i;
            let writable: u32 = match at & !3 {
                0x010 => 0xffff_ffff,
                0x014 => 0xffff_f800,
                _ => continue,
            };
            let shift = 24 - 8 * (at % 4) as u32;
            let mask = writable & (0xff << shift);
            if let Some(register) = self.registers.get(at / 4) {
                let value = (u32::from(*byte) << shift) & mask;
                let _ = register
                    .fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some((old & !mask) | value));
            }
        }
        // Whoever reads next must not see a device that is ready before it has begun.
        if offset + data.len() >= 0x018 && self.initializing_again.load(Ordering::Acquire) {
            let word = self.get32(reg::INITIALIZING_OFFSET);
            self.set32(reg::INITIALIZING_OFFSET, word | reg::INITIALIZING);
        }
    }

    /// From now on, `initializing` is set again at once when the command queue's address is written, or not.
    pub(crate) fn set_initializing_again(&self, again: bool) {
        self.initializing_again.store(again, Ordering::Release);
    }

    /// From now on, the command queue's address reads as 0, or not.
    pub(crate) fn set_hidden_queue(&self, hidden: bool) {
        self.hidden_queue.store(hidden, Ordering::Release);
    }

    /// Returns whether the command queue's address reads as 0.
    pub(crate) fn hides_queue(&self) -> bool {
        self.hidden_queue.load(Ordering::Acquire)
    }

    /// Whether writes wait for the model.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.pending.load(Ordering::Acquire) != 0
    }

    /// Number of writes that wait: a server that sees many may stop reading its socket for a moment.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.pending.load(Ordering::Acquire)
    }

    /// Number of writes lost because the model did not keep up.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The oldest waiting write.
    pub(crate) fn pop(&self) -> Option<BarWrite> {
        if !self.has_work() {
            return None;
        }
        let mut queue = self.lock();
        let write = queue.pop_front();
        self.pending.store(queue.len(), Ordering::Release);
        write
    }

    /// Forgets all waiting writes (reset).
    pub(crate) fn clear(&self) {
        let mut queue = self.lock();
        queue.clear();
        self.pending.store(0, Ordering::Release);
    }

    /// The value of the register at byte `offset` of the initialization segment.
    pub(crate) fn get32(&self, offset: usize) -> u32 {
        self.registers.get(offset / 4).map_or(0, |r| r.load(Ordering::Acquire))
    }

    /// Gives the register at byte `offset` a value.
    pub(crate) fn set32(&self, offset: usize, value: u32) {
        if let Some(register) = self.registers.get(offset / 4) {
            register.store(value, Ordering::Release);
        }
    }

    /// Gives every register the value 0.
    pub(crate) fn zero_registers(&self) {
        self.registers.iter().for_each(|register| register.store(0, Ordering::Release));
    }

    /// Makes every read answer all ones, as a dead link does, or ends that.
    pub(crate) fn set_dead(&self, dead: bool) {
        self.set_silent(DEAD, dead);
    }

    /// The same where the function does not decode memory accesses.
    pub(crate) fn set_decoding(&self, decodes: bool) {
        self.set_silent(NOT_DECODING, !decodes);
    }

    fn set_silent(&self, reason: u32, silent: bool) {
        if silent {
            self.dead.fetch_or(reason, Ordering::AcqRel);
        } else {
            self.dead.fetch_and(!reason, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_shows_at_once_and_waits_for_the_model() {
        let bar = BarPort::default();
        bar.set32(0x14, 0x56);
        bar.write(0x10, &[0, 0, 0, 1, 0x12, 0x34, 0x51, 0xff]);
        let mut seen = [0; 8];
        bar.read(0x10, &mut seen);
        assert_eq!(seen, [0, 0, 0, 1, 0x12, 0x34, 0x50, 0x56], "neither the state nor the sizes");
        assert!(bar.has_work());
        let write = bar.pop();
        assert_eq!(write.map(|w| (w.offset, w.len, w.data[5])), Some((0x10, 8, 0x34)));
        assert!(!bar.has_work());
    }

    #[test]
    fn bytes_and_odd_offsets_reach_the_right_place() {
        let bar = BarPort::default();
        bar.set32(0x230, 0x1122_3344);
        let mut seen = [0; 3];
        bar.read(0x231, &mut seen);
        assert_eq!(seen, [0x22, 0x33, 0x44]);
        bar.write(0x11, &[0xab]);
        assert_eq!(bar.get32(0x10), 0x00ab_0000);
        bar.read(BAR0_SIZE - 1, &mut seen);
        assert_eq!(seen, [0, 0, 0]);
        bar.write(BAR0_SIZE - 1, &[1, 2]);
        assert_eq!(bar.backlog(), 1, "a write over the end is dropped");
    }
}
