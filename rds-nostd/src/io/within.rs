//! RDMA between sockets of one node: copies by the processor, with the checks and notifications of
//! RDMA to a peer.
//!
//! Linux connects the HCA to itself for that. Here the processor copies, if the node was promised
//! exclusive access to the memory ([`RdsConfig::rdma_within`](crate::RdsConfig::rdma_within)). It
//! checks key, bounds, rights and the intended peer as the HCA does. Loopback addresses have no
//! RDMA, as in Linux. A copy is not atomic for the HCA: an atomic operation of a peer on the same
//! bytes may interleave.

use core::net::SocketAddr;

use dat_nostd::{LmrHandle, MemPriv, Platform, SoleAccess};

use crate::error::RdsError;
use crate::ids::SocketHandle;
use crate::io::Node;
use crate::io::rdma::Request;
use crate::rdma::{Control, Kind, Operation, RdmaArgs, RdmaCookie, RdmaFlags, RdmaStatus};
use crate::wire::{Extension, Header};

/// Cookie and extensions of a delivered message.
#[derive(Clone, Copy, Debug, Default)]
struct Attached {
    /// Cookie of memory that was mapped.
    cookie: Option<RdmaCookie>,
    extensions: [u8; 16],
}

impl<P: Platform> Node<'_, '_, '_, P> {
    /// Sends a loopback message with control messages, and executes them immediately. The message
    /// is not delivered if an operation fails.
    ///
    /// # Errors
    /// See [`sendmsg`](crate::Rds::sendmsg).
    pub(crate) fn send_along_within(
        &mut self,
        from: SocketHandle,
        to: SocketAddr,
        payload: &[u8],
        control: &Control<'_>,
    ) -> Result<Option<RdmaCookie>, RdsError> {
        if control.lend.is_some() || self.protocol.sockets.open(from)?.address != self.protocol.local {
            return Err(RdsError::NotSupported);
        }
        // The message itself cannot be refused from here on.
        let within = self.protocol.compose_within(from, to, payload)?;
        let attached = self.attach_within(from, payload.is_empty(), control);
        let Ok(Some(Attached { cookie, extensions })) = attached else {
            self.protocol.withdraw_within(within);
            return attached.map(|_| None);
        };
        let protocol = &mut self.protocol;
        if let Some(owner) = protocol.deliver_within(within, &extensions) {
            let header = Header { extensions, ..Header::acknowledgement(0) };
            protocol.regions.used(&header, owner, protocol.local, &mut protocol.counters);
            self.revoke_spent();
        }
        Ok(cookie)
    }

    /// Executes the control messages. Returns `None` if no message is to be delivered: an operation
    /// failed, or the message is empty and silent.
    ///
    /// # Errors
    /// See [`sendmsg`](crate::Rds::sendmsg). No control message was executed then.
    fn attach_within(
        &mut self,
        from: SocketHandle,
        is_empty: bool,
        control: &Control<'_>,
    ) -> Result<Option<Attached>, RdsError> {
        if control.rdma.is_some() || control.atomic.is_some() {
            let done = self.operate_within(from, control)?;
            let comes = done.is_some_and(|flags| !is_empty || !flags.contains(RdmaFlags::SILENT));
            let tells = |args: &RdmaArgs<'_>| Extension::Rdma { rkey: args.cookie.rkey() }.encode();
            let extensions = control.rdma.as_ref().map(tells).unwrap_or_default();
            return Ok(comes.then_some(Attached { cookie: None, extensions }));
        }
        let cookie = match control.map {
            Some((memory, flags)) => Some(self.offer(from, memory, flags, self.protocol.local, None)?),
            None => None,
        };
        let Some(offered) = cookie.or(control.dest) else { return Ok(Some(Attached::default())) };
        let local = self.protocol.local;
        if !self.protocol.regions.give(from, offered, local) {
            return Err(RdsError::InvalidArgument);
        }
        let (rkey, offset) = (offered.rkey(), offered.offset());
        Ok(Some(Attached { cookie, extensions: Extension::RdmaDest { rkey, offset }.encode() }))
    }

    /// Executes and reports the operations of a message. Returns the flags that they have in
    /// common, or `None` if one failed.
    ///
    /// # Errors
    /// See [`sendmsg`](crate::Rds::sendmsg). No operation was executed then.
    fn operate_within(
        &mut self,
        from: SocketHandle,
        control: &Control<'_>,
    ) -> Result<Option<RdmaFlags>, RdsError> {
        let promise = self.protocol.config.rdma_within.ok_or(RdsError::NotSupported)?;
        let requests = self.requests(from, control)?;
        if requests.iter().flatten().any(|request| request.remote_address().is_none()) {
            return Err(RdsError::InvalidArgument);
        }
        self.entry_for_operation(from, requests.iter().flatten().count() as u16, 0)?;
        let (mut common, mut all_done) = (RdmaFlags::all(), true);
        for request in requests.iter().flatten() {
            let status = match all_done {
                // A connection executes nothing after a failed operation.
                false => RdmaStatus::Dropped,
                true if self.execute_within(promise, request).is_some() => RdmaStatus::Success,
                true => RdmaStatus::RemoteError,
            };
            self.count(request);
            self.ended_within(from, (request.flags, request.user_token), status)?;
            (common, all_done) = (common & request.flags, status == RdmaStatus::Success);
        }
        Ok(all_done.then_some(common))
    }

    /// Reports the status of an operation, if its socket requested it.
    fn ended_within(
        &mut self,
        owner: SocketHandle,
        (flags, user_token): (RdmaFlags, u64),
        status: RdmaStatus,
    ) -> Result<(), RdsError> {
        // An entry is free: the caller checked that before the operations.
        let id = self.protocol.operations.free().ok_or(RdsError::NoBufferSpace)?;
        let notify_failure = self.protocol.sockets.open(owner)?.receive_errors;
        let operation =
            Operation { used: true, owner, notify_failure, flags, user_token, ..Operation::EMPTY };
        self.protocol.operations.insert(id, operation);
        self.protocol.operations.end(id, status);
        self.release_ended();
        Ok(())
    }

    /// Returns the offered memory of this node, if the cookie grants its sockets this access to the
    /// complete range.
    fn reach_within(&self, request: &Request<'_>, needed: MemPriv) -> Option<(LmrHandle, u64)> {
        let protocol = &*self.protocol;
        let region = protocol.regions.of_key(request.cookie.rkey(), protocol.local)?;
        let (address, len) = (request.remote_address()?, request.len() as u64);
        let (lmr, granted) = match region.window {
            None => (LmrHandle::from_bits(region.lmr_bits), None),
            Some(id) => {
                // The window may have been freed and reused for another region.
                let window = protocol.windows.get(id);
                let begin = address.checked_sub(window.address.into())?;
                if !protocol.windows.is_of(id, region) || begin.checked_add(len)? > window.len.into() {
                    return None;
                }
                let memory = protocol.operations.memories().get(window.memory?)?;
                (LmrHandle::from_bits(memory.lmr_bits), Some(window.rights))
            }
        };
        let parameters = self.adapter.lmr_query(lmr).ok()?;
        let begin = address.checked_sub(parameters.registered_address)?;
        let inside = begin.checked_add(len)? <= parameters.registered_size;
        (inside && granted.unwrap_or(parameters.mem_priv).contains(needed)).then_some((lmr, address))
    }

    /// Executes an operation. Returns `None` without effect if access is denied.
    fn execute_within(&self, promise: SoleAccess, request: &Request<'_>) -> Option<()> {
        let writes = request.flags.contains(RdmaFlags::READWRITE);
        let needed = match request.kind {
            Kind::Transfer if writes => MemPriv::REMOTE_WRITE,
            Kind::Transfer => MemPriv::REMOTE_READ,
            _ => MemPriv::REMOTE_ATOMIC,
        };
        let (lmr, mut address) = self.reach_within(request, needed)?;
        for &iov in request.local {
            // As on the wire, an atomic operation writes the previous value last, so it remains if
            // both are the same bytes.
            let done = match request.kind {
                Kind::Transfer if writes => self.adapter.lmr_write(promise, lmr, address, iov),
                Kind::Transfer => self.adapter.lmr_read(promise, lmr, address, iov),
                Kind::CompareSwap { compare, swap } => {
                    let change = |before| if before == compare { swap } else { before };
                    self.adapter.lmr_change(promise, lmr, address, iov, change)
                }
                Kind::FetchAdd { add } => {
                    self.adapter.lmr_change(promise, lmr, address, iov, |before| before.wrapping_add(add))
                }
            };
            done.ok()?;
            address += iov.len() as u64;
        }
        Some(())
    }
}
