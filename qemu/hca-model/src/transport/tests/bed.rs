//! A fabric of devices whose guests are this test: memory, queues written by hand, a virtual clock.

use ib_types::Payload;
use mlx5_prm::Field;
use mlx5_prm::contexts::{ads, qpc};
use mlx5_prm::datapath::*;
use mlx5_prm::event::EventType;
use mlx5_prm::value::{AccessFlags, CqStatus, EqStatus, QpState, ServiceType};

use super::addresses::set_path;
use super::guest::Guest;
use crate::card::{CONNECTX_5, Card};
use crate::hca::Hca;
use crate::object::cq::{Cq, Moderation};
use crate::object::eq::Eq;
use crate::object::mkey::{Mkey, Translation};
use crate::object::pages::PageList;
use crate::object::qp::{Qp, ReceiveQueue, Rings, SendQueue};
use crate::profile::Profile;
use crate::seams::{Io, NoPeers};
use crate::transport::TransportCounters;
use crate::world::World;
use rdma_fabric::infiniband::FabricConfig;
use rdma_fabric::wire::Unplugged;

pub(super) const PD: u32 = 7;
const RAM: usize = 24 << 20;

/// A QP as its driver sees it.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    pub(super) node: usize,
    pub(super) qpn: u32,
    pub(super) cqn: u32,
    pub(super) sq: u64,
    pub(super) log_sq: u32,
    pub(super) rq: u64,
    pub(super) log_rq: u32,
    pub(super) dbr: u64,
    pub(super) posted: u16,
    pub(super) receives: u16,
}

/// How a pair is connected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) mtu: u8,
    pub(super) log_sra_max: u8,
    pub(super) log_rra_max: u8,
    pub(super) ack_timeout: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) min_rnr_nak: u8,
    pub(super) psn: u32,
    pub(super) log_sq: u32,
    pub(super) log_rq: u32,
    /// Entry of the address tables of Ethernet ports.
    pub(super) address: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mtu: 5,
            log_sra_max: 2,
            log_rra_max: 2,
            ack_timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_nak: 12,
            psn: 0xff_fff0,
            log_sq: 6,
            log_rq: 6,
            address: 0,
        }
    }
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completion {
    pub(super) opcode: CqeOpcode,
    pub(super) syndrome: u8,
    pub(super) counter: u16,
    pub(super) bytes: u32,
    pub(super) immediate: u32,
    pub(super) qpn: u32,
    pub(super) wqe_opcode: u8,
    pub(super) solicited: bool,
    pub(super) source: (u16, u32, u8),
    pub(super) grh: u8,
    pub(super) user: u32,
    /// Format, and the entry's first 32 bytes.
    pub(super) inline: (u8, [u8; 32]),
}

pub(super) struct Bed {
    pub(super) world: World,
    pub(super) guests: Vec<Guest>,
    pub(super) now: u64,
    /// The last step left nothing to do at once.
    pub(super) idle: bool,
}

impl Bed {
    /// Devices whose ports are Active.
    pub(super) fn new(nodes: u16) -> Self {
        Self::with_ram(nodes, RAM)
    }

    pub(super) fn with_ram(nodes: u16, ram: usize) -> Self {
        Self::with_config(nodes, ram, FabricConfig { seed: 1, latency: 1_000, ..FabricConfig::default() })
    }

    /// Packets arrive at once.
    pub(super) fn without_latency(nodes: u16) -> Self {
        Self::with_config(nodes, RAM, FabricConfig { seed: 1, ..FabricConfig::default() })
    }

    fn with_config(nodes: u16, ram: usize, config: FabricConfig) -> Self {
        Self::active(nodes, Self::with_nodes(nodes, ram, config, &CONNECTX_5))
    }

    pub(super) fn with_card(nodes: u16, config: FabricConfig, card: &'static Card) -> Self {
        Self::active(nodes, Self::with_nodes(nodes, RAM, config, card))
    }

    fn active(nodes: u16, mut bed: Self) -> Self {
        bed.run_until("ports are active", |bed| {
            bed.world.nodes().iter().all(|node| node.hca.device.port.is_active())
        });
        for node in 0..usize::from(nodes) {
            bed.make_eq(node);
        }
        bed
    }

    /// Devices whose ports nobody has brought up.
    pub(super) fn unmanaged(nodes: u16, config: FabricConfig) -> Self {
        let mut bed = Self::with_nodes(nodes, RAM, config, &CONNECTX_5);
        bed.step();
        for node in 0..usize::from(nodes) {
            bed.make_eq(node);
        }
        bed
    }

    fn with_nodes(nodes: u16, ram: usize, config: FabricConfig, card: &'static Card) -> Self {
        let mut world = World::new(config);
        let mut guests = Vec::new();
        for n in 0..nodes {
            let node = world.add(Profile::of(card, n), &format!("node{n}")).unwrap();
            // Memory access and bus mastering on.
            world.hca_mut(node).unwrap().config_write(4, &[6, 0]);
            guests.push(Guest::new(ram));
        }
        Self { world, guests, now: 0, idle: false }
    }

    pub(super) fn faults(&mut self, spec: &str, seed: u64) {
        self.world.medium.fabric_mut().set_faults(spec.parse().unwrap());
        self.world.medium.fabric_mut().reseed(seed);
    }

    pub(super) fn hca(&mut self, node: usize) -> &mut Hca {
        self.world.hca_mut(node).unwrap()
    }

    pub(super) fn counters(&self, node: usize) -> TransportCounters {
        self.world.nodes()[node].hca.device.transport.counters
    }

    /// One step; the clock jumps when nothing can be done.
    pub(super) fn step(&mut self) {
        self.now += 100;
        if self.idle {
            self.now = self.world.next_deadline().map_or(self.now, |deadline| deadline.max(self.now));
        }
        self.idle = !self.world.poll(self.now, &mut self.guests);
    }

    /// Steps until `done`, a minute of virtual time at most.
    pub(super) fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.now + 60_000_000_000;
        while !done(self) {
            assert!(self.now < limit, "after a minute still not: {what}");
            self.step();
        }
    }

    /// Steps for `ns` of virtual time.
    pub(super) fn run_for(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.now < end {
            self.step();
        }
    }

    fn make_eq(&mut self, node: usize) {
        let at = self.guests[node].alloc(64 * 256);
        for i in 0..256 {
            self.guests[node].write(at + i * 64 + 63, &[1]);
        }
        self.guests[node].eq = (at, 0);
        let buffer = PageList::new(vec![at], 14, 0, 64 * 256).unwrap();
        self.hca(node).device.objects.queues.eqs.insert(|_| Eq {
            buffer,
            log_size: 8,
            uar_page: 0,
            intr: 0,
            event_bitmask: [!1; 4],
            overrun_ignore: true,
            producer: 0,
            consumer: 0,
            state: None,
            status: EqStatus::OK,
            context: Vec::new(),
        });
    }

    /// The next asynchronous event: its type, and the QP or CQ number.
    pub(super) fn event(&mut self, node: usize) -> Option<(EventType, u32)> {
        let guest = &mut self.guests[node];
        let (at, consumer) = guest.eq;
        let entry = guest.read(at + u64::from(consumer % 256) * 64, 64);
        if u32::from(entry[63] & 1) != consumer / 256 % 2 {
            return None;
        }
        guest.eq.1 += 1;
        Some((EventType(entry[1]), u32::from_be_bytes([0, entry[0x39], entry[0x3a], entry[0x3b]])))
    }

    /// All events so far.
    pub(super) fn events(&mut self, node: usize) -> Vec<(EventType, u32)> {
        core::iter::from_fn(|| self.event(node)).collect()
    }

    pub(super) fn make_cq(&mut self, node: usize, log_size: u32) -> u32 {
        let len = 64usize << log_size;
        let at = self.guests[node].alloc(len);
        let dbr = self.guests[node].alloc(64);
        for i in 0..1u64 << log_size {
            self.guests[node].write(at + i * 64 + 63, &[CQE_INIT_OP_OWN]);
        }
        let log_page = (len as u64).next_power_of_two().ilog2().max(12);
        let buffer = PageList::new(vec![at], log_page, 0, len as u64).unwrap();
        let cqn = self.hca(node).device.objects.queues.cqs.insert(|_| Cq {
            buffer,
            log_size,
            cqe_bytes: 64,
            uar_page: 0,
            eqn: 0,
            dbr_addr: dbr,
            overrun_ignore: false,
            collapsed: false,
            producer: 0,
            consumer: 0,
            last_solicited: None,
            arm_sn: 0,
            state: None,
            status: CqStatus::OK,
            moderation: Moderation::default(),
            listed: None,
            compression: None,
            session: None,
            context: Vec::new(),
        });
        let cqn = cqn.unwrap();
        self.guests[node].cqs.push((cqn, at, 0, log_size));
        cqn
    }

    /// Takes the next completion.
    pub(super) fn poll_cq(&mut self, node: usize, cqn: u32) -> Option<Completion> {
        let i = self.guests[node].cqs.iter().position(|cq| cq.0 == cqn).unwrap();
        let (_, at, consumer, log_size) = self.guests[node].cqs[i];
        let slot = consumer & ((1 << log_size) - 1);
        let cqe = self.guests[node].read(at + u64::from(slot) * 64, 64);
        let op_own = cqe[CQE_OP_OWN];
        if cqe_opcode(op_own) == CqeOpcode::INVALID
            || u32::from(cqe_owner(op_own)) != (consumer >> log_size) & 1
        {
            return None;
        }
        self.guests[node].cqs[i].2 = consumer + 1;
        let dbr = self.hca(node).device.objects.queues.cqs.get(cqn).unwrap().dbr_addr;
        self.guests[node].write(dbr, &((consumer + 1) & 0xff_ffff).to_be_bytes());
        let opcode = cqe_opcode(op_own);
        let error = matches!(opcode, CqeOpcode::REQ_ERR | CqeOpcode::RESP_ERR);
        Some(Completion {
            opcode,
            syndrome: if error { cqe[CQE_SYNDROME] } else { 0 },
            counter: cqe64::wqe_counter.get32(&cqe) as u16,
            bytes: cqe64::byte_cnt.get32(&cqe),
            immediate: cqe64::immediate.get32(&cqe),
            qpn: cqe64::qpn.get32(&cqe),
            wqe_opcode: cqe64::s_wqe_opcode.get32(&cqe) as u8,
            solicited: cqe_se(op_own),
            source: (cqe64::slid.get32(&cqe) as u16, cqe64::rqpn.get32(&cqe), cqe64::sl.get32(&cqe) as u8),
            grh: cqe64::g.get32(&cqe) as u8,
            user: cqe64::srqn.get32(&cqe),
            inline: (cqe_format(op_own).0, *cqe.first_chunk().unwrap()),
        })
    }

    /// Waits for the next completion of a QP's CQ.
    pub(super) fn wait(&mut self, qp: &Handle) -> Completion {
        let mut completion = None;
        self.run_until("a completion", |bed| {
            completion = bed.poll_cq(qp.node, qp.cqn);
            completion.is_some()
        });
        completion.unwrap()
    }

    /// A memory key over physical pages, its addresses counted from `va`.
    pub(super) fn make_key(&mut self, node: usize, at: u64, len: u64, va: u64, access: AccessFlags) -> u32 {
        let first = at & !0xfff;
        let entries = (0..(at + len).div_ceil(0x1000) - at / 0x1000).map(|i| first + i * 0x1000).collect();
        assert_eq!(at & 0xfff, va & 0xfff);
        let key = self.hca(node).device.objects.mkeys.insert(|index| Mkey {
            key: index << 8 | 0x42,
            pd: PD,
            qpn: None,
            access: access | AccessFlags::LOCAL_READ,
            free: false,
            remote_invalidate: true,
            start_addr: va,
            len,
            length64: false,
            translation: Translation::Mtt { entries, log_page_size: 12, page_access: false },
            octowords: 0,
            context: Vec::new(),
        });
        key.unwrap() << 8 | 0x42
    }

    /// A buffer and a key with all rights over it, its virtual addresses equal to the device's.
    pub(super) fn buffer(&mut self, node: usize, len: usize) -> (u64, u32) {
        let at = self.guests[node].alloc(len);
        let all = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::ATOMIC;
        let key = self.make_key(node, at, len as u64, at, all);
        (at, key)
    }

    /// A QP in INIT, with a CQ of its own for both directions.
    pub(super) fn make_qp(&mut self, node: usize, service: ServiceType, options: &Options) -> Handle {
        let cqn = self.make_cq(node, 10);
        self.make_qp_on(node, service, options, cqn)
    }

    pub(super) fn make_qp_on(
        &mut self,
        node: usize,
        service: ServiceType,
        options: &Options,
        cqn: u32,
    ) -> Handle {
        // 64-byte receive WQEs, then the send queue, on pages that do not follow one another.
        let rq_len = 64u64 << options.log_rq;
        let sq_len = 64u64 << options.log_sq;
        let at = self.guests[node].alloc((rq_len + sq_len) as usize);
        let dbr = self.guests[node].alloc(64) + 0x40;
        let pages = (0..(rq_len + sq_len).div_ceil(0x1000)).map(|i| at + i * 0x1000).collect();
        let buffer = PageList::new(pages, 12, 0, rq_len + sq_len).unwrap();
        let rings = Rings::new(
            buffer,
            dbr,
            Some(SendQueue::new(rq_len, options.log_sq)),
            Some(ReceiveQueue::new(options.log_rq, 6)),
        );
        let mut context = [0; qpc::SIZE];
        for (field, value) in [
            (qpc::st, u32::from(service.0)),
            (qpc::pd, PD),
            (qpc::cqn_snd, cqn),
            (qpc::cqn_rcv, cqn),
            (qpc::pm_state, 3),
            (qpc::log_ack_req_freq, 8),
        ] {
            field.set(&mut context, value);
        }
        let mut qp = Qp::new(&context, rings, 0);
        qp.reconfigure(|context| {
            for (field, value) in [
                (qpc::mtu, u32::from(options.mtu)),
                (qpc::log_sra_max, options.log_sra_max.into()),
                (qpc::log_rra_max, options.log_rra_max.into()),
                (qpc::retry_count, options.retry_count.into()),
                (qpc::rnr_retry, options.rnr_retry.into()),
                (qpc::min_rnr_nak, options.min_rnr_nak.into()),
                (qpc::next_send_psn, options.psn),
                (qpc::next_rcv_psn, options.psn),
                (qpc::q_key, 0x1111),
            ] {
                field.set(context, value);
            }
            let path = qpc::primary_address_path.of_mut(context);
            ads::ack_timeout.set(path, options.ack_timeout);
            ads::vhca_port_num.set(path, 1u8);
        });
        qp.enter(QpState::INIT);
        let qps = &mut self.hca(node).device.objects.qps;
        let qpn = qps.insert(qp).unwrap();
        let handle = Handle {
            node,
            qpn,
            cqn,
            sq: at + rq_len,
            log_sq: options.log_sq,
            rq: at,
            log_rq: options.log_rq,
            dbr,
            posted: 0,
            receives: 0,
        };
        self.set(&handle, qpc::user_index, qpn ^ 0xabc);
        self.allow(&handle, &[qpc::rre, qpc::rwe, qpc::rae], 1);
        handle
    }

    /// Has a QP allow its peer the accesses of these fields of its context, and no others.
    pub(super) fn allow(&mut self, handle: &Handle, fields: &[Field], atomic_mode: u8) {
        self.qp(handle).reconfigure(|context| {
            for field in [qpc::rre, qpc::rwe, qpc::rae] {
                field.set(context, u32::from(fields.contains(&field)));
            }
            qpc::atomic_mode.set(context, atomic_mode);
        });
    }

    /// Sets a field of a QP's context.
    pub(super) fn set(&mut self, handle: &Handle, field: Field, value: u32) {
        self.qp(handle).reconfigure(|context| field.set(context, value));
    }

    pub(super) fn qp(&mut self, handle: &Handle) -> &mut Qp {
        self.hca(handle.node).device.objects.qps.get_mut(handle.qpn).unwrap()
    }

    /// Changes a QP's state as the command does.
    pub(super) fn modify(&mut self, handle: &Handle, new: QpState) {
        let old = self.qp(handle).enter(new);
        let now = self.now;
        let guest = &mut self.guests[handle.node];
        let mut io = Io {
            now,
            memory: &guest.ram,
            interrupts: &mut guest.raised,
            wire: &mut Unplugged,
            peers: &mut NoPeers,
        };
        self.world.hca_mut(handle.node).unwrap().device.qp_changed_state(&mut io, handle.qpn, old, new);
    }

    /// Two RC QPs on nodes 0 and 1, connected to each other, ready to send.
    pub(super) fn pair(&mut self, options: &Options) -> (Handle, Handle) {
        self.pair_on(0, 1, options)
    }

    pub(super) fn pair_on(&mut self, a: usize, b: usize, options: &Options) -> (Handle, Handle) {
        self.pair_of(ServiceType::RC, a, b, options)
    }

    /// Two connected QPs of any service.
    pub(super) fn pair_of(
        &mut self,
        service: ServiceType,
        a: usize,
        b: usize,
        options: &Options,
    ) -> (Handle, Handle) {
        let pair = [self.make_qp(a, service, options), self.make_qp(b, service, options)];
        for (own, peer) in [(0, 1), (1, 0)] {
            let (port, node) = (&self.hca(pair[peer].node).device.port, pair[peer].node);
            let (rlid, is_ethernet) = (port.lid, port.ethernet.is_some());
            let remote_qpn = pair[peer].qpn;
            self.qp(&pair[own]).reconfigure(|context| {
                qpc::remote_qpn.set(context, remote_qpn);
                let path = qpc::primary_address_path.of_mut(context);
                if is_ethernet {
                    set_path(path, options.address, node);
                } else {
                    ads::rlid.set(path, rlid);
                }
            });
            self.modify(&pair[own], QpState::RTR);
            self.modify(&pair[own], QpState::RTS);
        }
        let [a, b] = pair;
        (a, b)
    }
}

/// The `len` bytes of message `message` of `sender`.
pub(super) fn pattern(sender: u32, message: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Payload::new(0, sender.into(), message.into()).fill(0, &mut bytes);
    bytes
}
