//! The screen, where there is one: what the serial port says, it says too.

use spin::{Mutex, Once};

use crate::framebuffer::{Drawn, Pixels};
use crate::information::Screen;
use crate::mem;
use crate::memory_map::{MemoryMap, Range};
use crate::paging::{Caching, MapError, PAGE_BYTES};
use crate::text_screen::{COLUMNS, Cells, ROWS, TextScreen};

/// A device's memory, mapped for good and for nobody else.
struct Window {
    base: usize,
    len: usize,
}

impl Window {
    /// `range` of physical addresses.
    fn map(range: Range, caching: Caching) -> Result<Self, MapError> {
        let page = range.start - range.start % PAGE_BYTES;
        let len = (range.end - page).checked_next_multiple_of(PAGE_BYTES).ok_or(MapError::BadRange)?;
        let base = mem::map_device(page, len, caching)? + (range.start - page) as usize;
        Ok(Self { base, len: range.len() as usize })
    }
}

impl Pixels for Window {
    fn fill(&mut self, offset: usize, len: usize, value: u8) {
        let Some(end) = offset.checked_add(len).filter(|end| *end <= self.len) else { return };
        let word = u32::from_ne_bytes([value; 4]);
        let (mut at, end) = (self.base + offset, self.base + end);
        while at < end {
            if at.is_multiple_of(4) && end - at >= 4 {
                // SAFETY: inside the window, which `map` mapped for good, and aligned.
                unsafe { core::ptr::write_volatile(at as *mut u32, word) };
                at += 4;
            } else {
                // SAFETY: as above.
                unsafe { core::ptr::write_volatile(at as *mut u8, value) };
                at += 1;
            }
        }
    }
}

enum Surface {
    Text(Window),
    Pixels(Drawn<Window>),
}

impl Cells for Surface {
    fn write(&mut self, index: usize, cell: u16) {
        match self {
            Self::Text(window) if (index + 1) * size_of::<u16>() <= window.len => {
                // SAFETY: inside the window, which `map` mapped for good; cells are aligned, as the screen's address is.
                unsafe { core::ptr::write_volatile((window.base as *mut u16).add(index), cell) };
            }
            Self::Text(_) => {}
            Self::Pixels(drawn) => drawn.write(index, cell),
        }
    }
}

static SCREEN: Once<Mutex<TextScreen<Surface>>> = Once::new();

/// Uses `screen` from now on. One that is where usable memory is, is none.
pub fn init(screen: Option<Screen>, memory: &MemoryMap) -> Result<(), MapError> {
    let (start, len, caching) = match screen {
        None => return Ok(()),
        Some(Screen::Text(address)) => (address, COLUMNS * ROWS * size_of::<u16>(), Caching::Uncached),
        Some(Screen::Pixels(pixels)) => (pixels.address(), pixels.len(), Caching::WriteCombining),
    };
    let end = start.checked_add(len as u64).ok_or(MapError::BadRange)?;
    let range = Range { start, end };
    if memory.ranges().iter().any(|ram| ram.start < end && start < ram.end) || !start.is_multiple_of(2) {
        return Err(MapError::BadRange);
    }
    let window = Window::map(range, caching)?;
    mem::keep(range);
    let surface = match screen {
        Some(Screen::Pixels(pixels)) => Surface::Pixels(Drawn::new(pixels, window)),
        _ => Surface::Text(window),
    };
    SCREEN.call_once(|| Mutex::new(TextScreen::new(surface)));
    Ok(())
}

/// Returns whether there is a screen.
pub fn is_present() -> bool {
    SCREEN.is_completed()
}

/// Shows one byte. Code that was interrupted while it showed one loses nothing but this byte.
pub fn put(byte: u8) {
    if let Some(mut screen) = SCREEN.get().and_then(Mutex::try_lock) {
        screen.put(byte);
    }
}
