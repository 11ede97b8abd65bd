//! Log texts in a fixed buffer.

use core::fmt::{self, Write};

/// Maximum length, in bytes.
const LEN: usize = 200;

/// A text, cut to the buffer.
pub(crate) struct Text {
    bytes: [u8; LEN],
    len: usize,
}

impl Text {
    pub(crate) fn of(what: &dyn fmt::Display) -> Self {
        let mut text = Self { bytes: [0; LEN], len: 0 };
        // Fails if the text is cut, as intended.
        let _ = write!(text, "{what}");
        text
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        let fits = part.len().min(room.len());
        for (to, from) in room.iter_mut().zip(part.bytes()) {
            *to = from;
        }
        self.len += fits;
        if fits == part.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut() {
        assert_eq!(Text::of(&"short").bytes(), b"short");
        assert_eq!(Text::of(&format!("{:300}|", 1)).bytes().len(), LEN);
    }
}
