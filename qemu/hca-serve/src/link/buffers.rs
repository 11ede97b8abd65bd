//! A connected socket with buffers for its input and output.

use super::stream::{Broken, Stream};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::VecDeque;
use std::io;
use std::ops::AddAssign;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Queued output above which no packets are accepted, in bytes.
const CONGESTED: usize = 1 << 18;
/// Queued output above which packets are dropped, in bytes.
const FULL: usize = 1 << 20;
/// Bytes of one read.
const CHUNK: usize = 1 << 16;
/// Unprocessed input above which nothing is read: more than the longest frame, in bytes.
const ENOUGH: usize = 1 << 17;

/// Amounts of work that cables have caused.
#[derive(Clone, Copy, Debug, Default)]
pub struct CableWork {
    /// Reads from their sockets.
    pub reads: u64,
    /// Frames received and sent.
    pub frames: u64,
    /// Steps of the fabric for their packets.
    pub steps: u64,
}

impl AddAssign for CableWork {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.frames += other.frames;
        self.steps += other.steps;
    }
}

/// A stream socket and what has been read and is to be written. No method blocks.
#[derive(Debug)]
pub struct Buffers {
    stream: Stream,
    input: Vec<u8>,
    /// First unprocessed byte of `input`.
    start: usize,
    output: VecDeque<u8>,
    /// Socket events that are waited for.
    interest: EventFlags,
    /// True while no frames are processed.
    pub paused: bool,
}

impl Buffers {
    /// Makes empty buffers for a connected stream.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn new(stream: Stream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (input, output, interest) = (Vec::new(), VecDeque::new(), EventFlags::empty());
        Ok(Self { stream, input, start: 0, output, interest, paused: false })
    }

    /// Returns the socket, to wait for.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Reads once, unless enough input is buffered. Returns whether bytes have come.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn read(&mut self) -> Result<bool, Broken> {
        if self.input.len() - self.start >= ENOUGH {
            return Ok(false);
        }
        self.input.drain(..self.start);
        self.start = 0;
        let before = self.input.len();
        self.input.resize(before + CHUNK, 0);
        let Some(room) = self.input.get_mut(before..) else { return Ok(false) };
        let read = recv(&self.stream, room, RecvFlags::DONTWAIT);
        let taken = read.as_ref().map_or(0, |(read, _)| *read);
        self.input.truncate(before + taken);
        match read {
            Ok((0, _)) => Err(Broken::Closed),
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(Broken::Failed(error)),
        }
    }

    /// Returns the input that has not been consumed.
    pub fn unread(&self) -> &[u8] {
        self.input.get(self.start..).unwrap_or_default()
    }

    /// Consumes `len` bytes of input.
    pub fn consume(&mut self, len: usize) {
        self.start = (self.start + len).min(self.input.len());
    }

    /// Consumes `len` bytes of input and returns them.
    pub fn take(&mut self, len: usize) -> &[u8] {
        let at = self.start;
        self.consume(len);
        self.input.get(at..self.start).unwrap_or_default()
    }

    /// Adds bytes to the output.
    pub fn queue(&mut self, bytes: &[u8]) {
        self.output.extend(bytes);
    }

    /// Returns whether output is queued.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Returns whether packets must wait.
    pub fn is_congested(&self) -> bool {
        self.output.len() >= CONGESTED
    }

    /// Returns whether packets must be dropped.
    pub fn is_full(&self) -> bool {
        self.output.len() >= FULL
    }

    /// Writes as many bytes as the socket accepts. Returns whether any were written.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn flush(&mut self) -> Result<bool, Broken> {
        let mut moved = false;
        while !self.output.is_empty() {
            let (front, _) = self.output.as_slices();
            match send(&self.stream, front, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    self.output.drain(..sent);
                    moved = true;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(Broken::Failed(error)),
            }
        }
        Ok(moved)
    }

    /// Updates the events to wait for on the socket, which `epoll` knows by `token`.
    pub fn follow(&mut self, token: u64, epoll: &OwnedFd) {
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, !self.paused);
        wanted.set(EventFlags::OUT, self.has_output());
        if wanted != self.interest
            && epoll::modify(epoll, self.socket(), EventData::new_u64(token), wanted).is_ok()
        {
            self.interest = wanted;
        }
    }
}
