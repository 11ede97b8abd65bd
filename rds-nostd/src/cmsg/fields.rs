//! Fields of C structures in native byte order. Callers check lengths: reads beyond the end return
//! 0, and writes there have no effect.

use crate::rdma::{RdmaCookie, RdmaFlags};

/// A field, at an offset in its structure.
pub(super) trait Field: Sized {
    fn get(bytes: &[u8], at: usize) -> Self;
    fn put(&self, bytes: &mut [u8], at: usize);
}

pub(super) fn get<F: Field>(bytes: &[u8], at: usize) -> F {
    F::get(bytes, at)
}

pub(super) fn put(bytes: &mut [u8], at: usize, value: impl Field) {
    value.put(bytes, at);
}

impl Field for u8 {
    fn get(bytes: &[u8], at: usize) -> Self {
        bytes.get(at).copied().unwrap_or(0)
    }

    fn put(&self, bytes: &mut [u8], at: usize) {
        if let Some(to) = bytes.get_mut(at) {
            *to = *self;
        }
    }
}

impl<F: Field, const N: usize> Field for [F; N] {
    fn get(bytes: &[u8], at: usize) -> Self {
        core::array::from_fn(|index| F::get(bytes, at + index * size_of::<F>()))
    }

    fn put(&self, bytes: &mut [u8], at: usize) {
        for (field, index) in self.iter().zip(0..) {
            field.put(bytes, at + index * size_of::<F>());
        }
    }
}

/// Fields of other types, by their integer or bytes.
macro_rules! fields {
    ($($kind:ty: |$bytes:ident| $from:expr, |$value:ident| $to:expr;)*) => {$(
        impl Field for $kind {
            fn get(bytes: &[u8], at: usize) -> Self {
                let $bytes = Field::get(bytes, at);
                $from
            }

            fn put(&self, bytes: &mut [u8], at: usize) {
                let $value = self;
                $to.put(bytes, at);
            }
        }
    )*};
}

fields! {
    u16: |bytes| Self::from_ne_bytes(bytes), |value| value.to_ne_bytes();
    u32: |bytes| Self::from_ne_bytes(bytes), |value| value.to_ne_bytes();
    u64: |bytes| Self::from_ne_bytes(bytes), |value| value.to_ne_bytes();
    RdmaCookie: |word| Self(word), |value| value.0;
    RdmaFlags: |bits| Self::from_bits_retain(bits), |value| value.bits();
}

/// Defines C structures: each field with its offset.
macro_rules! structures {
    ($($(#[$attribute:meta])* pub struct $name:ident {
        $($(#[$doc:meta])* pub $field:ident: $kind:ty = $at:expr,)*
    })*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl Field for $name {
            fn get(bytes: &[u8], at: usize) -> Self {
                Self { $($field: Field::get(bytes, at + $at),)* }
            }

            fn put(&self, bytes: &mut [u8], at: usize) {
                $(self.$field.put(bytes, at + $at);)*
            }
        }
    )*};
}

/// Implements the codecs of C structures that are the same on all systems, with their lengths.
macro_rules! codecs {
    ($($name:ident: $len:expr;)*) => {$(
        impl $name {
            /// Bytes of the structure.
            pub const LEN: usize = $len;

            /// Decodes the structure. Ignores trailing bytes.
            ///
            /// # Errors
            /// [`CmsgError::Structure`]: too few bytes.
            pub fn decode(bytes: &[u8]) -> Result<Self, CmsgError> {
                let (needed, found) = (Self::LEN, bytes.len());
                if found < needed { Err(CmsgError::Structure { needed, found }) } else { Ok(Self::get(bytes, 0)) }
            }

            /// Returns the encoded structure.
            #[must_use]
            pub fn encode(&self) -> [u8; Self::LEN] {
                let mut bytes = [0; Self::LEN];
                self.put(&mut bytes, 0);
                bytes
            }
        }
    )*};
}

pub(super) use {codecs, structures};
