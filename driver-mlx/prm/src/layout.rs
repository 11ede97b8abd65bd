//! Layouts: the macro that defines them, and accessors of their fields.
//!
//! Every structure of the Programmer's Reference Manual is a big-endian byte string.
//! [`layout!`](crate::layout) takes a layout as the manual's tables print it: byte offset of a
//! dword, and bit range inside it. The macro makes a module of constants: one [`Field`], [`Part`]
//! or [`Tail`] for each name, and a [`Layout`] that lists them all. The list serves the emulated
//! HCA's check of reserved bits, and the comparison with an independent description of the same
//! structures.

use core::fmt;

/// An integer of 1 to 64 bits inside a big-endian structure.
///
/// The accessors are total. Bytes beyond the end of a short buffer read as zero and are not
/// written, like a truncated capability block on hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Distance of the first (most significant) bit from the start of the structure.
    pub bit_offset: u32,
    /// Number of bits, 1 to 64.
    pub bit_width: u32,
}

impl Field {
    /// Bits `hi` to `lo` (31 is the first on the wire) of the big-endian dword at byte `offset`.
    #[must_use]
    pub const fn bits(offset: u32, hi: u32, lo: u32) -> Self {
        assert!(offset.is_multiple_of(4) && hi < 32 && lo <= hi, "a bit range of one dword");
        Self { bit_offset: offset * 8 + 31 - hi, bit_width: hi - lo + 1 }
    }

    /// A 64-bit big-endian integer at byte `offset`.
    #[must_use]
    pub const fn quad(offset: u32) -> Self {
        Self { bit_offset: offset * 8, bit_width: 64 }
    }

    /// The largest value that fits.
    #[must_use]
    pub const fn max(self) -> u64 {
        u64::MAX >> (64 - self.bit_width)
    }

    /// The value in `structure`.
    #[must_use]
    #[inline]
    pub fn get(self, structure: &[u8]) -> u64 {
        let first = (self.bit_offset / 32 * 4) as usize;
        if self.bit_width == 64 {
            return (u64::from(dword(structure, first)) << 32) | u64::from(dword(structure, first + 4));
        }
        let shift = 32 - self.bit_offset % 32 - self.bit_width;
        (u64::from(dword(structure, first)) >> shift) & self.max()
    }

    /// The value in `structure`, for fields of at most 32 bits.
    #[must_use]
    #[inline]
    pub fn get32(self, structure: &[u8]) -> u32 {
        self.get(structure) as u32
    }

    /// Returns whether a flag (or any bit of a wider field) is set.
    #[must_use]
    #[inline]
    pub fn is_set(self, structure: &[u8]) -> bool {
        self.get(structure) != 0
    }

    /// Stores `value`, leaving the neighbouring bits as they are. Bits that do not fit are a
    /// caller's mistake: a debug build says so, a release build cuts them off.
    #[inline]
    pub fn set(self, structure: &mut [u8], value: impl Into<u64>) {
        let value = value.into();
        debug_assert!(value <= self.max(), "value does not fit its field");
        let first = (self.bit_offset / 32 * 4) as usize;
        if self.bit_width == 64 {
            put_dword(structure, first, (value >> 32) as u32);
            put_dword(structure, first + 4, value as u32);
            return;
        }
        let shift = 32 - self.bit_offset % 32 - self.bit_width;
        let mask = (self.max() as u32) << shift;
        let old = dword(structure, first) & !mask;
        put_dword(structure, first, old | (((value as u32) << shift) & mask));
    }
}

#[inline]
fn dword(structure: &[u8], at: usize) -> u32 {
    match structure.get(at..at + 4) {
        Some(&[a, b, c, d]) => u32::from_be_bytes([a, b, c, d]),
        _ => 0,
    }
}

#[inline]
fn put_dword(structure: &mut [u8], at: usize, value: u32) {
    if let Some(bytes) = structure.get_mut(at..at + 4) {
        bytes.copy_from_slice(&value.to_be_bytes());
    } else {
        debug_assert!(false, "field beyond the end of the structure");
    }
}

/// A run of bytes inside a structure: an embedded structure, or opaque data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Byte offset from the start of the structure.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
}

impl Part {
    /// The bytes, fewer (or none) where `structure` is too short.
    #[must_use]
    #[inline]
    pub fn of(self, structure: &[u8]) -> &[u8] {
        let end = structure.len().min(self.offset + self.len);
        structure.get(self.offset..end).unwrap_or(&[])
    }

    /// The bytes for writing, fewer (or none) where `structure` is too short.
    #[must_use]
    #[inline]
    pub fn of_mut(self, structure: &mut [u8]) -> &mut [u8] {
        let end = structure.len().min(self.offset + self.len);
        structure.get_mut(self.offset..end).unwrap_or(&mut [])
    }
}

/// The open-ended array of 64-bit entries that ends a structure (`pas[]`, MTTs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Byte offset of entry 0.
    pub offset: usize,
    /// Bytes an entry takes.
    pub stride: usize,
}

impl Tail {
    /// Bytes of a structure with `count` entries.
    #[must_use]
    pub const fn len_with(self, count: usize) -> usize {
        self.offset + count * self.stride
    }

    /// Number of whole entries in `structure`.
    #[must_use]
    pub const fn count(self, structure: &[u8]) -> usize {
        structure.len().saturating_sub(self.offset) / self.stride
    }

    /// Bytes of entry `index`, if it is there.
    #[must_use]
    pub fn entry(self, structure: &[u8], index: usize) -> Option<&[u8]> {
        let at = self.offset + index * self.stride;
        structure.get(at..at + self.stride)
    }

    /// The 64-bit number that starts entry `index`, zero beyond the end. Entries have 8 bytes or
    /// more.
    #[must_use]
    pub fn quad(self, structure: &[u8], index: usize) -> u64 {
        debug_assert!(self.stride >= 8, "entries are smaller than 64 bits");
        Field::quad((self.offset + index * self.stride) as u32).get(structure)
    }

    /// Stores the 64-bit number that starts entry `index`.
    pub fn set_quad(self, structure: &mut [u8], index: usize, value: u64) {
        debug_assert!(self.stride >= 8, "entries are smaller than 64 bits");
        Field::quad((self.offset + index * self.stride) as u32).set(structure, value);
    }
}

/// Kind of a name in a [`Layout`].
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// An integer.
    Field(Field),
    /// Opaque bytes.
    Bytes(Part),
    /// An embedded structure.
    Struct(Part, &'static Layout),
    /// Alternative among structures that share the same bytes; a field or a command operand selects
    /// it.
    Variant(Part, &'static Layout),
    /// The open-ended array at the end.
    Tail(Tail),
}

/// A name of a [`Layout`].
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The manual's name.
    pub name: &'static str,
    /// Where it lies and what it is.
    pub kind: Kind,
}

/// A whole structure: its name, its fixed size and everything in it that is not reserved.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The manual's name, as `mlx5_ifc.h` spells it.
    pub name: &'static str,
    /// Bytes without the open-ended array.
    pub size: usize,
    /// The named parts in order of their offset.
    pub entries: &'static [Entry],
}

impl Layout {
    /// The mask of named bits in the big-endian dword at byte `offset`; all others are reserved.
    #[must_use]
    pub fn named_bits(&self, offset: usize) -> u32 {
        let mut mask = 0;
        for entry in self.entries {
            match entry.kind {
                Kind::Field(f) if f.bit_width == 64 => {
                    let first = f.bit_offset as usize / 8;
                    if offset == first || offset == first + 4 {
                        mask = u32::MAX;
                    }
                }
                Kind::Field(f) => {
                    if f.bit_offset as usize / 32 * 4 == offset {
                        mask |= (f.max() as u32) << (32 - f.bit_offset % 32 - f.bit_width);
                    }
                }
                Kind::Bytes(p) => {
                    for byte in 0..4 {
                        if (p.offset..p.offset + p.len).contains(&(offset + byte)) {
                            mask |= 0xff00_0000 >> (8 * byte);
                        }
                    }
                }
                Kind::Struct(p, inner) | Kind::Variant(p, inner) => {
                    if (p.offset..p.offset + p.len).contains(&offset) {
                        mask |= inner.named_bits(offset - p.offset);
                    }
                }
                Kind::Tail(t) => {
                    if offset >= t.offset {
                        mask = u32::MAX;
                    }
                }
            }
        }
        mask
    }

    /// Byte offset of the first dword of `structure` in which a reserved bit is set, with the
    /// offending bits.
    #[must_use]
    pub fn reserved_bits_set(&self, structure: &[u8]) -> Option<(usize, u32)> {
        let end = self.size.min(structure.len()) / 4 * 4;
        (0..end).step_by(4).find_map(|at| {
            let value = dword(structure, at);
            if value == 0 {
                return None;
            }
            let wrong = value & !self.named_bits(at);
            (wrong != 0).then_some((at, wrong))
        })
    }
}

/// The dotted name of something inside nested structures, outermost name first; printed by
/// [`Display`](fmt::Display).
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    /// The structure around, `None` for the outermost.
    pub parent: Option<&'a Path<'a>>,
    /// The last name.
    pub name: &'static str,
}

impl Path<'_> {
    /// Prints the name without the outermost structure's.
    fn below_root(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parent {
            None => Ok(()),
            Some(parent) => {
                if parent.parent.is_some() {
                    parent.below_root(f)?;
                    f.write_str(".")?;
                }
                f.write_str(self.name)
            }
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}.")?;
        }
        f.write_str(self.name)
    }
}

/// Something that is not a structure itself, found by [`Layout::visit`].
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    /// Its name from the outermost structure on, that structure's name first.
    pub path: Path<'a>,
    /// Kind of the name, with offsets from the structure that contains it directly.
    pub kind: Kind,
    /// Distance of its first bit from the start of the outermost structure.
    pub bit_offset: u32,
    /// Its bits: of the integer, of all the bytes, of one entry of an open-ended array.
    pub bit_width: u32,
    /// Set if a variant encloses it, so that other names may use the same bits.
    pub variant: bool,
}

impl Layout {
    /// Hands every integer, byte string and open-ended array to `f`, through all embedded
    /// structures.
    pub fn visit(&self, f: &mut dyn FnMut(Leaf<'_>)) {
        self.visit_below(&Path { parent: None, name: self.name }, 0, false, f);
    }

    fn visit_below(&self, parent: &Path<'_>, base: u32, variant: bool, f: &mut dyn FnMut(Leaf<'_>)) {
        for entry in self.entries {
            let path = Path { parent: Some(parent), name: entry.name };
            let (at, bit_width) = match entry.kind {
                Kind::Struct(part, inner) => {
                    inner.visit_below(&path, base + part.offset as u32 * 8, variant, f);
                    continue;
                }
                Kind::Variant(part, inner) => {
                    inner.visit_below(&path, base + part.offset as u32 * 8, true, f);
                    continue;
                }
                Kind::Field(field) => (field.bit_offset, field.bit_width),
                Kind::Bytes(part) => (part.offset as u32 * 8, part.len as u32 * 8),
                Kind::Tail(tail) => (tail.offset as u32 * 8, tail.stride as u32 * 8),
            };
            f(Leaf { path, kind: entry.kind, bit_offset: base + at, bit_width, variant });
        }
    }
}

/// A structure's bytes, printed as the names of all fields that are not zero: what a trace or a
/// refusal wants to say.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    layout: &'a Layout,
    bytes: &'a [u8],
}

impl Layout {
    /// Makes `bytes` printable by this layout: `opcode=0x400 cq_context.uar_page=0x10 …`. Byte
    /// strings and open-ended arrays are left out, and so are variants, which a different field
    /// selects.
    #[must_use]
    pub const fn show<'a>(&'a self, bytes: &'a [u8]) -> Shown<'a> {
        Shown { layout: self, bytes }
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.layout.name)?;
        let mut result = Ok(());
        self.layout.visit(&mut |leaf| {
            let Kind::Field(_) = leaf.kind else { return };
            let value = Field { bit_offset: leaf.bit_offset, bit_width: leaf.bit_width }.get(self.bytes);
            if value != 0 && !leaf.variant && result.is_ok() {
                result = f.write_str(" ").and_then(|()| leaf.path.below_root(f));
                result = result.and_then(|()| write!(f, "={value:#x}"));
            }
        });
        result
    }
}

/// The manual's name of a field whose Rust name is a raw identifier (`r#type`).
#[doc(hidden)]
#[must_use]
pub const fn plain_name(identifier: &'static str) -> &'static str {
    match identifier.as_bytes() {
        [b'r', b'#', ..] => identifier.split_at(2).1,
        _ => identifier,
    }
}

/// Makes a module of constants from a structure as the manual's tables print it.
///
/// ```
/// mlx5_prm::layout! {
///     /// An example.
///     example (16) {
///         0x00: kind [31:24], enabled [0];
///         0x04: count [31:0];
///         0x08: address (quad);
///     }
/// }
/// let mut bytes = [0; example::SIZE];
/// example::kind.set(&mut bytes, 7u8);
/// example::address.set(&mut bytes, 0x1_0000_0000u64);
/// assert_eq!(bytes, [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
/// assert_eq!(example::LAYOUT.reserved_bits_set(&[0x07, 0x80, 0, 1]), Some((0, 0x0080_0000)));
/// ```
///
/// The forms after a name: `[hi:lo]` or `[bit]` of the dword, `(quad)` a 64-bit integer,
/// `(bytes n)` opaque bytes. `(struct name)` is another layout of the same scope, `(variant name)`
/// the same for an alternative of a union. `(tail n)` is the open-ended array with entries of n
/// bytes.
///
/// Call it once per module. The call also makes `LAYOUTS`, the list of the module's layouts, so
/// that a test over all layouts cannot miss one.
#[macro_export]
macro_rules! layout {
    ($( $(#[$doc:meta])* $name:ident ($size:literal) { $( $off:literal : $( $field:ident $kind:tt ),+ ; )* } )+) => {
        /// Every layout of this module.
        #[allow(dead_code)]
        pub(crate) const LAYOUTS: &[&$crate::Layout] = &[ $( &$name::LAYOUT ),+ ];
        $(
        $(#[$doc])*
        #[allow(non_upper_case_globals)]
        pub mod $name {
            #[allow(unused_imports)]
            use super::*;
            /// Bytes, without an open-ended array.
            pub const SIZE: usize = $size;
            $( $( $crate::layout!(@const $off $field $kind); )+ )*
            /// Everything named in this structure.
            pub const LAYOUT: $crate::Layout = $crate::Layout {
                name: stringify!($name),
                size: SIZE,
                entries: &[ $( $( $crate::Entry {
                    name: $crate::plain_name(stringify!($field)),
                    kind: $crate::layout!(@kind $field $kind),
                } ),+ ),* ],
            };
        }
    )+ };
    (@const $off:literal $field:ident [$hi:literal : $lo:literal]) => {
        #[doc = concat!("Bits ", stringify!($hi), ":", stringify!($lo), " of the dword at ", stringify!($off), ".")]
        pub const $field: $crate::Field = $crate::Field::bits($off, $hi, $lo);
    };
    (@const $off:literal $field:ident [$bit:literal]) => {
        #[doc = concat!("Bit ", stringify!($bit), " of the dword at ", stringify!($off), ".")]
        pub const $field: $crate::Field = $crate::Field::bits($off, $bit, $bit);
    };
    (@const $off:literal $field:ident (quad)) => {
        #[doc = concat!("64 bits at ", stringify!($off), ".")]
        pub const $field: $crate::Field = $crate::Field::quad($off);
    };
    (@const $off:literal $field:ident (bytes $len:literal)) => {
        #[doc = concat!(stringify!($len), " bytes at ", stringify!($off), ".")]
        pub const $field: $crate::Part = $crate::Part { offset: $off, len: $len };
    };
    (@const $off:literal $field:ident (struct $inner:ident)) => {
        #[doc = concat!("A [`", stringify!($inner), "`](mod@super::", stringify!($inner), ") at ", stringify!($off), ".")]
        pub const $field: $crate::Part = $crate::Part { offset: $off, len: super::$inner::SIZE };
    };
    (@const $off:literal $field:ident (variant $inner:ident)) => {
        #[doc = concat!("Read as a [`", stringify!($inner), "`](mod@super::", stringify!($inner), ") at ", stringify!($off), ".")]
        pub const $field: $crate::Part = $crate::Part { offset: $off, len: super::$inner::SIZE };
    };
    (@const $off:literal $field:ident (tail $stride:literal)) => {
        #[doc = concat!("Entries of ", stringify!($stride), " bytes from ", stringify!($off), " on.")]
        pub const $field: $crate::Tail = $crate::Tail { offset: $off, stride: $stride };
    };
    (@kind $field:ident [$($range:tt)+]) => { $crate::Kind::Field($field) };
    (@kind $field:ident (quad)) => { $crate::Kind::Field($field) };
    (@kind $field:ident (bytes $len:literal)) => { $crate::Kind::Bytes($field) };
    (@kind $field:ident (struct $inner:ident)) => { $crate::Kind::Struct($field, &super::$inner::LAYOUT) };
    (@kind $field:ident (variant $inner:ident)) => { $crate::Kind::Variant($field, &super::$inner::LAYOUT) };
    (@kind $field:ident (tail $stride:literal)) => { $crate::Kind::Tail($field) };
}

#[cfg(test)]
mod tests {

    layout! {
        /// Inner.
        inner (8) {
            0x00: a [31:28], b [0];
            0x04: c [31:0];
        }
        /// Outer.
        outer (24) {
            0x00: opcode [31:16], uid [15:0];
            0x08: body (struct inner);
            0x10: address (quad);
            0x18: pas (tail 8);
        }
    }

    #[test]
    fn fields_keep_their_neighbours() {
        let mut bytes = [0u8; outer::SIZE + 16];
        outer::uid.set(&mut bytes, 0xffffu32);
        outer::opcode.set(&mut bytes, 0x104u32);
        assert_eq!(bytes[..4], [0x01, 0x04, 0xff, 0xff]);
        outer::uid.set(&mut bytes, 0u32);
        assert_eq!(outer::opcode.get(&bytes), 0x104);
        inner::a.set(outer::body.of_mut(&mut bytes), 9u32);
        assert_eq!(bytes[8], 0x90);
        outer::pas.set_quad(&mut bytes, 1, 0x1234_5678_9abc_d000);
        assert_eq!(outer::pas.quad(&bytes, 1), 0x1234_5678_9abc_d000);
        assert_eq!(outer::pas.count(&bytes), 2);
        assert_eq!(outer::LAYOUT.reserved_bits_set(&bytes), None);
    }

    #[test]
    fn reserved_bits_are_found_through_embedded_structures() {
        let mut bytes = [0u8; outer::SIZE];
        bytes[9] = 0x10;
        assert_eq!(outer::LAYOUT.reserved_bits_set(&bytes), Some((8, 0x0010_0000)));
    }

    #[test]
    fn shown_bytes_name_what_is_set() {
        extern crate std;
        let mut bytes = [0u8; outer::SIZE];
        outer::opcode.set(&mut bytes, 0x104u32);
        inner::a.set(outer::body.of_mut(&mut bytes), 9u32);
        outer::address.set(&mut bytes, 0x1_0000_0000u64);
        let text = std::format!("{}", outer::LAYOUT.show(&bytes));
        assert_eq!(text, "outer opcode=0x104 body.a=0x9 address=0x100000000");
        assert_eq!(std::format!("{}", outer::LAYOUT.show(&bytes[..4])), "outer opcode=0x104");
    }

    #[test]
    fn beyond_the_end_reads_zero() {
        assert_eq!(outer::address.get(&[0xff; 20]), 0xffff_ffff_0000_0000);
        assert_eq!(outer::body.of(&[1; 10]).len(), 2);
        assert!(outer::body.of(&[1; 4]).is_empty());
    }
}
