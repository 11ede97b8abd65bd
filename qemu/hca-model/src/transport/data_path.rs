//! The parts of a device that its data paths work on, and the views of them that each subject has.

use super::delivery::Delivery;
use super::device_state::{DeviceTransport, TransportCounters};
use super::failure::Reports;
use super::memory::KeyedMemory;
use super::nic::NicTransport;
use super::output::Output;
use super::parser::Parser;
use super::schedule::Schedule;
use super::send_queue::Source;
use crate::adversary::Adversary;
use crate::caps::Caps;
use crate::device::Device;
use crate::log::Log;
use crate::meter::Meter;
use crate::object::counters::QCounters;
use crate::object::memic::DeviceMemory;
use crate::object::mkey::Mkeys;
use crate::object::nic::Nic;
use crate::object::qps::Qps;
use crate::object::queues::Queues;
use crate::object::srq::Srq;
use crate::object::table::Table;
use crate::port::{NicVport, Port};
use crate::profile::Strictness;
use crate::run::{Copied, Neighbour, Ranges, ReadRun, Requester, Run};
use crate::seams::{GuestMemory, Io, Peers};
use rdma_fabric::counters::Traffic;

/// A device's parts beside its QPs, so that a QP can be held while they are used. Protocols reach them by
/// views, each of which borrows the parts of one subject.
pub(super) struct DataPath<'a, 'io> {
    io: &'a mut Io<'io>,
    queues: &'a mut Queues,
    mkeys: &'a mut Mkeys,
    memic: &'a DeviceMemory,
    srqs: &'a mut Table<Srq>,
    q_counters: &'a mut QCounters,
    port: &'a mut Port,
    vport: &'a NicVport,
    log: &'a mut Log,
    device: &'a mut DeviceTransport,
    meter: &'a mut Meter,
    strictness: Strictness,
    habits: &'a Adversary,
    caps: &'a Caps,
}

impl Device {
    /// Returns QPs, objects of an Ethernet port, what its data path keeps, and everything else.
    pub(super) fn parts<'a, 'io>(
        &'a mut self,
        io: &'a mut Io<'io>,
    ) -> (&'a mut Qps, &'a mut Nic, &'a mut NicTransport, DataPath<'a, 'io>) {
        let path = DataPath {
            io,
            queues: &mut self.objects.queues,
            mkeys: &mut self.objects.mkeys,
            memic: self.objects.memic.memory(),
            srqs: &mut self.objects.srqs,
            q_counters: &mut self.objects.q_counters,
            port: &mut self.port,
            vport: &self.vport,
            log: &mut self.log,
            device: &mut self.transport,
            meter: &mut self.meter,
            strictness: self.profile.strictness,
            habits: &self.profile.habits.adversary,
            caps: &self.caps,
        };
        (&mut self.objects.qps, &mut self.objects.nic, &mut self.nic, path)
    }

    /// Returns QPs, and everything else.
    pub(super) fn split<'a, 'io>(&'a mut self, io: &'a mut Io<'io>) -> (&'a mut Qps, DataPath<'a, 'io>) {
        let (qps, _, _, path) = self.parts(io);
        (qps, path)
    }
}

impl<'io> DataPath<'_, 'io> {
    /// Returns the time of the call, in nanoseconds.
    #[inline(always)]
    pub(super) fn now(&self) -> u64 {
        self.io.now
    }

    /// Returns guest memory, as rings and doorbell records are read.
    #[inline(always)]
    pub(super) fn guest(&self) -> &'io dyn GuestMemory {
        self.io.memory
    }

    /// Returns the meter of the guest's work.
    #[inline(always)]
    pub(super) fn meter(&mut self) -> &mut Meter {
        self.meter
    }

    /// Returns the counters of the data path.
    #[inline(always)]
    pub(super) fn counters(&mut self) -> &mut TransportCounters {
        &mut self.device.counters
    }

    /// Returns the run queue and timers.
    #[inline(always)]
    pub(super) fn turns(&mut self) -> &mut Schedule {
        &mut self.device.schedule
    }

    /// Returns what the data path keeps.
    #[inline(always)]
    pub(super) fn state(&mut self) -> &mut DeviceTransport {
        self.device
    }

    /// Returns the port.
    #[inline(always)]
    pub(super) fn port(&mut self) -> &mut Port {
        self.port
    }

    /// Returns the port and the function's addresses there.
    #[inline(always)]
    pub(super) fn addresses(&self) -> (&Port, &NicVport) {
        (self.port, self.vport)
    }

    /// Returns the shared receive queues.
    #[inline(always)]
    pub(super) fn srqs(&mut self) -> &mut Table<Srq> {
        self.srqs
    }

    /// Returns how much of what software must obey is checked.
    pub(super) const fn strictness(&self) -> Strictness {
        self.strictness
    }

    /// Returns the mistakes that the card does not forgive.
    pub(super) const fn habits(&self) -> &Adversary {
        self.habits
    }

    /// Returns the order of 8-byte atomics (`atomic_caps.atomic_req_8B_endianness_mode`).
    pub(super) fn atomic_order(&self) -> AtomicOrder {
        AtomicOrder { of_host: self.caps.atomics_in_host_order() }
    }

    /// Returns the view of the queues that software reads.
    #[inline(always)]
    pub(super) fn delivery(&mut self) -> Delivery<'_, 'io> {
        Delivery::new(self.io, self.queues, self.q_counters, self.log)
    }

    /// Returns the view of memory that payload goes through.
    #[inline(always)]
    pub(super) fn memory(&mut self) -> KeyedMemory<'_> {
        let DeviceTransport { segments, counters, .. } = &mut *self.device;
        KeyedMemory::new(
            self.io.memory,
            self.memic,
            self.mkeys,
            segments,
            self.meter,
            &mut counters.bytes_placed,
        )
    }

    /// Returns the view of the port's sending side.
    #[inline(always)]
    pub(super) fn output(&mut self) -> Output<'_, 'io> {
        Output::new(self.io, self.port, self.vport, self.device, self.meter)
    }

    /// Returns the view of the log and the QPs' records.
    #[inline(always)]
    pub(super) fn reports(&mut self) -> Reports<'_> {
        Reports::new(self.port, self.log, &mut self.device.failures, self.io.now)
    }

    /// Returns what send WQEs are fetched from, and their checks.
    #[inline(always)]
    pub(super) fn source(&mut self) -> (Source<'_>, Parser<'_>) {
        let DeviceTransport { prefetched, schedule, reserved, .. } = &mut *self.device;
        (Source::new(self.io.memory, prefetched, schedule), Parser::new(self.port, reserved, self.strictness))
    }

    /// Returns the neighbours on the fabric.
    #[inline(always)]
    pub(super) fn neighbours(&mut self) -> Neighbours<'_> {
        Neighbours { peers: self.io.peers, guest: self.io.memory, device: self.device }
    }
}

/// Devices that take requests without packets, and the memory found last.
pub(super) struct Neighbours<'a> {
    peers: &'a mut dyn Peers,
    guest: &'a dyn GuestMemory,
    device: &'a DeviceTransport,
}

impl<'a> Neighbours<'a> {
    /// Returns the memory that [`KeyedMemory::find_list`] found last, of `len` bytes.
    #[inline(always)]
    pub(super) fn found(&self, len: usize) -> Ranges<'a> {
        Ranges::new(self.guest, &self.device.segments.list, len)
    }

    /// Returns whether a neighbour can do work now.
    pub(super) fn has_turn(&self, neighbour: Neighbour) -> bool {
        self.peers.has_turn(neighbour)
    }

    /// Has a neighbour take packets.
    pub(super) fn copy(&mut self, neighbour: Neighbour, from: &Requester, run: &Run<'_>) -> Copied {
        self.peers.copy(neighbour, from, run)
    }

    /// Has a neighbour answer a part of an RDMA READ.
    pub(super) fn copy_read(
        &mut self,
        neighbour: Neighbour,
        from: &Requester,
        read: &ReadRun,
        to: &Ranges<'_>,
    ) -> Copied {
        self.peers.copy_read(neighbour, from, read, to)
    }

    /// Counts the packets that requests replaced at a neighbour.
    pub(super) fn count(&mut self, neighbour: Neighbour, traffic: &Traffic) {
        self.peers.count(neighbour, traffic, &self.device.copied_sizes);
    }
}

/// The order of an atomic's bytes in guest memory. The host of every guest of ours is little-endian.
#[derive(Clone, Copy)]
pub(super) struct AtomicOrder {
    of_host: bool,
}

impl AtomicOrder {
    /// An operand, from its bytes.
    pub(super) const fn number(self, bytes: [u8; 8]) -> u64 {
        if self.of_host { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) }
    }

    /// The bytes of an operand or a result.
    pub(super) const fn bytes(self, value: u64) -> [u8; 8] {
        if self.of_host { value.to_le_bytes() } else { value.to_be_bytes() }
    }
}
