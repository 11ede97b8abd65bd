//! RDMA between sockets of one node: copies by this processor, of what would be allowed to a peer, told as if it had been one.
//!
//! Linux has a connection of the HCA with itself for that. Here the memory is at hand; what counts is that key, bounds, rights and the peers
//! that memory was offered to are looked at as the HCA does. Between loopback addresses there is no RDMA, as on Linux. A copy is not
//! atomic for the HCA: an atomic operation of a peer on the same bytes may come in between.

use core::net::SocketAddr;

use dat_nostd::{Adapter, DmaSlice, LmrHandle, MemPriv, Platform};

use crate::error::RdsError;
use crate::ids::SocketHandle;
use crate::io::offers::Whom;
use crate::io::rdma::check_atomic;
use crate::node::Rds;
use crate::rdma::{
    AtomicArgs, Control, Kind, Operation, RdmaArgs, RdmaCookie, RdmaFlags, RdmaStatus, Region,
};
use crate::wire::{Extension, Header};

impl Rds<'_> {
    /// A message of this node to itself with something beside it, which is done at once. If an operation fails the message does not arrive.
    ///
    /// # Errors
    /// See [`sendmsg`](Self::sendmsg).
    pub(crate) fn send_along_within<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        to: SocketAddr,
        payload: &[u8],
        control: &Control<'_>,
    ) -> Result<Option<RdmaCookie>, RdsError> {
        let protocol = &mut self.protocol;
        if control.lend.is_some() || protocol.sockets.open(from)?.address != protocol.local {
            return Err(RdsError::NotSupported);
        }
        // From here on the message itself is not refused.
        protocol.check_buffer(from, payload.len(), protocol.limits.longest_local)?;
        protocol.destination_within(from, to, payload.len())?;
        let (mut cookie, mut extensions) = (None, [0; 16]);
        if control.rdma.is_some() || control.atomic.is_some() {
            let Some(done) = self.operate_within(adapter, from, control)? else { return Ok(None) };
            if payload.is_empty() && done.contains(RdmaFlags::SILENT) {
                return Ok(None);
            }
            if let Some(args) = &control.rdma {
                extensions = Extension::Rdma { rkey: args.cookie.rkey() }.encode();
            }
        } else {
            if let Some((memory, flags)) = control.map {
                cookie = Some(self.offer(adapter, from, memory, flags, Whom::Node, None)?);
            }
            if let Some(offered) = cookie.or(control.dest) {
                let local = self.protocol.local;
                if !self.protocol.regions.give(from, offered, local) {
                    return Err(RdsError::InvalidArgument);
                }
                let (rkey, offset) = (offered.rkey(), offered.offset());
                extensions = Extension::RdmaDest { rkey, offset }.encode();
            }
        }
        let protocol = &mut self.protocol;
        if let Some(owner) = protocol.submit_to_self(from, to, payload, &extensions)? {
            let header = Header { extensions, ..Header::acknowledgement(0) };
            protocol.regions.used(&header, owner, protocol.local, &mut protocol.counters);
            self.free_spent_regions(adapter);
        }
        Ok(cookie)
    }

    /// Does the operations of a message and tells of them: the flags that they have in common, or None if one failed.
    ///
    /// # Errors
    /// See [`sendmsg`](Self::sendmsg); then nothing was done.
    fn operate_within<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        control: &Control<'_>,
    ) -> Result<Option<RdmaFlags>, RdsError> {
        let transfer = match &control.rdma {
            Some(args) => Some((args, self.check_transfer(from, args)?)),
            None => None,
        };
        let atomic = match &control.atomic {
            Some(args) => Some((args, check_atomic(args)?)),
            None => None,
        };
        let beyond = |cookie: RdmaCookie, offset| u64::from(cookie.offset()).checked_add(offset).is_none();
        if transfer.is_some_and(|(args, _)| beyond(args.cookie, args.remote_offset))
            || atomic.is_some_and(|(args, _)| beyond(args.cookie, args.remote_offset))
        {
            return Err(RdsError::InvalidArgument);
        }
        let wanted = u16::from(transfer.is_some()) + u16::from(atomic.is_some());
        self.entry_for_operation(from, wanted, 0)?;
        let (mut common, mut all_done) = (RdmaFlags::all(), true);
        if let Some((args, total)) = transfer {
            let status = match self.copy_within(adapter, args, total) {
                Some(()) => RdmaStatus::Success,
                None => RdmaStatus::RemoteError,
            };
            self.protocol.counters.send_rdma += 1;
            self.protocol.counters.send_rdma_bytes += total as u64;
            self.ended_within(adapter, from, (args.flags, args.user_token), status)?;
            (common, all_done) = (common & args.flags, status == RdmaStatus::Success);
        }
        if let Some((args, kind)) = atomic {
            let status = match all_done {
                // Behind an operation that fails a connection does nothing.
                false => RdmaStatus::Dropped,
                true if self.change_within(adapter, args, kind).is_some() => RdmaStatus::Success,
                true => RdmaStatus::RemoteError,
            };
            self.count_atomic(kind);
            self.ended_within(adapter, from, (args.flags, args.user_token), status)?;
            (common, all_done) = (common & args.flags, all_done && status == RdmaStatus::Success);
        }
        Ok(all_done.then_some(common))
    }

    /// Tells how an operation ended, if its socket asked for it.
    fn ended_within<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        owner: SocketHandle,
        (flags, user_token): (RdmaFlags, u64),
        status: RdmaStatus,
    ) -> Result<(), RdsError> {
        // There is one: it was looked for before anything was done.
        let id = self.protocol.operations.free().ok_or(RdsError::NoBufferSpace)?;
        let notify_failure = self.protocol.sockets.open(owner)?.receive_errors;
        let operation =
            Operation { used: true, owner, notify_failure, flags, user_token, ..Operation::EMPTY };
        self.protocol.operations.insert(id, operation);
        self.protocol.operations.end(id, status);
        self.release_ended(adapter);
        Ok(())
    }

    /// Memory that this node offers, if its sockets may use it like this. All of it, or nothing.
    fn reach_within<'a, P: Platform>(
        &self,
        adapter: &'a Adapter<'_, P>,
        cookie: RdmaCookie,
        offset: u64,
        len: u64,
        needed: MemPriv,
    ) -> Option<DmaSlice<'a>> {
        let protocol = &self.protocol;
        let &Region { lmr_bits, window, .. } = protocol.regions.of_key(cookie.rkey(), protocol.local)?;
        let address = u64::from(cookie.offset()).checked_add(offset)?;
        let (lmr, rights) = match window {
            None => {
                let lmr = LmrHandle::from_bits(lmr_bits);
                (lmr, adapter.lmr_query(lmr).ok()?.mem_priv)
            }
            Some(id) => {
                let window = protocol.windows.get(id);
                let begin = address.checked_sub(window.address.into())?;
                if begin.checked_add(len)? > window.len.into() {
                    return None;
                }
                let memory = protocol.operations.memories.get(window.memory?)?;
                (LmrHandle::from_bits(memory.lmr_bits), window.rights)
            }
        };
        if !rights.contains(needed) {
            return None;
        }
        adapter.lmr_memory(lmr, address, len).ok()
    }

    /// A read or a write. None if it is denied: then nothing has changed.
    fn copy_within<P: Platform>(
        &self,
        adapter: &Adapter<'_, P>,
        args: &RdmaArgs<'_>,
        total: usize,
    ) -> Option<()> {
        let writes = args.flags.contains(RdmaFlags::READWRITE);
        let needed = if writes { MemPriv::REMOTE_WRITE } else { MemPriv::REMOTE_READ };
        let remote = self.reach_within(adapter, args.cookie, args.remote_offset, total as u64, needed)?;
        let mut offset = 0;
        for piece in args.local {
            let part = remote.slice(offset, piece.len())?;
            offset += piece.len();
            let (to, source) = if writes { (part, *piece) } else { (*piece, part) };
            copy(adapter, to, source)?;
        }
        Some(())
    }

    /// An atomic operation. None if it is denied: then nothing has changed.
    fn change_within<P: Platform>(
        &self,
        adapter: &Adapter<'_, P>,
        args: &AtomicArgs<'_>,
        kind: Kind,
    ) -> Option<()> {
        let remote =
            self.reach_within(adapter, args.cookie, args.remote_offset, 8, MemPriv::REMOTE_ATOMIC)?;
        copy(adapter, args.local, remote)?;
        let mut bytes = [0; 8];
        remote.read(0, &mut bytes).ok()?;
        let before = u64::from_ne_bytes(bytes);
        let after = match kind {
            Kind::CompareSwap { compare, swap } if before == compare => swap,
            Kind::FetchAdd { add } => before.wrapping_add(add),
            Kind::CompareSwap { .. } | Kind::Transfer => before,
        };
        remote.write(0, &after.to_ne_bytes()).ok()?;
        adapter.platform().sync_for_device(remote.va(), 8);
        Some(())
    }
}

/// Copies what a device may have written to where one may read.
fn copy<P: Platform>(adapter: &Adapter<'_, P>, to: DmaSlice<'_>, from: DmaSlice<'_>) -> Option<()> {
    let platform = adapter.platform();
    platform.sync_for_cpu(from.va(), from.len());
    to.copy_from(0, from, 0, from.len()).ok()?;
    platform.sync_for_device(to.va(), to.len());
    Some(())
}
