//! Lines of text from bytes that come one by one, in a bounded buffer: what somebody types at the console, who may be anybody.

use core::fmt;

use heapless::Vec;

/// Longest line taken, in bytes, without its end.
pub const MAX_LINE_BYTES: usize = 256;

/// Why a line is not given. It has been passed over; the next one is read as if it had not been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineError {
    /// Longer than [`MAX_LINE_BYTES`].
    TooLong,
    /// Not UTF-8, or with control characters in it.
    NotText,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "console input: a line longer than {MAX_LINE_BYTES} bytes"),
            Self::NotText => f.write_str("console input: a line that is not text"),
        }
    }
}

impl core::error::Error for LineError {}

/// Puts bytes together.
#[derive(Debug, Default)]
pub struct LineReader {
    bytes: Vec<u8, MAX_LINE_BYTES>,
    too_long: bool,
    /// The line in `bytes` was given out.
    given: bool,
}

impl LineReader {
    /// Nothing read yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), too_long: false, given: false }
    }

    /// Takes a byte; gives the line that it ends. Lines end with `\n`, a `\r` before it belongs to the end; empty lines are
    /// passed over.
    ///
    /// # Errors
    /// [`LineError`], at the end of a line that cannot be given.
    pub fn push(&mut self, byte: u8) -> Result<Option<&str>, LineError> {
        if core::mem::take(&mut self.given) {
            self.bytes.clear();
        }
        if byte != b'\n' {
            // The `\r` of a line as long as the buffer makes it too long; nobody sends such a line.
            self.too_long |= self.bytes.push(byte).is_err();
            return Ok(None);
        }
        self.given = true;
        if core::mem::take(&mut self.too_long) {
            return Err(LineError::TooLong);
        }
        let line = self.bytes.strip_suffix(b"\r").unwrap_or(&self.bytes);
        let text = core::str::from_utf8(line).map_err(|_| LineError::NotText)?;
        if text.chars().any(|c| c.is_control() && c != '\t') {
            return Err(LineError::NotText);
        }
        Ok(Some(text.trim()).filter(|text| !text.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::{String, ToString};
    use std::vec::Vec as StdVec;

    fn lines(input: &[u8]) -> StdVec<Result<String, LineError>> {
        let mut reader = LineReader::new();
        let mut all = StdVec::new();
        for &byte in input {
            match reader.push(byte) {
                Ok(Some(line)) => all.push(Ok(line.to_string())),
                Ok(None) => {}
                Err(error) => all.push(Err(error)),
            }
        }
        all
    }

    #[test]
    fn lines_are_told_apart() {
        let expected = [Ok("@peer qpn=1".into()), Ok("two".into())];
        assert_eq!(lines(b"\n\r\n  @peer qpn=1\r\n\ntwo\nunfinished"), expected);
    }

    #[test]
    fn what_is_no_line_does_not_spoil_the_next() {
        let mut input = "x".repeat(100_000).into_bytes();
        input.extend(b"\n\xff\xfe\nbell\x07\ngood\n");
        let expected =
            [Err(LineError::TooLong), Err(LineError::NotText), Err(LineError::NotText), Ok("good".into())];
        assert_eq!(lines(&input), expected);
    }

    #[test]
    fn the_longest_line_fits() {
        let longest = "y".repeat(MAX_LINE_BYTES);
        assert_eq!(lines(std::format!("{longest}\n").as_bytes()), [Ok(longest)]);
        let longer = "y".repeat(MAX_LINE_BYTES + 1);
        assert_eq!(lines(std::format!("{longer}\n").as_bytes()), [Err(LineError::TooLong)]);
    }
}
