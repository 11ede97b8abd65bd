//! Table of RDMA operations, from `sendmsg` to the notification. Linux `net/rds/rdma.c`, `send.c`.
//!
//! An operation belongs to a message, and its transfers are posted before the message's first
//! fragment. Its entry becomes the notification, so that a notification never lacks space. No
//! operation executes twice: a broken connection drops each operation that has begun, with its
//! message.

use crate::ids::{OperationId, SocketHandle};
use crate::rdma::iov::{GATHER, Gathered, Iov, IovList, Iovs};
use crate::rdma::memories::{Memories, Memory};
use crate::rdma::{RdmaFlags, RdmaNotify, RdmaStatus};
use crate::slot::Slot;
use crate::socket::Sockets;

/// Kind of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// RDMA read or write, by its flags.
    Transfer,
    CompareSwap {
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        add: u64,
    },
}

/// A transfer of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) kind: Kind,
    pub(crate) is_write: bool,
    pub(crate) local: Gathered,
    pub(crate) rkey: u32,
    pub(crate) remote_address: u64,
}

with_empty! {
    /// Table entry of an operation or of its notification.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Operation {
        pub(crate) used: bool = false,
        /// The operation has completed, and its notification waits.
        pub(crate) notification_pending: bool = false,
        pub(crate) kind: Kind = Kind::Transfer,
        /// The atomic operation of the same message. After completion, the next completed
        /// operation, and then the next notification of the socket.
        pub(crate) next: Option<OperationId> = None,
        pub(crate) owner: SocketHandle = SocketHandle { slot: 0, generation: 0 },
        /// Report a failure even without NOTIFY_ME.
        pub(crate) notify_failure: bool = false,
        pub(crate) flags: RdmaFlags = RdmaFlags::empty(),
        pub(crate) status: Slot<RdmaStatus> = Slot::empty(RdmaStatus::Success),
        pub(crate) user_token: u64 = 0,
        pub(crate) rkey: u32 = 0,
        pub(crate) remote_address: u64 = 0,
        pub(crate) iovs: IovList = IovList::EMPTY,
        /// Sequence numbers of the first and the last post; 0 for none.
        pub(crate) first_post: u64 = 0,
        pub(crate) last_post: u64 = 0,
    }
}

/// All operations of a node.
pub(crate) struct Operations<'s> {
    entries: &'s mut [Operation],
    iovs: Iovs<'s>,
    memories: Memories<'s>,
    /// First and last of the completed operations whose local memory must be freed.
    ended: Option<OperationId>,
    ended_last: Option<OperationId>,
}

impl<'s> Operations<'s> {
    pub(crate) fn new(entries: &'s mut [Operation], iovs: &'s mut [Iov], memories: &'s mut [Memory]) -> Self {
        let count = entries.len().min(OperationId::MOST);
        let (entries, _) = entries.split_at_mut(count);
        entries.fill(Operation::EMPTY);
        let (iovs, memories) = (Iovs::new(iovs), Memories::new(memories));
        Self { entries, iovs, memories, ended: None, ended_last: None }
    }

    /// Returns the registered memory of operations.
    pub(crate) const fn memories(&self) -> &Memories<'s> {
        &self.memories
    }

    pub(crate) const fn memories_mut(&mut self) -> &mut Memories<'s> {
        &mut self.memories
    }

    pub(crate) fn get(&self, id: OperationId) -> Option<&Operation> {
        self.entries.get(id.index())
    }

    pub(crate) fn get_mut(&mut self, id: OperationId) -> Option<&mut Operation> {
        self.entries.get_mut(id.index())
    }

    pub(crate) fn free(&self) -> Option<OperationId> {
        self.entries.iter().position(|operation| !operation.used).map(OperationId::new)
    }

    /// Returns whether `count` operations with `iovs` SGEs together fit now.
    pub(crate) fn has_room_for(&self, count: usize, iovs: usize) -> bool {
        let mut free = self.entries.iter().filter(|operation| !operation.used);
        free.nth(count.saturating_sub(1)).is_some() && self.iovs.room() >= iovs
    }

    /// Returns whether an empty table could hold them. Otherwise waiting is useless.
    pub(crate) const fn could_hold(&self, count: usize, iovs: usize) -> bool {
        count <= self.entries.len() && iovs <= self.iovs.count()
    }

    /// Returns the IDs of all entries, for shutdown.
    pub(crate) fn ids(&self) -> impl Iterator<Item = OperationId> + use<> {
        (0..self.entries.len()).map(OperationId::new)
    }

    pub(crate) fn insert(&mut self, id: OperationId, operation: Operation) {
        if let Some(entry) = self.get_mut(id) {
            *entry = operation;
        }
    }

    /// Removes an entry from the table.
    pub(crate) fn remove(&mut self, id: OperationId) -> Operation {
        self.get_mut(id).map_or(Operation::EMPTY, |entry| core::mem::replace(entry, Operation::EMPTY))
    }

    /// Returns an operation and its successors in the same message.
    fn chain(&self, first: OperationId) -> impl Iterator<Item = &Operation> + '_ {
        let mut next = Some(first);
        core::iter::from_fn(move || {
            let operation = self.get(next?)?;
            next = operation.next;
            Some(operation)
        })
    }

    fn for_each(&mut self, first: OperationId, mut change: impl FnMut(&mut Operation)) {
        let mut next = Some(first);
        while let Some(operation) = next.and_then(|id| self.get_mut(id)) {
            next = operation.next;
            change(operation);
        }
    }

    /// Returns the message's operation that has the next transfer.
    pub(crate) fn next_to_transfer(&self, first: OperationId) -> Option<OperationId> {
        let mut next = Some(first);
        while let Some(id) = next {
            let operation = self.get(id)?;
            if !operation.iovs.is_posted() {
                return Some(id);
            }
            next = operation.next;
        }
        None
    }

    /// Returns the next transfer of an operation.
    pub(crate) fn transfer(&self, id: OperationId) -> Option<Transfer> {
        let operation = self.get(id)?;
        Some(Transfer {
            kind: operation.kind,
            is_write: operation.flags.contains(RdmaFlags::READWRITE),
            local: self.iovs.gather(&operation.iovs).0,
            rkey: operation.rkey,
            remote_address: operation.remote_address,
        })
    }

    /// Returns whether the next transfer of this operation is the last of its message's operations.
    pub(crate) fn is_last_transfer(&self, id: OperationId) -> bool {
        self.get(id).is_some_and(|operation| {
            self.iovs.gather(&operation.iovs).1.is_none() && operation.next.is_none()
        })
    }

    /// Records that the next transfer of an operation was posted.
    pub(crate) fn posted(&mut self, id: OperationId, number: u64) {
        let Self { entries, iovs, .. } = self;
        if let Some(operation) = entries.get_mut(id.index()) {
            let len = iovs.posted(&mut operation.iovs);
            operation.remote_address = operation.remote_address.wrapping_add(len);
            operation.first_post = if operation.first_post == 0 { number } else { operation.first_post };
            operation.last_post = number;
        }
    }

    pub(crate) fn is_begun(&self, id: OperationId) -> bool {
        self.chain(id).any(|operation| operation.first_post != 0)
    }

    /// Returns whether no message follows the operation.
    pub(crate) fn is_silent(&self, id: OperationId) -> bool {
        self.chain(id).all(|operation| operation.flags.contains(RdmaFlags::SILENT))
    }

    /// Returns whether the following message must wait for the operation.
    pub(crate) fn is_fence(&self, id: OperationId) -> bool {
        self.chain(id).any(|operation| operation.flags.contains(RdmaFlags::FENCE))
    }

    /// Returns the sequence number of the last post of a message's operations.
    pub(crate) fn last_post(&self, id: OperationId) -> u64 {
        self.chain(id).map(|operation| operation.last_post).max().unwrap_or(0)
    }

    /// Records the failure of post `number` if it was a transfer of the operation.
    pub(crate) fn note_failure(&mut self, id: OperationId, number: u64, status: RdmaStatus) {
        self.for_each(id, |operation| {
            if operation.first_post != 0 && (operation.first_post..=operation.last_post).contains(&number) {
                operation.status.set(status);
            }
        });
    }

    /// Sets the status that the operation will report, unless it has failed already.
    pub(crate) fn fail(&mut self, id: OperationId, status: RdmaStatus) {
        self.for_each(id, |operation| {
            operation.status.get_or_set(status);
        });
    }

    /// Completes an operation and its successors, whose transfers are complete, with `status`
    /// unless they have failed already. [`oldest_ended`](Self::oldest_ended) returns them, to free
    /// their memory.
    pub(crate) fn end(&mut self, first: OperationId, status: RdmaStatus) {
        let mut next = Some(first);
        while let Some(id) = next {
            let Some(operation) = self.get_mut(id).filter(|operation| operation.used) else { return };
            operation.status.get_or_set(status);
            next = operation.next.take();
            match self.ended_last.replace(id).and_then(|last| self.get_mut(last)) {
                Some(last) => last.next = Some(id),
                None => self.ended = Some(id),
            }
        }
    }

    /// Adds local memory to an operation. The caller has checked the space.
    pub(crate) fn add_iov(&mut self, id: OperationId, iov: Iov) {
        let Self { entries, iovs, .. } = self;
        if let Some(operation) = entries.get_mut(id.index()) {
            iovs.push(&mut operation.iovs, iov);
        }
    }

    /// Returns the first SGE of an operation.
    pub(crate) fn first_iov(&self, id: OperationId) -> Option<&Iov> {
        self.iovs.iter(&self.get(id)?.iovs).next()
    }

    /// Returns the parts of an operation's local memory that contain `len` bytes from `offset` on;
    /// see [`Iovs::range`].
    pub(crate) fn range(&self, id: OperationId, offset: u64, len: u64) -> Option<([Iov; GATHER - 1], usize)> {
        self.iovs.range(&self.get(id)?.iovs, offset, len)
    }

    /// Returns whether a part of an operation's memory was registered by its socket, and remains
    /// so.
    #[cold]
    pub(crate) fn is_in_registered_memory(&self, id: OperationId) -> bool {
        let iovs = self.get(id).map(|operation| self.iovs.iter(&operation.iovs));
        iovs.is_some_and(|mut iovs| iovs.any(|iov| iov.memory.is_some()))
    }

    /// Removes an SGE of an operation, to free its memory.
    pub(crate) fn take_iov(&mut self, id: OperationId) -> Option<Iov> {
        let Self { entries, iovs, memories, .. } = self;
        let iov = entries.get_mut(id.index()).and_then(|operation| iovs.pop(&mut operation.iovs))?;
        if let Some(memory) = iov.memory {
            memories.leave(memory);
        }
        Some(iov)
    }

    /// Returns the oldest completed operation.
    #[inline]
    pub(crate) const fn oldest_ended(&self) -> Option<OperationId> {
        self.ended
    }

    /// Returns whether an operation of a socket has completed and is not reported yet.
    pub(crate) fn is_ending(&self, owner: SocketHandle) -> bool {
        self.ended.is_some_and(|first| self.chain(first).any(|operation| operation.owner == owner))
    }

    /// Removes the oldest completed operation from the list.
    #[inline]
    pub(crate) fn next_ended(&mut self) -> Option<OperationId> {
        let id = self.ended?;
        self.ended = self.get_mut(id).and_then(|operation| operation.next.take());
        if self.ended.is_none() {
            self.ended_last = None;
        }
        Some(id)
    }

    /// Frees a completed operation whose local memory is free, or queues its notification if the
    /// socket requested it.
    pub(crate) fn report(&mut self, id: OperationId, sockets: &mut Sockets<'_>) {
        let Some(operation) = self.get_mut(id) else { return };
        operation.notification_pending = true;
        let failed = operation.status.get() != Some(RdmaStatus::Success);
        let wanted = operation.flags.contains(RdmaFlags::NOTIFY_ME) || operation.notify_failure && failed;
        let last = match sockets.open_mut(operation.owner) {
            Ok(socket) if wanted => {
                let last = socket.notifications_last.replace(id);
                if last.is_none() {
                    socket.notifications = Some(id);
                }
                last
            }
            _ => {
                *operation = Operation::EMPTY;
                None
            }
        };
        if let Some(before) = last.and_then(|last| self.get_mut(last)) {
            before.next = Some(id);
        }
    }

    /// Returns whether unread notifications of a socket fill half of the table. Its next operations
    /// wait then, so that other sockets find free entries.
    pub(crate) fn notifications_fill_half(&self, owner: SocketHandle) -> bool {
        let theirs = |operation: &&Operation| operation.used && operation.owner == owner;
        let most = self.entries.len().div_ceil(2);
        self.entries.iter().filter(theirs).filter(|operation| operation.notification_pending).count() >= most
    }

    /// Removes the oldest notification of a socket.
    pub(crate) fn take_notification(
        &mut self,
        handle: SocketHandle,
        sockets: &mut Sockets<'_>,
    ) -> Result<Option<RdmaNotify>, crate::error::RdsError> {
        let socket = sockets.open_mut(handle)?;
        let Some(id) = socket.notifications else { return Ok(None) };
        let operation = self.remove(id);
        socket.notifications = operation.next;
        if socket.notifications.is_none() {
            socket.notifications_last = None;
        }
        let status = operation.status.get().unwrap_or(RdmaStatus::OtherError);
        Ok(Some(RdmaNotify { user_token: operation.user_token, status }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn could_hold_checks_the_capacity() {
        let (mut one, mut two) = ([Operation::EMPTY; 1], [Operation::EMPTY; 2]);
        let mut iovs = [[Iov::EMPTY; 4]; 2];
        let [some, others] = &mut iovs;
        let one = Operations::new(&mut one, some, &mut []);
        assert!(one.could_hold(1, 4) && !one.could_hold(2, 2));
        let two = Operations::new(&mut two, others, &mut []);
        assert!(two.could_hold(2, 4) && !two.could_hold(2, 5));
    }
}
