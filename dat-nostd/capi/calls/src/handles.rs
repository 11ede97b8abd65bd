//! Handles as C has them: `dat_nostd`'s numbers in pointers.

use dat_nostd::{
    CnoHandle, CrHandle, DatResult, EpHandle, EvdHandle, Handle, HandleType, IaHandle, LmrHandle, PspHandle,
    PzHandle, RmrHandle, RspHandle, SrqHandle,
};

/// `DAT_HANDLE`: a pointer as C sees it, which nobody reads through. Handles have 64 bits, as pointers have where this builds.
pub type RawHandle = u64;

const _: () = assert!(size_of::<RawHandle>() == size_of::<*mut u8>());

/// `DAT_HANDLE_NULL`.
pub const NULL: RawHandle = 0;

/// A handle of one kind.
pub trait Kinded: Copy + Into<Handle> {
    /// Which.
    const KIND: HandleType;

    /// Any number may be given; calls check it.
    fn of(raw: RawHandle) -> Self;

    /// None for a null handle.
    fn given(raw: RawHandle) -> Option<Self> {
        (raw != NULL).then(|| Self::of(raw))
    }

    /// As C has it.
    fn raw(self) -> RawHandle {
        self.into().bits()
    }

    /// What C gets that reads an optional handle.
    fn raw_or_null(this: Option<Self>) -> RawHandle {
        this.map_or(NULL, Self::raw)
    }

    /// INVALID_HANDLE of this kind.
    ///
    /// # Errors
    /// Always.
    fn invalid<T>() -> DatResult<T> {
        Err(Self::KIND.invalid())
    }
}

macro_rules! kinded {
    ($($name:ident $kind:ident,)*) => {$(
        impl Kinded for $name {
            const KIND: HandleType = HandleType::$kind;

            #[inline]
            fn of(raw: RawHandle) -> Self {
                Self::from_bits(raw)
            }
        }
    )*};
}

kinded! {
    CrHandle Cr, EpHandle Ep, EvdHandle Evd, IaHandle Ia, LmrHandle Lmr, PspHandle Psp, PzHandle Pz, RmrHandle Rmr,
    RspHandle Rsp, CnoHandle Cno, SrqHandle Srq,
}

/// The adapter that a handle names, whatever it is.
#[inline]
pub fn adapter_of(raw: RawHandle) -> u8 {
    (raw >> 48) as u8
}
