//! Memory for an adapter: the one place that sets capacities.

use core::sync::atomic::AtomicU32;

use driver_mlx::report::History;
use driver_mlx::{Bar, Config, HcaParts, HcaStorage};
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
use crate::srq::ended_qp::{EndedQp, MAX_DRAINING};
use crate::srq::queue::Srq;

/// How much an adapter can have of everything, and what that costs in its tables. [`adapter_storage!`](crate::adapter_storage) takes
/// these names.
///
/// What the device sees lies in the DMA region and costs there, beside the firmware's pages:
///
/// | object | bytes |
/// |---|---|
/// | EVD for DTO or RMR completions | a CQ: 64 for each completion of its ring, a power of two at least 16 above what it may hold: the largest of its length, what its EPs reserve, and [`AdapterConfig::min_completions`](crate::AdapterConfig::min_completions) |
/// | any other EVD | none |
/// | endpoint with a protection zone | its send queue, 64 to 320 for each request of `max_request_dtos` + 1 (by its segments), and its receive queue, 16 for each segment of each of `max_recv_dtos`; powers of two, 4096 in all at least |
/// | SRQ | 16 and 16 for each segment, of each of at least 63 buffers; powers of two |
/// | LMR | the consumer's memory only |
/// | capacity `evds` | the completion event queue, 64 for each of 2^[`Capacities::log_eq_size`] entries: 32 KiB up to 445 EVDs, 128 KiB for 1024 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// Bytes of the DMA region: 4 bytes of table for each 4 KiB, rounded up to a power of two.
    pub dma_bytes: usize,
    /// Endpoints; 1056 bytes each at most.
    pub eps: usize,
    /// Event dispatchers; 392 bytes each at most. The completion event queue has an entry for each,
    /// so that all of them may complete at once.
    pub evds: usize,
    /// Memory regions, at most 65,536; 232 bytes each at most.
    pub lmrs: usize,
    /// Events queued in software, over all EVDs; 80 bytes each at most.
    pub events: usize,
    /// Connections in the connection manager: `eps`, and requests not yet answered; 1088 bytes each
    /// at most. Connections in TimeWait use the remaining slots, and give way to new ones.
    pub connections: usize,
    /// Open IAs; 56 bytes each at most.
    pub ias: usize,
    /// Protection zones; 56 bytes each at most.
    pub pzs: usize,
    /// Public service points; 80 bytes each at most.
    pub psps: usize,
    /// Reserved service points; 96 bytes each at most.
    pub rsps: usize,
    /// Consumer notification objects; 152 bytes each at most.
    pub cnos: usize,
    /// Shared receive queues; 200 bytes each at most.
    pub srqs: usize,
    /// Remote memory regions (windows); 136 bytes each at most.
    pub rmrs: usize,
    /// Binds that have not completed, at most 65,536; 96 bytes each at most.
    pub binds: usize,
    /// Connection requests waiting for an answer; 240 bytes each at most.
    pub crs: usize,
    /// Services listened to: `psps` and `rsps` together; 16 bytes each at most.
    pub listeners: usize,
    /// Questions to the subnet administrator under way; 288 bytes each at most.
    pub queries: usize,
    /// Paths remembered; 112 bytes each at most.
    pub paths: usize,
    /// IP neighbours known or asked for; 56 bytes each at most.
    pub neighbours: usize,
    /// Multicast groups of IP, the broadcast group included; 112 bytes each at most.
    pub groups: usize,
}

impl Capacities {
    /// What `adapter_storage!` takes for what is not named.
    pub const DEFAULT: Self = Self {
        dma_bytes: 16 << 20,
        eps: 64,
        evds: 64,
        lmrs: 64,
        events: 1024,
        connections: 96,
        ias: 8,
        pzs: 64,
        psps: 32,
        rsps: 32,
        cnos: 32,
        srqs: 32,
        rmrs: 128,
        binds: 256,
        crs: 32,
        listeners: 64,
        queries: 16,
        paths: 128,
        neighbours: 128,
        groups: 16,
    };

    /// Blocks of 4 KiB of the DMA region, a power of two.
    pub const fn blocks(&self) -> usize {
        self.dma_bytes.div_ceil(4096).next_power_of_two()
    }

    /// log2 of the entries of the completion event queue: the least with which every EVD can have a
    /// CQ, or [`Config::log_eq_size`](driver_mlx::Config::log_eq_size) of the adapter's
    /// configuration if that is more; here its default.
    pub const fn log_eq_size(&self) -> u8 {
        log_eq_size(self.evds, &Config::DEFAULT)
    }
}

/// CQs of an adapter that are of no EVD: of QP1, of IP, and of receives without an EVD.
const OWN_CQS: u32 = 3;

/// log2 of the entries of the completion event queue of an adapter with so many EVDs.
pub(crate) const fn log_eq_size(evds: usize, config: &Config) -> u8 {
    let evds = if evds < 1 << 16 { evds as u32 } else { 1 << 16 };
    let needed = Config::log_eq_size_for(evds + OWN_CQS);
    if needed > config.log_eq_size { needed } else { config.log_eq_size }
}

/// The type of an adapter's memory, with capacities by name (those of [`Capacities`], in any order); what is not named has its default.
///
/// ```
/// use dat_nostd::{Bar, adapter_storage};
///
/// # fn check<B: Bar>() {}
/// type Tables<B> = adapter_storage! { bar: B, dma_bytes: 64 << 20, eps: 72, evds: 24, connections: 112 };
/// fn tables<B: Bar>() -> Tables<B> {
///     Tables::new()
/// }
/// ```
#[macro_export]
macro_rules! adapter_storage {
    (@ $field:ident $(($($call:tt)*))? $($name:ident: $value:expr,)*) => {{
        const CAPACITIES: $crate::Capacities =
            $crate::Capacities { $($name: $value,)* ..$crate::Capacities::DEFAULT };
        CAPACITIES.$field $(($($call)*))?
    }};
    (bar: $bar:ty $(, $name:ident: $value:expr)* $(,)?) => {
        $crate::AdapterStorage<
            $bar,
            { $crate::adapter_storage!(@ blocks() $($name: $value,)*) },
            { $crate::adapter_storage!(@ eps $($name: $value,)*) },
            { $crate::adapter_storage!(@ evds $($name: $value,)*) },
            { $crate::adapter_storage!(@ lmrs $($name: $value,)*) },
            { $crate::adapter_storage!(@ events $($name: $value,)*) },
            { $crate::adapter_storage!(@ connections $($name: $value,)*) },
            { $crate::adapter_storage!(@ ias $($name: $value,)*) },
            { $crate::adapter_storage!(@ pzs $($name: $value,)*) },
            { $crate::adapter_storage!(@ psps $($name: $value,)*) },
            { $crate::adapter_storage!(@ rsps $($name: $value,)*) },
            { $crate::adapter_storage!(@ cnos $($name: $value,)*) },
            { $crate::adapter_storage!(@ srqs $($name: $value,)*) },
            { $crate::adapter_storage!(@ rmrs $($name: $value,)*) },
            { $crate::adapter_storage!(@ binds $($name: $value,)*) },
            { $crate::adapter_storage!(@ crs $($name: $value,)*) },
            { $crate::adapter_storage!(@ listeners $($name: $value,)*) },
            { $crate::adapter_storage!(@ queries $($name: $value,)*) },
            { $crate::adapter_storage!(@ paths $($name: $value,)*) },
            { $crate::adapter_storage!(@ neighbours $($name: $value,)*) },
            { $crate::adapter_storage!(@ groups $($name: $value,)*) },
        >
    };
}

/// All memory of an adapter that the device does not see; all zero bytes, so that a static takes no room in an image.
/// [`adapter_storage!`](crate::adapter_storage) names the type.
pub struct AdapterStorage<
    B: Bar,
    const BLOCKS: usize,
    const EPS: usize,
    const EVDS: usize,
    const LMRS: usize,
    const EVENTS: usize,
    const CONNECTIONS: usize,
    const IAS: usize,
    const PZS: usize,
    const PSPS: usize,
    const RSPS: usize,
    const CNOS: usize,
    const SRQS: usize,
    const RMRS: usize,
    const BINDS: usize,
    const CRS: usize,
    const LISTENERS: usize,
    const QUERIES: usize,
    const PATHS: usize,
    const NEIGHBOURS: usize,
    const GROUPS: usize,
> {
    hca: HcaStorage<BLOCKS>,
    port: PortStorage<CONNECTIONS, LISTENERS, QUERIES, PATHS, NEIGHBOURS, GROUPS>,
    ias: [Slot<Ia>; IAS],
    pzs: [Slot<Pz>; PZS],
    lmrs: [Slot<Lmr>; LMRS],
    evds: [Slot<Evd<B>>; EVDS],
    evd_waits: [AtomicU32; EVDS],
    cq_chains: [u32; EVDS],
    eps: [Slot<Ep<B>>; EPS],
    draining: [Slot<EndedQp<B>>; MAX_DRAINING],
    psps: [Slot<Psp>; PSPS],
    rsps: [Slot<Rsp>; RSPS],
    cnos: [Slot<Cno>; CNOS],
    cno_waits: [AtomicU32; CNOS],
    srqs: [Slot<Srq>; SRQS],
    rmrs: [Slot<Rmr>; RMRS],
    binds: [BindSlot; BINDS],
    crs: [Slot<Cr>; CRS],
    events: [EventSlot; EVENTS],
}

/// The parts of an [`AdapterStorage`], lent to an adapter for as long as it lives.
///
/// [`AdapterParts::with_block_tables`] makes room for a DMA region whose size is set at run time.
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
    pub(crate) draining: &'s mut [Slot<EndedQp<B>>],
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

impl<'s, B: Bar> AdapterParts<'s, B> {
    /// Replaces the tables of the DMA region's blocks, whose number [`Capacities::dma_bytes`] sets otherwise:
    /// [`HcaParts::with_block_tables`].
    #[must_use]
    pub fn with_block_tables(self, map: &'s mut [[u8; 2]], users: &'s mut [u16]) -> Self {
        Self { hca: self.hca.with_block_tables(map, users), ..self }
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
    const IAS: usize,
    const PZS: usize,
    const PSPS: usize,
    const RSPS: usize,
    const CNOS: usize,
    const SRQS: usize,
    const RMRS: usize,
    const BINDS: usize,
    const CRS: usize,
    const LISTENERS: usize,
    const QUERIES: usize,
    const PATHS: usize,
    const NEIGHBOURS: usize,
    const GROUPS: usize,
>
    AdapterStorage<
        B,
        BLOCKS,
        EPS,
        EVDS,
        LMRS,
        EVENTS,
        CONNECTIONS,
        IAS,
        PZS,
        PSPS,
        RSPS,
        CNOS,
        SRQS,
        RMRS,
        BINDS,
        CRS,
        LISTENERS,
        QUERIES,
        PATHS,
        NEIGHBOURS,
        GROUPS,
    >
{
    /// Empty storage.
    pub const fn new() -> Self {
        Self {
            hca: HcaStorage::new(),
            port: PortStorage::new(),
            ias: [const { Slot::EMPTY }; IAS],
            pzs: [const { Slot::EMPTY }; PZS],
            lmrs: [const { Slot::EMPTY }; LMRS],
            evds: [const { Slot::EMPTY }; EVDS],
            evd_waits: [const { AtomicU32::new(0) }; EVDS],
            cq_chains: [0; EVDS],
            eps: [const { Slot::EMPTY }; EPS],
            draining: [const { Slot::EMPTY }; MAX_DRAINING],
            psps: [const { Slot::EMPTY }; PSPS],
            rsps: [const { Slot::EMPTY }; RSPS],
            cnos: [const { Slot::EMPTY }; CNOS],
            cno_waits: [const { AtomicU32::new(0) }; CNOS],
            srqs: [const { Slot::EMPTY }; SRQS],
            rmrs: [const { Slot::EMPTY }; RMRS],
            binds: [const { BindSlot::EMPTY }; BINDS],
            crs: [const { Slot::EMPTY }; CRS],
            events: [const { EventSlot::EMPTY }; EVENTS],
        }
    }

    /// What the HCA did last: after a failed open, the way there.
    #[must_use]
    pub fn history(&self) -> History<'_> {
        self.hca.history()
    }

    /// Returns whether the device may still access the DMA region of the adapter that had these parts last:
    /// [`HcaStorage::region_in_use`].
    #[must_use]
    pub fn region_in_use(&self) -> bool {
        self.hca.region_in_use()
    }

    /// The driver's part alone, for who wants the HCA without an adapter first.
    pub fn hca(&mut self) -> HcaParts<'_> {
        self.hca.parts()
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
            draining: &mut self.draining,
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
    const IAS: usize,
    const PZS: usize,
    const PSPS: usize,
    const RSPS: usize,
    const CNOS: usize,
    const SRQS: usize,
    const RMRS: usize,
    const BINDS: usize,
    const CRS: usize,
    const LISTENERS: usize,
    const QUERIES: usize,
    const PATHS: usize,
    const NEIGHBOURS: usize,
    const GROUPS: usize,
> Default
    for AdapterStorage<
        B,
        BLOCKS,
        EPS,
        EVDS,
        LMRS,
        EVENTS,
        CONNECTIONS,
        IAS,
        PZS,
        PSPS,
        RSPS,
        CNOS,
        SRQS,
        RMRS,
        BINDS,
        CRS,
        LISTENERS,
        QUERIES,
        PATHS,
        NEIGHBOURS,
        GROUPS,
    >
{
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use driver_mlx::DoorbellRegister;

    /// A view of a BAR as large as an embedder's pointer and length.
    #[derive(Clone, Copy)]
    struct WideBar {
        _base: u64,
        _len: usize,
    }

    /// A register as large as a pointer and an offset.
    #[derive(Debug)]
    struct WideRegister {
        _base: u64,
        _offset: usize,
    }

    impl DoorbellRegister for WideRegister {
        fn ring(&mut self, _: u64) {}
        fn write(&mut self, _: usize, _: u64) {}
    }

    #[allow(unsafe_code)]
    impl Bar for WideBar {
        type DoorbellRegister = WideRegister;

        fn len(&self) -> usize {
            0
        }
        fn read32(&self, _: usize) -> u32 {
            u32::MAX
        }
        unsafe fn write32(&self, _: usize, _: u32) {}
        unsafe fn doorbell_register(&self, _: usize, _: usize) -> WideRegister {
            WideRegister { _base: 0, _offset: 0 }
        }
    }

    /// Bytes of 64 more of something, and what is documented.
    macro_rules! cost {
        ($name:ident, $documented:literal) => {{
            const MORE: usize = Capacities::DEFAULT.$name + 64;
            let more = size_of::<adapter_storage! { bar: WideBar, $name: MORE }>();
            let less = size_of::<adapter_storage! { bar: WideBar }>();
            (stringify!($name), more - less, 64 * $documented)
        }};
    }

    #[test]
    fn the_documented_costs_hold() {
        let costs = [
            cost!(eps, 1056),
            cost!(evds, 392),
            cost!(lmrs, 232),
            cost!(events, 80),
            cost!(connections, 1088),
            cost!(ias, 56),
            cost!(pzs, 56),
            cost!(psps, 80),
            cost!(rsps, 96),
            cost!(cnos, 152),
            cost!(srqs, 200),
            cost!(rmrs, 136),
            cost!(binds, 96),
            cost!(crs, 240),
            cost!(listeners, 16),
            cost!(queries, 288),
            cost!(paths, 112),
            cost!(neighbours, 56),
            cost!(groups, 112),
        ];
        for (name, bytes, documented) in costs {
            assert!(bytes <= documented, "{name}: {} instead of {} each", bytes / 64, documented / 64);
            assert!(
                bytes > documented * 3 / 4,
                "{name}: {} each, documented {}",
                bytes / 64,
                documented / 64
            );
        }
        let large = size_of::<adapter_storage! { bar: WideBar, dma_bytes: (16 << 20) + 1 }>();
        assert_eq!(large - size_of::<adapter_storage! { bar: WideBar }>(), 4 * (16 << 20) / 4096);
    }

    #[test]
    fn the_event_queue_has_an_entry_for_every_evd() {
        let bytes = |evds| 64usize << Capacities { evds, ..Capacities::DEFAULT }.log_eq_size();
        assert_eq!([1, 64, 445].map(bytes), [32 << 10; 3]);
        assert_eq!([446, 957, 958, 1024].map(bytes), [64 << 10, 64 << 10, 128 << 10, 128 << 10]);
        // The device has no larger one; EVDs beyond it are refused.
        assert_eq!([65_469, usize::MAX].map(bytes), [4 << 20; 2]);
        let small = Config { log_eq_size: 7, ..Config::DEFAULT };
        assert_eq!([1, 61, 62].map(|evds| log_eq_size(evds, &small)), [7, 7, 8]);
    }
}
