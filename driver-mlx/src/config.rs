//! What the embedder chooses at bring-up and at the creation of objects.

use crate::eq;
use crate::hca::ReservedLKey;
use crate::path::Path;
use crate::types::{CounterSet, CqNumber, Duration, Pd, Psn, QKey, QpNumber, SrqNumber};
use bitflags::bitflags;

/// Choices at bring-up. [`Config::DEFAULT`] suits a small node.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Config {
    /// MSI-X vector of the event queue for asynchronous events and page requests.
    pub async_vector: u16,
    /// MSI-X vector of the first completion event queue; the others follow.
    pub completion_vector: u16,
    /// Number of completion event queues, 1 to [`MAX_COMPLETION_EQS`].
    pub completion_eqs: u8,
    /// log2 of the entries of each completion event queue (64 bytes of DMA memory each), 7 to 16,
    /// cut to what the device can. Each takes as many CQs as it has entries less 64:
    /// [`Config::log_eq_size_for`].
    pub log_eq_size: u8,
    /// log2 of the entries of the asynchronous event queue, 7 to 16. As many objects can be made as have room for their events there.
    pub log_async_eq_size: u8,
    /// log2 of the number of QPs that firmware prepares for (it takes memory for each), cut to what the device can.
    pub log_max_qp: u8,
    /// Pages of 4 KiB that must stay free for the owner's use after firmware took its own, else bring-up is refused.
    pub reserved_pages: u32,
    /// Pages of 4 KiB kept from buffers and objects: firmware requests more as objects are made. A sixteenth of what firmware took in bring-up if that is more;
    /// 0 keeps none.
    pub firmware_reserve: u32,
    /// How long a firmware command may take, unless the device says how long.
    pub command_timeout: Duration,
    /// How long firmware may take to start after a reset.
    pub initializing_timeout: Duration,
    /// How long giving back pages may go without progress, unless the device says how long.
    pub reclaim_timeout: Duration,
    /// Distance of health polls, unless the device says how long.
    pub health_interval: Duration,
    /// Largest payload of an Ethernet frame, bytes, cut to what the port can. RoCE needs 96 bytes
    /// more than its path MTU: 1500 suffice for 1024, 4192 for 4096 if all switches pass them.
    pub ethernet_mtu: u16,
    /// Whether this function owns port settings (a physical function does, a virtual one does not).
    pub physical_function: bool,
    /// The device has failed before: it may be in the middle of a reset, and firmware may take hours to start.
    pub recovery: bool,
    /// Between two recoveries ([`Hca::recover`](crate::Hca::recover)) lies this time at least: a device that fails again at once is not
    /// reset for ever. Linux's mlx5 takes a minute for a physical and half a minute for a virtual function.
    pub recovery_grace: Duration,
}

/// The most completion event queues an HCA is given.
pub const MAX_COMPLETION_EQS: u8 = 8;

impl Config {
    /// One vector for everything, 2^14 QPs, the time-outs of mlx5_core.
    pub const DEFAULT: Self = Self {
        async_vector: 0,
        completion_vector: 0,
        completion_eqs: 1,
        log_eq_size: 9,
        log_async_eq_size: 12,
        log_max_qp: 14,
        reserved_pages: 0,
        firmware_reserve: 64,
        command_timeout: Duration::from_secs(60),
        initializing_timeout: Duration::from_secs(120),
        reclaim_timeout: Duration::from_secs(5),
        health_interval: Duration::from_secs(2),
        ethernet_mtu: 1500,
        physical_function: true,
        recovery: false,
        recovery_grace: Duration::from_secs(60),
    };

    /// Returns the [`Config::log_eq_size`] with which a completion event queue takes `cqs` CQs:
    /// however many of them complete before [`Hca::poll_completions`](crate::Hca::poll_completions)
    /// runs, the queue is not overrun. Returns 16, the largest size, beyond 65,472 CQs.
    #[must_use]
    pub const fn log_eq_size_for(cqs: u32) -> u8 {
        eq::log_size_for(cqs)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULT
    }
}

bitflags! {
    /// What a memory key allows. Local read is always allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// Receives and RDMA reads may store here.
        const LOCAL_WRITE = 1 << 3;
        /// Peers may read.
        const REMOTE_READ = 1 << 4;
        /// Peers may write (needs local write).
        const REMOTE_WRITE = 1 << 5;
        /// Peers may do atomic operations (needs local write).
        const REMOTE_ATOMIC = 1 << 6;
    }
}

impl Access {
    /// Returns whether the device may write to memory through a key with these rights.
    pub(crate) fn writes(self) -> bool {
        self.intersects(Self::LOCAL_WRITE.union(Self::REMOTE_WRITE).union(Self::REMOTE_ATOMIC))
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Access {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "Access({=u8:#x})", self.bits());
    }
}

/// From where a memory key counts addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Base {
    /// Addresses are the slice's virtual addresses.
    Virtual,
    /// Addresses begin in the first 4096: at the slice's offset in its page.
    Zero,
}

/// What a completion queue is made with.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CqConfig {
    /// Completions that must fit at once.
    pub entries: u32,
    /// Which completion event queue reports it, below [`Config::completion_eqs`].
    pub eq: u8,
}

/// Service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection: sends and RDMA writes, nothing answered, nothing repeated.
    Uc,
    /// Unreliable datagram; datagrams must carry `q_key`.
    Ud {
        /// The key.
        q_key: QKey,
    },
    /// The general services interface, QP1; one per port.
    Gsi,
    /// Frames of an Ethernet port with their Ethernet headers, as verbs' raw-packet QPs; one per HCA.
    /// It receives from [`Hca::start_raw_packet`](crate::Hca::start_raw_packet) on.
    RawPacket,
}

/// What a queue pair is made with.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct QpConfig {
    /// Service type.
    pub service: Service,
    /// Protection domain.
    pub pd: Pd,
    /// Where send completions go.
    pub send_cq: CqNumber,
    /// Where receive completions go.
    pub recv_cq: CqNumber,
    /// Send work requests that must fit at once, each of the largest size these limits allow. 0 for none.
    pub max_send_wr: u32,
    /// Receive work requests that must fit at once. 0 for none.
    pub max_recv_wr: u32,
    /// SGEs of a send work request.
    pub max_send_sge: u32,
    /// SGEs of a receive work request.
    pub max_recv_sge: u32,
    /// Bytes of inline data in a send work request.
    pub max_inline: u32,
    /// Comes back in every completion of this QP, 24 bits; 0xffffff is reserved.
    pub user_index: u32,
    /// Whether to write small work requests straight to the device, in a register that no other QP uses. Falls back to the
    /// doorbell when platform or device have none (left).
    pub blueflame: bool,
    /// Source QP number that datagrams carry instead of the QP's own (capability `set_deth_sqpn`).
    pub deth_sqpn: Option<QpNumber>,
    /// Whether work requests may name memory by the reserved key, which leads to all of memory by device address:
    /// [`ReservedLKey::allow`], which is `unsafe`.
    pub reserved_lkey: Option<ReservedLKey>,
    /// Takes receives from this shared queue instead of having a queue of its own (`max_recv_wr` is then ignored).
    pub srq: Option<SrqNumber>,
    /// Whether received messages of up to [`INLINE_RECEIVE`] bytes arrive in the completion itself instead of the posted memory
    /// (RC; capability `sctr_data_cqe`): [`Cq::inline_data`](crate::Cqe::inline_data).
    pub inline_receive: bool,
    /// Whether work requests may bind memory windows (RC): each of `max_send_wr` may then be a bind, which takes 192 bytes.
    pub memory_windows: bool,
    /// Counters that this QP counts in, from [`Hca::alloc_q_counters`](crate::Hca::alloc_q_counters).
    pub counters: Option<CounterSet>,
}

/// Bytes of the longest message that a completion itself can hold.
pub const INLINE_RECEIVE: usize = 32;

/// What a shared receive queue is made with.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SrqConfig {
    /// Protection domain that receives are checked against.
    pub pd: Pd,
    /// Receives that must fit at once, 1 or more.
    pub max_wr: u32,
    /// SGEs of a receive.
    pub max_sge: u32,
}

impl QpConfig {
    /// A reliable connection with modest queues on one CQ for both directions.
    #[must_use]
    pub const fn rc(pd: Pd, cq: CqNumber) -> Self {
        Self {
            service: Service::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: 32,
            max_recv_wr: 32,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 0,
            user_index: 0,
            blueflame: false,
            deth_sqpn: None,
            reserved_lkey: None,
            srq: None,
            inline_receive: false,
            memory_windows: false,
            counters: None,
        }
    }

    /// As [`QpConfig::rc`], unreliable.
    #[must_use]
    pub const fn uc(pd: Pd, cq: CqNumber) -> Self {
        Self { service: Service::Uc, ..Self::rc(pd, cq) }
    }

    /// A datagram QP, as [`QpConfig::rc`] otherwise.
    #[must_use]
    pub const fn ud(pd: Pd, cq: CqNumber, q_key: QKey) -> Self {
        Self { service: Service::Ud { q_key }, ..Self::rc(pd, cq) }
    }

    /// A QP for frames, as [`QpConfig::rc`] otherwise.
    #[must_use]
    pub const fn raw_packet(pd: Pd, cq: CqNumber) -> Self {
        Self { service: Service::RawPacket, ..Self::rc(pd, cq) }
    }
}

/// Parameters of the transition from RESET to INIT.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct InitParams {
    /// Port, from 1.
    pub port: u8,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// What peers may do: remote read, write and atomics (RC), remote write (UC).
    pub access: Access,
}

/// Parameters of the transition from INIT to RTR of a connected QP.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RtrParams {
    /// How to reach the peer.
    pub path: Path,
    /// Payload of a full packet on this path.
    pub mtu: crate::types::Mtu,
    /// The peer's QP.
    pub remote_qpn: QpNumber,
    /// Sequence number of the first packet to come.
    pub rq_psn: Psn,
    /// RDMA reads and atomics that the peer may have outstanding here, 0 to 2^`log_max_ra_res_qp`; rounded up to a power of two.
    pub responder_resources: u8,
    /// How long the peer is asked to wait when no receive is posted: InfiniBand's 5-bit code (IBTA 1.3, table 45).
    pub min_rnr_timer: u8,
}

/// Parameters of the transition from RTR to RTS of a connected QP.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RtsParams {
    /// Sequence number of the first packet to go.
    pub sq_psn: Psn,
    /// Local ACK time-out: 4.096 us times 2 to this power, 5 bits, 0 for none.
    pub ack_timeout: u8,
    /// Retries after a time-out or a sequence error, 0 to 7.
    pub retry_count: u8,
    /// Retries after "receiver not ready", 0 to 7, 7 without end.
    pub rnr_retry: u8,
    /// RDMA reads and atomics this side may have outstanding, 0 to 2^`log_max_ra_req_qp`; rounded up to a power of two.
    pub initiator_depth: u8,
}
