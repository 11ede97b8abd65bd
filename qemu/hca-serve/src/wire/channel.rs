//! A client's connection: its input, what waits to be sent, and commands of the server's own.
//!
//! Nothing waits but [`Channel::ask`], and that only for a limited time.

use super::input::{Input, Malformed, Next, Read};
use super::protocol::{FLAG_ERROR, FLAG_REPLY, HEADER_LEN, Header};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

pub use super::input::Message;

/// Bytes that wait to be sent before no more messages are taken: a client that does not read its answers gets none.
const OUTPUT_LIMIT: usize = 1 << 18;

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The client closed it.
    Closed,
    /// The system says so.
    Failed(Errno),
    /// The stream makes no sense any more.
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

/// Why a command of the server's was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The client refused it.
    Refused,
    /// Not in time.
    Late,
    /// The connection ended.
    Ended,
}

/// A connection. Answers are queued and leave when the socket takes them.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    input: Input,
    output: VecDeque<u8>,
    /// The end was seen: what was read before is still worked on.
    ended: Option<Ended>,
    next_id: u16,
    reads: u64,
    messages: u64,
}

impl Channel {
    /// Takes a connection over.
    ///
    /// # Errors
    /// The socket's.
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

    /// The socket, to wait for.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Reads once. Answers whether something came.
    pub fn read(&mut self) -> bool {
        if self.ended.is_some() {
            return false;
        }
        self.reads += 1;
        match self.input.read(&self.stream) {
            Ok(Read::Bytes(_)) => return true,
            Ok(Read::Nothing) => {}
            // A client that ends with answers unread resets its connection: that is an end like any other.
            Ok(Read::End) | Err(Errno::CONNRESET) => self.ended = Some(Ended::Closed),
            Err(error) => self.ended = Some(Ended::Failed(error)),
        }
        false
    }

    /// How often the socket was read.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// How many messages were taken.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Why the connection ended, if it did.
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Whether reading makes sense: neither ended nor full.
    pub fn wants_input(&self) -> bool {
        self.ended.is_none() && !self.input.is_full()
    }

    /// The header and the payload of the next message, if the whole message is there.
    pub fn peek(&mut self) -> Option<(Header, &[u8])> {
        self.input.peek()
    }

    /// Takes the next message; `None` when there is none, or the client has to read its answers first.
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

    /// The payload of the message that was just taken.
    pub fn payload(&self, message: &Message) -> &[u8] {
        self.input.payload(message)
    }

    /// Answers `to` with a payload, if an answer is wanted.
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

    /// Answers `to` with an error, if an answer is wanted.
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

    /// Whether the client has to read its answers before more messages are taken.
    pub fn is_stuck(&self) -> bool {
        self.output.len() >= OUTPUT_LIMIT
    }

    /// Whether answers wait for the socket.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Sends as much as the socket takes.
    pub fn flush(&mut self) {
        while !self.output.is_empty() {
            let (front, _) = self.output.as_slices();
            match send(&self.stream, front, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    self.output.clear();
                    // A client that closed its end may have sent more before: the read will tell.
                    if error != Errno::PIPE && error != Errno::CONNRESET {
                        self.ended.get_or_insert(Ended::Failed(error));
                    }
                }
            }
        }
    }

    /// Sends a command and waits for its answer, at most until `deadline`; `each` gets the payload. Meanwhile `serve` may take
    /// messages that do not have to wait.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub fn ask<T>(
        &mut self,
        command: u16,
        payload: &[&[u8]],
        deadline: Instant,
        serve: impl Fn(&mut Self),
        each: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Unanswered> {
        self.next_id = self.next_id.wrapping_add(1);
        let id = self.next_id;
        let len: usize = payload.iter().map(|part| part.len()).sum();
        let size = u32::try_from(HEADER_LEN + len).unwrap_or(u32::MAX);
        let header = Header { id, command, size, flags: 0, error: 0 };
        self.output.extend(header.to_bytes());
        for part in payload {
            self.output.extend(*part);
        }
        let mut each = Some(each);
        loop {
            self.flush();
            let answer = self.input.take_reply(id, |header, payload| {
                let refused = header.flags & FLAG_ERROR != 0 || header.command != command;
                if refused { None } else { each.take().map(|each| each(payload)) }
            });
            if let Some(answer) = answer {
                return answer.ok_or(Unanswered::Refused);
            }
            if self.ended.is_some() || self.input.is_full() {
                return Err(Unanswered::Ended);
            }
            serve(self);
            // Also while it sends: one that sends without end does not answer either.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Unanswered::Late);
            }
            if self.read() {
                continue;
            }
            self.flush();
            self.wait(left);
        }
    }

    fn wait(&self, limit: Duration) {
        let mut flags = PollFlags::IN;
        if self.has_output() {
            flags |= PollFlags::OUT;
        }
        let limit = rustix::event::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // An interrupted wait is as good as one that ended: the caller looks again.
        let _ = poll(&mut [PollFd::new(&self.stream, flags)], Some(&limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::protocol::{FLAG_NO_REPLY, command};
    use std::cell::Cell;
    use std::io::Write;

    #[test]
    fn who_sends_without_end_and_does_not_answer_is_late() {
        let (stream, mut client) = UnixStream::pair().expect("a pair");
        let read = Header { id: 1, command: command::REGION_READ, size: 32, flags: FLAG_NO_REPLY, error: 0 };
        let message = [&read.to_bytes()[..], &[0; 16]].concat().repeat(64);
        std::thread::scope(|scope| {
            // It ends when nobody listens any more.
            scope.spawn(move || while client.write_all(&message).is_ok() {});
            let mut channel = Channel::new(stream).expect("a channel");
            let deadline = Instant::now() + Duration::from_millis(50);
            let late = Cell::new(0);
            // Slower than the client sends, so that there is always more.
            let serve = |channel: &mut Channel| {
                late.set(late.get() + u32::from(Instant::now() >= deadline));
                while channel.next().is_some() {
                    std::thread::sleep(Duration::from_micros(10));
                }
            };
            let answer = channel.ask(command::DMA_READ, &[&[0; 16]], deadline, serve, |_| ());
            drop(channel);
            assert_eq!(answer, Err(Unanswered::Late));
            assert!(late.get() <= 1, "it was listened to {} times after it was too late", late.get());
        });
    }
}
