//! Send and receive buffers of sockets.

with_empty! {
    /// Account of a socket's messages: those that peers have not acknowledged, or those that are
    /// unread.
    #[derive(Debug)]
    pub(crate) struct Buffer {
        bytes: usize = 0,
        /// Bytes from which on a send buffer is full, and above which a receive buffer is.
        limit: usize = 0,
        /// Messages in a send buffer, frames of receives in a receive buffer.
        count: usize = 0,
    }
}

impl Buffer {
    /// Returns an empty buffer of `limit` bytes.
    pub(crate) const fn new(limit: usize) -> Self {
        Self { limit, ..Self::EMPTY }
    }

    pub(crate) const fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) const fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Returns whether a send buffer admits a message once `early` bytes are uncounted. An empty
    /// buffer admits one of any length up to the limit, and a buffer of 0 admits empty messages.
    pub(crate) const fn admits(&self, early: usize) -> bool {
        let bytes = self.bytes - early;
        bytes < self.limit || bytes == 0
    }

    /// Returns whether a send buffer stays below half of its limit with `len` more bytes.
    #[inline]
    pub(crate) const fn is_ample(&self, len: usize) -> bool {
        (self.bytes + len) * 2 < self.limit
    }

    /// Returns whether `len` more bytes fill a send buffer.
    pub(crate) const fn is_filled_by(&self, len: usize) -> bool {
        self.bytes + len >= self.limit
    }

    /// Returns whether a receive buffer exceeds its limit or `most` frames.
    #[inline]
    pub(crate) const fn exceeds(&self, most: usize) -> bool {
        self.bytes > self.limit || self.count > most
    }

    /// Returns whether a receive buffer is down to half of its limit and of `most` frames.
    pub(crate) const fn is_low(&self, most: usize) -> bool {
        self.bytes <= self.limit / 2 && self.count <= most / 2
    }

    /// Counts `bytes` in `count` messages or frames.
    #[inline]
    pub(crate) const fn charge(&mut self, bytes: usize, count: usize) {
        self.bytes += bytes;
        self.count += count;
    }

    /// Undoes [`charge`](Self::charge).
    #[inline]
    pub(crate) const fn release(&mut self, bytes: usize, count: usize) {
        self.bytes -= bytes;
        self.count -= count;
    }

    /// Like [`release`](Self::release), for a length that a device may have overwritten.
    pub(crate) fn release_at_most(&mut self, bytes: usize, count: usize) {
        self.release(bytes.min(self.bytes), count.min(self.count));
    }
}
