//! A screen of pixels as UEFI leaves it, and the cells of a text screen drawn on it.
//!
//! Text is white on black, all bits of a pixel or none: so it does not matter which of them are red, green and blue.

pub mod font;

use crate::text_screen::{COLUMNS, Cells, ROWS};

/// Pixels of a cell across, with the space beside the letter.
const CELL_WIDTH: usize = font::WIDTH + 1;
/// Pixels of a cell down, with the space between lines.
const CELL_HEIGHT: usize = font::HEIGHT + 2;
/// Pixels of a letter are drawn as squares of so many a side at most.
const MAX_SCALE: usize = 4;
/// A screen whose rows are farther apart than any's is none.
const MAX_PITCH: u32 = 1 << 20;

/// Where the pixels are, and how large text is on them. Made of what a loader says, by [`Framebuffer::new`] alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framebuffer {
    address: u64,
    /// Bytes from one row of pixels to the next.
    pitch: usize,
    /// Bytes of a pixel.
    pixel: usize,
    scale: usize,
}

impl Framebuffer {
    /// The screen of `width` by `height` pixels of `bits` each, rows of `pitch` bytes, at physical `address`. None if 80 by 25 letters do not
    /// fit, or if no such screen exists.
    #[must_use]
    pub fn new(address: u64, pitch: u32, (width, height): (u32, u32), bits: u8) -> Option<Self> {
        let pixel = usize::from(bits.div_ceil(8));
        let (width, height, stride) = (width as usize, height as usize, pitch as usize);
        let scale = (width / (COLUMNS * CELL_WIDTH)).min(height / (ROWS * CELL_HEIGHT)).min(MAX_SCALE);
        let fits = width.checked_mul(pixel).is_some_and(|row| row <= stride);
        let sane =
            address != 0 && matches!(bits, 15 | 16 | 24 | 32) && pitch <= MAX_PITCH && fits && scale > 0;
        let screen = Self { address, pitch: stride, pixel, scale };
        (sane && address.checked_add(screen.len() as u64).is_some()).then_some(screen)
    }

    /// Physical address of the first pixel.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Bytes from the first pixel to the last that is drawn on, that one's row included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.pitch * ROWS * CELL_HEIGHT * self.scale
    }

    /// There is always something.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Pixels of the screen that one of a letter takes, across and down.
    #[must_use]
    pub const fn scale(&self) -> usize {
        self.scale
    }
}

/// The memory of the pixels.
pub trait Pixels {
    /// Sets `len` bytes at `offset` to `value`.
    fn fill(&mut self, offset: usize, len: usize, value: u8);
}

/// Cells drawn as pixels.
#[derive(Debug)]
pub struct Drawn<P> {
    screen: Framebuffer,
    pixels: P,
}

impl<P: Pixels> Drawn<P> {
    /// On `screen`, whose memory `pixels` is.
    pub const fn new(screen: Framebuffer, pixels: P) -> Self {
        Self { screen, pixels }
    }
}

impl<P: Pixels> Cells for Drawn<P> {
    fn write(&mut self, index: usize, cell: u16) {
        if index >= COLUMNS * ROWS {
            return;
        }
        let Framebuffer { pitch, pixel, scale, .. } = self.screen;
        let (row, column) = (index / COLUMNS, index % COLUMNS);
        let run = scale * pixel;
        let corner = row * CELL_HEIGHT * scale * pitch + column * CELL_WIDTH * run;
        for (y, lit) in font::rows(cell as u8).into_iter().enumerate() {
            for line in 0..scale {
                let start = corner + (y * scale + line) * pitch;
                self.pixels.fill(start, CELL_WIDTH * run, 0);
                for x in (0..font::WIDTH).filter(|x| lit >> x & 1 == 1) {
                    self.pixels.fill(start + x * run, run, u8::MAX);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text_screen::TextScreen;
    use std::string::String;
    use std::vec::Vec;

    struct Memory<'a> {
        bytes: &'a mut Vec<u8>,
    }

    impl Pixels for Memory<'_> {
        fn fill(&mut self, offset: usize, len: usize, value: u8) {
            self.bytes[offset..offset + len].fill(value);
        }
    }

    #[test]
    fn letters_are_as_large_as_fits() {
        let scale = |width, height| {
            Framebuffer::new(0x8000_0000, width * 4, (width, height), 32).map(|screen| screen.scale())
        };
        assert_eq!(scale(640, 480), Some(1));
        assert_eq!(scale(800, 600), Some(1));
        assert_eq!(scale(1280, 800), Some(2));
        assert_eq!(scale(1920, 1080), Some(4));
        assert_eq!(scale(3840, 2160), Some(4));
        assert_eq!((scale(479, 600), scale(800, 249)), (None, None), "no 80 by 25");
    }

    #[test]
    fn what_no_screen_is_like_is_refused() {
        let new = |address, pitch, size, bits| Framebuffer::new(address, pitch, size, bits).is_some();
        assert!(new(0x8000_0000, 3200, (800, 600), 32));
        assert!(!new(0, 3200, (800, 600), 32), "nowhere");
        assert!(!new(0x8000_0000, 3199, (800, 600), 32), "rows that overlap");
        assert!(!new(0x8000_0000, 0, (0, 0), 0));
        for bits in [0, 1, 4, 8, 17, 40, 64, 255] {
            assert!(!new(0x8000_0000, 1 << 16, (800, 600), bits), "{bits}");
        }
        assert!(!new(u64::MAX - 4095, 3200, (800, 600), 32), "beyond all addresses");
        for extreme in [1 << 20, 1 << 31, u32::MAX] {
            let _ = Framebuffer::new(u64::MAX, extreme, (extreme, extreme), 32);
            let screen = Framebuffer::new(1 << 40, extreme, (u32::MAX, u32::MAX), 16);
            assert_eq!(screen, None, "{extreme}");
        }
    }

    #[test]
    fn text_is_drawn_inside_the_screen_with_every_geometry() {
        for (pitch, size, bits) in [
            (960, (480, 250), 15),
            (2560, (800, 600), 24),
            (3201, (800, 600), 32),
            (8192, (1024, 768), 32),
            (2560, (1280, 800), 16),
            (2 * 1921, (1921, 1081), 16),
        ] {
            let screen = Framebuffer::new(0x8000_0000, pitch, size, bits).unwrap();
            assert!(screen.len() <= pitch as usize * size.1 as usize);
            let mut bytes = std::vec![0x55; screen.len()];
            let mut text = TextScreen::new(Drawn::new(screen, Memory { bytes: &mut bytes }));
            (0..30).for_each(|line| {
                std::format!("line {line} of 30\r\n").bytes().for_each(|byte| text.put(byte));
            });
            let (pixel, scale, pitch) = (screen.pixel, screen.scale, screen.pitch);
            let letter = |row: usize, column: usize| {
                let rows = core::array::from_fn(|y| {
                    let at = |x| {
                        (row * CELL_HEIGHT + y) * scale * pitch + (column * CELL_WIDTH + x) * scale * pixel
                    };
                    (0..font::WIDTH).fold(0, |bits, x| bits | (bytes[at(x)] & 1) << x)
                });
                (b' '..0x7f).find(|letter| font::rows(*letter) == rows).map_or('\0', char::from)
            };
            let shown: String = (0..COLUMNS).map(|column| letter(ROWS - 2, column)).collect();
            assert_eq!(shown.trim_end(), "line 29 of 30", "{size:?} of {bits}");
            let above: String = (0..COLUMNS).map(|column| letter(0, column)).collect();
            assert_eq!(above.trim_end(), "line 6 of 30", "{size:?} of {bits}");
        }
    }
}
