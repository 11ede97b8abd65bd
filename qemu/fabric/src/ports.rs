//! The ports of a switch by number.

use std::fmt;

/// Ports of a switch at most: directed routes of InfiniBand name them by one byte, and 0 is the switch
/// itself.
pub(crate) const MAX_PORTS: usize = 254;

/// A port of a switch, counted from 0 in order of attachment. [`Medium`](crate::medium::Medium) has
/// one such count for each of its switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortIndex(pub u32);

/// The switch has no free port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchFull;

impl fmt::Display for SwitchFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the switch has only {MAX_PORTS} ports")
    }
}

impl std::error::Error for SwitchFull {}
