//! vfio-user messages as bytes: a header of 16 bytes, then the command's payload, all little endian.
//!
//! Nothing here touches a socket or a device, and nothing panics whatever the bytes are.

/// Bytes of a message's header.
pub const HEADER_LEN: usize = 16;
/// Bytes of data that one region access or DMA message may carry, as both sides are told.
pub const MAX_TRANSFER: usize = 1 << 16;
/// The longest message that is taken: a region write of [`MAX_TRANSFER`] bytes.
pub const MAX_MESSAGE: usize = HEADER_LEN + 16 + MAX_TRANSFER;
/// Descriptors that one message may carry.
pub const MAX_DESCRIPTORS: usize = 16;

/// What a message asks for.
pub mod command {
    /// Negotiates the protocol's version and capabilities.
    pub const VERSION: u16 = 1;
    /// Guest memory appears.
    pub const DMA_MAP: u16 = 2;
    /// Guest memory goes away.
    pub const DMA_UNMAP: u16 = 3;
    /// What the device has.
    pub const DEVICE_GET_INFO: u16 = 4;
    /// What a region is.
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    /// What an interrupt is.
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    /// Connects interrupts with descriptors.
    pub const DEVICE_SET_IRQS: u16 = 8;
    /// Reads a region.
    pub const REGION_READ: u16 = 9;
    /// Writes a region.
    pub const REGION_WRITE: u16 = 10;
    /// Server to client: reads guest memory.
    pub const DMA_READ: u16 = 11;
    /// Server to client: writes guest memory.
    pub const DMA_WRITE: u16 = 12;
    /// Function-level reset.
    pub const DEVICE_RESET: u16 = 13;
    /// Many writes of at most 8 bytes.
    pub const REGION_WRITE_MULTI: u16 = 15;
}

/// Bits 0 to 3 of the flags: 0 is a command, 1 a reply.
pub const FLAG_TYPE: u32 = 0xf;
/// The message is a reply.
pub const FLAG_REPLY: u32 = 1;
/// The sender wants no reply.
pub const FLAG_NO_REPLY: u32 = 0x10;
/// The reply says that the command failed.
pub const FLAG_ERROR: u32 = 0x20;

/// The header of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Chosen by who sends the command, repeated by the reply.
    pub id: u16,
    /// One of [`command`].
    pub command: u16,
    /// Bytes of the message, header included.
    pub size: u32,
    /// Type and options.
    pub flags: u32,
    /// The error number of a failed command.
    pub error: u32,
}

impl Header {
    /// The header at the start of `bytes`, if they are enough.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes.get(..HEADER_LEN)?);
        Some(Self {
            id: fields.u16()?,
            command: fields.u16()?,
            size: fields.u32()?,
            flags: fields.u32()?,
            error: fields.u32()?,
        })
    }

    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let fields = [
            &self.id.to_le_bytes()[..],
            &self.command.to_le_bytes(),
            &self.size.to_le_bytes(),
            &self.flags.to_le_bytes(),
            &self.error.to_le_bytes(),
        ];
        for (to, from) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }

    /// Whether it is a reply.
    #[must_use]
    pub const fn is_reply(&self) -> bool {
        self.flags & FLAG_TYPE == FLAG_REPLY
    }

    /// Whether its sender waits for a reply.
    #[must_use]
    pub const fn wants_reply(&self) -> bool {
        self.flags & FLAG_NO_REPLY == 0
    }
}

/// Reads little-endian fields one after the other; `None` at the end.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// The next 2 bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next 4 bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next 8 bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// `DMA_MAP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaMap {
    /// [`DmaMap::WRITE`] and others: 1 allows reads, 4 says that the file can be mapped.
    pub flags: u32,
    /// Where in the file that comes along.
    pub offset: u64,
    /// The device's address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

impl DmaMap {
    /// The device may write.
    pub const WRITE: u32 = 2;
    /// The file is for reads and writes, not to be mapped.
    pub const FILE_IO: u32 = 8;

    /// Parses the payload.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut fields = Fields(payload);
        fields.u32()?;
        Some(Self {
            flags: fields.u32()?,
            offset: fields.u64()?,
            address: fields.u64()?,
            size: fields.u64()?,
        })
    }
}

/// `DMA_UNMAP`. The reply repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaUnmap {
    /// Bits 1 and 2 both mean "all of them" with some clients.
    pub flags: u32,
    /// The device's address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

impl DmaUnmap {
    /// Bytes of the payload.
    pub const LEN: usize = 24;
    const ALL: u32 = 0b110;

    /// Parses the payload.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut fields = Fields(payload);
        fields.u32()?;
        Some(Self { flags: fields.u32()?, address: fields.u64()?, size: fields.u64()? })
    }

    /// Whether everything is to go.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.flags & Self::ALL != 0 && self.address == 0 && (self.size == 0 || self.size == u64::MAX)
    }
}

/// The front of `REGION_READ`, `REGION_WRITE` and of each write in `REGION_WRITE_MULTI`. Data follow in a write, and in the
/// reply to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionAccess {
    /// Bytes from the start of the region.
    pub offset: u64,
    /// The region.
    pub region: u32,
    /// Bytes of data.
    pub count: u32,
}

impl RegionAccess {
    /// Bytes of it.
    pub const LEN: usize = 16;
    /// Bytes of one write in `REGION_WRITE_MULTI`: always 8 of data, of which `count` matter.
    pub const MULTI_LEN: usize = 24;

    /// Parses the front of the payload.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut fields = Fields(payload);
        Some(Self { offset: fields.u64()?, region: fields.u32()?, count: fields.u32()? })
    }
}

/// `DEVICE_SET_IRQS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetIrqs {
    /// What the data are and what to do.
    pub flags: u32,
    /// The interrupt.
    pub index: u32,
    /// First vector.
    pub start: u32,
    /// Number of vectors.
    pub count: u32,
}

impl SetIrqs {
    /// No data: the action alone.
    pub const DATA_NONE: u32 = 1;
    /// Data are event descriptors.
    pub const DATA_EVENTFD: u32 = 4;
    /// The descriptors are told of interrupts.
    pub const ACTION_TRIGGER: u32 = 0x20;

    /// Parses the payload.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut fields = Fields(payload);
        fields.u32()?;
        Some(Self { flags: fields.u32()?, index: fields.u32()?, start: fields.u32()?, count: fields.u32()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_keeps_its_fields() {
        let header = Header { id: 0x1234, command: 9, size: 0x20, flags: 0x21, error: 22 };
        let bytes = header.to_bytes();
        assert_eq!(bytes, [0x34, 0x12, 9, 0, 0x20, 0, 0, 0, 0x21, 0, 0, 0, 22, 0, 0, 0]);
        assert_eq!(Header::parse(&bytes), Some(header));
        assert!(header.is_reply() && header.wants_reply());
        assert_eq!(Header::parse(&bytes[..15]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(Header::parse(&bytes).is_some(), bytes.len() >= HEADER_LEN);
            prop_assert_eq!(DmaMap::parse(&bytes).is_some(), bytes.len() >= 32);
            prop_assert_eq!(DmaUnmap::parse(&bytes).is_some(), bytes.len() >= DmaUnmap::LEN);
            prop_assert_eq!(RegionAccess::parse(&bytes).is_some(), bytes.len() >= RegionAccess::LEN);
            prop_assert_eq!(SetIrqs::parse(&bytes).is_some(), bytes.len() >= 20);
        }
    }
}
