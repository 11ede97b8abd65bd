//! Memory for an adapter: the one place that sets capacities.

use core::sync::atomic::AtomicU32;

use driver_mlx::report::History;
use driver_mlx::{Bar, Config, HcaParts};
use ib_port::PortParts;

use crate::base::table::Slot;
use crate::cno::Cno;
use crate::conn::cr::Cr;
use crate::conn::service::{Psp, Rsp};
use crate::ep::Ep;
use crate::evd::Evd;
use crate::evd::queue::EventSlot;
use crate::ia::instance::Ia;
use crate::mem::bind::BindSlot;
use crate::mem::lmr::Lmr;
use crate::mem::rmr::Rmr;
use crate::mem::zone::Pz;
use crate::srq::draining::{EndedQp, MAX_DRAINING};
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
    /// Memory regions, at most 65,536; 256 bytes each at most.
    pub lmrs: usize,
    /// Events queued in software, over all EVDs; 80 bytes each at most.
    pub events: usize,
    /// Connections in the connection manager: `eps`, and requests not yet answered; 1088 bytes each
    /// at most. Connections in TimeWait use the remaining slots, and give way to new ones.
    pub connections: usize,
    /// Open IAs; 64 bytes each at most.
    pub ias: usize,
    /// Protection zones; 64 bytes each at most.
    pub pzs: usize,
    /// Public service points; 128 bytes each at most.
    pub psps: usize,
    /// Reserved service points; 128 bytes each at most.
    pub rsps: usize,
    /// Consumer notification objects; 196 bytes each at most.
    pub cnos: usize,
    /// Shared receive queues; 256 bytes each at most.
    pub srqs: usize,
    /// Remote memory regions (windows); 192 bytes each at most.
    pub rmrs: usize,
    /// Binds that have not completed, at most 65,536; 96 bytes each at most.
    pub binds: usize,
    /// Connection requests waiting for an answer; 256 bytes each at most.
    pub crs: usize,
    /// Services listened to: `psps` and `rsps` together; 16 bytes each at most.
    pub listeners: usize,
    /// Questions to the subnet administrator under way; 288 bytes each at most.
    pub queries: usize,
    /// Paths remembered; 112 bytes each at most.
    pub paths: usize,
    /// IP neighbours, resolved or pending, and on Ethernet the peers of RoCE; 88 bytes each at most.
    pub neighbours: usize,
    /// Multicast groups of IP: on InfiniBand the broadcast group is one, on Ethernet up to 3 are those of the own addresses;
    /// 144 bytes each at most.
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

    /// QPs of freed endpoints that have not returned all buffers of their SRQs; more are destroyed at once.
    #[doc(hidden)]
    pub const fn draining(&self) -> usize {
        MAX_DRAINING
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

/// Defines the struct of an adapter's memory: `bar` is the type of its BAR, the other fields are
/// capacities in any order. Capacities that are not given are those of [`Capacities::DEFAULT`].
///
/// The struct is all zero bytes, so a static takes no space in an image. The struct implements
/// [`AdapterStorage`] and `Default`, and has the methods of [`AdapterStorage`] itself.
///
/// ```
/// use dat_nostd::{Bar, adapter_storage};
///
/// adapter_storage! {
///     /// Memory for 72 endpoints.
///     pub struct Tables<B: Bar> { bar: B, dma_bytes: 64 << 20, eps: 72, evds: 24, connections: 112 }
/// }
/// fn tables<B: Bar>() -> Tables<B> {
///     Tables::new()
/// }
/// ```
#[macro_export]
macro_rules! adapter_storage {
    // A capacity.
    (@ {$($name:ident: $value:expr,)*} $($field:tt)*) => {{
        const CAPACITIES: $crate::Capacities =
            $crate::Capacities { $($name: $value,)* ..$crate::Capacities::DEFAULT };
        CAPACITIES.$($field)*
    }};
    // The struct. `$table` is a field of `AdapterParts`, `$len` the capacity that is its length.
    (
        @struct $(#[$attribute:meta])* $visibility:vis $name:ident [$($parameter:ident: $bound:path)?] $bar:ty, $capacities:tt,
        $($table:ident: [$entry:ty; $($len:tt)*],)*
    ) => {
        $(#[$attribute])*
        $visibility struct $name $(<$parameter: $bound>)? {
            hca: $crate::entries::HcaStorage<{ $crate::adapter_storage!(@ $capacities blocks()) }>,
            port: $crate::entries::PortStorage<
                { $crate::adapter_storage!(@ $capacities connections) },
                { $crate::adapter_storage!(@ $capacities listeners) },
                { $crate::adapter_storage!(@ $capacities queries) },
                { $crate::adapter_storage!(@ $capacities paths) },
                { $crate::adapter_storage!(@ $capacities neighbours) },
                { $crate::adapter_storage!(@ $capacities groups) },
            >,
            $($table: [$entry; { $crate::adapter_storage!(@ $capacities $($len)*) }],)*
        }

        // Not every program calls all of them.
        #[allow(dead_code)]
        impl $(<$parameter: $bound>)? $name $(<$parameter>)? {
            /// Empty storage.
            pub const fn new() -> Self {
                Self {
                    hca: $crate::entries::HcaStorage::new(),
                    port: $crate::entries::PortStorage::new(),
                    $($table: [const { <$entry as $crate::entries::Entry>::EMPTY }; _],)*
                }
            }

            /// As `AdapterStorage::parts`.
            pub fn parts(&mut self) -> $crate::AdapterParts<'_, $bar> {
                $crate::AdapterParts {
                    hca: self.hca.parts(),
                    port: self.port.parts(),
                    $($table: &mut self.$table,)*
                }
            }

            /// As `AdapterStorage::hca`.
            pub fn hca(&mut self) -> $crate::entries::HcaParts<'_> {
                self.hca.parts()
            }

            /// As `AdapterStorage::history`.
            pub fn history(&self) -> $crate::entries::History<'_> {
                self.hca.history()
            }

            /// As `AdapterStorage::region_in_use`.
            pub fn region_in_use(&self) -> bool {
                self.hca.region_in_use()
            }
        }

        impl $(<$parameter: $bound>)? Default for $name $(<$parameter>)? {
            fn default() -> Self {
                Self::new()
            }
        }

        impl $(<$parameter: $bound>)? $crate::AdapterStorage<$bar> for $name $(<$parameter>)? {
            fn parts(&mut self) -> $crate::AdapterParts<'_, $bar> {
                Self::parts(self)
            }

            fn hca(&mut self) -> $crate::entries::HcaParts<'_> {
                Self::hca(self)
            }

            fn history(&self) -> $crate::entries::History<'_> {
                Self::history(self)
            }

            fn region_in_use(&self) -> bool {
                Self::region_in_use(self)
            }
        }
    };
    (
        $(#[$attribute:meta])* $visibility:vis struct $name:ident $(<$parameter:ident: $bound:path>)? {
            bar: $bar:ty $(, $capacity:ident: $value:expr)* $(,)?
        }
    ) => {
        $crate::adapter_storage! {
            @struct $(#[$attribute])* $visibility $name [$($parameter: $bound)?] $bar, {$($capacity: $value,)*},
            ias: [$crate::entries::Slot<$crate::entries::Ia>; ias],
            pzs: [$crate::entries::Slot<$crate::entries::Pz>; pzs],
            lmrs: [$crate::entries::Slot<$crate::entries::Lmr>; lmrs],
            evds: [$crate::entries::Slot<$crate::entries::Evd<$bar>>; evds],
            evd_waits: [$crate::entries::AtomicU32; evds],
            cq_chains: [u32; evds],
            eps: [$crate::entries::Slot<$crate::entries::Ep<$bar>>; eps],
            draining: [$crate::entries::Slot<$crate::entries::EndedQp<$bar>>; draining()],
            psps: [$crate::entries::Slot<$crate::entries::Psp>; psps],
            rsps: [$crate::entries::Slot<$crate::entries::Rsp>; rsps],
            cnos: [$crate::entries::Slot<$crate::entries::Cno>; cnos],
            cno_waits: [$crate::entries::AtomicU32; cnos],
            srqs: [$crate::entries::Slot<$crate::entries::Srq>; srqs],
            rmrs: [$crate::entries::Slot<$crate::entries::Rmr>; rmrs],
            binds: [$crate::entries::BindSlot; binds],
            crs: [$crate::entries::Slot<$crate::entries::Cr>; crs],
            events: [$crate::entries::EventSlot; events],
        }
    };
}

/// All memory of an adapter that the device does not see.
/// [`adapter_storage!`](crate::adapter_storage) defines structs of it.
pub trait AdapterStorage<B: Bar> {
    /// Returns the parts for [`Adapter::open`](crate::Adapter::open).
    fn parts(&mut self) -> AdapterParts<'_, B>;

    /// The driver's part alone, to bring up an HCA without an adapter first.
    fn hca(&mut self) -> HcaParts<'_>;

    /// The last steps of the HCA: after a failed open, how far it came.
    fn history(&self) -> History<'_>;

    /// Returns whether the device may still access the DMA region of the adapter that had these parts last:
    /// [`HcaStorage::region_in_use`](driver_mlx::HcaStorage::region_in_use).
    fn region_in_use(&self) -> bool;
}

/// An entry of a table. Its empty form is all zero bytes.
pub trait Entry {
    /// An entry that was never used.
    const EMPTY: Self;
}

impl<T> Entry for Slot<T> {
    const EMPTY: Self = Slot::EMPTY;
}

impl Entry for BindSlot {
    const EMPTY: Self = BindSlot::EMPTY;
}

impl Entry for EventSlot {
    const EMPTY: Self = EventSlot::EMPTY;
}

impl Entry for AtomicU32 {
    #[allow(clippy::declare_interior_mutable_const)]
    const EMPTY: Self = AtomicU32::new(0);
}

impl Entry for u32 {
    const EMPTY: Self = 0;
}

/// The parts of an [`AdapterStorage`], lent to an adapter for as long as it lives.
///
/// [`AdapterParts::with_block_tables`] makes room for a DMA region whose size is set at run time.
pub struct AdapterParts<'s, B: Bar> {
    #[doc(hidden)]
    pub hca: HcaParts<'s>,
    #[doc(hidden)]
    pub port: PortParts<'s>,
    #[doc(hidden)]
    pub ias: &'s mut [Slot<Ia>],
    #[doc(hidden)]
    pub pzs: &'s mut [Slot<Pz>],
    #[doc(hidden)]
    pub lmrs: &'s mut [Slot<Lmr>],
    #[doc(hidden)]
    pub evds: &'s mut [Slot<Evd<B>>],
    #[doc(hidden)]
    pub evd_waits: &'s [AtomicU32],
    #[doc(hidden)]
    pub cq_chains: &'s mut [u32],
    #[doc(hidden)]
    pub eps: &'s mut [Slot<Ep<B>>],
    #[doc(hidden)]
    pub draining: &'s mut [Slot<EndedQp<B>>],
    #[doc(hidden)]
    pub psps: &'s mut [Slot<Psp>],
    #[doc(hidden)]
    pub rsps: &'s mut [Slot<Rsp>],
    #[doc(hidden)]
    pub cnos: &'s mut [Slot<Cno>],
    #[doc(hidden)]
    pub cno_waits: &'s [AtomicU32],
    #[doc(hidden)]
    pub srqs: &'s mut [Slot<Srq>],
    #[doc(hidden)]
    pub rmrs: &'s mut [Slot<Rmr>],
    #[doc(hidden)]
    pub binds: &'s mut [BindSlot],
    #[doc(hidden)]
    pub crs: &'s mut [Slot<Cr>],
    #[doc(hidden)]
    pub events: &'s mut [EventSlot],
}

impl<'s, B: Bar> AdapterParts<'s, B> {
    /// Replaces the tables of the DMA region's blocks, whose number [`Capacities::dma_bytes`] sets otherwise:
    /// [`HcaParts::with_block_tables`].
    #[must_use]
    pub fn with_block_tables(self, map: &'s mut [[u8; 2]], users: &'s mut [u16]) -> Self {
        Self { hca: self.hca.with_block_tables(map, users), ..self }
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

    adapter_storage! { struct Least { bar: WideBar } }

    /// Bytes of 64 more of something, and what is documented.
    macro_rules! cost {
        ($name:ident, $documented:literal) => {{
            const MORE: usize = Capacities::DEFAULT.$name + 64;
            adapter_storage! { struct More { bar: WideBar, $name: MORE } }
            (stringify!($name), size_of::<More>() - size_of::<Least>(), 64 * $documented)
        }};
    }

    #[test]
    fn the_documented_costs_hold() {
        let costs = [
            cost!(eps, 1056),
            cost!(evds, 392),
            cost!(lmrs, 256),
            cost!(events, 80),
            cost!(connections, 1088),
            cost!(ias, 64),
            cost!(pzs, 64),
            cost!(psps, 128),
            cost!(rsps, 128),
            cost!(cnos, 196),
            cost!(srqs, 256),
            cost!(rmrs, 192),
            cost!(binds, 96),
            cost!(crs, 256),
            cost!(listeners, 16),
            cost!(queries, 288),
            cost!(paths, 112),
            cost!(neighbours, 88),
            cost!(groups, 144),
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
        adapter_storage! { struct Large { bar: WideBar, dma_bytes: (16 << 20) + 1 } }
        assert_eq!(size_of::<Large>() - size_of::<Least>(), 4 * (16 << 20) / 4096);
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
