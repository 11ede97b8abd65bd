//! The HCA: what is made, asked and destroyed by commands.

use crate::caps::Capabilities;
use crate::config::{Access, Base, Config, CqConfig, InitParams, QpConfig, RtrParams, RtsParams};
use crate::cq::Cq;
use crate::dma::{DmaRegion, DmaSlice};
use crate::error::{Error, Step};
use crate::event::AsyncEvent;
use crate::platform::Platform;
use crate::qp::{Qp, QpState};
use crate::storage::HcaParts;
use crate::trace::{Counters, Trace};
use crate::types::{CqNumber, Gid, LKey, Lid, Mtu, PKey, Pd, Psn, RKey};
use mlx5_prm::status::HealthSyndrome;

/// One HCA, up and running.
pub struct Hca<'s, P: Platform> {
    platform: P,
    caps: Capabilities,
    counters: Counters,
    trace: Trace<'s>,
}

/// Memory that work requests may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MemoryRegion {
    /// Key for this side's work requests.
    pub lkey: LKey,
    /// Key for peers.
    pub rkey: RKey,
    /// First address as the key counts.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

/// How a port stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PortState {
    /// Whether data may flow.
    pub state: LinkState,
    /// Base LID, assigned by the subnet manager.
    pub lid: Lid,
    /// LID mask count: the port has 2^lmc LIDs.
    pub lmc: u8,
    /// The subnet manager's LID.
    pub sm_lid: Lid,
    /// Service level to reach the subnet manager with.
    pub sm_sl: u8,
    /// Largest delay in the subnet: 4.096 us times 2 to this power.
    pub subnet_timeout: u8,
    /// MTU in force on the link.
    pub mtu: Mtu,
    /// Prefix of GID 0.
    pub gid_prefix: u64,
    /// GUID of the port.
    pub port_guid: u64,
    /// GUID of the HCA.
    pub node_guid: u64,
    /// Capability mask of the port (IBTA 1.3, table 156).
    pub capability_mask: u32,
}

/// InfiniBand port state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum LinkState {
    /// No link.
    Down,
    /// Link is up; the subnet manager has not configured it.
    Init,
    /// Configured; management datagrams only.
    Armed,
    /// Data may flow.
    Active,
}

/// How long a step of bring-up took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct StepTime {
    /// Which.
    pub step: Step,
    /// Nanoseconds.
    pub took: u64,
}

impl<'s, P: Platform> Hca<'s, P> {
    /// Brings the HCA up, from registers to a usable port.
    ///
    /// # Errors
    /// Any [`Error`]. What was begun has been undone as far as the device let it.
    pub fn bring_up(
        platform: P,
        region: DmaRegion,
        storage: HcaParts<'s>,
        config: &Config,
    ) -> Result<Self, Error> {
        let _ = (region, storage.map, storage.events, config);
        let trace = Trace::new(storage.trace);
        let hca = Self { platform, caps: Capabilities::default(), counters: Counters::default(), trace };
        match hca.fatal() {
            Some(syndrome) => Err(Error::Fatal(syndrome)),
            None => Err(Error::NotPresent),
        }
    }

    /// Destroys what bring-up made, takes firmware's pages back and disables the HCA. Queues must have been destroyed.
    ///
    /// # Errors
    /// Any [`Error`]; the device is then to be reset before the region is used for anything else.
    pub fn tear_down(self) -> Result<(), Error> {
        Err(Error::NotPresent)
    }

    /// The platform.
    pub fn platform(&self) -> &P {
        &self.platform
    }
    /// What the HCA can do.
    pub fn caps(&self) -> &Capabilities {
        &self.caps
    }
    /// Counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
    /// What happened last.
    pub fn trace(&self) -> &Trace<'s> {
        &self.trace
    }
    /// Durations of the steps of bring-up.
    pub fn steps(&self) -> &[StepTime] {
        &[]
    }
    /// Why the device can no longer be used, if so.
    pub fn fatal(&self) -> Option<HealthSyndrome> {
        None
    }
    /// Firmware version: major, minor, sub-minor.
    pub fn firmware_version(&self) -> (u16, u16, u16) {
        (0, 0, 0)
    }
    /// Name of the board (PSID), ASCII padded with zeros.
    pub fn psid(&self) -> [u8; 16] {
        [0; 16]
    }
    /// Pages of 4 KiB that firmware holds.
    pub fn firmware_pages(&self) -> u32 {
        0
    }
    /// Bytes left in the region.
    pub fn free_bytes(&self) -> usize {
        0
    }

    /// Takes `len` bytes from the region, zeroed, aligned to `align` and at least 4096, in units of a power of two.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::InvalidArgument`].
    pub fn alloc(&mut self, len: usize, align: usize) -> Result<DmaSlice, Error> {
        let _ = align;
        Err(Error::OutOfMemory { bytes: len })
    }
    /// Gives back what [`Hca::alloc`] gave.
    ///
    /// # Errors
    /// [`Error::NotAllocated`].
    pub fn free(&mut self, slice: DmaSlice) -> Result<(), Error> {
        let _ = slice;
        Err(Error::NotAllocated)
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn alloc_pd(&mut self) -> Result<Pd, Error> {
        Err(Error::NotPresent)
    }
    /// Ends a protection domain.
    ///
    /// # Errors
    /// Any [`Error`] of a command: firmware refuses while something uses it.
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), Error> {
        let _ = pd;
        Err(Error::NotPresent)
    }

    /// Makes a memory key for `slice`.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::InvalidArgument`] for an empty slice or a zero-based one that is not page-aligned.
    pub fn register(
        &mut self,
        pd: Pd,
        slice: DmaSlice,
        access: Access,
        base: Base,
    ) -> Result<MemoryRegion, Error> {
        let _ = (pd, slice, access, base);
        Err(Error::NotPresent)
    }
    /// Makes a memory key for all of memory, by device address.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn register_all(&mut self, pd: Pd, access: Access) -> Result<MemoryRegion, Error> {
        let _ = (pd, access);
        Err(Error::NotPresent)
    }
    /// Ends a memory key.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn deregister(&mut self, region: MemoryRegion) -> Result<(), Error> {
        let _ = region;
        Err(Error::NotPresent)
    }
    /// The reserved key: local access to all of memory by device address, for QPs made with
    /// [`QpConfig::reserved_lkey`].
    pub fn reserved_lkey(&self) -> LKey {
        LKey::new(0)
    }

    /// Makes a completion queue.
    ///
    /// # Errors
    /// Any [`Error`] of a command, [`Error::OutOfMemory`], [`Error::Limit`].
    pub fn create_cq(&mut self, config: &CqConfig) -> Result<Cq<P::Bar>, Error> {
        let _ = config;
        Err(Error::NotPresent)
    }
    /// Destroys a completion queue that no QP uses any more.
    ///
    /// # Errors
    /// Any [`Error`] of a command. The queue's memory then stays allocated, as the device may still write there.
    pub fn destroy_cq(&mut self, cq: Cq<P::Bar>) -> Result<(), Error> {
        let _ = cq;
        Err(Error::NotPresent)
    }

    /// Makes a queue pair, in the state [`QpState::Reset`].
    ///
    /// # Errors
    /// Any [`Error`] of a command, [`Error::OutOfMemory`], [`Error::Limit`].
    pub fn create_qp(&mut self, config: &QpConfig) -> Result<Qp<P::Bar>, Error> {
        let _ = config;
        Err(Error::NotPresent)
    }
    /// Destroys a queue pair in any state. Its completions stay in the CQs: see [`Cq::sweep`].
    ///
    /// # Errors
    /// Any [`Error`] of a command. The queue's memory then stays allocated, as the device may still use it.
    pub fn destroy_qp(&mut self, qp: Qp<P::Bar>) -> Result<(), Error> {
        let _ = qp;
        Err(Error::NotPresent)
    }
    /// RESET to INIT: receives may be posted.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn modify_to_init(&mut self, qp: &mut Qp<P::Bar>, params: &InitParams) -> Result<(), Error> {
        let _ = (qp, params);
        Err(Error::NotPresent)
    }
    /// INIT to RTR of a connected QP: it answers its peer.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn modify_to_rtr(&mut self, qp: &mut Qp<P::Bar>, params: &RtrParams) -> Result<(), Error> {
        let _ = (qp, params);
        Err(Error::NotPresent)
    }
    /// RTR to RTS of a connected QP: it sends.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn modify_to_rts(&mut self, qp: &mut Qp<P::Bar>, params: &RtsParams) -> Result<(), Error> {
        let _ = (qp, params);
        Err(Error::NotPresent)
    }
    /// INIT to RTR and RTS of a datagram QP (UD, GSI).
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn modify_to_rts_datagram(&mut self, qp: &mut Qp<P::Bar>, sq_psn: Psn) -> Result<(), Error> {
        let _ = (qp, sq_psn);
        Err(Error::NotPresent)
    }
    /// Any state but RESET to ERROR: what is posted is answered as flushed.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn modify_to_error(&mut self, qp: &mut Qp<P::Bar>) -> Result<(), Error> {
        let _ = qp;
        Err(Error::NotPresent)
    }
    /// Any state to RESET: what is posted is forgotten. Its completions stay in the CQs: see [`Cq::sweep`].
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn modify_to_reset(&mut self, qp: &mut Qp<P::Bar>) -> Result<(), Error> {
        let _ = qp;
        Err(Error::NotPresent)
    }
    /// The state as the device has it.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn query_qp_state(&mut self, qp: &Qp<P::Bar>) -> Result<QpState, Error> {
        let _ = qp;
        Err(Error::NotPresent)
    }

    /// How port 1 stands.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn port(&mut self) -> Result<PortState, Error> {
        Err(Error::NotPresent)
    }
    /// An entry of port 1's GID table.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn gid(&mut self, index: u16) -> Result<Gid, Error> {
        let _ = index;
        Err(Error::NotPresent)
    }
    /// An entry of port 1's P_Key table.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn pkey(&mut self, index: u16) -> Result<PKey, Error> {
        let _ = index;
        Err(Error::NotPresent)
    }

    /// Takes asynchronous events, answers page requests, looks at the device's health when it is time. Gives the time by
    /// which it wants to be called again.
    pub fn poll(&mut self, now: u64) -> u64 {
        now
    }
    /// The oldest event not yet taken.
    pub fn next_event(&mut self) -> Option<AsyncEvent> {
        None
    }
    /// Takes completion events and names the CQ of each: it has completions, and [`Cq::notified`] is due. The number is the
    /// device's claim. Gives how many there were.
    pub fn poll_completions(&mut self, notify: impl FnMut(CqNumber)) -> u32 {
        let _ = notify;
        0
    }
    /// Arms all event queues: the next event raises an interrupt, at once if there is one already.
    pub fn arm_events(&mut self) {}
}
