//! The end of what was sent: completions, acknowledgements, what goes again after a reconnection, what is cancelled.

use dat_nostd::{Adapter, DtoStatus, Platform};

use crate::connection::{Cookie, CookieKind};
use crate::frames::{Link, Marks, Queue};
use crate::node::Rds;
use crate::operation::Operation;
use crate::rdma::RdmaStatus;
use crate::reason::DownReason;
use crate::send::NOBODY;
use crate::socket::{SocketHandle, open_socket};
use crate::wire::Flags;

impl Rds<'_> {
    /// A reported send ended, and with it all before it.
    pub(crate) fn send_completed<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        cookie: Cookie,
        status: DtoStatus,
        now: u64,
    ) {
        let connection = usize::from(cookie.connection);
        let Some(state) = self.connections.get_mut(connection) else { return };
        if state.epoch != cookie.epoch || state.ep().is_none() {
            return;
        }
        // The cookie has the low half of the number; it is at most one lap behind.
        let behind = (state.posts as u32).wrapping_sub(cookie.number);
        let number = state.posts.saturating_sub(u64::from(behind));
        if status != DtoStatus::Success {
            self.operation_failed(connection, number, status);
            if status == DtoStatus::ErrFlushed {
                // Why it was flushed is told elsewhere.
                self.mark_broken(connection, DownReason::Broken);
            } else {
                self.connection_down(adapter, connection, DownReason::of_request(status), now);
            }
            return;
        }
        state.completed = state.completed.max(number);
        if state.map_owed && state.maps_to_send == 0 && !state.map_changed && state.map_post <= number {
            state.map_owed = false;
        }
        if cookie.kind == CookieKind::Acknowledgement {
            state.ack_in_flight = false;
        }
        if state.operations > 0 {
            self.finish_completed(adapter, connection);
        }
        self.release(connection);
        self.transmit(adapter, connection);
    }

    /// Ends the operations of messages that the HCA is done with.
    #[cold]
    fn finish_completed<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, connection: usize) {
        let Some(state) = self.connections.get(connection) else { return };
        let completed = state.completed;
        let mut next = state.unacked.head();
        while let Some(message) = next.get() {
            next = self.frames.next_message(message);
            if self.frames.at(message).last_post > completed {
                break;
            }
            self.finish(adapter, connection, message, RdmaStatus::Success);
        }
    }

    /// A post failed: if it was a transfer of an operation, that one is to be told of it.
    #[cold]
    fn operation_failed(&mut self, connection: usize, number: u64, status: DtoStatus) {
        let Some(state) = self.connections.get(connection) else { return };
        if state.operations == 0 {
            return;
        }
        // Of the unsent, only the first can be begun.
        let begun = state.unsent.head();
        let mut next = state.unacked.head();
        while let Some(message) = next.get() {
            next = self.frames.next_message(message);
            self.note_failure(self.frames.at(message).operation, number, status);
        }
        if let Some(message) = begun.get() {
            self.note_failure(self.frames.at(message).operation, number, status);
        }
    }

    /// The peer has all messages up to `ack`.
    pub(crate) fn acknowledged(&mut self, connection: usize, ack: u64) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        let highest_sent = match state.unsent.head().get() {
            Some(message) => {
                let first = self.frames.at(message);
                first.sequence - u64::from(!first.is(Marks::SILENT))
            }
            None => state.next_tx - 1,
        };
        if ack > highest_sent {
            self.counters.ack_beyond += 1;
        }
        let ack = ack.min(highest_sent);
        if ack <= state.highest_ack {
            return;
        }
        state.highest_ack = ack;
        let mut next = state.unacked.head();
        while let Some(message) = next.get() {
            if self.frames.at(message).sequence > ack {
                break;
            }
            next = self.frames.next_message(message);
            self.settle(message);
        }
        self.release(connection);
    }

    /// Takes a message off its socket's account, once.
    pub(crate) fn settle(&mut self, message: usize) {
        let Some(descriptor) = self.frames.at_mut(message) else { return };
        if descriptor.is(Marks::SETTLED) {
            return;
        }
        descriptor.marks |= Marks::SETTLED;
        let owner = SocketHandle { slot: descriptor.socket, generation: descriptor.generation };
        let len = descriptor.len as usize;
        if let Ok(socket) = open_socket(self.sockets, owner) {
            socket.send_bytes -= len;
            socket.send_messages -= 1;
        }
    }

    /// Gives the frames of messages back that the peer has and that the HCA is done with.
    fn release(&mut self, connection: usize) {
        let Some(mut state) = self.connections.get_mut(connection) else { return };
        while let Some(message) = state.unacked.head().get() {
            let descriptor = self.frames.at(message);
            // Of what was not sent no acknowledgement will tell.
            let acked = descriptor.sequence <= state.highest_ack || descriptor.is(Marks::SILENT);
            if !acked || descriptor.last_post > state.completed {
                break;
            }
            state.pongs -= u8::from(descriptor.socket == NOBODY);
            let silent = descriptor.is(Marks::SILENT);
            self.frames.pop_front(&mut state.unacked);
            if silent {
                self.settle(message);
            }
            self.frames.give_message(message);
            let Some(again) = self.connections.get_mut(connection) else { return };
            state = again;
        }
    }

    /// After the endpoint is gone: everything that the peer may not have goes first on the next one, but for what has an
    /// operation that was begun: that is not done twice.
    pub(crate) fn requeue<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, connection: usize) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        let highest_ack = state.highest_ack;
        let mut unacked = core::mem::replace(&mut state.unacked, Queue::EMPTY);
        let mut unsent = core::mem::replace(&mut state.unsent, Queue::EMPTY);
        state.cursor = Link::NONE;
        let mut front = Queue::EMPTY;
        let mut count = 0;
        while let Some(message) = self.frames.pop_front(&mut unacked) {
            let descriptor = self.frames.at(message);
            let own = descriptor.socket == NOBODY;
            if descriptor.sequence <= highest_ack || self.is_over(message) {
                if let Some(state) = self.connections.get_mut(connection) {
                    state.pongs -= u8::from(own);
                }
                self.counters.send_drop_acked += 1;
                self.discard(adapter, connection, message);
                continue;
            }
            self.send_again(message);
            self.frames.push_back(&mut front, message);
            count += 1;
        }
        // Of the unsent, only the first can be begun.
        if let Some(message) = unsent.head().get() {
            let descriptor = self.frames.at(message);
            let begun = self.operation(descriptor.operation).is_some_and(Operation::is_begun);
            if begun || descriptor.posted > 0 && descriptor.is(Marks::CANCELLED) {
                self.frames.pop_front(&mut unsent);
                self.discard(adapter, connection, message);
            } else if descriptor.posted > 0 {
                self.send_again(message);
            }
        }
        self.frames.splice_front(&mut unsent, front);
        if let Some(state) = self.connections.get_mut(connection) {
            state.unsent = unsent;
        }
        self.counters.send_retransmitted += count;
    }

    /// Whether a message that was sent is not to be sent again. One that is not sent at all is over with its operation.
    fn is_over(&self, message: usize) -> bool {
        let descriptor = self.frames.at(message);
        descriptor.is(Marks::CANCELLED) || descriptor.is(Marks::SILENT) || !descriptor.operation.is_none()
    }

    fn discard<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, connection: usize, message: usize) {
        self.finish(adapter, connection, message, RdmaStatus::Dropped);
        self.settle(message);
        self.frames.give_message(message);
    }

    fn send_again(&mut self, message: usize) {
        if let Some(descriptor) = self.frames.at_mut(message) {
            descriptor.posted = 0;
            descriptor.flags |= (Flags::ACK_REQUIRED | Flags::RETRANSMITTED).bits();
        }
    }

    /// Drops the socket's messages, to one port or all, that no part was posted of, and sees to it that the others are not sent
    /// again. The numbers of those dropped stay unused: gaps are legal.
    pub(crate) fn cancel<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        connection: usize,
        owner: SocketHandle,
        dport: Option<u16>,
    ) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        let mut unsent = core::mem::replace(&mut state.unsent, Queue::EMPTY);
        let mut next = state.unacked.head();
        while let Some(message) = self.frames.pop_front(&mut unsent) {
            let descriptor = self.frames.at(message);
            let is_meant = descriptor.is_of(owner) && dport.is_none_or(|port| port == descriptor.dport);
            let begun = descriptor.posted > 0
                || self.operation(descriptor.operation).is_some_and(Operation::is_begun);
            if is_meant && !begun {
                self.finish(adapter, connection, message, RdmaStatus::Canceled);
                self.settle(message);
                self.frames.give_message(message);
                continue;
            }
            if is_meant {
                self.forget(message);
            }
            if let Some(state) = self.connections.get_mut(connection) {
                self.frames.push_back(&mut state.unsent, message);
            }
        }
        while let Some(message) = next.get() {
            let descriptor = self.frames.at(message);
            next = self.frames.next_message(message);
            if descriptor.is_of(owner) && dport.is_none_or(|port| port == descriptor.dport) {
                self.forget(message);
            }
        }
    }

    /// A message that is under way is not to be sent again, and counts no more.
    fn forget(&mut self, message: usize) {
        self.settle(message);
        let operation = self.frames.at(message).operation;
        self.cancel_operation(operation);
        if let Some(descriptor) = self.frames.at_mut(message) {
            descriptor.marks |= Marks::CANCELLED;
        }
    }
}
