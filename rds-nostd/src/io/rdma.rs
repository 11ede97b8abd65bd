//! RDMA on the adapter: registration of memory for peers and operations, and its release.

use core::net::SocketAddr;

use dat_nostd::{Adapter, DatResult, DmaSlice, LmrHandle, MemPriv, Platform, PzHandle, ReturnType};

use crate::error::RdsError;
use crate::frames::Marks;
use crate::ids::{ConnectionId, OperationId, SocketHandle};
use crate::io::{Node, Rds};
use crate::profile::Profile;
use crate::protocol::{Outgoing, Protocol};
use crate::rdma::{
    AtomicArgs, Control, Iov, Kind, MAX_IOVS, MAX_RDMA_LEN, Memory, MemoryHandle, Operation, Operations,
    RdmaArgs, RdmaCookie, RdmaFlags, RdmaStatus,
};
use crate::socket::{Wants, key};
use crate::wire::Extension;

/// Rights of the HCA on local memory of operations.
const LOCAL: MemPriv = MemPriv::LOCAL_READ.union(MemPriv::LOCAL_WRITE);

impl Rds<'_> {
    /// Registers `memory` for operations of this socket on a destination's memory. Operations whose
    /// local memory is within it need no firmware command; other local memory is registered per
    /// operation by a command, which is slow and blocks the node. Offers of its parts to the
    /// destination need no command either while the connection is up. The registration ends with
    /// [`unregister_memory`](Self::unregister_memory), when the socket closes, or when the adapter
    /// is [recovered](Self::adapter_recovered).
    ///
    /// # Errors
    /// [`RdsError::NotConnected`]: not bound. [`RdsError::InvalidArgument`]: no bytes, or an
    /// unreachable destination. [`RdsError::NotSupported`]: the destination is this node, which
    /// needs no registration. [`RdsError::NoMemory`]: no entry is free.
    /// [`RdsError::NoBufferSpace`]: no connection is free. [`RdsError::Dat`];
    /// [`RdsError::BadSocket`].
    pub fn register_memory<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        to: SocketAddr,
        memory: DmaSlice<'_>,
    ) -> Result<MemoryHandle, RdsError> {
        let mut node = self.node(adapter);
        if node.protocol.sockets.open(handle)?.address == 0 {
            return Err(RdsError::NotConnected);
        }
        if memory.is_empty() {
            return Err(RdsError::InvalidArgument);
        }
        if !node.protocol.reachable(handle, to)? {
            return Err(RdsError::NotSupported);
        }
        if !node.protocol.operations.memories().has_room() {
            return Err(RdsError::NoMemory);
        }
        let connection = node.isolated_connection(handle, to)?;
        let zone = match connection {
            Some(id) => node.zone_of(id)?,
            None => node.objects.pz,
        };
        // Relative to its first page, because cookies have 32 bits for an offset.
        let created = node.adapter.lmr_create_zero_based(node.objects.ia, memory, zone, LOCAL)?;
        let registered = node.protocol.operations.memories_mut().insert(Memory {
            lmr_bits: created.lmr.bits(),
            owner: handle,
            lmr_context: created.lmr_context,
            zone: zone.bits(),
            is_peers: connection.is_some(),
            is_foreign: memory.is_foreign(),
            va: memory.va(),
            address: created.registered_address,
            len: memory.len(),
            ..Memory::EMPTY
        });
        registered.ok_or(RdsError::NoMemory)
    }

    /// Ends the registration of memory.
    ///
    /// # Errors
    /// - [`RdsError::Again`]: operations use it, a part is offered, or access to a released part
    ///   has not ended: see [`free_mr`](Self::free_mr) with cookie 0. [`Poll`](Self::poll), and
    ///   call again.
    /// - [`RdsError::InvalidArgument`]: the socket does not own it.
    /// - [`RdsError::Dat`]: a failed device may still write to it, so it remains registered.
    /// - [`RdsError::BadSocket`].
    pub fn unregister_memory<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        memory: MemoryHandle,
    ) -> Result<(), RdsError> {
        let mut node = self.node(adapter);
        node.protocol.sockets.open(handle)?;
        node.finish_released(|id, entry| id == memory.id() && entry.owner == handle)?;
        let memories = node.protocol.operations.memories_mut();
        let taken = memories.take(handle, memory)?;
        let freed = free_lmr(node.adapter, taken.lmr_bits);
        if freed.is_err() {
            memories.put_back(memory, taken);
        }
        Ok(freed?)
    }
}

impl<P: Platform> Node<'_, '_, '_, P> {
    /// Ends all registrations of a socket, or of all sockets. No operation uses them any longer.
    ///
    /// # Errors
    /// DAT's: a failed device may still write to the memory. Registrations that are left remain.
    pub(crate) fn unregister_all(&mut self, owner: Option<SocketHandle>) -> DatResult<()> {
        let memories = self.protocol.operations.memories_mut();
        while let Some((handle, memory)) = memories.take_any(owner) {
            free_lmr(self.adapter, memory.lmr_bits).inspect_err(|_| memories.put_back(handle, memory))?;
        }
        Ok(())
    }

    /// Returns the connection to a destination, whose zone must contain memory for it. Returns
    /// `None` if peers are not isolated.
    pub(crate) fn isolated_connection(
        &mut self,
        handle: SocketHandle,
        to: SocketAddr,
    ) -> Result<Option<ConnectionId>, RdsError> {
        if !self.protocol.reachable(handle, to)? || !self.protocol.config.isolate_peers {
            return Ok(None);
        }
        let tos = self.protocol.sockets.open(handle)?.tos;
        let mut found = self.protocol.connection_for(key(to.ip()), tos);
        if found.is_none() && self.make_room_to(handle, &to) {
            found = self.protocol.connection_for(key(to.ip()), tos);
        }
        found.ok_or(RdsError::NoBufferSpace).map(Some)
    }

    /// Attaches the control messages to a composed message: an operation, or a cookie.
    #[cold]
    pub(crate) fn attach(
        &mut self,
        from: SocketHandle,
        (connection, message): Outgoing,
        control: &Control<'_>,
    ) -> Result<Option<RdmaCookie>, RdsError> {
        if let Some(lend) = &control.lend {
            let lent = self.create_loan((from, connection), lend)?;
            self.protocol.frames.message_mut(message).lend(lent);
            return Ok(None);
        }
        let (mut cookie, mut operation, mut extension) = (None, None, None);
        let requests = self.requests(from, control)?;
        let iovs = requests.iter().flatten().map(|request| request.local.len()).sum();
        let count = requests.iter().flatten().count();
        if count > 0 && !self.protocol.operations.could_hold(count, iovs) {
            return Err(RdsError::NoMemory);
        }
        for request in requests.iter().flatten() {
            match (self.create_operation((from, connection), request), operation) {
                (Ok(created), None) => operation = Some(created),
                (Ok(created), Some(first)) => {
                    if let Some(first) = self.protocol.operations.get_mut(first) {
                        first.next = Some(created);
                    }
                }
                (Err(error), first) => {
                    if error == RdsError::NoBufferSpace {
                        self.protocol.wait_for(from, Wants::Operations(count as u16, iovs as u32));
                    }
                    if let Some(first) = first {
                        self.abandon(first);
                    }
                    return Err(error);
                }
            }
        }
        requests.iter().flatten().for_each(|request| self.count(request));
        if let Some(args) = &control.rdma {
            extension = Some(Extension::Rdma { rkey: args.cookie.rkey() });
        }
        if operation.is_none() {
            let foreign = self.protocol.connection(connection).peer.foreign;
            if let Some((memory, flags)) = control.map {
                cookie = Some(self.offer(from, memory, flags, foreign, Some(connection))?);
            }
            let offered = cookie.or(control.dest);
            if offered.is_some_and(|offered| !self.protocol.regions.give(from, offered, foreign)) {
                return Err(RdsError::InvalidArgument);
            }
            extension =
                offered.map(|offered| Extension::RdmaDest { rkey: offered.rkey(), offset: offered.offset() });
        }
        let Protocol { frames, operations, .. } = &mut self.protocol;
        if let Some(extension) = extension {
            frames.write_extensions(message.first(), &extension.encode());
        }
        let frame = frames.message_mut(message);
        let silent = frame.len == 0 && operation.is_some_and(|operation| operations.is_silent(operation));
        frame.marks.set(Marks::EXTENDED, extension.is_some());
        frame.marks.set(Marks::SILENT, silent);
        frame.operation = operation;
        Ok(cookie)
    }

    /// Returns the operations of a message in their order, after a check of their arguments.
    ///
    /// # Errors
    /// [`RdsError::InvalidArgument`], [`RdsError::MessageSize`], [`RdsError::NotSupported`]: see
    /// [`sendmsg`](crate::Rds::sendmsg).
    pub(crate) fn requests<'c>(
        &self,
        owner: SocketHandle,
        control: &'c Control<'_>,
    ) -> Result<[Option<Request<'c>>; 2], RdsError> {
        let profile = self.protocol.sockets.open(owner)?.profile;
        let transfer = control.rdma.as_ref().map(|args| Request::of_transfer(args, profile)).transpose()?;
        let atomic = control.atomic.as_ref().map(Request::of_atomic).transpose()?;
        Ok([transfer, atomic])
    }

    /// Counts an accepted operation.
    pub(crate) fn count(&mut self, request: &Request<'_>) {
        let counters = &mut self.protocol.counters;
        match request.kind {
            Kind::Transfer => {
                counters.send_rdma += 1;
                counters.send_rdma_bytes += request.len() as u64;
            }
            Kind::CompareSwap { .. } => counters.atomic_cswp += 1,
            Kind::FetchAdd { .. } => counters.atomic_fadd += 1,
        }
    }

    /// Returns a free entry for an operation with this number of SGEs, if `wanted` operations fit.
    ///
    /// # Errors
    /// [`RdsError::NoMemory`], [`RdsError::Exhausted`], [`RdsError::NoBufferSpace`]: see
    /// [`sendmsg`](crate::Rds::sendmsg).
    pub(crate) fn entry_for_operation(
        &mut self,
        owner: SocketHandle,
        wanted: u16,
        iovs: usize,
    ) -> Result<OperationId, RdsError> {
        let operations = &self.protocol.operations;
        if !operations.could_hold(wanted.into(), iovs) {
            return Err(RdsError::NoMemory);
        }
        if operations.notifications_fill_half(owner) {
            return Err(RdsError::Exhausted);
        }
        match operations.free().filter(|_| operations.has_room_for(wanted.into(), iovs)) {
            Some(id) => Ok(id),
            None => Err(self.protocol.wait_for(owner, Wants::Operations(wanted, iovs as u32))),
        }
    }

    /// Registers the local memory of an operation and creates its entry.
    ///
    /// # Errors
    /// [`RdsError::InvalidArgument`], [`RdsError::NoBufferSpace`], [`RdsError::Exhausted`],
    /// [`RdsError::NoMemory`], [`RdsError::Dat`]: see [`sendmsg`](crate::Rds::sendmsg).
    pub(crate) fn create_operation(
        &mut self,
        (owner, connection): (SocketHandle, ConnectionId),
        request: &Request<'_>,
    ) -> Result<OperationId, RdsError> {
        let &Request { kind, cookie, local, rights, flags, user_token, .. } = request;
        let remote_address = request.remote_address().ok_or(RdsError::InvalidArgument)?;
        let notify_failure = self.protocol.sockets.open(owner)?.receive_errors;
        let id = self.entry_for_operation(owner, 1, local.len())?;
        let zone = self.zone_of(connection)?;
        let (rkey, used) = (cookie.rkey(), true);
        let operation =
            Operation { used, kind, owner, notify_failure, flags, user_token, rkey, ..Operation::EMPTY };
        self.protocol.operations.insert(id, Operation { remote_address, ..operation });
        for memory in local {
            if let Err(error) = self.add_iov(id, (*memory, rights), zone) {
                self.abandon(id);
                return Err(error);
            }
        }
        Ok(id)
    }

    /// Removes an operation whose message was refused, without a notification. A failed device may
    /// still write to its local memory, which then remains registered until recovery.
    #[cold]
    fn abandon(&mut self, id: OperationId) {
        let operations = &mut self.protocol.operations;
        if free_iovs(self.adapter, operations, id).is_ok() {
            operations.remove(id);
            return;
        }
        if let Some(operation) = operations.get_mut(id) {
            operation.flags.remove(RdmaFlags::NOTIFY_ME);
            operation.notify_failure = false;
        }
        operations.end(id, RdmaStatus::Dropped);
    }

    /// Adds a segment of local memory to an operation. Registers it unless its socket's registered
    /// memory contains it.
    fn add_iov(
        &mut self,
        id: OperationId,
        (memory, rights): (DmaSlice<'_>, MemPriv),
        zone: PzHandle,
    ) -> Result<(), RdsError> {
        let owner = self.protocol.operations.get(id).map(|operation| operation.owner);
        let operations = &mut self.protocol.operations;
        let part = owner
            .and_then(|owner| operations.memories_mut().enter(owner, zone.bits(), memory.va(), memory.len()));
        if let Some(part) = part {
            operations.add_iov(id, Iov::of(part, memory.len() as u32));
            return Ok(());
        }
        let created = self.adapter.lmr_create(self.objects.ia, memory, zone, rights)?;
        let iov = Iov::new(
            created.lmr.bits(),
            created.lmr_context,
            created.registered_address,
            memory.len() as u32,
        );
        self.protocol.operations.add_iov(id, iov);
        Ok(())
    }

    /// Frees the local memory of completed operations, and reports their status.
    #[inline]
    pub(crate) fn release_ended(&mut self) {
        while let Some(id) = self.protocol.operations.oldest_ended() {
            let Protocol { operations, sockets, .. } = &mut self.protocol;
            // A failed device may still write to the memory, so the operation completes only after
            // recovery.
            let kept = self.adapter.is_dead() && operations.is_in_registered_memory(id);
            if kept || free_iovs(self.adapter, operations, id).is_err() {
                return;
            }
            operations.next_ended();
            operations.report(id, sockets);
        }
    }

    /// Drops a socket's messages to a peer, to one port or all, except those in flight. Returns
    /// whether the HCA may still use their memory. Polls wait for that, and break the connection
    /// after a limit.
    pub(crate) fn cancel(&mut self, id: ConnectionId, owner: SocketHandle, dport: Option<u16>) -> bool {
        let in_use = self.protocol.cancel(id, owner, dport);
        self.release_ended();
        in_use
    }
}

/// An operation of a message, after a check of its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'c> {
    pub(crate) kind: Kind,
    pub(crate) cookie: RdmaCookie,
    pub(crate) remote_offset: u64,
    pub(crate) local: &'c [DmaSlice<'c>],
    /// Rights of the HCA on the local memory.
    pub(crate) rights: MemPriv,
    pub(crate) flags: RdmaFlags,
    pub(crate) user_token: u64,
}

impl<'c> Request<'c> {
    fn of_transfer(args: &'c RdmaArgs<'_>, profile: Profile) -> Result<Self, RdsError> {
        let &RdmaArgs { cookie, remote_offset, remote_bytes, local, flags, user_token } = args;
        // Memory that is only read may be read-only.
        let rights = if flags.contains(RdmaFlags::READWRITE) { MemPriv::LOCAL_READ } else { LOCAL };
        let request = Self { kind: Kind::Transfer, cookie, remote_offset, local, rights, flags, user_token };
        let total = request.len() as u64;
        let fits = total == remote_bytes || total < remote_bytes && profile == Profile::Linux;
        if local.is_empty() || local.iter().any(|iov| iov.is_empty()) || !fits {
            return Err(RdsError::InvalidArgument);
        }
        if local.len() > MAX_IOVS || total > MAX_RDMA_LEN as u64 {
            return Err(RdsError::MessageSize);
        }
        Ok(request)
    }

    fn of_atomic(args: &'c AtomicArgs<'_>) -> Result<Self, RdsError> {
        let &AtomicArgs { cookie, remote_offset, flags, user_token, .. } = args;
        let address = u64::from(cookie.offset()).wrapping_add(remote_offset);
        if args.local.len() != 8 || !args.local.va().is_multiple_of(8) || !address.is_multiple_of(8) {
            return Err(RdsError::InvalidArgument);
        }
        let kind = args.op.kind()?;
        let local = core::slice::from_ref(&args.local);
        Ok(Self { kind, cookie, remote_offset, local, rights: LOCAL, flags, user_token })
    }

    /// Returns the bytes of the local memory.
    pub(crate) fn len(&self) -> usize {
        self.local.iter().map(|iov| iov.len()).sum()
    }

    /// Returns the first byte in the peer's memory.
    pub(crate) fn remote_address(&self) -> Option<u64> {
        u64::from(self.cookie.offset()).checked_add(self.remote_offset)
    }
}

/// Removes an operation's SGEs and frees their registrations.
///
/// # Errors
/// DAT's: a failed device may still write to the memory. SGEs that are left remain.
#[cold]
pub(crate) fn free_iovs<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    operations: &mut Operations<'_>,
    id: OperationId,
) -> DatResult<()> {
    while let Some(iov) = operations.take_iov(id) {
        if iov.lmr_bits != 0 {
            free_lmr(adapter, iov.lmr_bits).inspect_err(|_| operations.add_iov(id, iov))?;
        }
    }
    Ok(())
}

/// Frees an LMR. If firmware refuses to destroy a key without bound windows, the LMR is gone as
/// well and its buffer remains registered: unlike a window, it cannot be freed by another call.
///
/// # Errors
/// DAT's INVALID_STATE (LMR_IN_USE): a window is bound to it, or a failed device may still write to
/// memory outside of the adapter's DMA region.
pub(crate) fn free_lmr<P: Platform>(adapter: &mut Adapter<'_, P>, lmr_bits: u64) -> DatResult<()> {
    match adapter.lmr_free(LmrHandle::from_bits(lmr_bits)) {
        Err(error) if error.is(ReturnType::InvalidState) => Err(error),
        // Already freed by the recovery.
        _ => Ok(()),
    }
}
