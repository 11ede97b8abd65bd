//! Typed indices of tables. Each is stored plus 1, so that `None` is all zero bytes and an empty
//! table takes no space in an image.

use core::num::NonZeroU16;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[repr(transparent)]
            pub(crate) struct $name(NonZeroU16);

            impl $name {
                /// Maximum number of entries.
                pub(crate) const MOST: usize = u16::MAX as usize;

                /// Returns the ID of `index`. Tables have at most [`Self::MOST`] entries.
                #[inline]
                pub(crate) const fn new(index: usize) -> Self {
                    match NonZeroU16::new((index as u16).wrapping_add(1)) {
                        Some(number) => Self(number),
                        None => Self(NonZeroU16::MAX),
                    }
                }

                #[inline]
                pub(crate) const fn index(self) -> usize {
                    self.0.get() as usize - 1
                }
            }
        )*
    };
}

ids! {
    /// An entry of the table of connections.
    ConnectionId;
    /// A frame.
    FrameId;
    /// An entry of the table of RDMA operations.
    OperationId;
    /// An SGE of an operation's local memory.
    IovId;
    /// An entry of the table of registered memory.
    MemoryId;
    /// An entry of the table of memory windows.
    WindowId;
}

macro_rules! numbers {
    ($($name:ident)*) => {
        $(
            impl $name {
                /// Returns the number for cookies and links in memory; never 0.
                #[inline]
                pub(crate) const fn bits(self) -> u16 {
                    self.0.get()
                }

                #[inline]
                pub(crate) const fn from_bits(bits: u16) -> Option<Self> {
                    match NonZeroU16::new(bits) {
                        Some(number) => Some(Self(number)),
                        None => None,
                    }
                }
            }
        )*
    };
}

numbers!(ConnectionId OperationId FrameId);

/// A message, identified by its first frame, whose table entry describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct MessageId(FrameId);

impl MessageId {
    #[inline]
    pub(crate) const fn starting(first: FrameId) -> Self {
        Self(first)
    }

    #[inline]
    pub(crate) const fn first(self) -> FrameId {
        self.0
    }
}

/// Handle of an open socket. A stale handle stays invalid when its slot is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketHandle {
    pub(crate) slot: u16,
    pub(crate) generation: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_zero_and_takes_no_room() {
        assert_eq!(size_of::<Option<MessageId>>(), 2);
        assert_eq!((FrameId::new(0).bits(), FrameId::new(FrameId::MOST - 1).bits()), (1, u16::MAX));
        assert_eq!(ConnectionId::from_bits(0), None);
        assert_eq!(ConnectionId::from_bits(7).map(ConnectionId::index), Some(6));
    }
}
