//! A stream of frames between two servers, which is the cable of one HCA.
//!
//! A frame consists of its length (4 bytes, little endian, without itself), a byte with its kind,
//! and its content.

use super::buffers::Buffers;
use rdma_fabric::medium::LinkLayer;
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longest frame, in bytes: more than a jumbo frame of Ethernet, a packet of 4 KiB with all its
/// headers, and any text.
const LONGEST: usize = 9216;
/// Interval of keep-alive frames on an idle cable.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Time without received or sent bytes after which a cable is cut.
const SILENCE: Duration = Duration::from_secs(5);
/// Time limit of the handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(5);

/// Protocol magic, including the version.
pub const MAGIC: [u8; 8] = *b"HCALINK3";

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To the fabric: [`MAGIC`], 0 for an HCA's InfiniBand port or 1 for an Ethernet switch, the GUID of
    /// port or switch (8 bytes; 0 for any), a name.
    Hello,
    /// From the fabric: the GUID. That of a switch is the first of 4,096 for its HCAs.
    Welcome,
    /// From the fabric: reason of a refusal, as text.
    Refused,
    /// A packet, LRH to ICRC, or an Ethernet frame without its check sequence.
    Packet,
    /// State of the sender's port, in one byte: 1 for up.
    Up,
    /// Keep-alive, without content.
    Alive,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Hello, Self::Welcome, Self::Refused, Self::Packet, Self::Up, Self::Alive];

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// A connected stream socket.
#[derive(Debug)]
pub enum Stream {
    /// A stream on this machine.
    Unix(UnixStream),
    /// A stream that may lead to a remote machine.
    Tcp(TcpStream),
}

impl Stream {
    /// Makes calls return at once.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_nonblocking(nonblocking),
            Self::Tcp(stream) => stream.set_nonblocking(nonblocking),
        }
    }

    fn set_time_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))
            }
        }
    }

    /// Sends the handshake of the side without the fabric and waits for the reply. Returns the GUID for
    /// its port.
    ///
    /// # Errors
    /// The peer refuses with a reason, does not implement this protocol, or does not reply in time.
    pub fn introduce(&mut self, layer: LinkLayer, guid: u64, name: &str) -> io::Result<u64> {
        self.set_time_limit(Some(HANDSHAKE))?;
        let mut hello = MAGIC.to_vec();
        hello.push((layer == LinkLayer::Ethernet).into());
        hello.extend(guid.to_le_bytes());
        hello.extend(name.as_bytes().iter().take(64));
        let frame = frame(Kind::Hello, &hello);
        let mut length = [0; 4];
        let (kind, content) = match self {
            Self::Unix(stream) => exchange(stream, &frame, &mut length)?,
            Self::Tcp(stream) => exchange(stream, &frame, &mut length)?,
        };
        self.set_time_limit(None)?;
        match (kind, <[u8; 8]>::try_from(content.as_slice())) {
            (Some(Kind::Welcome), Ok(guid)) => Ok(u64::from_le_bytes(guid)),
            (Some(Kind::Refused), _) => {
                let text: String =
                    String::from_utf8_lossy(&content).chars().filter(|c| !c.is_control()).collect();
                Err(io::Error::other(text))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the other end is no server with --listen")),
        }
    }
}

fn exchange(
    mut stream: impl Read + Write,
    frame: &[u8],
    length: &mut [u8; 4],
) -> io::Result<(Option<Kind>, Vec<u8>)> {
    stream.write_all(frame)?;
    stream.read_exact(length)?;
    let len = u32::from_le_bytes(*length) as usize;
    if len == 0 || len > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the other end is no server with --listen"));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    let content = bytes.split_off(1);
    Ok((bytes.first().and_then(|byte| Kind::of(*byte)), content))
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

fn frame(kind: Kind, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(5 + content.len());
    bytes.extend((1 + content.len() as u32).to_le_bytes());
    bytes.push(kind as u8);
    bytes.extend(content);
    bytes
}

/// Reason why a cable is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The peer closed the stream.
    Closed,
    /// A system call failed.
    Failed(Errno),
    /// A frame has no byte, or is longer than any.
    Length {
        /// Its length in bytes.
        bytes: u32,
        /// That of the longest one.
        most: usize,
    },
    /// A frame is of no kind that this protocol has.
    Kind(u8),
    /// A frame of this kind does not belong here.
    Unexpected(Kind),
    /// No bytes were received or sent for too long.
    Silent,
    /// This server panicked at a frame.
    Panicked,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("closed by the other server"),
            Self::Failed(error) => write!(f, "{}", io::Error::from(*error)),
            Self::Length { bytes: 0, .. } => f.write_str("frame without a kind"),
            Self::Length { bytes, most } => write!(f, "frame of {bytes} bytes, {most} at most"),
            Self::Kind(kind) => write!(f, "frame of unknown kind {kind}"),
            Self::Unexpected(kind) => write!(f, "{kind:?} frame out of order"),
            Self::Panicked => f.write_str("this server failed at a frame: please report this"),
            Self::Silent => f.write_str("the other server is silent"),
        }
    }
}

/// An end of a cable. No method blocks.
#[derive(Debug)]
pub struct Link {
    buffers: Buffers,
    heard: Instant,
    said: Instant,
    /// Time at which output was last sent, or was queued after being empty.
    moved: Instant,
}

impl Deref for Link {
    type Target = Buffers;

    fn deref(&self) -> &Buffers {
        &self.buffers
    }
}

impl DerefMut for Link {
    fn deref_mut(&mut self) -> &mut Buffers {
        &mut self.buffers
    }
}

impl Link {
    /// Creates a link from a connected stream.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn new(stream: Stream, now: Instant) -> io::Result<Self> {
        Ok(Self { buffers: Buffers::new(stream)?, heard: now, said: now, moved: now })
    }

    /// Reads once, unless enough input is buffered.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn read(&mut self, now: Instant) -> Result<(), Broken> {
        if self.buffers.read()? {
            self.heard = now;
        }
        Ok(())
    }

    /// Returns the next complete frame, if any.
    ///
    /// # Errors
    /// [`Broken::Length`], [`Broken::Kind`].
    pub fn next(&mut self) -> Result<Option<(Kind, &[u8])>, Broken> {
        let Some(len) = self.frame_len()? else { return Ok(None) };
        let frame = self.buffers.take(4 + len).get(4..).and_then(<[u8]>::split_first);
        let (kind, content) = frame.ok_or(Broken::Length { bytes: 0, most: LONGEST })?;
        Ok(Some((Kind::of(*kind).ok_or(Broken::Kind(*kind))?, content)))
    }

    /// Returns whether [`next`](Self::next) returns a frame or an error.
    pub fn has_frame(&self) -> bool {
        self.frame_len() != Ok(None)
    }

    /// Returns the length of the next frame, if it is complete.
    fn frame_len(&self) -> Result<Option<usize>, Broken> {
        let Some((length, rest)) = self.buffers.unread().split_first_chunk::<4>() else { return Ok(None) };
        let bytes = u32::from_le_bytes(*length);
        let len = bytes as usize;
        if len == 0 || len > LONGEST {
            return Err(Broken::Length { bytes, most: LONGEST });
        }
        Ok((rest.len() >= len).then_some(len))
    }

    /// Queues a frame.
    pub fn send(&mut self, kind: Kind, content: &[u8], now: Instant) {
        if !self.buffers.has_output() {
            self.moved = now;
        }
        self.buffers.queue(&(1 + content.len() as u32).to_le_bytes());
        self.buffers.queue(&[kind as u8]);
        self.buffers.queue(content);
        self.said = now;
    }

    /// Sends as many bytes as the socket accepts.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn flush(&mut self, now: Instant) -> Result<(), Broken> {
        if self.buffers.flush()? {
            self.moved = now;
        }
        Ok(())
    }

    /// Sends a keep-alive frame if due, and checks that the peer is alive.
    ///
    /// # Errors
    /// [`Broken::Silent`].
    pub fn keep_alive(&mut self, now: Instant) -> Result<(), Broken> {
        if now.saturating_duration_since(self.said) >= KEEP_ALIVE {
            self.send(Kind::Alive, &[], now);
        }
        if self.buffers.paused {
            // Paused input does not show whether the peer is alive.
            self.heard = now;
        }
        let unheard = now.saturating_duration_since(self.heard) >= SILENCE;
        let unmoved = self.buffers.has_output() && now.saturating_duration_since(self.moved) >= SILENCE;
        if unheard || unmoved { Err(Broken::Silent) } else { Ok(()) }
    }

    /// Returns the time at which [`keep_alive`](Self::keep_alive) is due.
    pub fn deadline(&self) -> Instant {
        let mut deadline = (self.said + KEEP_ALIVE).min(self.heard + SILENCE);
        if self.buffers.has_output() {
            deadline = deadline.min(self.moved + SILENCE);
        }
        deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Link, Link) {
        let (a, b) = UnixStream::pair().expect("pair");
        let now = Instant::now();
        (Link::new(Stream::Unix(a), now).expect("link"), Link::new(Stream::Unix(b), now).expect("link"))
    }

    #[test]
    fn frames_arrive_whole_and_in_order() {
        let (mut a, mut b) = pair();
        let now = Instant::now();
        for n in 0..100u8 {
            a.send(Kind::Packet, &vec![n; usize::from(n) * 40], now);
        }
        a.send(Kind::Up, &[1], now);
        let mut seen = 0;
        while seen < 101 {
            a.flush(now).expect("flows");
            b.read(now).expect("flows");
            while let Some((kind, content)) = b.next().expect("sense") {
                if seen < 100 {
                    assert_eq!((kind, content.len()), (Kind::Packet, seen * 40));
                    assert!(content.iter().all(|byte| usize::from(*byte) == seen));
                } else {
                    assert_eq!((kind, content), (Kind::Up, &[1][..]));
                }
                seen += 1;
            }
        }
        drop(a);
        assert_eq!(b.read(now), Err(Broken::Closed));
    }

    #[test]
    fn nonsense_breaks_it_and_silence_too() {
        let length = |bytes| Broken::Length { bytes, most: LONGEST };
        for (bytes, broken) in [
            (&[0, 0, 0, 0][..], length(0)),
            (&[0xff; 8], length(u32::MAX)),
            (&[1, 0, 0, 0, 99], Broken::Kind(99)),
        ] {
            let (a, b) = UnixStream::pair().expect("pair");
            (&a).write_all(bytes).expect("sent");
            let now = Instant::now();
            let mut link = Link::new(Stream::Unix(b), now).expect("link");
            link.read(now).expect("read");
            assert_eq!(link.next().err(), Some(broken), "{bytes:?}");
        }
        let (mut a, _b) = pair();
        let now = Instant::now();
        assert_eq!(a.keep_alive(now + SILENCE / 2), Ok(()));
        a.flush(now).expect("flows");
        assert_eq!(a.keep_alive(now + SILENCE + SILENCE), Err(Broken::Silent));
    }

    #[test]
    fn a_full_socket_makes_packets_wait() {
        let (mut a, mut b) = pair();
        let now = Instant::now();
        let mut sent = 0;
        while !a.is_congested() {
            a.send(Kind::Packet, &[7; 4096], now);
            a.flush(now).expect("flows");
            sent += 1;
            assert!(sent < 10_000);
        }
        assert_eq!(a.keep_alive(now + SILENCE), Err(Broken::Silent), "nothing leaves");
        let mut seen = 0;
        while seen < sent {
            b.read(now).expect("flows");
            while b.next().expect("sense").is_some() {
                seen += 1;
            }
            a.flush(now).expect("flows");
        }
        assert!(!a.is_congested());
    }
}
