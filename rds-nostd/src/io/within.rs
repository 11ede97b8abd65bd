//! RDMA between sockets of one node: copies by this processor, of what would be allowed to a peer, told as if it had been one.
//!
//! Linux has a connection of the HCA with itself for that. Here the memory is at hand, for a node that was promised
//! that nobody else touches it meanwhile ([`RdsConfig::rdma_within`](crate::RdsConfig::rdma_within)); what counts is that key, bounds,
//! rights and the peers that memory was offered to are looked at as the HCA does. Between loopback addresses there is no RDMA, as on
//! Linux. A copy is not atomic for the HCA: an atomic operation of a peer on the same bytes may come in between.

use core::net::SocketAddr;

use dat_nostd::{Adapter, LmrHandle, MemPriv, Platform, SoleAccess};

use crate::error::RdsError;
use crate::ids::SocketHandle;
use crate::io::Rds;
use crate::io::offers::Whom;
use crate::io::rdma::check_atomic;
use crate::rdma::{AtomicArgs, Control, Kind, Operation, RdmaArgs, RdmaCookie, RdmaFlags, RdmaStatus};
use crate::wire::{Extension, Header};

/// What goes along with a message that comes.
#[derive(Clone, Copy, Debug, Default)]
struct Beside {
    /// Of memory that was offered with it.
    cookie: Option<RdmaCookie>,
    extensions: [u8; 16],
}

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
        if control.lend.is_some() || self.protocol.sockets.open(from)?.address != self.protocol.local {
            return Err(RdsError::NotSupported);
        }
        // From here on the message itself is not refused.
        let within = self.protocol.compose_within(from, to, payload)?;
        let attached = self.attach_within(adapter, from, payload.is_empty(), control);
        let Ok(Some(Beside { cookie, extensions })) = attached else {
            self.protocol.withdraw_within(within);
            return attached.map(|_| None);
        };
        let protocol = &mut self.protocol;
        if let Some(owner) = protocol.deliver_within(within, &extensions) {
            let header = Header { extensions, ..Header::acknowledgement(0) };
            protocol.regions.used(&header, owner, protocol.local, &mut protocol.counters);
            self.free_spent_regions(adapter);
        }
        Ok(cookie)
    }

    /// Does what goes along with a message. None if the message does not come: an operation failed, or the message would tell nothing.
    ///
    /// # Errors
    /// See [`sendmsg`](Self::sendmsg); then nothing was done.
    fn attach_within<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        is_empty: bool,
        control: &Control<'_>,
    ) -> Result<Option<Beside>, RdsError> {
        if control.rdma.is_some() || control.atomic.is_some() {
            let done = self.operate_within(adapter, from, control)?;
            let comes = done.is_some_and(|flags| !is_empty || !flags.contains(RdmaFlags::SILENT));
            let tells = |args: &RdmaArgs<'_>| Extension::Rdma { rkey: args.cookie.rkey() }.encode();
            let extensions = control.rdma.as_ref().map(tells).unwrap_or_default();
            return Ok(comes.then_some(Beside { cookie: None, extensions }));
        }
        let cookie = match control.map {
            Some((memory, flags)) => Some(self.offer(adapter, from, memory, flags, Whom::Node, None)?),
            None => None,
        };
        let Some(offered) = cookie.or(control.dest) else { return Ok(Some(Beside::default())) };
        let local = self.protocol.local;
        if !self.protocol.regions.give(from, offered, local) {
            return Err(RdsError::InvalidArgument);
        }
        let (rkey, offset) = (offered.rkey(), offered.offset());
        Ok(Some(Beside { cookie, extensions: Extension::RdmaDest { rkey, offset }.encode() }))
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
        let promise = self.protocol.config.rdma_within.ok_or(RdsError::NotSupported)?;
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
            let status = match self.copy_within(adapter, promise, args, total) {
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
                true if self.change_within(adapter, promise, args, kind).is_some() => RdmaStatus::Success,
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

    /// Where the memory is that this node offers, if its sockets may use all of it like this.
    fn reach_within<P: Platform>(
        &self,
        adapter: &Adapter<'_, P>,
        cookie: RdmaCookie,
        offset: u64,
        len: u64,
        needed: MemPriv,
    ) -> Option<(LmrHandle, u64)> {
        let protocol = &self.protocol;
        let region = protocol.regions.of_key(cookie.rkey(), protocol.local)?;
        let address = u64::from(cookie.offset()).checked_add(offset)?;
        let (lmr, granted) = match region.window {
            None => (LmrHandle::from_bits(region.lmr_bits), None),
            Some(id) => {
                // One that was freed otherwise may be another region's by now.
                let window = protocol.windows.get(id);
                let begin = address.checked_sub(window.address.into())?;
                if !protocol.windows.is_of(id, region) || begin.checked_add(len)? > window.len.into() {
                    return None;
                }
                let memory = protocol.operations.memories().get(window.memory?)?;
                (LmrHandle::from_bits(memory.lmr_bits), Some(window.rights))
            }
        };
        let parameters = adapter.lmr_query(lmr).ok()?;
        let begin = address.checked_sub(parameters.registered_address)?;
        let inside = begin.checked_add(len)? <= parameters.registered_size;
        (inside && granted.unwrap_or(parameters.mem_priv).contains(needed)).then_some((lmr, address))
    }

    /// A read or a write. None if it is denied: then nothing has changed.
    fn copy_within<P: Platform>(
        &self,
        adapter: &Adapter<'_, P>,
        promise: SoleAccess,
        args: &RdmaArgs<'_>,
        total: usize,
    ) -> Option<()> {
        let writes = args.flags.contains(RdmaFlags::READWRITE);
        let needed = if writes { MemPriv::REMOTE_WRITE } else { MemPriv::REMOTE_READ };
        let (lmr, mut address) =
            self.reach_within(adapter, args.cookie, args.remote_offset, total as u64, needed)?;
        for &piece in args.local {
            let done = if writes {
                adapter.lmr_write(promise, lmr, address, piece)
            } else {
                adapter.lmr_read(promise, lmr, address, piece)
            };
            done.ok()?;
            address += piece.len() as u64;
        }
        Some(())
    }

    /// An atomic operation. None if it is denied: then nothing has changed.
    fn change_within<P: Platform>(
        &self,
        adapter: &Adapter<'_, P>,
        promise: SoleAccess,
        args: &AtomicArgs<'_>,
        kind: Kind,
    ) -> Option<()> {
        let (lmr, address) =
            self.reach_within(adapter, args.cookie, args.remote_offset, 8, MemPriv::REMOTE_ATOMIC)?;
        // As on the wire, the old number remains if it goes to the same bytes.
        let changed = adapter.lmr_change(promise, lmr, address, args.local, |before| match kind {
            Kind::CompareSwap { compare, swap } if before == compare => swap,
            Kind::FetchAdd { add } => before.wrapping_add(add),
            Kind::CompareSwap { .. } | Kind::Transfer => before,
        });
        changed.ok()
    }
}
