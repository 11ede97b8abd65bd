//! The ports of the switch by number.

/// Ports that fit on the switch: directed routes name them by one byte, 0 is the switch itself.
pub(super) const MAX_PORTS: usize = 254;

/// A port of the switch, counted from 0 in order of attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortIndex(pub u32);
