//! Where the log ring is, and the ring itself.

use spin::Mutex;

use crate::log_ring::{ADDRESS, LEN, LogRing, Store, previous};
use crate::mem;
use crate::memory_map::Range;
use crate::paging::{Caching, MapError};

/// A window on the ring's memory. Not cached: a reset writes no cache back.
struct Window {
    base: usize,
}

// Not inlined: memory that is not cached is slow anyhow.
impl Store for Window {
    #[inline(never)]
    fn read(&self, at: usize) -> u8 {
        if at >= LEN {
            return 0;
        }
        // SAFETY: `open` mapped all `LEN` bytes for good, and nothing else is there; any pattern is a byte.
        unsafe { core::ptr::read_volatile((self.base as *const u8).add(at)) }
    }

    #[inline(never)]
    fn write(&mut self, at: usize, byte: u8) {
        if at < LEN {
            // SAFETY: as above.
            unsafe { core::ptr::write_volatile((self.base as *mut u8).add(at), byte) };
        }
    }
}

static RING: Mutex<Option<LogRing<Window>>> = Mutex::new(None);

/// The ring's addresses.
pub const RANGE: Range = Range { start: ADDRESS, end: ADDRESS + LEN as u64 };

/// Shows `tell` the log of the boot before, if there is one: how much of its beginning is lost, and its bytes. From now on the ring takes
/// this boot's. [`RANGE`] is memory that nobody else has, nor maps.
pub fn open(tell: impl FnOnce(u32, &mut dyn Iterator<Item = u8>)) -> Result<(), MapError> {
    let base = mem::map_device(RANGE.start, RANGE.len(), Caching::Uncached)?;
    mem::keep(RANGE);
    let window = Window { base };
    if let Some(found) = previous(&window) {
        tell(found.lost(), &mut found.bytes());
    }
    *RING.lock() = Some(LogRing::new(window));
    Ok(())
}

/// Keeps one byte. Code that was interrupted while it kept one loses nothing but this byte.
pub fn put(byte: u8) {
    if let Some(mut ring) = RING.try_lock()
        && let Some(ring) = ring.as_mut()
    {
        ring.put(byte);
        if byte == b'\n' {
            ring.commit();
        }
    }
}
