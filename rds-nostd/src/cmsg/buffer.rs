//! Buffers of control messages: `msg_control` with its `cmsghdr`s.

use crate::cmsg::abi::Abi;
use crate::cmsg::error::CmsgError;
use crate::cmsg::fields::{get, put};
use crate::cmsg::message::Cmsg;

/// Iterator over the control messages of RDS in a buffer. Skips other levels. Stops after the first
/// error.
#[derive(Clone, Debug)]
pub struct ControlReader<'a> {
    abi: Abi,
    buffer: &'a [u8],
    at: usize,
}

/// A control message of any level.
struct Raw<'a> {
    level: i32,
    kind: i32,
    payload: &'a [u8],
}

impl<'a> ControlReader<'a> {
    /// Creates an iterator over `msg_control`, `msg_controllen` bytes.
    #[must_use]
    pub const fn new(abi: Abi, buffer: &'a [u8]) -> Self {
        Self { abi, buffer, at: 0 }
    }

    /// Returns the next control message, or `None` when less than a header is left.
    fn next_raw(&mut self) -> Option<Result<Raw<'a>, CmsgError>> {
        let abi = &self.abi;
        let rest = self.buffer.get(self.at..)?;
        if rest.len() < abi.header_len() {
            return None;
        }
        let cmsg_len = match abi.len_bytes {
            4 => get::<u32>(rest, 0) as usize,
            _ => usize::try_from(get::<u64>(rest, 0)).unwrap_or(usize::MAX),
        };
        let (level, kind) = (get::<u32>(rest, abi.level_at), get::<u32>(rest, abi.level_at + 4));
        let Some(payload) = rest.get(abi.header_len()..cmsg_len) else {
            return Some(Err(CmsgError::Length { at: self.at, cmsg_len, left: rest.len() }));
        };
        self.at = self.at.saturating_add(abi.step(cmsg_len));
        Some(Ok(Raw { level: level.cast_signed(), kind: kind.cast_signed(), payload }))
    }
}

impl Iterator for ControlReader<'_> {
    type Item = Result<Cmsg, CmsgError>;

    fn next(&mut self) -> Option<Self::Item> {
        let message = loop {
            match self.next_raw()? {
                Ok(Raw { level, kind, payload }) if level == self.abi.profile.sol_rds() => {
                    break Cmsg::decode(&self.abi, kind, payload);
                }
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        if message.is_err() {
            self.at = usize::MAX;
        }
        Some(message)
    }
}

/// Fills a buffer with control messages, as Linux's `put_cmsg` does: cuts messages that do not fit,
/// and reports that for `MSG_CTRUNC`.
#[derive(Debug)]
pub struct ControlWriter<'a> {
    abi: Abi,
    buffer: &'a mut [u8],
    at: usize,
    truncated: bool,
}

impl<'a> ControlWriter<'a> {
    /// Creates a writer to `msg_control`, `msg_controllen` bytes.
    #[must_use]
    pub const fn new(abi: Abi, buffer: &'a mut [u8]) -> Self {
        Self { abi, buffer, at: 0, truncated: false }
    }

    /// Returns the number of notifications that fit, but at least one: a notification that does not
    /// fit is cut, with `MSG_CTRUNC`.
    #[must_use]
    pub fn room_for_statuses(&self) -> usize {
        let space = self.abi.cmsg_space(self.abi.notify_len());
        (self.buffer.len().saturating_sub(self.at) / space).max(1)
    }

    /// Adds a message. Returns false if it was cut or left out.
    pub fn push(&mut self, message: &Cmsg) -> bool {
        let (payload, len) = message.encode(&self.abi);
        let header_len = self.abi.header_len();
        let Some(rest) = self.buffer.get_mut(self.at..).filter(|rest| rest.len() >= header_len) else {
            self.truncated = true;
            return false;
        };
        let cmsg_len = self.abi.cmsg_len(len).min(rest.len());
        let whole = cmsg_len == self.abi.cmsg_len(len);
        let space = self.abi.cmsg_space(len).min(rest.len());
        let (message_bytes, _) = rest.split_at_mut(space);
        message_bytes.fill(0);
        match self.abi.len_bytes {
            4 => put(message_bytes, 0, cmsg_len as u32),
            _ => put(message_bytes, 0, cmsg_len as u64),
        }
        put(message_bytes, self.abi.level_at, self.abi.profile.sol_rds().cast_unsigned());
        put(message_bytes, self.abi.level_at + 4, message.kind().cast_unsigned());
        for (to, from) in message_bytes.iter_mut().skip(header_len).zip(payload.iter().take(len)) {
            *to = *from;
        }
        self.at += space;
        self.truncated |= !whole;
        whole
    }

    /// Returns `msg_controllen`, and whether a message was cut (`MSG_CTRUNC`, 8, in `msg_flags`).
    #[must_use]
    pub const fn finish(self) -> (usize, bool) {
        (self.at, self.truncated)
    }
}
