//! Receive-path latency of messages (`SO_RDS_MSG_RXPATH_LATENCY`). Linux `net/rds/ib_recv.c`,
//! `recv.c`.
//!
//! The clock is read only while a socket traces latency. Frames are then processed one at a time,
//! between two readings, instead of in bursts.

use dat_nostd::{Adapter, Instant, Platform, ReceiveDto};

use crate::error::RdsError;
use crate::frames::{Marks, Place, Use};
use crate::ids::{MessageId, SocketHandle};
use crate::io::objects::choose_burst;
use crate::io::{Node, Rds};
use crate::protocol::Protocol;

impl Rds<'_> {
    /// Returns the latencies of the next message of [`recvmsg`](Self::recvmsg), if it is read now,
    /// in nanoseconds: from header to start, from start to completion, and since then. Returns
    /// `None` without a message. Unmeasured latencies, e.g. of loopback messages, are 0.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub(crate) fn next_latency<P: Platform>(
        &self,
        adapter: &Adapter<'_, P>,
        handle: SocketHandle,
    ) -> Result<Option<[u64; 3]>, RdsError> {
        let next = self.protocol.sockets.open(handle)?.received.head();
        Ok(next.map(|place| self.protocol.latency(place, || adapter.now())))
    }

    /// Selects the latencies that a socket reports.
    pub(crate) fn set_rx_trace(&mut self, handle: SocketHandle, rx_trace: [u8; 4]) -> Result<(), RdsError> {
        self.protocol.sockets.open_mut(handle)?.rx_trace = rx_trace;
        choose_burst(&mut self.objects, &self.protocol.sockets);
        Ok(())
    }
}

impl<P: Platform> Node<'_, '_, '_, P> {
    /// Processes a frame that was taken on its own.
    #[cold]
    #[inline(never)]
    pub(crate) fn arrived_apart(&mut self, receive: ReceiveDto, now: Instant) {
        let part = self.protocol.part_of(&receive);
        let before = self.adapter.now().as_nanos();
        self.protocol.arrived_alone(receive, now);
        let after = self.adapter.now().as_nanos();
        if let Some(part) = part {
            self.protocol.note_times(part, (before, after));
        }
    }
}

impl Protocol<'_> {
    /// Returns the latencies of a message, see [`next_latency`](crate::Rds::next_latency).
    fn latency(&self, place: Place, now: impl FnOnce() -> Instant) -> [u64; 3] {
        let times = place.message().and_then(|message| self.frames.message(message).times());
        let Some([header, start, end]) = times else { return [0; 3] };
        let now = now().as_nanos();
        [start.saturating_sub(header), end.saturating_sub(start), now.saturating_sub(end)]
    }

    /// Returns the message that a frame will become a part of, and whether it will be the first.
    /// Returns `None` if the frame is not the expected one.
    fn part_of(&self, receive: &ReceiveDto) -> Option<(MessageId, bool)> {
        let cookie = self.connections.current(receive.user_cookie)?;
        let rx = &self.connections.at(cookie.connection).rx;
        let oldest = self.rings.oldest(cookie.connection, &rx.ring)?;
        let frame = rx.frame_of(receive.user_cookie).filter(|frame| *frame == oldest)?;
        Some((rx.partial.unwrap_or(MessageId::starting(frame)), rx.partial.is_none()))
    }

    /// Records the times before and after a frame was processed.
    fn note_times(&mut self, (message, is_first): (MessageId, bool), (before, after): (u64, u64)) {
        let frame = self.frames.message_mut(message);
        // The frame may have been dropped or reused.
        let is_message = matches!(frame.used, Use::Receive | Use::Unread);
        if is_message && is_first {
            frame.begin_times(before, after);
        } else if is_message && frame.is(Marks::TIMED) {
            frame.end_times(after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{Bench, CONFIG, ip};
    use crate::wire::{FRAGMENT_LEN, Header};

    /// Latencies: from the first frame's header to its end, from there to the end of the last
    /// frame, and from there to the reader.
    #[test]
    fn each_part_has_its_time() {
        let mut bench = Bench::new(CONFIG, 512, 8);
        let socket = bench.socket(ip(1), 4000);
        let id = bench.up(2);
        bench.refill(id);
        for (sequence, frames) in [(1, 3), (2, 1)] {
            let len = (frames * FRAGMENT_LEN) as u32;
            let header = Header { sequence, len, sport: 5000, dport: 4000, ..Header::acknowledgement(0) };
            for number in 0..frames as u64 {
                let arrival = bench.arrival(id, &header, FRAGMENT_LEN).expect("a receive");
                let part = bench.protocol.part_of(&arrival).expect("the next frame");
                assert_eq!(!part.1, number > 0);
                bench.protocol.arrived(arrival, core::iter::empty(), bench.now);
                bench.protocol.note_times(part, (1000 * number + 10, 1000 * number + 25));
                // A repeated completion must not change a message that waits to be read.
                assert!(bench.protocol.part_of(&arrival).is_none());
            }
        }
        for [start, whole] in [[15, 2000], [15, 0]] {
            let message = bench.protocol.sockets.open(socket).expect("open").received.head().expect("there");
            let found = bench.protocol.latency(message, || Instant::from_nanos(5000));
            assert_eq!(found, [start, whole, 5000 - 25 - whole]);
            bench.read(socket).expect("there");
        }
    }
}
