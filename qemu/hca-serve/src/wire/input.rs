//! Input of a client: received bytes, divided into messages, and the descriptors sent with them.

use super::protocol::{HEADER_LEN, Header, MAX_DESCRIPTORS, MAX_MESSAGE};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of one socket read, unless a message is longer.
const CHUNK: usize = 1 << 16;
/// Limit of buffered bytes while no messages are taken, for example while the device waits for a
/// reply of the client.
const LIMIT: usize = 2 * MAX_MESSAGE;
/// Longest oversized message to skip, in bytes. A longer one closes the connection.
const LONGEST_SKIPPED: u32 = 64 << 20;
/// Invalid command that marks a message taken out of order.
const TAKEN: u16 = u16::MAX;

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Number of bytes received.
    Bytes(usize),
    /// No bytes available.
    Nothing,
    /// The client closed the connection.
    End,
}

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// Its header.
    pub header: Header,
    /// Offset of its payload in [`Input::payload`].
    at: usize,
    /// Descriptors sent with it.
    pub descriptors: Vec<OwnedFd>,
}

/// Reason why the stream is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The size is less than that of the header.
    Short(u32),
    /// The size exceeds the limit for skipping.
    Long(u32),
}

/// Next element of the stream.
#[derive(Debug)]
pub enum Next {
    /// A message.
    Message(Message),
    /// An oversized message, whose bytes are skipped.
    TooLong(Header),
    /// The next message is incomplete.
    Incomplete,
}

/// Input of one connection, with bounded memory.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    /// First byte that was not taken.
    start: usize,
    /// End of the received bytes.
    end: usize,
    /// Remaining bytes of an oversized message.
    skip: usize,
    /// Descriptors by the position of their message.
    descriptors: VecDeque<(usize, Vec<OwnedFd>)>,
}

impl Input {
    /// Reads once.
    ///
    /// # Errors
    /// Errors of the socket, including a reset connection.
    pub fn read(&mut self, socket: impl AsFd) -> Result<Read, Errno> {
        self.make_room();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let Some(room) = self.bytes.get_mut(self.end..) else { return Ok(Read::Nothing) };
        if room.is_empty() {
            return Ok(Read::Nothing);
        }
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(socket, &mut [IoSliceMut::new(room)], &mut ancillary, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Read::Nothing),
            Err(error) => return Err(error),
        };
        if received.bytes == 0 {
            return Ok(Read::End);
        }
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        // The system discards excess descriptors, but rounds its limit up.
        descriptors.truncate(MAX_DESCRIPTORS);
        let before = self.end;
        self.end += received.bytes;
        if self.skip > 0 {
            // The descriptors of an oversized message are closed.
            let skipped = self.skip.min(self.end - self.start);
            self.start += skipped;
            self.skip -= skipped;
        }
        if !descriptors.is_empty() {
            self.assign(before, descriptors);
        }
        Ok(Read::Bytes(received.bytes))
    }

    /// Provides space for a read after the end, within the limit.
    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.descriptors.clear();
            // Long messages are rare, so their space is released.
            self.bytes.truncate(CHUNK);
            self.bytes.shrink_to(CHUNK);
        } else if self.bytes.len() - self.end < CHUNK / 2 && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            for (at, _) in &mut self.descriptors {
                *at = at.saturating_sub(self.start);
            }
            self.end -= self.start;
            self.start = 0;
        }
        if self.bytes.len() - self.end < CHUNK / 2 {
            let wanted = (self.end + CHUNK).min(LIMIT).max(self.bytes.len());
            self.bytes.resize(wanted, 0);
        }
    }

    /// Assigns descriptors to the last message that begins in the bytes just read. A read returns
    /// at most the bytes sent with the descriptors, and those bytes start with the message's first
    /// byte.
    fn assign(&mut self, new: usize, descriptors: Vec<OwnedFd>) {
        let mut owner = self.start;
        let mut at = self.start;
        while at < self.end {
            if at >= new || owner < new {
                owner = at;
            }
            match self.header(at) {
                Some(header) if header.size as usize >= HEADER_LEN => at += header.size as usize,
                _ => break,
            }
        }
        match self.descriptors.iter_mut().find(|(at, _)| *at == owner) {
            Some((_, more)) => more.extend(descriptors),
            None => self.descriptors.push_back((owner, descriptors)),
        }
    }

    fn header(&self, at: usize) -> Option<Header> {
        self.bytes.get(at..self.end).and_then(Header::parse)
    }

    /// Returns header and payload of the next message if it is complete. Returns only the header if
    /// the message is malformed.
    pub fn peek(&mut self) -> Option<(Header, &[u8])> {
        loop {
            let header = self.header(self.start)?;
            let size = header.size as usize;
            let whole = size <= self.end - self.start;
            if is_taken(&header) && whole {
                self.start += size.max(HEADER_LEN);
            } else if whole || size > MAX_MESSAGE {
                let payload = self.bytes.get(self.start + HEADER_LEN..self.start + size);
                return Some((header, payload.unwrap_or_default()));
            } else {
                return None;
            }
        }
    }

    /// Takes the next message.
    ///
    /// # Errors
    /// [`Malformed`]: the start of the next message is unknown.
    pub fn next(&mut self) -> Result<Next, Malformed> {
        loop {
            let Some(header) = self.header(self.start) else { return Ok(Next::Incomplete) };
            let size = header.size as usize;
            if size < HEADER_LEN {
                return Err(Malformed::Short(header.size));
            }
            if header.size > LONGEST_SKIPPED {
                return Err(Malformed::Long(header.size));
            }
            let here = self.end - self.start;
            if size > MAX_MESSAGE {
                drop(self.take_descriptors());
                let skipped = size.min(here);
                self.start += skipped;
                self.skip = size - skipped;
                return Ok(Next::TooLong(header));
            }
            if size > here {
                return Ok(Next::Incomplete);
            }
            let descriptors = self.take_descriptors();
            let at = self.start + HEADER_LEN;
            self.start += size;
            if !is_taken(&header) {
                return Ok(Next::Message(Message { header, at, descriptors }));
            }
        }
    }

    fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        while let Some((at, descriptors)) = self.descriptors.pop_front() {
            if at == self.start {
                return descriptors;
            }
            if at > self.start {
                self.descriptors.push_front((at, descriptors));
                break;
            }
        }
        Vec::new()
    }

    /// Returns the payload of a message that was just taken.
    #[must_use]
    pub fn payload(&self, message: &Message) -> &[u8] {
        let len = (message.header.size as usize).saturating_sub(HEADER_LEN);
        self.bytes.get(message.at..message.at + len).unwrap_or_default()
    }

    /// Takes the reply to command `id` out of order, if it has arrived. Passes its header and
    /// payload to `each`.
    pub fn take_reply<T>(&mut self, id: u16, each: impl FnOnce(Header, &[u8]) -> T) -> Option<T> {
        let mut at = self.start;
        while let Some(header) = self.header(at) {
            let size = header.size as usize;
            let end = at.checked_add(size).filter(|&end| size >= HEADER_LEN && end <= self.end)?;
            if header.is_reply() && header.id == id && !is_taken(&header) {
                let payload = self.bytes.get(at + HEADER_LEN..end)?;
                let answer = each(header, payload);
                let taken = Header { command: TAKEN, ..header };
                if let Some(to) = self.bytes.get_mut(at..at + HEADER_LEN) {
                    to.copy_from_slice(&taken.to_bytes());
                }
                return Some(answer);
            }
            at = end;
        }
        None
    }

    /// Returns whether the buffer is full until messages are taken.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.end - self.start >= LIMIT
    }
}

/// Returns whether the message is a reply that was taken before. Unexpected replies are skipped
/// too.
fn is_taken(header: &Header) -> bool {
    header.is_reply() && header.command == TAKEN
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::{IoSlice, Write};
    use std::os::unix::net::UnixStream;

    fn message(id: u16, command: u16, payload: &[u8]) -> Vec<u8> {
        let size = (HEADER_LEN + payload.len()) as u32;
        let mut bytes = Header { id, command, size, flags: 0, error: 0 }.to_bytes().to_vec();
        bytes.extend_from_slice(payload);
        bytes
    }

    fn send_with(stream: &UnixStream, bytes: &[u8], descriptors: usize) {
        let events: Vec<OwnedFd> = (0..descriptors)
            .map(|_| rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap())
            .collect();
        let borrowed: Vec<_> = events.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)));
        let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()).unwrap();
        assert_eq!(sent, bytes.len());
    }

    fn take(input: &mut Input) -> Option<(u16, Vec<u8>, usize)> {
        match input.next().unwrap() {
            Next::Message(message) => {
                Some((message.header.id, input.payload(&message).to_vec(), message.descriptors.len()))
            }
            Next::TooLong(header) => Some((header.id, b"too long".to_vec(), 0)),
            Next::Incomplete => None,
        }
    }

    fn read_all(input: &mut Input, stream: &UnixStream) -> usize {
        std::iter::from_fn(|| matches!(input.read(stream).unwrap(), Read::Bytes(_)).then_some(())).count()
    }

    #[test]
    fn one_read_brings_many_messages() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut input = Input::default();
        for id in 0..200 {
            client.write_all(&message(id, 10, &[id as u8; 24])).unwrap();
        }
        assert_eq!(read_all(&mut input, &server), 1);
        for id in 0..200 {
            assert_eq!(take(&mut input), Some((id, vec![id as u8; 24], 0)));
        }
        assert_eq!(take(&mut input), None);
        drop(client);
        assert_eq!(input.read(&server), Ok(Read::End));
    }

    #[test]
    fn descriptors_stay_with_their_message() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut input = Input::default();
        client.write_all(&message(1, 2, b"no file")).unwrap();
        send_with(&client, &message(2, 2, b"with a file"), 1);
        send_with(&client, &message(3, 8, b"vectors"), 3);
        client.write_all(&message(4, 9, b"")).unwrap();
        // The header is written together with the descriptors, the payload separately.
        let split = message(5, 8, b"later");
        send_with(&client, &split[..HEADER_LEN], 2);
        client.write_all(&split[HEADER_LEN..]).unwrap();
        // More than a message may have: the excess is closed.
        send_with(&client, &message(6, 8, b""), 20);
        read_all(&mut input, &server);
        let expected: [(u16, &[u8], usize); 6] = [
            (1, b"no file", 0),
            (2, b"with a file", 1),
            (3, b"vectors", 3),
            (4, b"", 0),
            (5, b"later", 2),
            (6, b"", MAX_DESCRIPTORS),
        ];
        for (id, payload, descriptors) in expected {
            assert_eq!(take(&mut input), Some((id, payload.to_vec(), descriptors)));
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_skipped_and_one_without_sense_ends_the_stream() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut input = Input::default();
        let sender = std::thread::spawn(move || {
            client.write_all(&message(1, 10, &vec![7; MAX_MESSAGE + 1])).unwrap();
            client.write_all(&message(2, 10, &vec![8; MAX_MESSAGE - HEADER_LEN])).unwrap();
            client.write_all(&message(3, 10, b"end")).unwrap();
            client.write_all(&[1, 0, 9, 0, 15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
            client
        });
        let mut seen = Vec::new();
        while seen.len() < 3 {
            if matches!(input.read(&server), Ok(Read::Nothing)) {
                std::thread::yield_now();
            }
            assert!(input.bytes.len() <= LIMIT);
            seen.extend(take(&mut input));
        }
        assert_eq!((seen[0].0, &seen[0].1[..]), (1, &b"too long"[..]));
        assert_eq!((seen[1].0, seen[1].1.len()), (2, MAX_MESSAGE - HEADER_LEN));
        assert_eq!(seen[2].0, 3);
        drop(sender.join());
        read_all_until_end(&mut input, &server);
        assert_eq!(input.next().unwrap_err(), Malformed::Short(15));
    }

    fn read_all_until_end(input: &mut Input, server: &UnixStream) {
        while input.read(server).unwrap() != Read::End {}
    }

    #[test]
    fn a_reply_is_taken_before_what_came_earlier() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut input = Input::default();
        client.write_all(&message(7, 10, b"a write")).unwrap();
        let mut reply = message(7, 11, b"the reply");
        reply[8] = 1;
        client.write_all(&reply).unwrap();
        client.write_all(&message(8, 9, b"a read")).unwrap();
        read_all(&mut input, &server);
        assert_eq!(input.take_reply(9, |_, _| ()), None);
        assert_eq!(input.take_reply(7, |_, payload| payload.to_vec()), Some(b"the reply".to_vec()));
        assert_eq!(input.take_reply(7, |_, _| ()), None, "once");
        assert_eq!(take(&mut input).map(|m| m.1), Some(b"a write".to_vec()));
        assert_eq!(take(&mut input).map(|m| m.1), Some(b"a read".to_vec()));
    }
}
