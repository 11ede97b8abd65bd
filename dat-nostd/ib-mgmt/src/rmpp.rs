//! The reliable multi-packet protocol (IBA volume 1, section 13.6) as subnet administration uses
//! it. A table that does not fit one MAD is sent in segments of 200 bytes, within a window that the
//! receiver opens by acknowledging.
//!
//! Both sides are state machines without I/O. A [`Sender`] returns which segment to send and when
//! to send it again. A [`Receiver`] assembles segments in the caller's buffer and returns the
//! acknowledgements to send.

use crate::mad::method;
use crate::sa::{RECORD_DATA_LEN, SaMad, rmpp};
use ib_types::{Duration, Instant};

/// Version of the protocol.
pub const VERSION: u8 = 1;
/// Bytes that the payload length counts per segment beside the data: the header of subnet
/// administration.
const SA_HEADER_LEN: usize = 20;

/// RMPP statuses (IBA volume 1, table 198).
pub mod status {
    /// Normal.
    pub const NORMAL: u8 = 0;
    /// STOP: resources exhausted.
    pub const RESOURCES_EXHAUSTED: u8 = 1;
    /// ABORT: the whole transfer takes too long.
    pub const TOO_LONG: u8 = 118;
    /// ABORT: first segment and segment number contradict each other.
    pub const INCONSISTENT_FIRST: u8 = 120;
    /// ABORT: unknown RMPP type.
    pub const BAD_TYPE: u8 = 121;
    /// ABORT: the new window ends before the acknowledged segment.
    pub const WINDOW_TOO_SMALL: u8 = 122;
    /// ABORT: a segment is acknowledged that was not sent.
    pub const SEGMENT_TOO_BIG: u8 = 123;
    /// ABORT: unsupported RMPP version.
    pub const UNSUPPORTED_VERSION: u8 = 125;
    /// ABORT: too many retries.
    pub const TOO_MANY_RETRIES: u8 = 126;
    /// ABORT: unspecified.
    pub const UNSPECIFIED: u8 = 127;
}

/// Returns whether a MAD of subnet administration belongs to an RMPP transfer.
pub fn is_active(mad: &SaMad) -> bool {
    mad.rmpp_version() == VERSION && mad.rmpp_flags() & rmpp::FLAG_ACTIVE != 0
}

/// An ABORT (or, with [`status::RESOURCES_EXHAUSTED`], a STOP) that answers `mad`.
pub fn abort(mad: &SaMad, status: u8) -> SaMad {
    let kind = if status == status::RESOURCES_EXHAUSTED { rmpp::STOP } else { rmpp::ABORT };
    let mut reply = control(mad, kind);
    reply.set_rmpp_status(status);
    reply
}

/// A MAD of the protocol itself that goes back to where `mad` came from: its header, the other
/// direction.
fn control(mad: &SaMad, kind: u8) -> SaMad {
    let mut reply = SaMad::zeroed();
    if let (Some(to), Some(from)) =
        (reply.as_bytes_mut().first_chunk_mut::<24>(), mad.as_bytes().first_chunk::<24>())
    {
        *to = *from;
    }
    reply
        .set_method(mad.method() ^ method::RESPONSE)
        .set_status(0)
        .set_rmpp_version(VERSION)
        .set_rmpp_type(kind)
        .set_rmpp_flags(rmpp::FLAG_ACTIVE);
    reply
}

/// Limits of a [`Sender`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Time to wait for an acknowledgement before the window is sent again.
    pub timeout: Duration,
    /// Number of retransmissions of the window.
    pub retries: u8,
}

impl Default for SenderConfig {
    /// Half a second, six times.
    fn default() -> Self {
        SenderConfig { timeout: Duration::from_millis(500), retries: 6 }
    }
}

/// Action of a [`Sender`], see [`Sender::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the sender leaves it to its owner"]
pub enum Step {
    /// Send this segment, see [`Sender::segment`].
    Send(u32),
    /// Nothing until an acknowledgement arrives, or until this time.
    Wait(Instant),
    /// Every segment is acknowledged.
    Done,
    /// The transfer failed with this RMPP status.
    Failed(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Running,
    Done,
    Failed(u8),
}

/// The sending side of one transfer.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    config: SenderConfig,
    segments: u32,
    /// Last segment acknowledged; 0 before any.
    acknowledged: u32,
    /// Last segment sent since the window was begun (again).
    sent: u32,
    /// Last segment ever sent.
    highest: u32,
    /// Last segment that may be sent.
    window: u32,
    deadline: Instant,
    retries_left: u8,
    progress: Progress,
}

impl Sender {
    /// A transfer of `len` bytes of records. The first window is one segment.
    pub fn new(len: usize, config: SenderConfig) -> Sender {
        let segments = u32::try_from(len.div_ceil(RECORD_DATA_LEN).max(1)).unwrap_or(u32::MAX);
        Sender {
            config,
            segments,
            acknowledged: 0,
            sent: 0,
            highest: 0,
            window: 1,
            deadline: Instant::ORIGIN,
            retries_left: config.retries,
            progress: Progress::Running,
        }
    }

    /// Returns the number of segments of the transfer.
    pub fn segments(&self) -> u32 {
        self.segments
    }

    /// Returns the next action; call until it is not [`Step::Send`].
    pub fn poll(&mut self, now: Instant) -> Step {
        match self.progress {
            Progress::Done => return Step::Done,
            Progress::Failed(status) => return Step::Failed(status),
            Progress::Running => {}
        }
        let last = self.window.min(self.segments);
        if self.sent >= last {
            if now < self.deadline {
                return Step::Wait(self.deadline);
            }
            let Some(left) = self.retries_left.checked_sub(1) else {
                self.progress = Progress::Failed(status::TOO_MANY_RETRIES);
                return Step::Failed(status::TOO_MANY_RETRIES);
            };
            self.retries_left = left;
            self.sent = self.acknowledged;
        }
        self.sent = self.sent.saturating_add(1).min(last);
        self.highest = self.highest.max(self.sent);
        self.deadline = now + self.config.timeout;
        Step::Send(self.sent)
    }

    /// Takes an acknowledgement, STOP or ABORT of this transfer. Answers with the MAD to send back,
    /// if any.
    #[must_use = "the peer waits for the answer"]
    pub fn input(&mut self, now: Instant, mad: &SaMad) -> Option<SaMad> {
        if self.progress != Progress::Running {
            return None;
        }
        let wrong = match mad.rmpp_type() {
            rmpp::ACK => {
                let (segment, window) = (mad.rmpp_segment(), mad.rmpp_payload_len());
                if segment > self.highest {
                    Some(status::SEGMENT_TOO_BIG)
                } else if window < segment {
                    Some(status::WINDOW_TOO_SMALL)
                } else {
                    // Ignore a late acknowledgement, older than the last one.
                    if segment > self.acknowledged || window > self.window {
                        self.acknowledged = self.acknowledged.max(segment);
                        self.sent = self.sent.max(self.acknowledged);
                        self.window = self.window.max(window);
                        self.deadline = now + self.config.timeout;
                        self.retries_left = self.config.retries;
                    }
                    None
                }
            }
            rmpp::STOP | rmpp::ABORT => {
                self.progress = Progress::Failed(mad.rmpp_status());
                return None;
            }
            _ => Some(status::BAD_TYPE),
        };
        if let Some(wrong) = wrong {
            self.progress = Progress::Failed(wrong);
            return Some(abort(mad, wrong));
        }
        if self.acknowledged >= self.segments {
            self.progress = Progress::Done;
        }
        None
    }

    /// Segment `number` (from 1) of `payload`; everything else is `template`'s.
    pub fn segment(&self, number: u32, template: &SaMad, payload: &[u8]) -> SaMad {
        let mut mad = *template;
        let at = (number.saturating_sub(1) as usize).saturating_mul(RECORD_DATA_LEN);
        let rest = payload.get(at..).unwrap_or_default();
        let data = rest.get(..RECORD_DATA_LEN).unwrap_or(rest);
        let mut flags = rmpp::FLAG_ACTIVE;
        let mut len = 0;
        if number <= 1 {
            flags |= rmpp::FLAG_FIRST;
            len = payload.len() + SA_HEADER_LEN * self.segments as usize;
        }
        if number >= self.segments {
            flags |= rmpp::FLAG_LAST;
            len = data.len() + SA_HEADER_LEN;
        }
        let mut room = [0; RECORD_DATA_LEN];
        for (to, from) in room.iter_mut().zip(data) {
            *to = *from;
        }
        mad.set_record_data(&room)
            .set_rmpp_version(VERSION)
            .set_rmpp_type(rmpp::DATA)
            .set_rmpp_resp_time(0x1f)
            .set_rmpp_flags(flags)
            .set_rmpp_status(0)
            .set_rmpp_segment(number)
            .set_rmpp_payload_len(u32::try_from(len).unwrap_or(u32::MAX));
        mad
    }
}

/// Effect of a segment, see [`Receiver::input`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an answer may be due"]
pub enum Received {
    /// Nothing to do: more follows.
    More,
    /// Send this acknowledgement: more follows, or the segment is a duplicate.
    Acknowledge(SaMad),
    /// The transfer is complete.
    Complete {
        /// Bytes of records in the buffer.
        len: usize,
        /// The acknowledgement to send; `None` when the answer came without RMPP.
        reply: Option<SaMad>,
    },
    /// The transfer failed.
    Failed {
        /// RMPP status.
        status: u8,
        /// The STOP or ABORT to send, unless the other side ended it.
        reply: Option<SaMad>,
    },
}

/// The receiving side of one transfer.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    window: u32,
    /// Last segment in order; 0 before any.
    received: u32,
    /// End of the window that was granted to the sender.
    granted: u32,
    len: usize,
    complete: bool,
}

impl Receiver {
    /// Nothing received yet. `window` is how many segments may be on their way at a time; 0 counts
    /// as 1.
    pub const fn new(window: u32) -> Receiver {
        Receiver { window, received: 0, granted: 1, len: 0, complete: false }
    }

    /// Bytes of records received so far.
    pub fn received_len(&self) -> usize {
        self.len
    }

    /// Takes a MAD of the transfer; its records go to `buffer`, which must be the same every time.
    pub fn input(&mut self, mad: &SaMad, buffer: &mut [u8]) -> Received {
        if !is_active(mad) {
            if self.received != 0 {
                return Received::More;
            }
            return match self.store(mad, RECORD_DATA_LEN, buffer) {
                true => {
                    self.complete = true;
                    Received::Complete { len: self.len, reply: None }
                }
                false => Received::Failed { status: status::RESOURCES_EXHAUSTED, reply: None },
            };
        }
        match mad.rmpp_type() {
            rmpp::DATA => self.data(mad, buffer),
            rmpp::STOP | rmpp::ABORT => Received::Failed { status: mad.rmpp_status(), reply: None },
            // An acknowledgement has no meaning here; it is no reason to give up either.
            rmpp::ACK => Received::More,
            _ => Self::fail(mad, status::BAD_TYPE),
        }
    }

    fn fail(mad: &SaMad, status: u8) -> Received {
        Received::Failed { status, reply: Some(abort(mad, status)) }
    }

    fn data(&mut self, mad: &SaMad, buffer: &mut [u8]) -> Received {
        let number = mad.rmpp_segment();
        if (mad.rmpp_flags() & rmpp::FLAG_FIRST != 0) != (number == 1) {
            return Self::fail(mad, status::INCONSISTENT_FIRST);
        }
        if self.complete || number <= self.received {
            return Received::Acknowledge(self.acknowledgement(mad));
        }
        if number != self.received + 1 {
            // A segment is missing; the sender will notice that its window is not acknowledged.
            return Received::More;
        }
        let last = mad.rmpp_flags() & rmpp::FLAG_LAST != 0;
        let len = if last {
            // If the pad count is wrong, take the complete segment, as Linux does.
            (mad.rmpp_payload_len() as usize)
                .checked_sub(SA_HEADER_LEN)
                .filter(|len| *len <= RECORD_DATA_LEN)
                .unwrap_or(RECORD_DATA_LEN)
        } else {
            RECORD_DATA_LEN
        };
        if !self.store(mad, len, buffer) {
            return Self::fail(mad, status::RESOURCES_EXHAUSTED);
        }
        self.received = number;
        self.complete = last;
        if last {
            self.granted = number;
            return Received::Complete { len: self.len, reply: Some(self.acknowledgement(mad)) };
        }
        if number >= self.granted {
            self.granted = number.saturating_add(self.window.max(1));
            return Received::Acknowledge(self.acknowledgement(mad));
        }
        Received::More
    }

    fn store(&mut self, mad: &SaMad, len: usize, buffer: &mut [u8]) -> bool {
        let data = mad.record_data().get(..len).unwrap_or_default();
        let room = buffer.get_mut(self.len..).and_then(|rest| rest.get_mut(..data.len()));
        let Some(room) = room else { return false };
        room.copy_from_slice(data);
        self.len += data.len();
        true
    }

    fn acknowledgement(&self, mad: &SaMad) -> SaMad {
        let mut reply = control(mad, rmpp::ACK);
        reply.set_rmpp_segment(self.received).set_rmpp_payload_len(self.granted);
        reply
    }
}

#[cfg(test)]
#[path = "rmpp_tests.rs"]
mod tests;
