//! The device: its tables and its bounded step.

use crate::bar::BarPort;
use crate::log::Log;
use crate::object::counters::QCounters;
use crate::object::mkey::Mkeys;
use crate::object::qp::Qps;
use crate::object::queues::Queues;
use crate::object::srq::Srq;
use crate::object::table::Table;
use crate::object::uar::{FIRST_UAR, Uar};
use crate::port::Port;
use crate::profile::Profile;
use crate::seams::{GuestMemory, Interrupts, Io, Link, Packet};
use crate::transport::{self, DeviceTransport};
use std::collections::VecDeque;
use std::sync::Arc;

/// A number that others refer to, with nothing else in it: PD, XRC domain, transport domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// Objects that refer to it.
    pub users: u32,
}

/// An emulated HCA.
#[derive(Debug)]
pub struct Hca {
    /// What it was made as.
    pub profile: Profile,
    /// What it refused or noticed.
    pub log: Log,
    /// Event and completion queues.
    pub queues: Queues,
    /// Queue pairs.
    pub qps: Qps,
    /// Memory keys.
    pub mkeys: Mkeys,
    /// Protection domains.
    pub pds: Table<Domain>,
    /// XRC domains.
    pub xrcds: Table<Domain>,
    /// Transport domains.
    pub transport_domains: Table<Domain>,
    /// UAR pages.
    pub uars: Table<Uar>,
    /// Shared receive queues.
    pub srqs: Table<Srq>,
    /// Q counter sets.
    pub q_counters: QCounters,
    /// The port.
    pub port: Port,
    /// State of the data path.
    pub transport: DeviceTransport,
    bar: Arc<BarPort>,
    inbox: VecDeque<Packet>,
}

impl Hca {
    /// A device at power-on.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self {
            log: Log::default(),
            queues: Queues::new(64, 1 << 14),
            qps: Qps::new(1 << 14),
            mkeys: Mkeys::new(1 << 16, 0x500),
            pds: Table::new(1, 1 << 12),
            xrcds: Table::new(1, 1 << 12),
            transport_domains: Table::new(1, 1 << 12),
            uars: Table::new(FIRST_UAR, 1 << 12),
            srqs: Table::new(1, 1 << 12),
            q_counters: QCounters::new(128),
            port: Port::new(&profile),
            transport: DeviceTransport::default(),
            bar: Arc::new(BarPort::default()),
            inbox: VecDeque::new(),
            profile,
        }
    }

    /// The front of BAR0.
    #[must_use]
    pub fn bar(&self) -> Arc<BarPort> {
        Arc::clone(&self.bar)
    }

    /// A packet from the wire; the next [`poll`](Self::poll) takes it.
    pub fn receive(&mut self, packet: Packet) {
        self.inbox.push_back(packet);
    }

    /// Does a bounded amount of work. Answers whether more could be done at once.
    pub fn poll(
        &mut self,
        now: u64,
        memory: &dyn GuestMemory,
        interrupts: &mut dyn Interrupts,
        link: &mut dyn Link,
    ) -> bool {
        self.log.now = now;
        let mut io = Io { now, memory, interrupts, link };
        while let Some(packet) = self.inbox.pop_front() {
            transport::receive(self, &mut io, packet);
        }
        transport::poll(self, &mut io, 64)
    }

    /// When [`poll`](Self::poll) must be called next although nothing happens until then.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        transport::next_deadline(self)
    }
}
