//! Watermarks of an endpoint: how many receive buffers it may hold.

use crate::base::types::WATERMARK_INFINITE;

/// An EP's high watermarks; [`WATERMARK_INFINITE`] is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watermarks {
    /// Reported once, then forgotten.
    pub(crate) soft: i32,
    pub(crate) hard: i32,
}

impl Watermarks {
    /// Whether there is one.
    pub(crate) fn any(&self) -> bool {
        self.soft != WATERMARK_INFINITE || self.hard != WATERMARK_INFINITE
    }
}

pub(crate) fn exceeds(held: u32, mark: i32) -> bool {
    mark != WATERMARK_INFINITE && i64::from(held) > i64::from(mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks() {
        assert!(exceeds(1, 0) && !exceeds(0, 0) && !exceeds(5, 5) && exceeds(6, 5));
        assert!(!exceeds(u32::MAX, WATERMARK_INFINITE));
        assert!(Watermarks { soft: 0, hard: WATERMARK_INFINITE }.any());
    }
}
