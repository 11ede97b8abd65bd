//! Extension headers, which describe a message's RDMA.

use crate::wire::Header;

/// An extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Type 2: the sender used this remote key.
    Rdma {
        /// The receiver's own rkey.
        rkey: u32,
    },
    /// Type 3: a region that the sender offers.
    RdmaDest {
        /// The sender's rkey.
        rkey: u32,
        /// Offset of the region's first byte.
        offset: u32,
    },
    /// Type 4, after type 2: the bytes that the sender transferred.
    RdmaBytes {
        /// Bytes.
        bytes: u32,
        /// True for a write to the receiver's memory, false for a read.
        is_write: bool,
    },
    /// A type that RDS over InfiniBand skips (version, multipath, capabilities).
    Other(u8),
}

impl Extension {
    /// Encodes the 16 bytes of extension headers with this one only.
    #[must_use]
    pub fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        match self {
            Self::Rdma { rkey } => {
                bytes[0] = 2;
                bytes[1..5].copy_from_slice(&rkey.to_be_bytes());
            }
            Self::RdmaDest { rkey, offset } => {
                bytes[0] = 3;
                bytes[1..5].copy_from_slice(&rkey.to_be_bytes());
                bytes[5..9].copy_from_slice(&offset.to_be_bytes());
            }
            Self::RdmaBytes { bytes: count, is_write } => {
                bytes[0] = 4;
                bytes[1..5].copy_from_slice(&count.to_be_bytes());
                bytes[5] = if is_write { 1 } else { 2 };
            }
            Self::Other(_) => {}
        }
        bytes
    }
}

/// Iterator over the 16 bytes of extension headers. Stops at the terminator, at an unsupported
/// type, because its length is unknown, and at a body beyond the end.
#[derive(Clone, Debug)]
pub struct Extensions<'a>(&'a [u8]);

impl<'a> Extensions<'a> {
    /// Returns the extensions of a header.
    #[must_use]
    pub const fn of(header: &'a Header) -> Self {
        Self(&header.extensions)
    }
}

impl Iterator for Extensions<'_> {
    type Item = Extension;

    fn next(&mut self) -> Option<Extension> {
        let (&kind, rest) = self.0.split_first()?;
        let len = match kind {
            1 | 2 | 6 | 7 => 4,
            3 | 4 => 8,
            5 => 2,
            8 => 1,
            _ => 0,
        };
        if len == 0 || rest.len() < len {
            self.0 = &[];
            return None;
        }
        let (body, rest) = rest.split_at(len);
        self.0 = rest;
        let be32 =
            |at: usize| body.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        Some(match kind {
            2 => Extension::Rdma { rkey: be32(0) },
            3 => Extension::RdmaDest { rkey: be32(0), offset: be32(4) },
            4 => Extension::RdmaBytes { bytes: be32(0), is_write: body.get(4) == Some(&1) },
            _ => Extension::Other(kind),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::testing::hex;
    use std::vec::Vec;

    const NONE: Header = Header::acknowledgement(0);

    #[test]
    fn extensions_stop_where_they_must() {
        let list = |bytes: &str| {
            let mut extensions = [0; 16];
            let bytes = hex(bytes);
            extensions[..bytes.len()].copy_from_slice(&bytes);
            Extensions::of(&Header { extensions, ..NONE }).collect::<Vec<_>>()
        };
        assert_eq!(list(""), []);
        assert_eq!(list("03 00000300 00000100"), [Extension::RdmaDest { rkey: 0x300, offset: 0x100 }]);
        assert_eq!(
            list("02 00000300 04 00010000 02 000000"),
            [Extension::Rdma { rkey: 0x300 }, Extension::RdmaBytes { bytes: 65536, is_write: false }],
        );
        assert_eq!(
            list("02 00000300 20 02 00000400"),
            [Extension::Rdma { rkey: 0x300 }],
            "an unknown type ends it"
        );
        assert_eq!(
            list("02 00000300 03 00000001 00000002 02 00").len(),
            2,
            "a body that runs over the end is none"
        );
    }
}
