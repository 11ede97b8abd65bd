//! A text screen as BIOSes leave it: 80 by 25 cells of a character and an attribute, here white on black. On a screen of pixels the cells are
//! drawn ([`framebuffer`](crate::framebuffer)).

/// Characters in a row.
pub const COLUMNS: usize = 80;
/// Rows.
pub const ROWS: usize = 25;

const ATTRIBUTE: u16 = 0x0700;
const BLANK: u8 = b' ';
/// What stands for a character that is not ASCII.
const UNKNOWN: u8 = b'?';

/// Where the cells are.
pub trait Cells {
    /// Writes the cell at `index`, counted along the rows.
    fn write(&mut self, index: usize, cell: u16);
}

/// The screen, written like paper: at the bottom it moves up.
#[derive(Debug)]
pub struct TextScreen<C> {
    cells: C,
    /// What is shown, because reading it back from the screen is slow.
    shown: [[u8; COLUMNS]; ROWS],
    row: usize,
    column: usize,
}

impl<C: Cells> TextScreen<C> {
    /// Clears the screen.
    pub fn new(cells: C) -> Self {
        let mut screen = Self { cells, shown: [[BLANK; COLUMNS]; ROWS], row: 0, column: 0 };
        screen.show_all();
        screen
    }

    fn show_all(&mut self) {
        for (index, character) in self.shown.iter().flatten().enumerate() {
            self.cells.write(index, ATTRIBUTE | u16::from(*character));
        }
    }

    /// Shows one byte of text. `\n` begins a row, `\r` goes back to this one's beginning.
    pub fn put(&mut self, byte: u8) {
        match byte {
            b'\n' => self.next_row(),
            b'\r' => self.column = 0,
            _ => {
                if self.column == COLUMNS {
                    self.next_row();
                }
                let shown = if byte == BLANK || byte.is_ascii_graphic() { byte } else { UNKNOWN };
                if let Some(cell) = self.shown.get_mut(self.row).and_then(|row| row.get_mut(self.column)) {
                    *cell = shown;
                    self.cells.write(self.row * COLUMNS + self.column, ATTRIBUTE | u16::from(shown));
                }
                self.column += 1;
            }
        }
    }

    fn next_row(&mut self) {
        self.column = 0;
        if self.row + 1 < ROWS {
            self.row += 1;
            return;
        }
        // What stays as it is is not written again: screens are slow.
        for row in 0..ROWS {
            let below = self.shown.get(row + 1).copied().unwrap_or([BLANK; COLUMNS]);
            let Some(shown) = self.shown.get_mut(row) else { return };
            for (column, (cell, character)) in shown.iter_mut().zip(below).enumerate() {
                if *cell != character {
                    *cell = character;
                    self.cells.write(row * COLUMNS + column, ATTRIBUTE | u16::from(character));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    impl Cells for &mut Vec<u16> {
        fn write(&mut self, index: usize, cell: u16) {
            self[index] = cell;
        }
    }

    /// The rows after `text`, without what is blank at their ends.
    fn shown(text: &str) -> Vec<String> {
        let mut cells = std::vec![0xffff; COLUMNS * ROWS];
        let mut screen = TextScreen::new(&mut cells);
        text.bytes().for_each(|byte| screen.put(byte));
        assert!(cells.iter().all(|cell| cell & 0xff00 == ATTRIBUTE));
        cells
            .chunks(COLUMNS)
            .map(|row| row.iter().map(|cell| *cell as u8 as char).collect::<String>().trim_end().into())
            .collect()
    }

    #[test]
    fn lines_are_shown_and_long_ones_broken() {
        let rows = shown(&std::format!("one\r\ntwo\x07\n{}\n", "x".repeat(COLUMNS + 1)));
        assert_eq!(rows[..5], ["one", "two?", &"x".repeat(COLUMNS), "x", ""]);
    }

    #[test]
    fn a_full_screen_moves_up() {
        let text: Vec<String> = (0..40).map(|line| std::format!("line {line}\r\n")).collect();
        let rows = shown(&text.concat());
        assert_eq!(
            (rows[0].as_str(), rows[ROWS - 2].as_str(), rows[ROWS - 1].as_str()),
            ("line 16", "line 39", "")
        );
    }
}
