//! Send buffers of sockets.

with_empty! {
    /// Account of the messages that a socket has accepted and peers have not acknowledged.
    #[derive(Debug)]
    pub(crate) struct SendBuffer {
        bytes: usize = 0,
        /// Bytes from which on the buffer is full.
        limit: usize = 0,
        messages: u32 = 0,
    }
}

impl SendBuffer {
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

    pub(crate) const fn messages(&self) -> usize {
        self.messages as usize
    }

    /// Returns whether a message is admitted once `early` bytes are uncounted. An empty buffer
    /// admits one of any length up to the limit, and a buffer of 0 admits empty messages.
    pub(crate) const fn admits(&self, early: usize) -> bool {
        let bytes = self.bytes - early;
        bytes < self.limit || bytes == 0
    }

    /// Returns whether the buffer stays below half of its limit with `len` more bytes.
    #[inline]
    pub(crate) const fn is_ample(&self, len: usize) -> bool {
        (self.bytes + len) * 2 < self.limit
    }

    /// Returns whether `len` more bytes fill the buffer.
    pub(crate) const fn is_filled_by(&self, len: usize) -> bool {
        self.bytes + len >= self.limit
    }

    /// Counts a message of `len` bytes.
    #[inline]
    pub(crate) const fn charge(&mut self, len: usize) {
        self.bytes += len;
        self.messages += 1;
    }

    /// Uncounts a message of `len` bytes.
    #[inline]
    pub(crate) const fn release(&mut self, len: usize) {
        self.bytes -= len;
        self.messages -= 1;
    }
}
