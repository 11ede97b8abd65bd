//! Memory for an adapter: the one place that sets capacities.

use core::sync::atomic::AtomicU32;

use driver_mlx::{Bar, HcaParts, HcaStorage};
use ib_port::{PortParts, PortStorage};

use crate::base::table::Slot;
use crate::conn::request::Cr;
use crate::conn::service_point::{Psp, Rsp};
use crate::ep::endpoint::Ep;
use crate::evd::cno::Cno;
use crate::evd::dispatcher::Evd;
use crate::evd::queue::EventSlot;
use crate::ia::instance::Ia;
use crate::mem::bind::BindSlot;
use crate::mem::lmr::Lmr;
use crate::mem::rmr::Rmr;
use crate::mem::zone::Pz;
use crate::srq::queue::Srq;

/// Open IAs of one adapter.
pub const MAX_IAS: usize = 8;
/// Protection zones of one adapter.
pub const MAX_PZS: usize = 64;
/// Public service points of one adapter.
pub const MAX_PSPS: usize = 32;
/// Reserved service points of one adapter.
pub const MAX_RSPS: usize = 32;
/// Consumer notification objects of one adapter.
pub const MAX_CNOS: usize = 32;
/// Shared receive queues of one adapter.
pub const MAX_SRQS: usize = 32;
/// Remote memory regions of one adapter.
pub const MAX_RMRS: usize = 128;
/// Binds of one adapter that have not completed.
pub const MAX_BINDS: usize = 256;
/// Connection requests waiting for an answer.
pub const MAX_CRS: usize = 32;

/// All memory of an adapter that the device does not see; all zero bytes, so that a static takes no room in an image.
///
/// | parameter | what | bytes each, at most |
/// |---|---|---|
/// | `BLOCKS` | blocks of 4 KiB in the DMA region, rounded up to a power of two | 2 |
/// | `EPS` | endpoints | 1024 |
/// | `EVDS` | event dispatchers | 344 |
/// | `LMRS` | memory regions (at most 65,536) | 224 |
/// | `EVENTS` | events queued in software, over all EVDs | 80 |
/// | `CONNECTIONS` | connections in the CM: `EPS` plus requests not yet answered plus those in TimeWait | 1024 |
///
/// IAs, protection zones, service points, connection requests, CNOs, SRQs and RMRs are few and have constants of their own.
pub struct AdapterStorage<
    B: Bar,
    const BLOCKS: usize,
    const EPS: usize,
    const EVDS: usize,
    const LMRS: usize,
    const EVENTS: usize,
    const CONNECTIONS: usize,
> {
    hca: HcaStorage<BLOCKS>,
    port: PortStorage<CONNECTIONS>,
    ias: [Slot<Ia>; MAX_IAS],
    pzs: [Slot<Pz>; MAX_PZS],
    lmrs: [Slot<Lmr>; LMRS],
    evds: [Slot<Evd<B>>; EVDS],
    evd_waits: [AtomicU32; EVDS],
    cq_chains: [u32; EVDS],
    eps: [Slot<Ep<B>>; EPS],
    psps: [Slot<Psp>; MAX_PSPS],
    rsps: [Slot<Rsp>; MAX_RSPS],
    cnos: [Slot<Cno>; MAX_CNOS],
    cno_waits: [AtomicU32; MAX_CNOS],
    srqs: [Slot<Srq>; MAX_SRQS],
    rmrs: [Slot<Rmr>; MAX_RMRS],
    binds: [BindSlot; MAX_BINDS],
    crs: [Slot<Cr>; MAX_CRS],
    events: [EventSlot; EVENTS],
}

/// The pieces of an [`AdapterStorage`], lent to an adapter for as long as it lives.
pub struct AdapterParts<'s, B: Bar> {
    pub(crate) hca: HcaParts<'s>,
    pub(crate) port: PortParts<'s>,
    pub(crate) ias: &'s mut [Slot<Ia>],
    pub(crate) pzs: &'s mut [Slot<Pz>],
    pub(crate) lmrs: &'s mut [Slot<Lmr>],
    pub(crate) evds: &'s mut [Slot<Evd<B>>],
    pub(crate) evd_waits: &'s [AtomicU32],
    pub(crate) cq_chains: &'s mut [u32],
    pub(crate) eps: &'s mut [Slot<Ep<B>>],
    pub(crate) psps: &'s mut [Slot<Psp>],
    pub(crate) rsps: &'s mut [Slot<Rsp>],
    pub(crate) cnos: &'s mut [Slot<Cno>],
    pub(crate) cno_waits: &'s [AtomicU32],
    pub(crate) srqs: &'s mut [Slot<Srq>],
    pub(crate) rmrs: &'s mut [Slot<Rmr>],
    pub(crate) binds: &'s mut [BindSlot],
    pub(crate) crs: &'s mut [Slot<Cr>],
    pub(crate) events: &'s mut [EventSlot],
}

impl<
    B: Bar,
    const BLOCKS: usize,
    const EPS: usize,
    const EVDS: usize,
    const LMRS: usize,
    const EVENTS: usize,
    const CONNECTIONS: usize,
> AdapterStorage<B, BLOCKS, EPS, EVDS, LMRS, EVENTS, CONNECTIONS>
{
    /// Empty storage.
    pub const fn new() -> Self {
        Self {
            hca: HcaStorage::new(),
            port: PortStorage::new(),
            ias: [const { Slot::EMPTY }; MAX_IAS],
            pzs: [const { Slot::EMPTY }; MAX_PZS],
            lmrs: [const { Slot::EMPTY }; LMRS],
            evds: [const { Slot::EMPTY }; EVDS],
            evd_waits: [const { AtomicU32::new(0) }; EVDS],
            cq_chains: [0; EVDS],
            eps: [const { Slot::EMPTY }; EPS],
            psps: [const { Slot::EMPTY }; MAX_PSPS],
            rsps: [const { Slot::EMPTY }; MAX_RSPS],
            cnos: [const { Slot::EMPTY }; MAX_CNOS],
            cno_waits: [const { AtomicU32::new(0) }; MAX_CNOS],
            srqs: [const { Slot::EMPTY }; MAX_SRQS],
            rmrs: [const { Slot::EMPTY }; MAX_RMRS],
            binds: [const { BindSlot::EMPTY }; MAX_BINDS],
            crs: [const { Slot::EMPTY }; MAX_CRS],
            events: [const { EventSlot::EMPTY }; EVENTS],
        }
    }

    /// What [`Adapter::open`](crate::Adapter::open) takes.
    pub fn parts(&mut self) -> AdapterParts<'_, B> {
        AdapterParts {
            hca: self.hca.parts(),
            port: self.port.parts(),
            ias: &mut self.ias,
            pzs: &mut self.pzs,
            lmrs: &mut self.lmrs,
            evds: &mut self.evds,
            evd_waits: &self.evd_waits,
            cq_chains: &mut self.cq_chains,
            eps: &mut self.eps,
            psps: &mut self.psps,
            rsps: &mut self.rsps,
            cnos: &mut self.cnos,
            cno_waits: &self.cno_waits,
            srqs: &mut self.srqs,
            rmrs: &mut self.rmrs,
            binds: &mut self.binds,
            crs: &mut self.crs,
            events: &mut self.events,
        }
    }
}

impl<
    B: Bar,
    const BLOCKS: usize,
    const EPS: usize,
    const EVDS: usize,
    const LMRS: usize,
    const EVENTS: usize,
    const CONNECTIONS: usize,
> Default for AdapterStorage<B, BLOCKS, EPS, EVDS, LMRS, EVENTS, CONNECTIONS>
{
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A view of a BAR as large as an embedder's pointer and length.
    #[derive(Clone, Copy)]
    struct WideBar {
        _base: u64,
        _len: usize,
    }

    impl Bar for WideBar {
        fn len(&self) -> usize {
            0
        }
        fn read32(&self, _: usize) -> u32 {
            u32::MAX
        }
        fn write32(&self, _: usize, _: u32) {}
        fn write64(&self, _: usize, _: u64) {}
    }

    #[test]
    fn the_documented_costs_hold() {
        let costs = [
            ("EPS", size_of::<Slot<Ep<WideBar>>>(), 1024),
            ("EVDS", size_of::<Slot<Evd<WideBar>>>() + size_of::<(AtomicU32, u32)>(), 344),
            ("LMRS", size_of::<Slot<Lmr>>(), 224),
            ("EVENTS", size_of::<EventSlot>(), 80),
            ("CONNECTIONS", size_of::<PortStorage<2>>() - size_of::<PortStorage<1>>(), 1024),
        ];
        for (name, size, documented) in costs {
            assert!(size <= documented, "{name}: {size} instead of {documented}");
        }
    }
}
