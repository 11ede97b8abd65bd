//! Connection of a client: its input, queued output, and the server's own commands.
//!
//! No method blocks.

use super::input::{Input, Malformed, Next, Read};
use super::protocol::{FLAG_ERROR, FLAG_REPLY, HEADER_LEN, Header};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

pub use super::input::Message;

/// Queued output above which no messages are processed, in bytes. A client that does not read its
/// replies gets no more.
const OUTPUT_LIMIT: usize = 1 << 18;

/// Reason why a connection closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The client closed the connection.
    Closed,
    /// A system call failed.
    Failed(Errno),
    /// The stream is malformed.
    Malformed(Malformed),
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::Failed(error) => write!(f, "lost: {}", std::io::Error::from(*error)),
            Self::Malformed(Malformed::Short(size)) => {
                write!(f, "closed: a message of {size} bytes is shorter than its header")
            }
            Self::Malformed(Malformed::Long(size)) => write!(f, "closed: a message of {size} bytes"),
        }
    }
}

/// The connection closed, or its input is full, before a reply arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// A connection. Replies are queued and sent when the socket accepts them.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    input: Input,
    output: VecDeque<u8>,
    /// Reason of the close, once seen. Earlier input is still processed.
    ended: Option<Ended>,
    next_id: u16,
    reads: u64,
    messages: u64,
}

impl Channel {
    /// Creates a channel from a connected stream.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn new(stream: UnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            input: Input::default(),
            output: VecDeque::new(),
            ended: None,
            next_id: 0,
            reads: 0,
            messages: 0,
        })
    }

    /// Returns the socket, to wait for.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Reads once. Returns whether bytes were received.
    pub fn read(&mut self) -> bool {
        if self.ended.is_some() {
            return false;
        }
        self.reads += 1;
        match self.input.read(&self.stream) {
            Ok(Read::Bytes(_)) => return true,
            Ok(Read::Nothing) => {}
            // A client that closes with unread replies resets the connection: a close like any
            // other.
            Ok(Read::End) | Err(Errno::CONNRESET) => self.ended = Some(Ended::Closed),
            Err(error) => self.ended = Some(Ended::Failed(error)),
        }
        false
    }

    /// Returns the number of socket reads.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Returns the number of messages taken.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Returns why the connection closed, if it did.
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Returns whether to read: the connection is open and the input is not full.
    pub fn wants_input(&self) -> bool {
        self.ended.is_none() && !self.input.is_full()
    }

    /// Returns header and payload of the next message, if it is complete.
    pub fn peek(&mut self) -> Option<(Header, &[u8])> {
        self.input.peek()
    }

    /// Takes the next message. Returns `None` if there is none, or the client must read its replies
    /// first.
    pub fn next(&mut self) -> Option<Message> {
        while !self.is_stuck() {
            match self.input.next() {
                Ok(Next::Message(message)) => {
                    self.messages += 1;
                    return Some(message);
                }
                Ok(Next::TooLong(header)) => self.refuse(&header, Errno::TOOBIG),
                Ok(Next::Incomplete) => break,
                Err(malformed) => {
                    self.ended = Some(Ended::Malformed(malformed));
                    break;
                }
            }
        }
        None
    }

    /// Returns the payload of the message that was just taken.
    pub fn payload(&self, message: &Message) -> &[u8] {
        self.input.payload(message)
    }

    /// Replies to `to` with a payload, unless the sender suppressed the reply.
    pub fn reply(&mut self, to: &Header, payload: &[&[u8]]) {
        if !to.wants_reply() {
            return;
        }
        let len: usize = payload.iter().map(|part| part.len()).sum();
        let size = u32::try_from(HEADER_LEN + len).unwrap_or(u32::MAX);
        let header = Header { size, flags: FLAG_REPLY, error: 0, ..*to };
        self.output.extend(header.to_bytes());
        for part in payload {
            self.output.extend(*part);
        }
    }

    /// Replies to `to` with an error, unless the sender suppressed the reply.
    pub fn refuse(&mut self, to: &Header, error: Errno) {
        if to.wants_reply() && !to.is_reply() {
            let header = Header {
                size: HEADER_LEN as u32,
                flags: FLAG_REPLY | FLAG_ERROR,
                error: error.raw_os_error().unsigned_abs(),
                ..*to
            };
            self.output.extend(header.to_bytes());
        }
    }

    /// Returns whether the client must read its replies before more messages are taken.
    pub fn is_stuck(&self) -> bool {
        self.output.len() >= OUTPUT_LIMIT
    }

    /// Returns whether replies wait for the socket.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Sends as many bytes as the socket accepts.
    pub fn flush(&mut self) {
        while !self.output.is_empty() {
            let (front, _) = self.output.as_slices();
            match send(&self.stream, front, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    self.output.clear();
                    // A client that closed its end may have sent more before; reading reports the
                    // close.
                    if error != Errno::PIPE && error != Errno::CONNRESET {
                        self.ended.get_or_insert(Ended::Failed(error));
                    }
                }
            }
        }
    }

    /// Sends a command and returns its id.
    pub fn send(&mut self, command: u16, payload: &[&[u8]]) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        let id = self.next_id;
        let len: usize = payload.iter().map(|part| part.len()).sum();
        let size = u32::try_from(HEADER_LEN + len).unwrap_or(u32::MAX);
        let header = Header { id, command, size, flags: 0, error: 0 };
        self.output.extend(header.to_bytes());
        for part in payload {
            self.output.extend(*part);
        }
        self.flush();
        id
    }

    /// Takes the reply to command `id` if it has arrived: its payload, or `None` inside for a
    /// refusal.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn take_reply(&mut self, id: u16, command: u16) -> Result<Option<Option<Vec<u8>>>, Closed> {
        let reply = self.input.take_reply(id, |header, payload| {
            let refused = header.flags & FLAG_ERROR != 0 || header.command != command;
            (!refused).then(|| payload.to_vec())
        });
        if reply.is_none() && (self.ended.is_some() || self.input.is_full()) {
            return Err(Closed);
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::protocol::{FLAG_NO_REPLY, command};
    use std::io::Write;

    #[test]
    fn full_input_without_a_reply_closes_the_connection() {
        let (stream, mut client) = UnixStream::pair().expect("a pair");
        let read = Header { id: 1, command: command::REGION_READ, size: 32, flags: FLAG_NO_REPLY, error: 0 };
        let message = [&read.to_bytes()[..], &[0; 16]].concat().repeat(64);
        client.set_nonblocking(true).expect("nonblocking");
        let mut channel = Channel::new(stream).expect("a channel");
        let id = channel.send(command::DMA_READ, &[&[0; 16]]);
        let mut messages = 0;
        while channel.take_reply(id, command::DMA_READ) == Ok(None) {
            let _ = client.write(&message);
            channel.read();
            messages += 1;
            assert!(messages < 1 << 16, "the input is bounded");
        }
        assert!(channel.ended().is_none());
    }
}
