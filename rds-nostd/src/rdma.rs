//! RDMA as rds(3SOCKET) has it, its terms and regions: memory offered to peers by cookies. Linux `net/rds/rdma.c`.
//!
//! A region is exactly the bytes that were asked for, and peers name them by offsets into its first page, because a cookie
//! has 32 bits for that. It is revoked when it is released, whether or not `INVALIDATE` was given: the page allows a peer
//! to keep access for a while, it does not ask for it.

use core::net::SocketAddr;

use dat_nostd::{Adapter, DatResult, DmaSlice, LmrHandle, MemPriv, Platform};

use crate::counters::Counters;
use crate::error::RdsError;
use crate::node::Rds;
use crate::socket::{SocketHandle, key, open_socket};
use crate::wire::{Extension, Extensions, Header};

/// The longest region, and the longest RDMA operation; bytes.
pub const MAX_RDMA_LEN: usize = 1 << 20;
/// Regions up to this are counted with those of 8 KiB, bytes.
const SHORT: usize = 8192;

/// Memory of a peer, as `rds_rdma_cookie_t`: the remote key in the low half, in the high half the offset of the region's
/// first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RdmaCookie(pub u64);

impl RdmaCookie {
    pub(crate) const fn new(rkey: u32, offset: u32) -> Self {
        Self((offset as u64) << 32 | rkey as u64)
    }

    /// The remote key.
    #[must_use]
    pub const fn rkey(self) -> u32 {
        self.0 as u32
    }

    /// What the region's first byte is addressed by.
    #[must_use]
    pub const fn offset(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

bitflags::bitflags! {
    /// Flags of regions and operations, with the values of `RDS_RDMA_…`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RdmaFlags: u64 {
        /// Operation: write the peer's memory; otherwise read it.
        const READWRITE = 0x01;
        /// Operation: the message that goes with it leaves only when a read is done.
        const FENCE = 0x02;
        /// Region: access ends at release.
        const INVALIDATE = 0x04;
        /// Region: released when the peer says that it used it.
        const USE_ONCE = 0x08;
        /// Nothing waits here in any case.
        const DONTWAIT = 0x10;
        /// Operation: tell how it ended.
        const NOTIFY_ME = 0x20;
        /// Operation: without payload and cookie, send no message.
        const SILENT = 0x40;
    }
}

/// How an operation ended, with the values of `RDS_RDMA_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum RdmaStatus {
    /// It was done.
    Success = 0,
    /// The peer denied the access: wrong key, offset or length.
    RemoteError = 1,
    /// The application gave it up.
    Canceled = 2,
    /// The connection broke; it may have been done in part.
    Dropped = 3,
    /// Anything else.
    OtherError = 4,
}

/// `struct rds_rdma_notify`: the end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaNotify {
    /// As given with the operation.
    pub user_token: u64,
    /// How it ended.
    pub status: RdmaStatus,
}

/// `struct rds_rdma_args`: an operation on a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct RdmaArgs<'a> {
    /// The peer's region.
    pub cookie: RdmaCookie,
    /// Where in the region it begins, bytes.
    pub remote_offset: u64,
    /// Bytes of the region that may be touched; not fewer than the local pieces have.
    pub remote_bytes: u64,
    /// Local memory, piece by piece.
    pub local: &'a [DmaSlice<'a>],
    /// READWRITE, FENCE, NOTIFY_ME, SILENT.
    pub flags: RdmaFlags,
    /// For the notification.
    pub user_token: u64,
}

/// What an atomic operation does to 8 bytes of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Replaces the value by `swap` if it is `compare`.
    CompareSwap {
        /// What has to be there.
        compare: u64,
        /// What is there afterwards.
        swap: u64,
    },
    /// Adds `add`; what goes beyond 64 bits is gone.
    FetchAdd {
        /// The number to add.
        add: u64,
    },
    /// Compares and replaces some bits (`RDS_CMSG_MASKED_ATOMIC_CSWP`). Only with masks of all ones, which is the plain operation.
    MaskedCompareSwap {
        /// What has to be there.
        compare: u64,
        /// What is there afterwards.
        swap: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// Bits that are replaced.
        swap_mask: u64,
    },
    /// Adds within fields (`RDS_CMSG_MASKED_ATOMIC_FADD`). Only with a mask of zero, which is the plain operation.
    MaskedFetchAdd {
        /// The number to add.
        add: u64,
        /// Bits that nothing is carried out of.
        nocarry_mask: u64,
    },
}

impl AtomicOp {
    /// The operation without masks that does the same. HCAs of this family have masked ones, but neither the DAT layer nor the
    /// emulated HCA offers them.
    ///
    /// # Errors
    /// [`RdsError::NotSupported`]: there is none.
    pub const fn plain(self) -> Result<Self, RdsError> {
        match self {
            Self::MaskedCompareSwap { compare, swap, compare_mask: u64::MAX, swap_mask: u64::MAX } => {
                Ok(Self::CompareSwap { compare, swap })
            }
            Self::MaskedFetchAdd { add, nocarry_mask: 0 } => Ok(Self::FetchAdd { add }),
            Self::MaskedCompareSwap { .. } | Self::MaskedFetchAdd { .. } => Err(RdsError::NotSupported),
            plain => Ok(plain),
        }
    }
}

/// `struct rds_atomic_args`: an atomic operation on 8 bytes of a peer, aligned to 8.
#[derive(Clone, Copy, Debug)]
pub struct AtomicArgs<'a> {
    /// The peer's region.
    pub cookie: RdmaCookie,
    /// Where in the region, bytes.
    pub remote_offset: u64,
    /// 8 bytes for what was there before, in this machine's order.
    pub local: DmaSlice<'a>,
    /// What to do.
    pub op: AtomicOp,
    /// NOTIFY_ME, SILENT, FENCE.
    pub flags: RdmaFlags,
    /// For the notification.
    pub user_token: u64,
}

/// What goes along with a message: the control messages of `sendmsg`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Control<'a> {
    /// `RDS_CMSG_RDMA_ARGS`: do this before the message is sent.
    pub rdma: Option<RdmaArgs<'a>>,
    /// `RDS_CMSG_ATOMIC_FADD`, `RDS_CMSG_ATOMIC_CSWP`: and then this.
    pub atomic: Option<AtomicArgs<'a>>,
    /// `RDS_CMSG_RDMA_MAP`: offer this memory to the receiver.
    pub map: Option<(DmaSlice<'a>, RdmaFlags)>,
    /// `RDS_CMSG_RDMA_DEST`: offer memory for which there is a cookie.
    pub dest: Option<RdmaCookie>,
}

/// The table entry of a region.
#[derive(Debug)]
pub(crate) struct Region {
    /// The LMR, 0 if the entry is free.
    lmr_bits: u64,
    /// The zone of the only peer that may use it, and that peer (IPv4 mapped); 0 if all may.
    zone: u64,
    foreign: u128,
    rkey: u32,
    socket: u16,
    generation: u32,
    use_once: bool,
    /// No longer than two pages.
    short: bool,
    /// Its peer used it up: to be freed as soon as the adapter is at hand.
    spent: bool,
}

impl Region {
    pub(crate) const EMPTY: Self = Self {
        lmr_bits: 0,
        zone: 0,
        foreign: 0,
        rkey: 0,
        socket: 0,
        generation: 0,
        use_once: false,
        short: false,
        spent: false,
    };

    /// Whether it is offered in this zone of one peer.
    pub(crate) const fn is_in(&self, zone: u64) -> bool {
        self.lmr_bits != 0 && self.zone == zone
    }

    /// Whether this peer may use it.
    const fn is_for(&self, foreign: u128) -> bool {
        self.foreign == 0 || self.foreign == foreign
    }

    const fn is_of(&self, owner: SocketHandle) -> bool {
        self.lmr_bits != 0 && self.socket == owner.slot && self.generation == owner.generation
    }
}

impl Rds<'_> {
    /// Offers `memory` to peers and gives the cookie to tell them (`RDS_GET_MR`). Any peer that learns it may use it.
    ///
    /// # Errors
    /// [`RdsError::NotSupported`]: the node isolates peers, so that it has to be said who may use it. [`RdsError::NotConnected`]: not
    /// bound. [`RdsError::InvalidArgument`]: no bytes. [`RdsError::MessageSize`]: more than [`MAX_RDMA_LEN`].
    /// [`RdsError::NoMemory`]: no region is left. [`RdsError::Dat`]; [`RdsError::BadSocket`].
    pub fn get_mr<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        memory: DmaSlice<'_>,
        flags: RdmaFlags,
    ) -> Result<RdmaCookie, RdsError> {
        self.offer(adapter, handle, memory, flags, None)
    }

    /// As [`get_mr`](Self::get_mr), for one peer (`RDS_GET_MR_FOR_DEST`): if the node isolates peers, no other one can use it.
    ///
    /// # Errors
    /// As `get_mr`; [`RdsError::InvalidArgument`] for a destination that messages cannot go to; [`RdsError::NotSupported`] on a node
    /// that isolates peers for a destination on this node; [`RdsError::NoBufferSpace`]: no connection is left.
    pub fn get_mr_for_dest<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        to: SocketAddr,
        memory: DmaSlice<'_>,
        flags: RdmaFlags,
    ) -> Result<RdmaCookie, RdsError> {
        let connection = if self.reachable(handle, to)? && self.config.isolate_peers {
            let tos = open_socket(self.sockets, handle)?.tos;
            Some(self.connection_for(key(to.ip()), tos).ok_or(RdsError::NoBufferSpace)?)
        } else {
            None
        };
        self.offer(adapter, handle, memory, flags, connection)
    }

    /// Registers memory for the peer of a connection, which matters only if peers are isolated.
    ///
    /// # Errors
    /// As [`get_mr`](Self::get_mr).
    pub(crate) fn offer<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        memory: DmaSlice<'_>,
        flags: RdmaFlags,
        connection: Option<usize>,
    ) -> Result<RdmaCookie, RdsError> {
        if open_socket(self.sockets, handle)?.address == 0 {
            return Err(RdsError::NotConnected);
        }
        if memory.is_empty() {
            return Err(RdsError::InvalidArgument);
        }
        if memory.len() > MAX_RDMA_LEN {
            return Err(RdsError::MessageSize);
        }
        let short = memory.len() <= SHORT;
        let Some(free) = self.regions.iter().position(|region| region.lmr_bits == 0) else {
            *if short { &mut self.counters.mr_8k_depleted } else { &mut self.counters.mr_1m_depleted } += 1;
            return Err(RdsError::NoMemory);
        };
        let (pz, zone, foreign) = if self.config.isolate_peers {
            let connection = connection.ok_or(RdsError::NotSupported)?;
            let pz = self.zone_of(adapter, connection)?;
            (pz, pz.bits(), self.connections.get(connection).map_or(0, |state| state.foreign))
        } else {
            (self.dat.pz, 0, 0)
        };
        let rights = MemPriv::ALL | MemPriv::REMOTE_ATOMIC;
        let created = adapter.lmr_create_zero_based(self.dat.ia, memory, pz, rights)?;
        if let Some(free) = self.regions.get_mut(free) {
            *free = Region {
                lmr_bits: created.lmr.bits(),
                zone,
                foreign,
                rkey: created.rmr_context,
                socket: handle.slot,
                generation: handle.generation,
                use_once: flags.contains(RdmaFlags::USE_ONCE),
                short,
                spent: false,
            };
        }
        *if short { &mut self.counters.mr_8k_alloc } else { &mut self.counters.mr_1m_alloc } += 1;
        Ok(RdmaCookie::new(created.rmr_context, created.registered_address as u32))
    }

    /// Releases a region: when this returns, peers have no access any more (`RDS_FREE_MR`). Cookie 0 asks for the end of
    /// all released regions, of which there are none.
    ///
    /// # Errors
    /// [`RdsError::InvalidArgument`]: the socket has no such region. [`RdsError::NotConnected`], [`RdsError::BadSocket`].
    pub fn free_mr<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        cookie: RdmaCookie,
    ) -> Result<(), RdsError> {
        if open_socket(self.sockets, handle)?.address == 0 {
            return Err(RdsError::NotConnected);
        }
        if cookie.0 == 0 {
            return Ok(());
        }
        let owned = |region: &Region| region.is_of(handle) && region.rkey == cookie.rkey();
        let region = self.regions.iter_mut().find(|region| owned(region)).ok_or(RdsError::InvalidArgument)?;
        release(adapter, region, &mut self.counters)?;
        Ok(())
    }

    /// Whether the socket has a region of this key that the peer of a connection may use.
    pub(crate) fn may_offer(&self, handle: SocketHandle, cookie: RdmaCookie, connection: usize) -> bool {
        let foreign = self.connections.get(connection).map_or(0, |state| state.foreign);
        let found =
            |region: &Region| region.is_of(handle) && region.rkey == cookie.rkey() && region.is_for(foreign);
        self.regions.iter().any(found)
    }

    /// A message with an extension arrived for a socket: if the peer used a region that was to be used once, that one goes.
    #[cold]
    pub(crate) fn regions_used(&mut self, header: &Header, slot: usize, foreign: u128) {
        let Some(socket) = self.sockets.get(slot) else { return };
        let owner = SocketHandle { slot: slot as u16, generation: socket.generation };
        for extension in Extensions::of(header) {
            let rkey = match extension {
                Extension::Rdma { rkey } => rkey,
                Extension::RdmaBytes { bytes, .. } => {
                    self.counters.recv_rdma_bytes += u64::from(bytes);
                    continue;
                }
                _ => continue,
            };
            let named =
                |region: &Region| region.is_of(owner) && region.rkey == rkey && region.is_for(foreign);
            match self.regions.iter_mut().find(|region| named(region)) {
                Some(region) if region.use_once => {
                    region.spent = true;
                    self.regions_spent = true;
                }
                Some(_) => {}
                None => self.counters.recv_bad_rkey += 1,
            }
        }
    }

    /// Revokes the regions that were used up.
    pub(crate) fn free_spent_regions<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) {
        if core::mem::take(&mut self.regions_spent) {
            self.free_regions(adapter, |region| region.spent);
        }
    }

    /// Revokes all regions of a socket that closes.
    pub(crate) fn free_regions_of<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, owner: SocketHandle) {
        self.free_regions(adapter, |region| region.is_of(owner));
    }

    /// Revokes all regions there are.
    pub(crate) fn free_all_regions<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) {
        self.free_regions(adapter, |_| true);
    }

    fn free_regions<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, which: impl Fn(&Region) -> bool) {
        for region in self.regions.iter_mut().filter(|region| region.lmr_bits != 0 && which(region)) {
            // It can only fail with the adapter itself, whose regions are gone then.
            let _ = release(adapter, region, &mut self.counters);
        }
    }
}

/// Revokes a region; its entry is free.
fn release<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    region: &mut Region,
    counters: &mut Counters,
) -> DatResult<()> {
    let region = core::mem::replace(region, Region::EMPTY);
    *if region.short { &mut counters.mr_8k_free } else { &mut counters.mr_1m_free } += 1;
    adapter.lmr_free(LmrHandle::from_bits(region.lmr_bits))
}
