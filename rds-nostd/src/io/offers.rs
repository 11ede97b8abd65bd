//! Memory that is offered to peers: MAP, GET_MR, FREE_MR.

use core::net::SocketAddr;

use dat_nostd::{Adapter, DatResult, DmaSlice, MemPriv, Platform};

use crate::error::RdsError;
use crate::ids::{ConnectionId, MemoryId, SocketHandle};
use crate::io::rdma::free_lmr;
use crate::io::{Node, Rds};
use crate::protocol::Protocol;
use crate::rdma::{MAX_RDMA_LEN, Memory, RdmaCookie, RdmaFlags, Region};
use crate::socket::key;

impl Rds<'_> {
    /// Offers `memory` to peers and returns its cookie (`RDS_GET_MR`). Any peer with the cookie may
    /// use it. Always needs a firmware command.
    ///
    /// # Errors
    /// [`RdsError::NotSupported`]: the node isolates peers, so an offer must name its peer.
    /// [`RdsError::NotConnected`]: not bound. [`RdsError::InvalidArgument`]: no bytes.
    /// [`RdsError::MessageSize`]: more than [`MAX_RDMA_LEN`]. [`RdsError::Exhausted`]: no region is
    /// free. [`RdsError::Dat`]; [`RdsError::BadSocket`].
    pub fn get_mr<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        memory: DmaSlice<'_>,
        flags: RdmaFlags,
    ) -> Result<RdmaCookie, RdsError> {
        let mut node = self.node(adapter);
        node.offer(handle, memory, flags, 0, None)
    }

    /// Like [`get_mr`](Self::get_mr) for one peer (`RDS_GET_MR_FOR_DEST`), or for this node itself.
    /// If the node isolates peers, no other peer can use the cookie.
    ///
    /// An offer of part of [registered memory](Self::register_memory) needs no command while the
    /// connection is up. The peer may use it after a later message of this socket has arrived.
    ///
    /// # Errors
    /// As for `get_mr`; [`RdsError::InvalidArgument`] for an unreachable destination;
    /// [`RdsError::NotSupported`] for a loopback address on a node that isolates peers;
    /// [`RdsError::NoBufferSpace`]: no connection is free.
    pub fn get_mr_for_dest<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        to: SocketAddr,
        memory: DmaSlice<'_>,
        flags: RdmaFlags,
    ) -> Result<RdmaCookie, RdsError> {
        let mut node = self.node(adapter);
        let foreign = key(to.ip());
        let (given, behind) = match node.isolated_connection(handle, to)? {
            None if foreign == node.protocol.local => (foreign, None),
            None => {
                let tos = node.protocol.sockets.open(handle)?.tos;
                (0, node.protocol.connections.find(foreign, tos))
            }
            isolated => (foreign, isolated),
        };
        node.offer(handle, memory, flags, given, behind)
    }

    /// Releases a region (`RDS_FREE_MR`). Access of peers has ended on return; access to a part of
    /// [registered memory](Self::register_memory) ends when the HCA executes the unbind.
    ///
    /// Cookie 0 checks all regions that this socket released or peers used up. `Ok` means that no
    /// access is left.
    ///
    /// # Errors
    /// - [`RdsError::Again`], only with cookie 0: access has not ended. [`Poll`](Self::poll), and
    ///   call again. If nothing of a connection with such a region completes for 100 ms, it breaks.
    /// - [`RdsError::InvalidArgument`]: the socket has no such region.
    /// - [`RdsError::Dat`]: a failed device may still write to the region, which remains.
    /// - [`RdsError::NotConnected`], [`RdsError::BadSocket`].
    pub fn free_mr<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        cookie: RdmaCookie,
    ) -> Result<(), RdsError> {
        let mut node = self.node(adapter);
        if node.protocol.sockets.open(handle)?.address == 0 {
            return Err(RdsError::NotConnected);
        }
        if cookie.0 == 0 {
            return node.finish_released(|_, memory| memory.owner == handle);
        }
        let region = node.protocol.regions.take(handle, cookie).ok_or(RdsError::InvalidArgument)?;
        Ok(node.revoke(region)?)
    }
}

impl<P: Platform> Node<'_, '_, '_, P> {
    /// Registers memory for the peer with address `given`, for this node itself, or for all peers
    /// (0). `behind` is the connection whose messages carry the cookie, if it exists.
    ///
    /// # Errors
    /// As for [`get_mr`](crate::Rds::get_mr).
    pub(crate) fn offer(
        &mut self,
        handle: SocketHandle,
        memory: DmaSlice<'_>,
        flags: RdmaFlags,
        given: u128,
        behind: Option<ConnectionId>,
    ) -> Result<RdmaCookie, RdsError> {
        if self.protocol.sockets.open(handle)?.address == 0 {
            return Err(RdsError::NotConnected);
        }
        if memory.is_empty() {
            return Err(RdsError::InvalidArgument);
        }
        if memory.len() > MAX_RDMA_LEN {
            return Err(RdsError::MessageSize);
        }
        let short = Region::is_short(memory.len());
        let counters = &mut self.protocol.counters;
        if !self.protocol.regions.has_room() {
            *if short { &mut counters.mr_8k_depleted } else { &mut counters.mr_1m_depleted } += 1;
            return Err(RdsError::Exhausted);
        }
        let (pz, zone) = match behind {
            _ if !self.protocol.config.isolate_peers => (self.objects.pz, 0),
            Some(id) => {
                let pz = self.zone_of(id)?;
                (pz, pz.bits())
            }
            // Zone without peers.
            None if given == self.protocol.local => (self.objects.pz, 0),
            None => return Err(RdsError::NotSupported),
        };
        let foreign = if self.protocol.config.isolate_peers { given } else { 0 };
        let rights = rights(flags);
        let window = behind.and_then(|id| self.bind_window((handle, pz), id, memory, rights));
        let (lmr_bits, rkey, offset) = match window {
            Some(id) => {
                let window = self.protocol.windows.get(id);
                (window.rmr_bits, window.rkey, window.address)
            }
            None => {
                let created = self.adapter.lmr_create_zero_based(self.objects.ia, memory, pz, rights)?;
                (created.lmr.bits(), created.rmr_context, created.registered_address as u32)
            }
        };
        self.protocol.regions.insert(Region {
            lmr_bits,
            window,
            zone,
            foreign,
            given,
            rkey,
            owner: handle,
            use_once: flags.contains(RdmaFlags::USE_ONCE),
            short,
            spent: false,
        });
        let counters = &mut self.protocol.counters;
        *if short { &mut counters.mr_8k_alloc } else { &mut counters.mr_1m_alloc } += 1;
        Ok(RdmaCookie::new(rkey, offset))
    }

    /// Starts the release of a region that was removed from the table. Restores it on failure.
    fn revoke(&mut self, region: Region) -> DatResult<()> {
        let ended = match region.window {
            // The window may have been freed and reused for another region.
            Some(id) if self.protocol.windows.is_of(id, &region) => self.end_window(id),
            Some(_) => Ok(()),
            None => free_lmr(self.adapter, region.lmr_bits),
        };
        let Protocol { counters, regions, .. } = &mut self.protocol;
        ended.inspect_err(|_| regions.insert(region))?;
        *if region.short { &mut counters.mr_8k_free } else { &mut counters.mr_1m_free } += 1;
        Ok(())
    }

    /// Revokes the used-up regions. A refused release is repeated with the next one.
    #[cold]
    #[inline(never)]
    pub(crate) fn revoke_spent(&mut self) {
        while let Some(region) = self.protocol.regions.take_spent(|_| true) {
            if self.revoke(region).is_err() {
                return;
            }
        }
        self.protocol.regions.none_spent();
    }

    /// Revokes the used-up regions of memory for which `is_meant` returns true.
    ///
    /// # Errors
    /// DAT's.
    pub(crate) fn revoke_spent_of(&mut self, is_meant: impl Fn(MemoryId, &Memory) -> bool) -> DatResult<()> {
        loop {
            let Protocol { regions, windows, operations, .. } = &mut self.protocol;
            let meant = |id| operations.memories().get(id).is_some_and(|memory| is_meant(id, memory));
            let window_of = |region: &Region| region.window.filter(|id| windows.is_of(*id, region));
            let memory_of = |region: &Region| window_of(region).and_then(|id| windows.get(id).memory);
            let spent = regions.take_spent(|region| memory_of(region).is_some_and(meant));
            let Some(region) = spent else { return Ok(()) };
            self.revoke(region)?;
        }
    }

    /// Revokes all regions of a socket, or of all sockets.
    ///
    /// # Errors
    /// DAT's: a failed device may still write to the memory. Regions that are left remain in the
    /// table.
    pub(crate) fn free_regions(&mut self, owner: Option<SocketHandle>) -> DatResult<()> {
        while let Some(region) = self.protocol.regions.take_any(owner) {
            self.revoke(region)?;
        }
        Ok(())
    }
}

/// Returns the rights of peers, and of the HCA on their behalf, for an offer's flags.
fn rights(offer: RdmaFlags) -> MemPriv {
    let all = RdmaFlags::PEER_READS | RdmaFlags::PEER_WRITES | RdmaFlags::PEER_ATOMICS;
    let said = offer & all;
    let said = if said.is_empty() { RdmaFlags::PEER_READS | RdmaFlags::PEER_WRITES } else { said };
    let mut rights = MemPriv::LOCAL_READ;
    rights.set(MemPriv::LOCAL_WRITE, said != RdmaFlags::PEER_READS);
    rights.set(MemPriv::REMOTE_READ, said.contains(RdmaFlags::PEER_READS));
    rights.set(MemPriv::REMOTE_WRITE, said.contains(RdmaFlags::PEER_WRITES));
    rights.set(MemPriv::REMOTE_ATOMIC, said.contains(RdmaFlags::PEER_ATOMICS));
    rights
}
