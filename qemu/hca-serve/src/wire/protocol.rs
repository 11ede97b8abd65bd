//! vfio-user messages as bytes: a header of 16 bytes, then the command's payload, all little
//! endian.
//!
//! This module accesses no socket or device, and never panics on any input.

/// Bytes of a message's header.
pub const HEADER_LEN: usize = 16;
/// Limit of data in a region access or DMA message, in bytes. Negotiated with the client.
pub const MAX_TRANSFER: usize = 1 << 16;
/// Longest accepted message: a region write of [`MAX_TRANSFER`] bytes.
pub const MAX_MESSAGE: usize = HEADER_LEN + 16 + MAX_TRANSFER;
/// Limit of descriptors in one message.
pub const MAX_DESCRIPTORS: usize = 16;

/// Commands of a message.
pub mod command {
    /// Negotiates the protocol's version and capabilities.
    pub const VERSION: u16 = 1;
    /// Adds a range of guest memory.
    pub const DMA_MAP: u16 = 2;
    /// Removes a range of guest memory.
    pub const DMA_UNMAP: u16 = 3;
    /// Returns the device's regions and interrupts.
    pub const DEVICE_GET_INFO: u16 = 4;
    /// Returns the properties of a region.
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    /// Returns the properties of an interrupt.
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    /// Connects interrupts to descriptors.
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
    /// Carries out several writes of up to 8 bytes.
    pub const REGION_WRITE_MULTI: u16 = 15;
}

/// Mask of the type, bits 0 to 3 of the flags: 0 is a command, 1 a reply.
pub const FLAG_TYPE: u32 = 0xf;
/// The message is a reply.
pub const FLAG_REPLY: u32 = 1;
/// The sender suppresses the reply.
pub const FLAG_NO_REPLY: u32 = 0x10;
/// The command failed.
pub const FLAG_ERROR: u32 = 0x20;

/// The header of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number chosen by the sender of the command, repeated in the reply.
    pub id: u16,
    /// Command of [`command`].
    pub command: u16,
    /// Bytes of the message, header included.
    pub size: u32,
    /// Type and options.
    pub flags: u32,
    /// The error number of a failed command.
    pub error: u32,
}

impl Header {
    /// Parses the header at the start of `bytes`. Returns `None` if they are too short.
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

    /// Returns the header's bytes.
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

    /// Returns whether the message is a reply.
    #[must_use]
    pub const fn is_reply(&self) -> bool {
        self.flags & FLAG_TYPE == FLAG_REPLY
    }

    /// Returns whether the sender waits for a reply.
    #[must_use]
    pub const fn wants_reply(&self) -> bool {
        self.flags & FLAG_NO_REPLY == 0
    }
}

/// Parser of successive little-endian fields. Methods return `None` at the end.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// Returns the next 2 bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Returns the next 4 bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Returns the next 8 bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Payload of `DMA_MAP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaMap {
    /// Flags: [`DmaMap::WRITE`], `FILE_IO`; 1 permits reads, 4 means that the file can be
    /// mapped.
    pub flags: u32,
    /// Offset in the file that accompanies the message.
    pub offset: u64,
    /// Device address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

impl DmaMap {
    /// Permits writes by the device.
    pub const WRITE: u32 = 2;
    /// The file must be read and written instead of mapped.
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

/// Payload of `DMA_UNMAP`. The reply repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaUnmap {
    /// Flags. Some clients set bit 1, others bit 2, to remove all ranges.
    pub flags: u32,
    /// Device address.
    pub address: u64,
    /// Size in bytes.
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

    /// Returns whether all ranges must be removed.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.flags & Self::ALL != 0 && self.address == 0 && (self.size == 0 || self.size == u64::MAX)
    }
}

/// Header of `REGION_READ`, `REGION_WRITE` and of each write in `REGION_WRITE_MULTI`. Data follow
/// in a write, and in the reply to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionAccess {
    /// Bytes from the start of the region.
    pub offset: u64,
    /// Region number.
    pub region: u32,
    /// Bytes of data.
    pub count: u32,
}

impl RegionAccess {
    /// Bytes of the header.
    pub const LEN: usize = 16;
    /// Bytes of a write in `REGION_WRITE_MULTI`: always 8 bytes of data, of which `count` are
    /// valid.
    pub const MULTI_LEN: usize = 24;

    /// Parses the header at the start of the payload.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut fields = Fields(payload);
        Some(Self { offset: fields.u64()?, region: fields.u32()?, count: fields.u32()? })
    }
}

/// Payload of `DEVICE_SET_IRQS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetIrqs {
    /// Type of the data, and action.
    pub flags: u32,
    /// Interrupt type.
    pub index: u32,
    /// First vector.
    pub start: u32,
    /// Number of vectors.
    pub count: u32,
}

impl SetIrqs {
    /// No data, only the action.
    pub const DATA_NONE: u32 = 1;
    /// Data are event descriptors.
    pub const DATA_EVENTFD: u32 = 4;
    /// Signals interrupts by the descriptors.
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
