//! The two messages. All numbers are big-endian. The layout is that of `kernel/efi/server/rdmaserve.c`.

use core::fmt;

/// Port of the server.
pub const PORT: u16 = 4011;
/// Version of the protocol.
pub const VERSION: u16 = 1;
/// Longest name of an image, in bytes.
pub const MAX_NAME: usize = 64;
/// Largest part that a request may name, in bytes: a region of RDS.
pub const MAX_PART: u32 = 1 << 20;

/// First bytes of each message.
const MAGIC: [u8; 4] = *b"RBOT";
/// Bytes before the fields of a kind: magic, version, kind, tag.
const HEADER: usize = 16;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum MessageKind {
    /// [`Request`].
    Request = 1,
    /// [`Reply`].
    Reply = 2,
}

/// Reason why a message cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Another protocol, kind or length.
    Foreign,
    /// Another version of the protocol.
    Version(u16),
    /// A field has an illegal value.
    Field(&'static str),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("a message of another protocol"),
            Self::Version(version) => write!(f, "version {version} of the protocol; this is {VERSION}"),
            Self::Field(name) => write!(f, "a message with an illegal {name}"),
        }
    }
}

/// Name of an image: printable ASCII, or empty for the server's first image.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; MAX_NAME],
    len: usize,
}

impl Name {
    /// The empty name.
    pub const EMPTY: Self = Self { bytes: [0; MAX_NAME], len: 0 };

    /// Creates a name. Returns `None` for more than [`MAX_NAME`] bytes, spaces, and characters that are not printable ASCII.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; MAX_NAME];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        text.bytes().all(|byte| byte.is_ascii_graphic()).then_some(Self { bytes, len: text.len() })
    }

    fn from_field(field: [u8; MAX_NAME]) -> Option<Self> {
        let len = field.iter().position(|byte| *byte == 0).unwrap_or(MAX_NAME);
        let rest_is_zero = field.get(len..)?.iter().all(|byte| *byte == 0);
        Self::new(core::str::from_utf8(field.get(..len)?).ok()?).filter(|_| rest_is_zero)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.bytes.get(..self.len).and_then(|bytes| core::str::from_utf8(bytes).ok()).unwrap_or("")
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Client to server: requests a part of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Returned in the reply.
    pub tag: u64,
    /// First byte of the part.
    pub offset: u64,
    /// Bytes of the part, at most [`MAX_PART`]. With 0 the reply has no cookie.
    pub len: u32,
    /// Name of the image.
    pub name: Name,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// The part can be read.
    Ready = 0,
    /// The server has no image of this name.
    NoImage = 1,
    /// The part is not inside the image.
    OutOfRange = 2,
    /// The server cannot offer its memory now; request again.
    Busy = 3,
}

impl Status {
    const ALL: [Self; 4] = [Self::Ready, Self::NoImage, Self::OutOfRange, Self::Busy];
}

/// Server to client: what the image is, and where the part can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// That of the request.
    pub tag: u64,
    /// Bytes of the image.
    pub size: u64,
    /// First byte of the part.
    pub offset: u64,
    /// The part in the server's memory, as an RDMA cookie of RDS; 0 if the message itself offers it (`RDS_CMSG_RDMA_DEST`).
    pub cookie: u64,
    /// Result.
    pub status: Status,
    /// CRC-32 of the complete image (IEEE 802.3).
    pub checksum: u32,
    /// Bytes of the part.
    pub len: u32,
}

impl Request {
    /// Bytes of the message.
    pub const LEN: usize = HEADER + 8 + 4 + 4 + MAX_NAME;

    /// Returns the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut writer = Writer::new(MessageKind::Request, self.tag);
        writer.put(&self.offset.to_be_bytes()).put(&self.len.to_be_bytes()).put(&[0; 4]);
        writer.put(&self.name.bytes);
        writer.bytes
    }

    /// Parses a message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(message: &[u8]) -> Result<Self, Malformed> {
        let (mut fields, tag) = Fields::of(message, MessageKind::Request, Self::LEN)?;
        let (offset, len) = (u64::from_be_bytes(fields.take()), u32::from_be_bytes(fields.take()));
        // Reserved.
        let _: [u8; 4] = fields.take();
        let name = Name::from_field(fields.take()).ok_or(Malformed::Field("name"))?;
        if len > MAX_PART {
            return Err(Malformed::Field("length"));
        }
        Ok(Self { tag, offset, len, name })
    }
}

impl Reply {
    /// Bytes of the message.
    pub const LEN: usize = HEADER + 3 * 8 + 4 * 4;

    /// Returns the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut writer = Writer::new(MessageKind::Reply, self.tag);
        writer.put(&self.size.to_be_bytes()).put(&self.offset.to_be_bytes()).put(&self.cookie.to_be_bytes());
        writer.put(&(self.status as u32).to_be_bytes()).put(&self.checksum.to_be_bytes());
        writer.put(&self.len.to_be_bytes());
        writer.bytes
    }

    /// Parses a message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(message: &[u8]) -> Result<Self, Malformed> {
        let (mut fields, tag) = Fields::of(message, MessageKind::Reply, Self::LEN)?;
        let [size, offset, cookie] = [(); 3].map(|()| u64::from_be_bytes(fields.take()));
        let [status, checksum, len] = [(); 3].map(|()| u32::from_be_bytes(fields.take()));
        let status = Status::ALL.into_iter().find(|known| *known as u32 == status);
        let status = status.ok_or(Malformed::Field("status"))?;
        if len > MAX_PART {
            return Err(Malformed::Field("length"));
        }
        Ok(Self { tag, size, offset, cookie, status, checksum, len })
    }
}

/// Writes a message of `N` bytes.
struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    fn new(kind: MessageKind, tag: u64) -> Self {
        let mut writer = Self { bytes: [0; N], at: 0 };
        writer.put(&MAGIC).put(&VERSION.to_be_bytes()).put(&(kind as u16).to_be_bytes());
        writer.put(&tag.to_be_bytes());
        writer
    }

    fn put(&mut self, field: &[u8]) -> &mut Self {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + field.len()) {
            place.copy_from_slice(field);
        }
        self.at += field.len();
        self
    }
}

/// Reads the fields of a message. Fields after its end are 0.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the fields after the header, and the tag.
    fn of(message: &'a [u8], kind: MessageKind, len: usize) -> Result<(Self, u64), Malformed> {
        let mut fields = Self(message);
        let (magic, version, found) =
            (fields.take(), u16::from_be_bytes(fields.take()), u16::from_be_bytes(fields.take()));
        if magic != MAGIC {
            return Err(Malformed::Foreign);
        }
        // Another version may have other lengths.
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        if found != kind as u16 || message.len() != len {
            return Err(Malformed::Foreign);
        }
        let tag = u64::from_be_bytes(fields.take());
        Ok((fields, tag))
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((field, rest)) = self.0.split_first_chunk() else {
            self.0 = &[];
            return [0; N];
        };
        self.0 = rest;
        *field
    }
}
