//! Buffers of packets that have arrived, for the next ones: senders take them, receivers give them back.

/// Buffers kept for reuse.
const KEPT: usize = 1_024;

/// Buffers without a packet.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    /// A buffer, with whatever is in it; a new one where none is left.
    #[inline]
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Keeps a buffer, unless there are enough.
    #[inline]
    pub(crate) fn give(&mut self, buffer: Vec<u8>) {
        if self.0.len() < KEPT {
            self.0.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_with_their_room_and_not_without_number() {
        let mut buffers = Buffers::default();
        assert_eq!(buffers.take().capacity(), 0, "none was given yet");
        let (large, small) = (Vec::with_capacity(4096), Vec::with_capacity(64));
        let places = [large.as_ptr(), small.as_ptr()];
        buffers.give(large);
        buffers.give(small);
        let [again, first] = [buffers.take(), buffers.take()];
        assert_eq!([first.as_ptr(), again.as_ptr()], places, "the last, still in the cache, comes first");
        assert!(first.capacity() >= 4096 && again.capacity() >= 64);
        assert_eq!(buffers.take().capacity(), 0);
        for _ in 0..2 * KEPT {
            buffers.give(Vec::with_capacity(64));
        }
        let kept =
            std::iter::repeat_with(|| buffers.take()).take_while(|buffer| buffer.capacity() > 0).count();
        assert_eq!(kept, KEPT, "a burst does not hold its memory for ever");
    }
}
