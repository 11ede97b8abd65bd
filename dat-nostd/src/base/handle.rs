//! Object handles: 64 bits, so that a stale one is INVALID_HANDLE and never somebody else's object.
//!
//! | bits | content |
//! |---|---|
//! | 63–56 | kind: `DAT_HANDLE_TYPE` + 1, so no handle is 0, 1 or 2 (reserved values of the C API) |
//! | 55–48 | adapter |
//! | 47–16 | generation of the slot, from 1 |
//! | 15–0 | slot in the adapter's table of that kind |

use crate::base::ret::{DatReturn, ReturnType, Subtype};

/// `DAT_HANDLE_TYPE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HandleType {
    /// Connection request.
    Cr = 0,
    /// Endpoint.
    Ep = 1,
    /// Event dispatcher.
    Evd = 2,
    /// Interface adapter.
    Ia = 3,
    /// Local memory region.
    Lmr = 4,
    /// Public service point.
    Psp = 5,
    /// Protection zone.
    Pz = 6,
    /// Remote memory region (memory window).
    Rmr = 7,
    /// Reserved service point.
    Rsp = 8,
    /// Consumer notification object.
    Cno = 9,
    /// Shared receive queue.
    Srq = 10,
}

impl HandleType {
    const ALL: [HandleType; 11] = [
        HandleType::Cr,
        HandleType::Ep,
        HandleType::Evd,
        HandleType::Ia,
        HandleType::Lmr,
        HandleType::Psp,
        HandleType::Pz,
        HandleType::Rmr,
        HandleType::Rsp,
        HandleType::Cno,
        HandleType::Srq,
    ];

    /// The INVALID_HANDLE subtype of this kind; a bare EVD handle has none.
    const fn subtype(self) -> Subtype {
        match self {
            HandleType::Cr => Subtype::InvalidHandleCr,
            HandleType::Ep => Subtype::InvalidHandleEp,
            HandleType::Evd => Subtype::InvalidHandle1,
            HandleType::Ia => Subtype::InvalidHandleIa,
            HandleType::Lmr => Subtype::InvalidHandleLmr,
            HandleType::Psp => Subtype::InvalidHandlePsp,
            HandleType::Pz => Subtype::InvalidHandlePz,
            HandleType::Rmr => Subtype::InvalidHandleRmr,
            HandleType::Rsp => Subtype::InvalidHandleRsp,
            HandleType::Cno => Subtype::InvalidHandleCno,
            HandleType::Srq => Subtype::InvalidHandleSrq,
        }
    }

    /// INVALID_HANDLE for this kind.
    pub const fn invalid(self) -> DatReturn {
        DatReturn::error(ReturnType::InvalidHandle, self.subtype())
    }
}

/// A handle of any kind (`DAT_HANDLE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(u64);

impl Handle {
    pub(crate) const fn new(kind: HandleType, adapter: u8, slot: u16, generation: u32) -> Self {
        Self((kind as u64 + 1) << 56 | (adapter as u64) << 48 | (generation as u64) << 16 | slot as u64)
    }

    /// The handle with these bits; any number may be given, calls check it.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits, for a foreign-language interface.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The kind that the bits name; None if they name none. Says nothing about whether the object lives.
    pub fn kind(self) -> Option<HandleType> {
        let number = (self.0 >> 56).checked_sub(1)?;
        HandleType::ALL.get(number as usize).copied()
    }

    pub(crate) const fn adapter(self) -> u8 {
        (self.0 >> 48) as u8
    }

    pub(crate) const fn slot(self) -> u16 {
        self.0 as u16
    }

    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> 16) as u32
    }
}

/// What the typed handles have in common.
pub(crate) trait Typed: Copy {
    const KIND: HandleType;
    fn any(self) -> Handle;
    fn make(adapter: u8, slot: u16, generation: u32) -> Self;
    fn from_bits(bits: u64) -> Self;
}

macro_rules! handles {
    ($($(#[$m:meta])* $name:ident $kind:ident,)*) => {$(
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(transparent)]
        pub struct $name(Handle);

        impl $name {
            /// The handle with these bits; any number may be given, calls check it.
            pub const fn from_bits(bits: u64) -> Self {
                Self(Handle::from_bits(bits))
            }

            /// The bits, for a foreign-language interface.
            pub const fn bits(self) -> u64 {
                self.0.bits()
            }

            /// As a handle of any kind.
            pub const fn handle(self) -> Handle {
                self.0
            }
        }

        impl From<$name> for Handle {
            fn from(value: $name) -> Handle {
                value.0
            }
        }

        impl Typed for $name {
            const KIND: HandleType = HandleType::$kind;
            fn any(self) -> Handle {
                self.0
            }
            fn make(adapter: u8, slot: u16, generation: u32) -> Self {
                Self(Handle::new(HandleType::$kind, adapter, slot, generation))
            }
            fn from_bits(bits: u64) -> Self {
                Self::from_bits(bits)
            }
        }
    )*};
}

handles! {
    /// Connection request.
    CrHandle Cr,
    /// Endpoint.
    EpHandle Ep,
    /// Event dispatcher.
    EvdHandle Evd,
    /// Interface adapter instance.
    IaHandle Ia,
    /// Local memory region.
    LmrHandle Lmr,
    /// Public service point.
    PspHandle Psp,
    /// Protection zone.
    PzHandle Pz,
    /// Remote memory region (memory window).
    RmrHandle Rmr,
    /// Reserved service point.
    RspHandle Rsp,
    /// Consumer notification object.
    CnoHandle Cno,
    /// Shared receive queue.
    SrqHandle Srq,
}

impl IaHandle {
    /// INVALID_HANDLE of an object's kind if the object, which is of this IA, is to be used with another.
    pub(crate) fn check(self, wanted: IaHandle, kind: HandleType) -> Result<(), DatReturn> {
        if self == wanted { Ok(()) } else { Err(kind.invalid()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_kinds() {
        let ep = EpHandle::make(3, 0x1234, 0xdead_beef);
        assert_eq!(ep.bits(), 0x0203_dead_beef_1234);
        assert_eq!(ep.handle().kind(), Some(HandleType::Ep));
        assert_eq!((ep.any().adapter(), ep.any().slot(), ep.any().generation()), (3, 0x1234, 0xdead_beef));
        assert_eq!(Handle::from_bits(0).kind(), None);
        assert_eq!(Handle::from_bits(0x0c << 56).kind(), None);
        assert_eq!(Handle::from_bits(0x0b << 56).kind(), Some(HandleType::Srq));
        assert_eq!(HandleType::Pz.invalid().value(), 0x8005_000f);
    }
}
