//! Fixed-size big-endian records with named bit fields.
//!
//! A macro makes every MAD, attribute and message type from lines like those of the standard's
//! tables. A line has byte offset, bytes of the word, and the bits within it (most significant
//! first).

use ib_types::{Gid, Guid, Lid, PKey, Psn, QKey, QpNumber, ServiceLevel};

/// Writes `part` at an offset; bytes beyond the end are dropped.
///
/// All messages share this copy, because a slice for each part would bring the code of its panics.
pub(crate) fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    bytes.iter_mut().skip(at).zip(part).for_each(|(to, from)| *to = *from);
}

/// Place of a bit field: the byte offset of its big-endian word, the bytes of that, and the field's bits within it.
///
/// The four numbers are one value, so that an access passes them in one register.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    at: u16,
    len: u8,
    shift: u8,
    width: u8,
}

impl Place {
    /// The bits from `shift` on in the word of `len` bytes at `at`.
    pub(crate) const fn new(at: u16, len: u8, (shift, width): (u8, u8)) -> Self {
        Self { at, len, shift, width }
    }

    /// Returns whether the word is inside a record of `size` bytes, and the field inside the word.
    pub(crate) const fn is_inside(self, size: usize) -> bool {
        let end = self.at as usize + self.len as usize;
        end <= size && self.shift as usize + self.width as usize <= 8 * self.len as usize
    }

    const fn range(self) -> core::ops::Range<usize> {
        self.at as usize..self.at as usize + self.len as usize
    }

    /// A mask of `width` low bits.
    const fn mask(self) -> u64 {
        if self.width >= 64 { u64::MAX } else { (1 << self.width) - 1 }
    }
}

/// A type that a bit field can hold.
pub(crate) trait Field: Copy {
    /// Reads the field; bytes beyond the end read as zero (the macro proves there are none).
    fn read(bytes: &[u8], place: Place) -> Self;
    /// Replaces the field; bits beyond its width are dropped.
    fn write(self, bytes: &mut [u8], place: Place);
}

macro_rules! field {
    ($($int:ty),*) => {$(
        impl Field for $int {
            #[inline]
            fn read(bytes: &[u8], place: Place) -> Self {
                bits(bytes, place) as $int
            }
            #[inline]
            fn write(self, bytes: &mut [u8], place: Place) {
                set_bits(bytes, place, self.into());
            }
        }
    )*};
}
field!(u8, u16, u32, u64);

macro_rules! typed_field {
    ($($number:ident($int:ty)),*) => {$(
        impl Field for $number {
            #[inline]
            fn read(bytes: &[u8], place: Place) -> Self {
                Self::new(bits(bytes, place) as $int)
            }
            #[inline]
            fn write(self, bytes: &mut [u8], place: Place) {
                set_bits(bytes, place, self.get().into());
            }
        }
    )*};
}
typed_field!(Guid(u64), Lid(u16), PKey(u16), Psn(u32), QKey(u32), QpNumber(u32), ServiceLevel(u8));

impl Field for bool {
    #[inline]
    fn read(bytes: &[u8], place: Place) -> Self {
        bits(bytes, place) & 1 != 0
    }
    #[inline]
    fn write(self, bytes: &mut [u8], place: Place) {
        set_bits(bytes, place, self.into());
    }
}

impl Field for Gid {
    fn read(bytes: &[u8], place: Place) -> Self {
        Gid(bytes.get(place.range()).and_then(<[u8]>::first_chunk).copied().unwrap_or_default())
    }
    fn write(self, bytes: &mut [u8], place: Place) {
        if let Some(to) = bytes.get_mut(place.range()).and_then(<[u8]>::first_chunk_mut) {
            *to = self.0;
        }
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn bits(bytes: &[u8], place: Place) -> u64 {
    word(bytes.get(place.range()).unwrap_or_default()) >> place.shift & place.mask()
}

fn set_bits(bytes: &mut [u8], place: Place, value: u64) {
    let Some(bytes) = bytes.get_mut(place.range()) else { return };
    let mask = place.mask() << place.shift;
    let mut word = word(bytes) & !mask | value << place.shift & mask;
    for byte in bytes.iter_mut().rev() {
        *byte = word as u8;
        word >>= 8;
    }
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
                    $crate::view::Field::read(&self.0, const { record!(@place $size $at, $len $([$hi : $lo])?) })
                }

                #[doc = concat!("Sets [`Self::", stringify!($get), "`]; bits beyond the field's width are dropped.")]
                #[inline]
                pub fn $set(&mut self, value: $ty) -> &mut Self {
                    let place = const { record!(@place $size $at, $len $([$hi : $lo])?) };
                    $crate::view::Field::write(value, &mut self.0, place);
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
    (@bits $len:literal) => { (0u8, 8 * $len as u8) };
    (@bits $len:literal [$hi:literal : $lo:literal]) => {{
        const { assert!($hi >= $lo) };
        ($lo as u8, ($hi - $lo + 1) as u8)
    }};
    (@place $size:literal $at:literal, $len:literal $([$hi:literal : $lo:literal])?) => {{
        let place = $crate::view::Place::new($at, $len, record!(@bits $len $([$hi : $lo])?));
        assert!(place.is_inside($size));
        place
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
