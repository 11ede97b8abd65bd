//! The ports of the switch by number.

/// A port of the switch, counted from 0 in order of attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortIndex(pub u32);
