//! Letters of 5 by 8 pixels for the characters of ASCII, as `font.txt` draws them: sixteen in a row, `#` is lit.

/// Pixels of a letter across.
pub const WIDTH: usize = 5;
/// Pixels of a letter down, one of them below the line.
pub const HEIGHT: usize = 8;

const FIRST: u8 = b' ';
const LETTERS: usize = 96;
const PER_LINE: usize = 16;

/// For each letter its rows, the leftmost pixel in bit 0.
static FONT: [[u8; HEIGHT]; LETTERS] = parse(include_bytes!("font.txt"));

/// The rows of a letter, the leftmost pixel in bit 0; of what is no character of ASCII none are lit.
#[must_use]
pub fn rows(character: u8) -> [u8; HEIGHT] {
    let letter = character.checked_sub(FIRST).and_then(|index| FONT.get(usize::from(index)));
    letter.copied().unwrap_or_default()
}

const fn parse(drawn: &[u8]) -> [[u8; HEIGHT]; LETTERS] {
    const LINE: usize = PER_LINE * (WIDTH + 1);
    assert!(drawn.len() == LINE * HEIGHT * (LETTERS / PER_LINE));
    let mut font = [[0; HEIGHT]; LETTERS];
    let mut at = 0;
    while at < drawn.len() {
        let (line, column) = (at / LINE, at % LINE);
        let (letter, x) = (line / HEIGHT * PER_LINE + column / (WIDTH + 1), column % (WIDTH + 1));
        match drawn[at] {
            b'#' => font[letter][line % HEIGHT] |= 1 << x,
            b'.' => assert!(x < WIDTH),
            _ => assert!(x == WIDTH),
        }
        at += 1;
    }
    font
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn letters_differ_and_fit() {
        let all: BTreeSet<_> = (b' '..0x7f).map(rows).collect();
        assert_eq!(all.len(), 95);
        assert!(all.iter().flatten().all(|row| *row < 1 << WIDTH));
        assert_eq!(rows(b'L'), [1, 1, 1, 1, 1, 1, 0x1f, 0]);
        assert_eq!((rows(b' '), rows(0), rows(0x7f), rows(0xff)), ([0; 8], [0; 8], [0; 8], [0; 8]));
    }
}
