//! How long messages take from their arrival to their reader (`SO_RDS_MSG_RXPATH_LATENCY`). Linux `net/rds/ib_recv.c`, `recv.c`.
//!
//! As long as no socket asks, nobody looks at the clock: frames are taken by the burst. Else they are taken one by one, each between two
//! looks at it.

use dat_nostd::{Adapter, EvdHandle, Instant, Platform, ReceivedDto};

use crate::error::RdsError;
use crate::frames::{Marks, Use};
use crate::ids::{FrameId, MessageId, SocketHandle};
use crate::node::Rds;
use crate::protocol::Protocol;

impl Rds<'_> {
    /// Whether frames are taken by the burst, or one by one.
    pub(crate) fn choose_burst(&mut self) {
        let is_timed = self.protocol.sockets.iter().any(|(_, socket)| socket.is_timed());
        self.objects.burst_evd = if is_timed { EvdHandle::from_bits(0) } else { self.objects.receive_evd };
    }

    /// A frame that was taken by itself arrived.
    #[cold]
    #[inline(never)]
    pub(crate) fn arrived_apart<P: Platform>(
        &mut self,
        adapter: &Adapter<'_, P>,
        arrival: ReceivedDto,
        now: Instant,
    ) {
        if self.objects.burst_evd == self.objects.receive_evd {
            return self.protocol.arrived(arrival, now);
        }
        let begun = self.protocol.unfinished(arrival);
        let before = adapter.platform().now().as_nanos();
        self.protocol.arrived(arrival, now);
        let after = adapter.platform().now().as_nanos();
        self.protocol.note_times(arrival, begun, (before, after));
    }

    /// How long the parts of the way of the next message took that [`recvmsg`](Self::recvmsg) would give if it were read now, nanoseconds:
    /// from its header to its start, from there until it was whole, and since. None if there is none; 0 of what nobody took the time of,
    /// as of a message of this node to itself.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub(crate) fn next_latency<P: Platform>(
        &self,
        adapter: &Adapter<'_, P>,
        handle: SocketHandle,
    ) -> Result<Option<[u64; 3]>, RdsError> {
        let Some(message) = self.protocol.sockets.open(handle)?.received.head() else { return Ok(None) };
        let Some([header, start, end]) = self.protocol.frames.message(message).times() else {
            return Ok(Some([0; 3]));
        };
        let now = adapter.platform().now().as_nanos();
        Ok(Some([start.saturating_sub(header), end.saturating_sub(start), now.saturating_sub(end)]))
    }

    /// Which parts of a message's way in a socket wants to know the time of.
    pub(crate) fn set_rx_trace(&mut self, handle: SocketHandle, rx_trace: [u8; 4]) -> Result<(), RdsError> {
        self.protocol.sockets.open_mut(handle)?.rx_trace = rx_trace;
        self.choose_burst();
        Ok(())
    }
}

impl Protocol<'_> {
    /// The message that a frame can be a part of which is not its first.
    fn unfinished(&self, arrival: ReceivedDto) -> Option<MessageId> {
        let cookie = self.connections.current(arrival.user_cookie)?;
        self.connections.at(cookie.connection).rx.partial
    }

    /// A frame was taken between two times: it began a message, or `begun` goes on.
    fn note_times(&mut self, arrival: ReceivedDto, begun: Option<MessageId>, (before, after): (u64, u64)) {
        let first = FrameId::from_bits(arrival.user_cookie as u16).map(MessageId::starting);
        let Some(message) = begun.or(first) else { return };
        let frame = self.frames.message_mut(message);
        // What became of it else is nobody's message any more.
        if frame.used != Use::Receive {
            return;
        }
        match begun {
            None => frame.begin_times(before, after),
            Some(_) if frame.is(Marks::TIMED) => frame.end_times(after),
            Some(_) => {}
        }
    }
}
