//! The text screen, where there is one: what the serial port says, it says too.

use spin::Mutex;

use crate::mem;
use crate::paging::{Caching, MapError};
use crate::text_screen::{COLUMNS, Cells, ROWS, TextScreen};

struct Vga {
    base: usize,
}

impl Cells for Vga {
    fn write(&mut self, index: usize, cell: u16) {
        if index < COLUMNS * ROWS {
            // SAFETY: `init` mapped all cells, uncached, for good.
            unsafe { core::ptr::write_volatile((self.base as *mut u16).add(index), cell) };
        }
    }
}

static SCREEN: Mutex<Option<TextScreen<Vga>>> = Mutex::new(None);

/// Uses the screen at this physical address from now on; 0 is none.
pub fn init(address: u64) -> Result<(), MapError> {
    if address != 0 {
        let page = address - address % 4096;
        let base = mem::map_device(page, 8192, Caching::Uncached)? + (address - page) as usize;
        *SCREEN.lock() = Some(TextScreen::new(Vga { base }));
    }
    Ok(())
}

/// Shows one byte. Code that was interrupted while it showed one loses nothing but this byte.
pub fn put(byte: u8) {
    if let Some(mut screen) = SCREEN.try_lock()
        && let Some(screen) = screen.as_mut()
    {
        screen.put(byte);
    }
}
