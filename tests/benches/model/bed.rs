//! Two nodes on one fabric, each a driver on an emulated HCA, moved on by the calls that a server makes.

use driver_mlx::{
    Access, Bar, Base, Config, Cq, CqConfig, DmaBuffer, Doorbell, DoorbellRegister, Gid, Grh, Hca,
    HcaStorage, InitParams, Instant, LinkState, MapError, MemoryRegion, Path, Platform, Qp, QpConfig,
    SendFlags, SendOp, ServiceLevel, Sge,
};
use harness::verbs::{Options, to_rts_along};
use harness::{Memory, host_region};
use hca_model::bar::BAR0_SIZE;
use hca_model::card::Card;
use hca_model::world::{NodePort, World};
use hca_model::{BarPort, DmaFault, GuestMemory, Interrupts, Profile};
use rdma_fabric::infiniband::FabricConfig;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Frames on Ethernet have room for packets of 4 KiB.
const CONFIG: Config = Config { ethernet_mtu: 9000, ..Config::DEFAULT };

/// Blocks of 4 KiB of a node's memory.
const BLOCKS: usize = 4096;

/// BAR0 of an emulated HCA, and the last 64-bit register that was written: its offset and value.
#[derive(Clone, Copy)]
pub struct Registers(&'static BarPort, &'static Cell<(usize, u64)>);

impl Registers {
    /// Writes the last register once more.
    pub fn write_again(&self) {
        let (offset, value) = self.1.get();
        self.0.write(offset, &value.to_be_bytes());
    }
}

/// A queue's register: those of the HCA, and the offset.
pub struct Register(Registers, usize);

impl std::fmt::Debug for Register {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.1)
    }
}

impl DoorbellRegister for Register {
    fn ring(&mut self, value: u64) {
        self.write(0, value);
    }
    fn write(&mut self, offset: usize, value: u64) {
        let (Registers(port, last), offset) = (self.0, self.1 + offset);
        last.set((offset, value));
        port.write(offset, &value.to_be_bytes());
    }
}

impl Bar for Registers {
    type DoorbellRegister = Register;

    fn len(&self) -> usize {
        BAR0_SIZE
    }
    fn read32(&self, offset: usize) -> u32 {
        let mut bytes = [0; 4];
        self.0.read(offset, &mut bytes);
        u32::from_be_bytes(bytes)
    }
    unsafe fn write32(&self, offset: usize, value: u32) {
        self.0.write(offset, &value.to_be_bytes());
    }
    unsafe fn doorbell_register(&self, offset: usize, _: usize) -> Register {
        Register(*self, offset)
    }
}

/// Interrupts counted.
struct Raised(u64);

impl Interrupts for Raised {
    fn raise(&mut self, _: u16) {
        self.0 += 1;
    }
}

/// Bytes that are copied in one go where instructions are counted: longer copies may be one instruction for many bytes, which
/// valgrind counts once for each byte.
const PART: usize = 1024;

/// A node's memory, reached as a server reaches what it has mapped: by plain copies.
struct Ram {
    va: *mut u8,
    device: u64,
    len: usize,
    part: usize,
}

impl Ram {
    fn of(memory: &Memory) -> Self {
        let all = memory.as_slice();
        Self {
            part: if std::env::var_os(crate::CHILD).is_some() { PART } else { usize::MAX },
            va: std::ptr::with_exposed_provenance_mut(all.va()),
            device: all.device_address(),
            len: all.len(),
        }
    }

    fn at(&self, address: u64, len: usize) -> Result<*mut u8, DmaFault> {
        let offset = address.wrapping_sub(self.device);
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.len as u64);
        let fault = DmaFault { address, len };
        // SAFETY: the offset lies inside the region, which stays for the rest of the process.
        end.map(|_| unsafe { self.va.add(offset as usize) }).ok_or(fault)
    }

    fn aligned<T>(&self, address: u64) -> Result<*mut T, DmaFault> {
        let len = size_of::<T>();
        let at = self.at(address, len)?;
        if address.is_multiple_of(len as u64) { Ok(at.cast()) } else { Err(DmaFault { address, len }) }
    }
}

impl GuestMemory for Ram {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let mut at = self.at(address, buf.len())?.cast_const();
        for part in buf.chunks_mut(self.part) {
            // SAFETY: inside the region; everything runs in one thread, and `buf` is none of the region's.
            unsafe { std::ptr::copy_nonoverlapping(at, part.as_mut_ptr(), part.len()) };
            at = at.wrapping_add(part.len());
        }
        Ok(())
    }
    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        let mut at = self.at(address, data.len())?;
        for part in data.chunks(self.part) {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), at, part.len()) };
            at = at.wrapping_add(part.len());
        }
        Ok(())
    }
    fn publish(&self, address: u64, entry: &[u8; 64]) -> Result<(), DmaFault> {
        let at: *mut [u8; 64] = self.aligned(address)?;
        // SAFETY: inside the region and aligned.
        unsafe { std::ptr::write_volatile(at, *entry) };
        Ok(())
    }
    fn copy(&self, from: u64, target: &dyn GuestMemory, to: u64, len: usize) -> Result<(), DmaFault> {
        let target: &Self = (target as &dyn Any).downcast_ref().expect("all nodes have memory of this kind");
        let (mut from, mut to, mut left) = (self.at(from, len)?.cast_const(), target.at(to, len)?, len);
        while left != 0 {
            let part = left.min(self.part);
            // SAFETY: inside the regions, which are two nodes' and do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from, to, part) };
            (from, to, left) = (from.wrapping_add(part), to.wrapping_add(part), left - part);
        }
        Ok(())
    }
    fn load32(&self, address: u64) -> Result<u32, DmaFault> {
        // SAFETY: inside the region and aligned.
        self.aligned(address).map(|at| u32::from_be(unsafe { std::ptr::read_volatile(at) }))
    }
    fn load64(&self, address: u64) -> Result<u64, DmaFault> {
        // SAFETY: as above.
        self.aligned(address).map(|at| u64::from_be(unsafe { std::ptr::read_volatile(at) }))
    }
    fn store32(&self, address: u64, value: u32) -> Result<(), DmaFault> {
        // SAFETY: as above.
        self.aligned(address).map(|at| unsafe { std::ptr::write_volatile(at, value.to_be()) })
    }
    fn store64(&self, address: u64, value: u64) -> Result<(), DmaFault> {
        // SAFETY: as above.
        self.aligned(address).map(|at| unsafe { std::ptr::write_volatile(at, value.to_be()) })
    }
}

/// What an HCA is plugged into.
struct Guest {
    memory: Ram,
    raised: Raised,
}

impl NodePort for Guest {
    fn parts(&mut self) -> (&dyn GuestMemory, &mut dyn Interrupts) {
        (&self.memory, &mut self.raised)
    }
}

/// The emulated HCAs and their clock.
pub struct Fabric {
    world: World,
    guests: Vec<Guest>,
    now: u64,
}

impl Fabric {
    /// Adds `count` HCAs without work, whose links are up.
    pub fn add_idle(&mut self, count: usize) {
        for _ in 0..count {
            let node = self.guests.len();
            self.world.add(Profile::node(node as u16), &format!("idle {node}")).expect("a free port");
            let (memory, _) = Memory::new(node, 4096);
            self.guests.push(Guest { memory: Ram::of(&memory), raised: Raised(0) });
        }
        self.settle();
        let fabric = self.world.medium.fabric();
        let is_active = |port| fabric.port_record(port).is_some_and(|record| record.active);
        assert!(self.world.nodes().iter().all(|node| is_active(node.port)), "the links are up");
    }

    /// Lets the HCAs work until nothing more can be done at once.
    pub fn settle(&mut self) {
        loop {
            self.now += 100;
            if !self.world.poll(self.now, &mut self.guests) {
                return;
            }
        }
    }
}

/// A node's platform on the server's world. This bench counts what a server executes, so the
/// harness's scheduler must not be part of it.
#[derive(Clone)]
struct Machine {
    fabric: Rc<RefCell<Fabric>>,
    registers: Registers,
}

impl Platform for Machine {
    type Bar = Registers;

    fn bar(&self) -> Registers {
        self.registers
    }
    fn uar_write_combining(&self, _: usize, _: usize) -> Option<Registers> {
        None
    }
    fn now(&self) -> Instant {
        Instant::from_nanos(self.fabric.borrow().now)
    }
    fn idle(&self, deadline: Instant) {
        let fabric = &mut *self.fabric.borrow_mut();
        fabric.settle();
        let next = fabric.world.next_deadline().unwrap_or(u64::MAX);
        fabric.now = fabric.now.max(next.min(deadline.as_nanos()));
    }
    unsafe fn map(&self, _: usize, _: usize, _: bool) -> Result<u64, MapError> {
        Err(MapError::Unsupported)
    }
    unsafe fn unmap(&self, _: u64, _: usize) {}
}

/// A node: memory with a key over it, and queue pairs on one CQ.
pub struct Node {
    hca: Hca<'static, Machine>,
    pub registers: Registers,
    pub cq: Cq<Registers>,
    pub qps: Vec<Qp<Registers>>,
    pub key: MemoryRegion,
    pub memory: DmaBuffer,
}

impl Node {
    fn new(fabric: &Rc<RefCell<Fabric>>, card: &'static Card, node: usize, qps: usize, len: usize) -> Self {
        let (memory, region) = Memory::new(node, BLOCKS * 4096);
        let registers = {
            let fabric = &mut *fabric.borrow_mut();
            fabric.world.add(Profile::of(card, node as u16), &format!("node {node}")).expect("a free port");
            fabric.guests.push(Guest { memory: Ram::of(&memory), raised: Raised(0) });
            let hca = fabric.world.hca_mut(node).expect("added");
            // Memory decoding and bus mastering on.
            hca.config_write(4, &[0x06, 0x04]);
            let port: &'static Arc<BarPort> = harness::keep(hca.bar());
            Registers(port, harness::keep(Cell::new((0, 0))))
        };
        let storage = harness::keep(HcaStorage::<BLOCKS>::new());
        let platform = Machine { fabric: Rc::clone(fabric), registers };
        let mut hca = Hca::bring_up(platform.clone(), region, host_region(), storage.parts(), &CONFIG)
            .expect("comes up");
        while hca.port().expect("port").state != LinkState::Active {
            platform.idle(Instant::from_nanos(u64::MAX));
        }
        let pd = hca.alloc_pd().expect("PD");
        let memory = hca.alloc(len, 4096).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let key = hca.register(pd, &memory, access, Base::Virtual).expect("key");
        let cq = hca.create_cq(&CqConfig { entries: 4096, eq: 0 }).expect("CQ");
        let qps = (0..qps)
            .map(|index| {
                let config = QpConfig { user_index: index as u32, ..QpConfig::rc(pd, cq.number()) };
                let mut qp = hca.create_qp(&config).expect("QP");
                let init = InitParams { port: 1, pkey_index: 0, access: Access::REMOTE_WRITE };
                hca.modify_to_init(&mut qp, &init).expect("INIT");
                qp
            })
            .collect();
        Self { hca, registers, cq, qps, key, memory }
    }

    /// Returns the path from this node, number `own`, to the other one.
    fn path_to(&mut self, own: usize, other: &mut Self) -> Path {
        let port = other.hca.port().expect("port");
        let Some(ethernet) = port.ethernet() else {
            return Path::InfiniBand {
                dlid: port.lid(),
                sl: ServiceLevel::default(),
                src_path_bits: 0,
                static_rate: 0,
                grh: None,
            };
        };
        let [own, dgid] = [own, 1 - own].map(|node| Gid::from_ipv4([10, 0, 0, node as u8 + 1]));
        let source_gid_index = self.hca.add_roce_address(own, None).expect("room");
        let grh = Grh { dgid, source_gid_index, flow_label: 0, hop_limit: 64, traffic_class: 0 };
        Path::Roce { dmac: ethernet.mac, priority: 0, grh }
    }

    fn connect(&mut self, path: Path, other: &[Qp<Registers>]) {
        for (qp, peer) in self.qps.iter_mut().zip(other) {
            to_rts_along(&mut self.hca, qp, path, peer.number(), (0, 0), &Options::default()).expect("RTS");
        }
    }

    /// Posts a signalled write of `len` bytes at `offset` to the same place of `to`, without ringing.
    pub fn post_write(
        &mut self,
        qp: usize,
        to: &MemoryRegion,
        offset: usize,
        len: usize,
        wr_id: u64,
    ) -> Doorbell {
        let sge =
            Sge { address: self.key.address() + offset as u64, length: len as u32, lkey: self.key.lkey() };
        let op = SendOp::Write { raddr: to.address() + offset as u64, rkey: to.rkey() };
        self.qps[qp].post_send(op, &[sge], wr_id, SendFlags::SIGNALED).expect("room")
    }

    /// Takes the completions: the requests that are done.
    pub fn drain(&mut self) -> usize {
        let mut done = 0;
        let qps = &mut self.qps;
        while let Some(retired) =
            self.cq.poll(|cqe| qps[cqe.user_index() as usize].retire(cqe)).expect("a valid completion")
        {
            let completion = retired.expect("outstanding");
            assert!(matches!(completion, driver_mlx::Completion::Sent(_)), "{completion:?}");
            done += usize::from(completion.count());
        }
        done
    }
}

/// Two nodes of a card with `qps` connections and `len` bytes each.
pub fn pair(card: &'static Card, qps: usize, len: usize) -> (Rc<RefCell<Fabric>>, [Node; 2]) {
    let world = World::new(FabricConfig::default());
    let fabric = Rc::new(RefCell::new(Fabric { world, guests: Vec::new(), now: 1 }));
    let mut nodes = [0, 1].map(|node| Node::new(&fabric, card, node, qps, len));
    let [near, far] = &mut nodes;
    let paths = [near.path_to(0, far), far.path_to(1, near)];
    near.connect(paths[0], &far.qps);
    far.connect(paths[1], &near.qps);
    (fabric, nodes)
}
