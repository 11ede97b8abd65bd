//! Fragments of messages, posted in order under one doorbell.

use dat_nostd::SendDto;

use crate::connection::Cookie;
use crate::frames::{Lent, Marks, header_place};
use crate::ids::{FrameId, MessageId};
use crate::protocol::dispatch::{Flow, Post, Segment};
use crate::rdma::Iov;
use crate::wire::{FRAGMENT_LEN, Flags, HEADER_LEN, HEADER_WORDS, Header, fragment_len};

/// The first unsent message of a connection, from its first fragment that is not posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    message: MessageId,
    /// Header of all fragments.
    header: [u64; HEADER_WORDS],
    /// Payload bytes of the complete message.
    len: u32,
    sequence: u64,
    /// Fragments: all, and those posted.
    count: u16,
    posted: u16,
    /// Frame of the next fragment.
    frame: FrameId,
    lent: Option<Lent>,
    asks: bool,
    /// The last fragment is posted with a completion.
    reports: bool,
    fence: bool,
}

impl Burst {
    const fn is_over(&self) -> bool {
        self.posted == self.count
    }
}

impl<'f, 's> Flow<'f, 's> {
    /// Starts or continues the first unsent message. [`end`](Self::end) records its progress.
    #[inline]
    pub(crate) fn burst(&mut self) -> Option<Burst> {
        let tx = &self.connection.tx;
        let message = tx.next?;
        let descriptor = self.frames.message_mut(message);
        let (count, posted) = (descriptor.frames, descriptor.posted);
        let unasked = self.limits.unasked(self.sending.beyond());
        if posted == 0 && tx.asks(descriptor.sequence, tx.posts + u64::from(count), unasked) {
            descriptor.flags |= Flags::ACK_REQUIRED.bits();
        }
        let flags = Flags::from_bits_retain(descriptor.flags);
        let asks = flags.contains(Flags::ACK_REQUIRED);
        let mut header = Header {
            sequence: descriptor.sequence,
            ack: self.connection.rx.ack_value,
            len: descriptor.len,
            sport: descriptor.sport,
            dport: descriptor.dport,
            flags,
            credit: 0,
            extensions: [0; 16],
        };
        let (operation, lent) = (descriptor.operation, descriptor.lent());
        if descriptor.is(Marks::EXTENDED) {
            header.extensions = self.frames.read_extensions(message.first());
        }
        Some(Burst {
            message,
            header: header.to_words(),
            len: header.len,
            sequence: header.sequence,
            count,
            posted,
            frame: tx.cursor.unwrap_or(message.first()),
            lent,
            asks,
            reports: asks || operation.is_some(),
            fence: operation.is_some_and(|operation| self.operations.is_fence(operation)),
        })
    }

    /// Writes the header of the next fragment and returns the SEND for it.
    #[inline]
    pub(crate) fn segment(&self, burst: &Burst) -> Segment {
        let tx = &self.connection.tx;
        let (number, posted) = (tx.posts + 1, usize::from(burst.posted));
        let payload_len = fragment_len(burst.len as usize, posted) as u32;
        let solicit = burst.posted + 1 == burst.count;
        let signal = solicit && burst.reports || number - tx.signalled >= u64::from(self.limits.signal_every);
        let (mut place, mut len, mut part) = (0, HEADER_LEN as u32 + payload_len, None);
        if let Some(Lent { address, lmr_context, .. }) = burst.lent {
            let address = address + (posted * FRAGMENT_LEN) as u64;
            (place, len) = (header_place(burst.posted), HEADER_LEN as u32);
            part = Some(Iov::new(0, lmr_context, address, payload_len));
        }
        let address = self.frames.write_header_at(burst.frame.index(), place, &burst.header);
        let cookie = Cookie::numbered(tx.cookies, number);
        Segment { address, len, lent: part, cookie, signal, solicit, fence: burst.fence }
    }

    /// Advances the burst after the SEND of [`segment`](Self::segment) was posted.
    #[inline]
    pub(crate) fn segment_posted(&mut self, burst: &mut Burst, signal: bool) {
        let number = self.count(signal);
        if burst.posted == 0 && burst.asks {
            self.connection.tx.note_asked(burst.sequence, number - 1 + u64::from(burst.count));
            self.counters.send_ack_required += 1;
        }
        burst.posted += 1;
        if burst.lent.is_none() || header_place(burst.posted) == 0 {
            burst.frame = self.frames.at(burst.frame).next.unwrap_or(burst.frame);
        }
    }

    /// Records the posted fragments in the message and its queue.
    #[inline]
    pub(crate) fn end(&mut self, burst: &Burst) {
        let (tx, rx) = (&mut self.connection.tx, &mut self.connection.rx);
        let descriptor = self.frames.message_mut(burst.message);
        if descriptor.posted == burst.posted {
            return;
        }
        (descriptor.posted, descriptor.last_post) = (burst.posted, tx.posts);
        rx.acknowledgement_left();
        if burst.is_over() {
            (tx.cursor, tx.next) = (None, descriptor.next_message);
        } else {
            tx.cursor = Some(burst.frame);
        }
    }

    /// Returns the region of the first unsent message's payload, if the payload is zero-copy.
    pub(crate) fn lent_region(&self) -> Option<u32> {
        let lent = self.frames.message(self.connection.tx.next?).lent()?;
        Some(lent.lmr_context)
    }

    /// Returns the fragments that can be posted under one doorbell: with the payload in frames, or
    /// in the region `lent`.
    pub(crate) const fn fragments(&mut self, lent: Option<u32>) -> Fragments<'_, 'f, 's> {
        Fragments { flow: self, lent, burst: None, count: 0, last: None }
    }
}

/// Iterator over fragments for one doorbell.
pub(crate) struct Fragments<'a, 'f, 's> {
    flow: &'a mut Flow<'f, 's>,
    lent: Option<u32>,
    burst: Option<Burst>,
    count: usize,
    /// Set while the last fragment may be unposted: true if it is posted with a completion.
    last: Option<bool>,
}

impl Fragments<'_, '_, '_> {
    /// Records that `count` fragments were posted: all that the iterator returned, or all but the
    /// last.
    pub(crate) fn posted(self, count: usize) {
        let Some(mut burst) = self.burst else { return };
        if let Some(signal) = self.last.filter(|_| count == self.count) {
            self.flow.segment_posted(&mut burst, signal);
        }
        self.flow.end(&burst);
    }

    /// Returns the next message, if the same doorbell can serve it.
    fn begin(&mut self) -> Option<Burst> {
        if self.flow.dispatch() != Some(Post::Fragment) {
            return None;
        }
        // A new message may have its payload in another region.
        let begins = self.flow.connection.tx.cursor.is_none();
        if begins && self.flow.lent_region() != self.lent { None } else { self.flow.burst() }
    }
}

impl Iterator for Fragments<'_, '_, '_> {
    type Item = SendDto;

    #[inline(always)]
    fn next(&mut self) -> Option<SendDto> {
        if let Some(burst) = &mut self.burst {
            if let Some(signal) = self.last.take() {
                self.flow.segment_posted(burst, signal);
            }
            if burst.is_over() {
                self.flow.end(burst);
                self.burst = None;
            } else if !self.flow.connection.tx.has_room(self.flow.limits.send_depth) {
                return None;
            }
        }
        if self.burst.is_none() {
            self.burst = self.begin();
        }
        let burst = self.burst.as_ref()?;
        let segment = self.flow.segment(burst);
        self.count += 1;
        self.last = Some(segment.signal);
        let (second_address, second_length) = segment.lent.map_or((0, 0), |lent| (lent.address, lent.len));
        Some(SendDto {
            address: segment.address,
            length: segment.len,
            second_address,
            second_length,
            user_cookie: segment.cookie,
            flags: segment.flags(),
        })
    }
}
