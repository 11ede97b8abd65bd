//! Functions of the card that share its firmware.

/// On whose behalf pages move, as firmware names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) id: u16,
    pub(super) embedded_cpu: bool,
}

impl Function {
    /// What is kept of it for each page: function numbers are below 2^15.
    pub(super) const fn tag(self) -> u16 {
        self.id & 0x7fff | (self.embedded_cpu as u16) << 15
    }

    /// Whose page has this tag.
    pub(super) const fn of_tag(tag: u16) -> Self {
        Self { id: tag & 0x7fff, embedded_cpu: tag & 0x8000 != 0 }
    }
}
