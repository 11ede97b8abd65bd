//! Completion of sent messages: CQEs, acknowledgements, requeueing after a reconnection,
//! cancellation.

use dat_nostd::{Duration, Instant};

use crate::connection::{Connection, Cookie, CookieKind, Peer, Tx};
use crate::error::RdsError;
use crate::frames::{Frame, Marks, Queue};
use crate::ids::{ConnectionId, MessageId, SocketHandle};
use crate::protocol::Protocol;
use crate::rdma::{Operations, RdmaStatus};
use crate::wire::Flags;

/// Time without completions after which a connection breaks because a call waits for its cancelled
/// messages or unbinds. Far longer than a few RNR NAKs, because a break drops the operations of
/// other sockets.
const CANCELLED: Duration = Duration::from_millis(100);

impl Protocol<'_> {
    /// Records that a send with CQE completed successfully, and all sends before it.
    pub(crate) fn sent(&mut self, cookie: Cookie) {
        let id = cookie.connection;
        let connection = self.connections.at_mut(id);
        let tx = &mut connection.tx;
        let number = cookie.post(tx.posts);
        (tx.completed, tx.none_completed) = (tx.completed.max(number), false);
        connection.map.completed(number);
        connection.rx.ack_in_flight &= cookie.kind != CookieKind::Acknowledgement;
        let cancels = tx.cancelled_until > Instant::ORIGIN;
        // Most messages are acknowledged after their completion.
        if !(tx.waits_for_hca || tx.operations > 0 || cancels) {
            return;
        }
        if tx.operations > 0 {
            self.finish_completed(id);
        }
        if cancels {
            self.settle_cancelled(id);
        }
        self.release(id);
    }

    /// Records that a post failed. If it was a transfer of an operation, the operation reports it.
    pub(crate) fn failed(&mut self, cookie: Cookie, status: RdmaStatus) {
        let Connection { peer, tx, .. } = self.connections.at(cookie.connection);
        // A broken connection fails all its posts; the queue is not searched for each.
        if tx.operations == 0 {
            return;
        }
        let number = cookie.post(tx.posts);
        // Among the unsent messages only the first may have begun.
        for (message, descriptor) in self.frames.messages(peer.queue.head()) {
            if let Some(operation) = descriptor.operation {
                self.operations.note_failure(operation, number, status);
            }
            if Some(message) == tx.next {
                break;
            }
        }
    }

    /// Ends the operations of messages whose posts have completed.
    #[cold]
    fn finish_completed(&mut self, id: ConnectionId) {
        let Connection { peer, tx, .. } = self.connections.at(id);
        let (completed, first_unsent) = (tx.completed, tx.next);
        let mut next = peer.queue.head();
        while let Some(message) = next.filter(|_| next != first_unsent) {
            let descriptor = self.frames.message(message);
            next = descriptor.next_message;
            if descriptor.last_post > completed {
                break;
            }
            self.finish(id, message, RdmaStatus::Success);
        }
    }

    /// Ends a message's operation, if it has one.
    pub(crate) fn finish(&mut self, id: ConnectionId, message: MessageId, status: RdmaStatus) {
        if let Some(operation) = self.frames.message_mut(message).operation.take() {
            self.connections.at_mut(id).tx.operations -= 1;
            self.operations.end(operation, status);
        }
    }

    /// Records that the peer has all messages up to `ack`.
    #[inline]
    pub(crate) fn acknowledged(&mut self, id: ConnectionId, ack: u64) {
        let Connection { peer, tx, .. } = self.connections.at_mut(id);
        if tx.hears(ack, peer.next_tx) {
            return;
        }
        let unsent = tx.next.map(|message| self.frames.message(message));
        let sequence = |first: &Frame| first.sequence + u64::from(first.is(Marks::SILENT));
        let highest_sent = unsent.map_or(peer.next_tx, sequence) - 1;
        self.counters.ack_beyond += u64::from(ack > highest_sent);
        tx.acknowledge(ack.min(highest_sent).max(tx.highest_ack));
        if !tx.none_completed {
            self.release(id);
        }
    }

    /// Returns whether the send buffer of a socket has space.
    pub(crate) fn may_send(&self, owner: SocketHandle) -> Result<bool, RdsError> {
        let sent = &self.sockets.open(owner)?.sent;
        Ok(sent.admits(0) || sent.admits(self.acknowledged_early(owner).1))
    }

    /// Returns the messages and bytes of a socket that peers have acknowledged, and that still
    /// count in its send buffer.
    pub(crate) fn acknowledged_early(&self, owner: SocketHandle) -> (usize, usize) {
        let waiting = self.connections.iter().filter(|(_, connection)| connection.tx.waits_for_hca);
        let acknowledged = waiting.flat_map(|(_, Connection { peer, tx, .. })| {
            let sent =
                self.frames.messages(peer.queue.head()).take_while(|(message, _)| Some(*message) != tx.next);
            sent.map(|(_, descriptor)| descriptor)
                .take_while(|descriptor| descriptor.sequence <= tx.highest_ack)
        });
        let (owned, uncounted) =
            (acknowledged.filter(|descriptor| descriptor.is_of(owner)), Marks::SILENT | Marks::SETTLED);
        let counted = owned
            .filter(|descriptor| !descriptor.marks.intersects(uncounted))
            .map(|descriptor| descriptor.len);
        counted.fold((0, 0), |(messages, bytes), len| (messages + 1, bytes + len as usize))
    }

    /// Frees the messages at the head of the queue that the peer has acknowledged and the HCA has
    /// completed.
    fn release(&mut self, id: ConnectionId) {
        let Self { connections, frames, sockets, sending, operations, .. } = self;
        let Connection { peer: Peer { queue, frames: used, .. }, tx, .. } = connections.at_mut(id);
        let (completed, highest_ack, first_unsent) = (tx.completed, tx.highest_ack, tx.next);
        let Tx { waits_for_hca, none_completed, pongs, .. } = tx;
        *waits_for_hca = false;
        let count = frames.give_run(queue, first_unsent, |descriptor| {
            // Silent messages have no sequence number to acknowledge.
            if descriptor.sequence > highest_ack && !descriptor.is(Marks::SILENT) {
                return false;
            }
            if descriptor.last_post > completed {
                *waits_for_hca = true;
                return false;
            }
            // Pings and pongs are settled from the start.
            if descriptor.marks.intersects(Marks::SETTLED | Marks::LENT) {
                *pongs -= u8::from(descriptor.is(Marks::PONG));
                end_of_loan(operations, descriptor, RdmaStatus::Success);
                if descriptor.is(Marks::SETTLED) {
                    return true;
                }
            }
            sockets.sent(descriptor.owner(), descriptor.len as usize);
            true
        });
        *none_completed = *waits_for_hca || queue.is_empty();
        sending.give(used, count);
    }

    /// Uncounts a message in its socket's send buffer, once.
    pub(crate) fn settle(&mut self, message: MessageId) {
        let descriptor = self.frames.message_mut(message);
        if !descriptor.is(Marks::SETTLED) {
            descriptor.marks |= Marks::SETTLED;
            self.sockets.sent(descriptor.owner(), descriptor.len as usize);
        }
    }

    /// Discards a message that has left its queue: ends its operation, and frees its frames.
    fn discard(&mut self, id: ConnectionId, message: MessageId, status: RdmaStatus) {
        self.finish(id, message, status);
        self.settle(message);
        let descriptor = self.frames.message(message);
        end_of_loan(&mut self.operations, descriptor, status);
        let Connection { peer, tx, .. } = self.connections.at_mut(id);
        tx.pongs -= u8::from(descriptor.is(Marks::PONG));
        let count = self.frames.give_message(message);
        self.sending.give(&mut peer.frames, count);
    }

    /// Requeues all messages that the peer may lack after the endpoint was freed. Messages with an
    /// operation that has begun are dropped, because it must not execute twice.
    pub(crate) fn requeue(&mut self, id: ConnectionId) {
        let Connection { peer, tx, .. } = self.connections.at_mut(id);
        let (highest_ack, first_unsent) = (tx.highest_ack, tx.next);
        let mut queue = core::mem::replace(&mut peer.queue, Queue::EMPTY);
        let mut kept = Queue::EMPTY;
        let (mut sent, mut begun) = (true, false);
        while let Some(message) = self.frames.pop_front(&mut queue) {
            if Some(message) == first_unsent {
                (sent, begun) = (false, true);
            }
            let descriptor = self.frames.message(message);
            let acknowledged = descriptor.sequence <= highest_ack;
            let over = if sent {
                // A silent message is complete with its operation. Retransmitted messages request
                // acknowledgements, so the ping is not needed.
                acknowledged
                    || descriptor.is(Marks::PONG) && descriptor.dport == 0
                    || descriptor.marks.intersects(Marks::CANCELLED | Marks::SILENT)
                    || descriptor.operation.is_some()
            } else {
                // Among the unsent messages only the first may have begun.
                begun
                    && (descriptor.operation.is_some_and(|operation| self.operations.is_begun(operation))
                        || descriptor.posted > 0 && descriptor.is(Marks::CANCELLED))
            };
            begun = false;
            if over {
                self.counters.send_drop_acked += u64::from(sent);
                // A lent payload that the peer has acknowledged ends with Success.
                let lent_well = self.frames.message(message).is(Marks::LENT) && acknowledged;
                let status = if lent_well { RdmaStatus::Success } else { RdmaStatus::Dropped };
                self.discard(id, message, status);
                continue;
            }
            let descriptor = self.frames.message_mut(message);
            if sent || descriptor.posted > 0 {
                descriptor.posted = 0;
                descriptor.flags |= (Flags::ACK_REQUIRED | Flags::RETRANSMITTED).bits();
            }
            self.counters.send_retransmitted += u64::from(sent);
            self.frames.push_back(&mut kept, message);
        }
        self.connections.at_mut(id).peer.queue = kept;
    }

    /// Drops messages of which no part was posted. Their sequence numbers stay unused: gaps are
    /// legal.
    pub(crate) fn drop_unsent(
        &mut self,
        id: ConnectionId,
        is_meant: impl Fn(&Self, MessageId) -> bool,
        status: RdmaStatus,
    ) {
        let Connection { peer, tx, .. } = self.connections.at_mut(id);
        let first_unsent = tx.next.take();
        let mut queue = core::mem::replace(&mut peer.queue, Queue::EMPTY);
        let mut kept = Queue::EMPTY;
        let mut sent = true;
        while let Some(message) = self.frames.pop_front(&mut queue) {
            sent = sent && Some(message) != first_unsent;
            if !sent && is_meant(self, message) && !self.is_begun(message) {
                self.discard(id, message, status);
                continue;
            }
            self.frames.push_back(&mut kept, message);
            let tx = &mut self.connections.at_mut(id).tx;
            if !sent && tx.next.is_none() {
                tx.next = Some(message);
            }
        }
        self.connections.at_mut(id).peer.queue = kept;
    }

    /// Drops pongs to a peer that is down: a pong is no reason to reconnect to a peer that may only
    /// ping and disconnect, or be dead.
    #[cold]
    pub(crate) fn drop_pongs(&mut self, id: ConnectionId) {
        if self.connections.at(id).tx.pongs > 0 {
            let is_pong = |protocol: &Self, message| protocol.frames.message(message).is(Marks::PONG);
            self.drop_unsent(id, is_pong, RdmaStatus::Dropped);
        }
    }

    /// Stops reconnecting to a dead peer, unless a socket of this node waits for it.
    #[cold]
    pub(crate) fn stop_reconnecting(&mut self, id: ConnectionId) {
        let somebody_waits = self.sockets.iter().any(|(_, socket)| socket.refused != 0);
        self.connections.at_mut(id).map.stop_reconnecting(somebody_waits);
    }

    fn is_begun(&self, message: MessageId) -> bool {
        let descriptor = self.frames.message(message);
        descriptor.posted > 0
            || descriptor.operation.is_some_and(|operation| self.operations.is_begun(operation))
    }

    /// Drops the unsent messages of a socket, to one port or all. Sent ones are not retransmitted.
    /// Returns whether the HCA may still use memory of their operations or loans.
    pub(crate) fn cancel(&mut self, id: ConnectionId, owner: SocketHandle, dport: Option<u16>) -> bool {
        if self.connections.at(id).peer.queue.is_empty() {
            return false;
        }
        let is_meant = |protocol: &Self, message: MessageId| {
            let descriptor = protocol.frames.message(message);
            descriptor.is_of(owner) && dport.is_none_or(|port| port == descriptor.dport)
        };
        self.drop_unsent(id, is_meant, RdmaStatus::Canceled);
        let mut next = self.connections.at(id).peer.queue.head();
        let mut in_use = false;
        while let Some(message) = next {
            next = self.frames.message(message).next_message;
            if !is_meant(self, message) {
                continue;
            }
            self.settle(message);
            let descriptor = self.frames.message_mut(message);
            descriptor.marks |= Marks::CANCELLED;
            if let Some(operation) = descriptor.operation.or(descriptor.lent().map(|lent| lent.operation)) {
                self.operations.fail(operation, RdmaStatus::Canceled);
            }
            in_use |= self.is_in_use(id, message);
        }
        if in_use {
            self.limit_wait(id);
        }
        in_use
    }

    /// Makes a connection break after [`CANCELLED`] without completions, for a call that is
    /// repeated.
    pub(crate) fn limit_wait(&mut self, id: ConnectionId) {
        let tx = &mut self.connections.at_mut(id).tx;
        if tx.cancelled_until == Instant::ORIGIN {
            tx.cancelled_until = self.now + CANCELLED;
            self.connections.arm(id, self.now + CANCELLED);
        }
    }

    /// Checks cancelled messages after a completion on their connection.
    #[cold]
    fn settle_cancelled(&mut self, id: ConnectionId) {
        let mut next = self.connections.at(id).peer.queue.head();
        let mut in_use = false;
        while let Some(message) = next {
            next = self.frames.message(message).next_message;
            in_use |= self.frames.message(message).is(Marks::CANCELLED) && self.is_in_use(id, message);
        }
        let until = if in_use { self.now + CANCELLED } else { Instant::ORIGIN };
        self.connections.at_mut(id).tx.cancelled_until = until;
    }

    /// Returns whether the HCA may still use memory of a cancelled message. Otherwise its loan
    /// ends.
    fn is_in_use(&mut self, id: ConnectionId, message: MessageId) -> bool {
        let completed = self.connections.at(id).tx.completed;
        let descriptor = self.frames.message_mut(message);
        if descriptor.operation.is_some() {
            return true;
        }
        let Some(lent) = descriptor.lent() else { return false };
        if descriptor.posted < descriptor.frames || descriptor.last_post > completed {
            return true;
        }
        // The loan ends before the acknowledgement, because the message is never retransmitted.
        descriptor.marks -= Marks::LENT;
        self.operations.end(lent.operation, RdmaStatus::Canceled);
        false
    }
}

/// Ends the loan of a message's payload, if it is lent.
#[cold]
fn end_of_loan(operations: &mut Operations<'_>, descriptor: &Frame, status: RdmaStatus) {
    if let Some(lent) = descriptor.lent() {
        operations.end(lent.operation, status);
    }
}
