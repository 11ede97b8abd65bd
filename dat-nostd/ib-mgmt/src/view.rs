//! Fixed-size big-endian records with named bit fields.
//!
//! A macro makes every MAD, attribute and message type from lines like those of the standard's
//! tables. A line has byte offset, bytes of the word, and the bits within it (most significant
//! first).

use ib_types::{Gid, Guid, Lid, PKey, Psn, QKey, QpNumber, ServiceLevel};

/// A type that a bit field of up to 128 bits can hold.
pub(crate) trait Field: Copy {
    fn from_bits(bits: u128) -> Self;
    fn to_bits(self) -> u128;
}

macro_rules! field {
    ($($int:ty),*) => {$(
        impl Field for $int {
            #[inline]
            fn from_bits(bits: u128) -> Self {
                bits as $int
            }
            #[inline]
            fn to_bits(self) -> u128 {
                u128::from(self)
            }
        }
    )*};
}
field!(u8, u16, u32, u64);

macro_rules! typed_field {
    ($($number:ident($int:ty)),*) => {$(
        impl Field for $number {
            #[inline]
            fn from_bits(bits: u128) -> Self {
                Self::new(bits as $int)
            }
            #[inline]
            fn to_bits(self) -> u128 {
                u128::from(self.get())
            }
        }
    )*};
}
typed_field!(Guid(u64), Lid(u16), PKey(u16), Psn(u32), QKey(u32), QpNumber(u32), ServiceLevel(u8));

impl Field for bool {
    #[inline]
    fn from_bits(bits: u128) -> Self {
        bits & 1 != 0
    }
    #[inline]
    fn to_bits(self) -> u128 {
        u128::from(self)
    }
}

impl Field for Gid {
    #[inline]
    fn from_bits(bits: u128) -> Self {
        Gid(bits.to_be_bytes())
    }
    #[inline]
    fn to_bits(self) -> u128 {
        u128::from_be_bytes(self.0)
    }
}

/// The big-endian word of `len` bytes at `at`; bytes beyond the end read as zero (the macro proves
/// there are none).
#[inline]
pub(crate) fn read(bytes: &[u8], at: usize, len: usize) -> u128 {
    let mut word = 0;
    for byte in bytes.iter().skip(at).take(len) {
        word = word << 8 | u128::from(*byte);
    }
    word
}

/// Replaces the bits of `mask` in the big-endian word of `len` bytes at `at`.
#[inline]
pub(crate) fn write(bytes: &mut [u8], at: usize, len: usize, mask: u128, value: u128) {
    let word = (read(bytes, at, len) & !mask) | (value & mask);
    for (i, byte) in bytes.iter_mut().skip(at).take(len).enumerate() {
        *byte = (word >> (8 * (len - 1 - i))) as u8;
    }
}

/// A mask of `width` low bits.
#[inline]
pub(crate) const fn mask(width: u32) -> u128 {
    if width >= 128 { u128::MAX } else { (1 << width) - 1 }
}

/// Returns whether a field is inside its record.
pub(crate) const fn inside(at: usize, len: usize, size: usize) -> bool {
    len <= size && at <= size - len
}

macro_rules! record {
    (
        $(#[$meta:meta])*
        pub struct $name:ident [$size:literal] {
            $( $(#[$fmeta:meta])* $get:ident, $set:ident : $ty:ty = $at:literal, $len:literal $([$hi:literal : $lo:literal])?; )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name([u8; $size]);

        impl $name {
            /// Size in bytes.
            pub const LEN: usize = $size;

            /// All bytes zero.
            pub const fn zeroed() -> Self {
                Self([0; $size])
            }

            /// Takes the bytes as they are.
            pub const fn from_bytes(bytes: [u8; $size]) -> Self {
                Self(bytes)
            }

            /// Copies the record off the front of `bytes`; `None` when there are too few.
            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk().copied().map(Self)
            }

            /// The bytes.
            pub const fn as_bytes(&self) -> &[u8; $size] {
                &self.0
            }

            /// The bytes, to change.
            pub const fn as_bytes_mut(&mut self) -> &mut [u8; $size] {
                &mut self.0
            }

            $(
                $(#[$fmeta])*
                #[inline]
                pub fn $get(&self) -> $ty {
                    const { assert!($crate::view::inside($at, $len, $size)) };
                    let word = $crate::view::read(&self.0, $at, $len);
                    let (shift, width) = record!(@bits $len $([$hi : $lo])?);
                    $crate::view::Field::from_bits(word >> shift & $crate::view::mask(width))
                }

                #[doc = concat!("Sets [`Self::", stringify!($get), "`]; bits beyond the field's width are dropped.")]
                #[inline]
                pub fn $set(&mut self, value: $ty) -> &mut Self {
                    let (shift, width) = record!(@bits $len $([$hi : $lo])?);
                    let mask = $crate::view::mask(width) << shift;
                    let value = $crate::view::Field::to_bits(value) << shift;
                    $crate::view::write(&mut self.0, $at, $len, mask, value);
                    self
                }
            )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self::zeroed()
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($get), &self.$get()))*
                    .finish()
            }
        }

        #[cfg(test)]
        impl $name {
            /// Fields as (name, first bit, width), to prove that none overlap and that setters
            /// touch only theirs.
            #[allow(dead_code)]
            pub(crate) fn fields() -> std::vec::Vec<(&'static str, usize, usize)> {
                std::vec![$((stringify!($get), {
                    let (shift, width) = record!(@bits $len $([$hi : $lo])?);
                    ($at + $len) * 8 - (shift + width) as usize
                }, {
                    let (_, width) = record!(@bits $len $([$hi : $lo])?);
                    width as usize
                })),*]
            }
        }
    };
    (@bits $len:literal) => { (0u32, 8 * $len as u32) };
    (@bits $len:literal [$hi:literal : $lo:literal]) => {{
        const { assert!($hi >= $lo && $hi < 8 * $len) };
        ($lo as u32, ($hi - $lo + 1) as u32)
    }};
}
pub(crate) use record;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    record! {
        /// A record of odd shapes.
        pub struct Odd[20] {
            /// a
            a, set_a: u8 = 0, 1 [7:4];
            /// b
            b, set_b: u8 = 0, 1 [3:0];
            /// c
            c, set_c: u32 = 1, 3;
            /// d
            d, set_d: Gid = 4, 16;
        }
    }

    /// No two fields of a record share a bit, and all lie inside.
    pub(crate) fn assert_disjoint(fields: Vec<(&'static str, usize, usize)>, len: usize) {
        let mut owner = vec![""; len * 8];
        for (name, at, width) in fields {
            for bit in &mut owner[at..at + width] {
                assert_eq!(*bit, "", "{name} overlaps");
                *bit = name;
            }
        }
    }

    #[test]
    fn fields_are_where_the_table_says() {
        let mut odd = Odd::zeroed();
        odd.set_a(0x12).set_b(0xf).set_c(0xff01_0203).set_d(Gid::new(1, 2));
        assert_eq!(odd.as_bytes()[..8], [0x2f, 1, 2, 3, 0, 0, 0, 0]);
        assert_eq!((odd.a(), odd.b(), odd.c(), odd.d()), (2, 15, 0x01_0203, Gid::new(1, 2)));
        assert_disjoint(Odd::fields(), Odd::LEN);
        assert_eq!(Odd::from_slice(&[0; 19]), None);
        odd.as_bytes_mut()[0] = 0x31;
        assert_eq!(Odd::from_bytes(*odd.as_bytes()).a(), 3);
    }
}
