//! The messages of vfio-user, as bytes. All numbers are little-endian.

/// Bytes of a header.
pub(crate) const HEADER: usize = 16;
/// The longest message that is taken: a header and 1 MiB, the protocol's default.
pub(crate) const LONGEST: usize = HEADER + (1 << 20) + 64;

/// Command of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Command {
    Version = 1,
    DmaMap = 2,
    DmaUnmap = 3,
    DeviceInfo = 4,
    RegionInfo = 5,
    IrqInfo = 7,
    SetIrqs = 8,
    RegionRead = 9,
    RegionWrite = 10,
    Reset = 13,
}

impl Command {
    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Version => "VERSION",
            Self::DmaMap => "DMA_MAP",
            Self::DmaUnmap => "DMA_UNMAP",
            Self::DeviceInfo => "DEVICE_GET_INFO",
            Self::RegionInfo => "DEVICE_GET_REGION_INFO",
            Self::IrqInfo => "DEVICE_GET_IRQ_INFO",
            Self::SetIrqs => "DEVICE_SET_IRQS",
            Self::RegionRead => "REGION_READ",
            Self::RegionWrite => "REGION_WRITE",
            Self::Reset => "DEVICE_RESET",
        }
    }
}

const TYPE: u32 = 0xf;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) id: u16,
    command: u16,
    /// Bytes of the message, header included.
    size: u32,
    flags: u32,
    errno: u32,
}

impl Header {
    /// Makes the header of a request with `payload` bytes after the header.
    pub(crate) fn request(id: u16, command: Command, payload: usize, wants_reply: bool) -> Self {
        let flags = if wants_reply { 0 } else { NO_REPLY };
        Self { id, command: command as u16, size: (HEADER + payload) as u32, flags, errno: 0 }
    }

    pub(crate) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..2].copy_from_slice(&self.id.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.command.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.errno.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; HEADER]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *bytes;
        Self {
            id: u16::from_le_bytes([a, b]),
            command: u16::from_le_bytes([c, d]),
            size: u32::from_le_bytes([e, f, g, h]),
            flags: u32::from_le_bytes([i, j, k, l]),
            errno: u32::from_le_bytes([m, n, o, p]),
        }
    }

    /// Returns the bytes after the header; `None` if the size is out of range.
    pub(crate) fn payload(&self) -> Option<usize> {
        let size = self.size as usize;
        (HEADER..=LONGEST).contains(&size).then(|| size - HEADER)
    }

    /// Returns whether it is the reply to that request, not a request of the server.
    pub(crate) fn answers(&self, id: u16, command: Command) -> bool {
        self.flags & TYPE == REPLY && self.id == id && self.command == command as u16
    }

    /// Returns whether it is a request that needs a reply.
    pub(crate) fn wants_reply(&self) -> bool {
        self.flags & TYPE == 0 && self.flags & NO_REPLY == 0
    }

    /// The refusal of a request.
    pub(crate) fn refusal(&self, errno: u32) -> Self {
        Self { size: HEADER as u32, flags: REPLY | ERROR, errno, ..*self }
    }

    /// Why a request was refused, if it was; 0 where the server does not say.
    pub(crate) fn error(&self) -> Option<u32> {
        (self.flags & ERROR != 0).then_some(self.errno)
    }
}

/// The payload of a request: numbers one after the other.
#[derive(Debug, Default)]
pub(crate) struct Payload(Vec<u8>);

impl Payload {
    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

/// A number in an answer; None if it ends before.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A number in an answer; None if it ends before.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_the_protocol_has_them() {
        let header = Header::request(0x0102, Command::RegionWrite, 24, false);
        let bytes = header.to_bytes();
        assert_eq!(bytes, [2, 1, 10, 0, 40, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Header::from_bytes(&bytes), header);
        assert_eq!(header.payload(), Some(24));
    }

    #[test]
    fn answers_and_refusals_are_told_apart() {
        let mut bytes = Header::request(7, Command::Version, 0, true).to_bytes();
        assert!(Header::from_bytes(&bytes).wants_reply());
        bytes[8] = 0x21;
        bytes[12] = 22;
        let header = Header::from_bytes(&bytes);
        assert!(header.answers(7, Command::Version) && !header.answers(8, Command::Version));
        assert!(!header.answers(7, Command::Reset) && !header.wants_reply());
        assert_eq!(header.error(), Some(22));
        let refused = Header::request(9, Command::DmaMap, 8, true).refusal(95);
        assert_eq!((refused.error(), refused.payload(), refused.id), (Some(95), Some(0), 9));
    }

    #[test]
    fn sizes_out_of_bounds_are_none() {
        for (size, payload) in [(0, None), (15, None), (16, Some(0)), (u32::MAX, None)] {
            let mut bytes = Header::request(1, Command::Reset, 0, true).to_bytes();
            bytes[4..8].copy_from_slice(&u32::to_le_bytes(size));
            assert_eq!(Header::from_bytes(&bytes).payload(), payload);
        }
        assert_eq!(
            (u32_at(&[1, 0, 0, 0], 0), u32_at(&[1, 0, 0, 0], 1), u64_at(&[0; 7], 0)),
            (Some(1), None, None)
        );
    }
}
