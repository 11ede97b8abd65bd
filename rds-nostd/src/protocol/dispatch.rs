//! What a connection posts next: the congestion map, operations, fragments and acknowledgements, in the order in which they leave.

use crate::connection::{Cookie, CookieKind, State};
use crate::frames::Marks;
use crate::ids::{ConnectionId, FrameId, MessageId, OperationId};
use crate::protocol::{MAP_FRAGMENTS, Protocol};
use crate::rdma::{RdmaStatus, Transfer};
use crate::wire::{FRAGMENT_LEN, Flags, HEADER_LEN, Header, fragment_len};

/// Something to be posted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Post {
    /// A SEND of one segment.
    Frame(FramePost),
    /// A transfer of an RDMA operation.
    Transfer { of: OperationId, transfer: Transfer, cookie: u64, signal: bool },
}

/// A SEND of one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FramePost {
    what: What,
    /// Virtual address of the segment, and its bytes.
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) cookie: u64,
    /// It is to be reported; it wakes the peer; it waits for the RDMA reads before it.
    pub(crate) signal: bool,
    pub(crate) solicit: bool,
    pub(crate) fence: bool,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// The next frame of the connection's first unsent message.
    Fragment {
        message: MessageId,
        frame: FrameId,
        last: bool,
    },
    Map {
        last: bool,
    },
    Acknowledgement,
}

impl Protocol<'_> {
    /// What a connection posts next, if its send queue has room. [`committed`](Self::committed) tells that it was posted.
    #[inline(always)]
    pub(crate) fn dispatch(&mut self, id: ConnectionId) -> Option<Post> {
        let connection = self.connections.at(id);
        if connection.state != State::Up {
            return None;
        }
        let depth = u64::from(self.limits.send_depth);
        let in_flight = connection.tx.in_flight();
        // One post is kept for acknowledgements: without them the peer's queue would not move.
        if in_flight + 1 < depth {
            if connection.map.is_due() && connection.tx.cursor.is_none() {
                return Some(self.map_fragment(id));
            }
            if let Some(message) = connection.tx.next {
                let descriptor = self.frames.message(message);
                if descriptor.posted > 0 || descriptor.operation.is_none() {
                    return Some(self.fragment(id, message, false));
                }
                if let Some(post) = self.transfer_or_fragment(id) {
                    return Some(post);
                }
            }
        }
        let rx = &self.connections.at(id).rx;
        if rx.ack_wanted && !rx.ack_in_flight && in_flight < depth {
            return Some(self.acknowledgement(id));
        }
        None
    }

    /// The next frame of the first unsent message.
    #[inline(always)]
    fn fragment(&mut self, id: ConnectionId, message: MessageId, fence: bool) -> Post {
        let Self { connections, frames, limits, .. } = self;
        let connection = connections.at_mut(id);
        let tx = &connection.tx;
        let number = tx.posts + 1;
        let descriptor = frames.message_mut(message);
        let (count, posted) = (u64::from(descriptor.frames), descriptor.posted);
        if posted == 0 && tx.asks(descriptor.sequence, tx.posts + count, limits.unasked_frames) {
            descriptor.flags |= Flags::ACK_REQUIRED.bits();
        }
        let frame = tx.cursor.unwrap_or(message.first());
        let len = descriptor.len as usize;
        let last = u64::from(posted) + 1 == count;
        let asks = descriptor.flags & Flags::ACK_REQUIRED.bits() != 0;
        let signal = last && (asks || descriptor.operation.is_some())
            || number - tx.signalled >= u64::from(limits.signal_every);
        let mut header = Header {
            sequence: descriptor.sequence,
            ack: connection.rx.ack_value,
            len: descriptor.len,
            sport: descriptor.sport,
            dport: descriptor.dport,
            flags: Flags::from_bits_retain(descriptor.flags),
            credit: 0,
            extensions: [0; 16],
        };
        let payload_len = if count == 1 { len } else { fragment_len(len, usize::from(posted)) };
        if descriptor.is(Marks::EXTENDED) {
            header.extensions = frames.read_extensions(message.first());
        }
        frames.write_header(frame, &header);
        let cookie = Cookie {
            kind: CookieKind::Message,
            connection: id,
            epoch: connection.objects.epoch,
            number: number as u32,
        };
        Post::Frame(FramePost {
            what: What::Fragment { message, frame, last },
            address: frames.address(frame),
            len: (HEADER_LEN + payload_len) as u32,
            cookie: cookie.encode(),
            signal,
            solicit: last,
            fence,
        })
    }

    /// The next transfer of the operation of the first unsent message, or what comes when all are posted.
    #[cold]
    fn transfer_or_fragment(&mut self, id: ConnectionId) -> Option<Post> {
        loop {
            let tx = &self.connections.at(id).tx;
            let (message, number) = (tx.next?, tx.posts + 1);
            let due = number - tx.signalled >= u64::from(self.limits.signal_every);
            let descriptor = self.frames.message(message);
            let Some(operation) = descriptor.operation.filter(|_| descriptor.posted == 0) else {
                return Some(self.fragment(id, message, false));
            };
            let silent = descriptor.is(Marks::SILENT);
            if let Some((of, transfer)) = self.operations.next_transfer(operation) {
                let cookie = self.cookie(id, CookieKind::Rdma, number);
                // The message behind it reports; without one the last transfer has to.
                let signal = due || silent && self.operations.is_last_transfer(of);
                return Some(Post::Transfer { of, transfer, cookie, signal });
            }
            if !silent {
                let fence = self.operations.is_fence(operation);
                return Some(self.fragment(id, message, fence));
            }
            // The operation was all there was to do.
            let last_post = self.operations.last_post(operation);
            let descriptor = self.frames.message_mut(message);
            descriptor.last_post = last_post;
            self.connections.at_mut(id).tx.next = descriptor.next_message;
        }
    }

    #[cold]
    fn map_fragment(&mut self, id: ConnectionId) -> Post {
        let connection = self.connections.at_mut(id);
        if connection.map.to_send == 0 {
            connection.map.to_send = MAP_FRAGMENTS;
        }
        let (index, last) = (MAP_FRAGMENTS - connection.map.to_send, connection.map.to_send == 1);
        let number = connection.tx.posts + 1;
        let due = number - connection.tx.signalled >= u64::from(self.limits.signal_every);
        let signal = due || last && connection.map.owed;
        let frame = self.own_map.get(usize::from(index)).copied().flatten();
        Post::Frame(FramePost {
            what: What::Map { last },
            address: frame.map_or(0, |frame| self.frames.address(frame)),
            len: (HEADER_LEN + FRAGMENT_LEN) as u32,
            cookie: self.cookie(id, CookieKind::Message, number),
            signal,
            solicit: last,
            fence: false,
        })
    }

    /// An acknowledgement frame: one at a time, what comes in between is covered by the next.
    fn acknowledgement(&mut self, id: ConnectionId) -> Post {
        let connection = self.connections.at(id);
        let number = connection.tx.posts + 1;
        Post::Frame(FramePost {
            what: What::Acknowledgement,
            address: self.frames.write_acknowledgement(id.index(), connection.rx.ack_value),
            len: HEADER_LEN as u32,
            cookie: self.cookie(id, CookieKind::Acknowledgement, number),
            signal: true,
            solicit: true,
            fence: false,
        })
    }

    fn cookie(&self, connection: ConnectionId, kind: CookieKind, number: u64) -> u64 {
        let epoch = self.connections.at(connection).objects.epoch;
        Cookie { kind, connection, epoch, number: number as u32 }.encode()
    }

    /// What [`dispatch`](Self::dispatch) gave was posted.
    #[inline(always)]
    pub(crate) fn committed(&mut self, id: ConnectionId, post: &Post) {
        let Self { connections, frames, operations, counters, .. } = self;
        let connection = connections.at_mut(id);
        let tx = &mut connection.tx;
        let number = tx.posts + 1;
        tx.posts = number;
        let signal = match post {
            Post::Frame(frame) => frame.signal,
            Post::Transfer { signal, .. } => *signal,
        };
        if signal {
            tx.signalled = number;
        }
        match post {
            Post::Frame(FramePost { what: What::Fragment { message, frame, last }, .. }) => {
                let descriptor = frames.message_mut(*message);
                if descriptor.flags & Flags::ACK_REQUIRED.bits() != 0 && descriptor.posted == 0 {
                    tx.note_asked(descriptor.sequence, number - 1 + u64::from(descriptor.frames));
                    counters.send_ack_required += 1;
                }
                descriptor.posted += 1;
                descriptor.last_post = number;
                connection.rx.ack_wanted = false;
                if *last {
                    (tx.cursor, tx.next) = (None, descriptor.next_message);
                } else {
                    tx.cursor = frames.at(*frame).next;
                }
            }
            Post::Frame(FramePost { what: What::Map { last }, .. }) => {
                if connection.map.to_send == MAP_FRAGMENTS {
                    // What changes from now on goes with the next one.
                    connection.map.changed = false;
                }
                connection.map.post = number;
                connection.map.to_send -= 1;
                // The map's frames serve all connections, so they acknowledge nothing. Linux believes the last of the frames
                // that it takes at once: without another behind them, what was acknowledged just before would be forgotten.
                connection.rx.ack_wanted |= *last && connection.rx.ack_value != 0;
            }
            Post::Frame(FramePost { what: What::Acknowledgement, .. }) => {
                counters.ack_sent += 1;
                (connection.rx.ack_wanted, connection.rx.ack_in_flight) = (false, true);
            }
            Post::Transfer { of, transfer, .. } => operations.posted(*of, transfer, number),
        }
    }

    /// A transfer that [`dispatch`](Self::dispatch) gave can never be posted: its message is given up, unless something of it is under
    /// way. Then the connection has to go first, and this is true.
    #[cold]
    pub(crate) fn refused(&mut self, id: ConnectionId) -> bool {
        let Some(message) = self.connections.at(id).tx.next else { return false };
        let Some(operation) = self.frames.message(message).operation else { return false };
        self.operations.fail(operation, RdmaStatus::OtherError);
        if self.operations.is_begun(operation) {
            return true;
        }
        self.drop_unsent(id, |_, candidate| candidate == message, RdmaStatus::OtherError);
        false
    }
}
