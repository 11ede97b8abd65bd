//! A fabric of emulated HCAs in this process, each with a platform for the driver: the clock jumps, nothing runs by itself.
#![allow(dead_code)] // Each test binary uses what it needs.

pub mod node;
pub mod recovery;

use driver_mlx::{
    Bar, Config, DmaRegion, DmaSlice, DoorbellRegister, Error, Hca, HcaStorage, HostRegion, Instant,
    MapError, Platform,
};
use hca_model::fabric::{Fabric, FabricConfig, PortIndex};
use hca_model::{BarPort, DmaFault, GuestMemory, Interrupts, Profile};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Where the device sees a node's region; the driver sees it elsewhere.
pub const DEVICE: u64 = 0x1_0000_0000;
/// Bytes of a node's region.
pub const REGION: usize = 8 << 20;
/// Blocks that describe it.
pub const BLOCKS: usize = REGION / 4096;

/// A node's memory as the device sees it.
struct Guest(DmaSlice<'static>);

impl Guest {
    fn offset(&self, address: u64, len: usize) -> Result<usize, DmaFault> {
        let offset = address.checked_sub(DEVICE).and_then(|o| usize::try_from(o).ok());
        offset.filter(|&o| self.0.slice(o, len).is_some()).ok_or(DmaFault { address, len })
    }
}

impl GuestMemory for Guest {
    fn read(&self, a: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        self.0.read(self.offset(a, buf.len())?, buf).map_err(|_| DmaFault { address: a, len: buf.len() })
    }
    fn write(&self, a: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.0.write(self.offset(a, data.len())?, data).map_err(|_| DmaFault { address: a, len: data.len() })
    }
    fn load32(&self, a: u64) -> Result<u32, DmaFault> {
        self.0.load_be32(self.offset(a, 4)?).map_err(|_| DmaFault { address: a, len: 4 })
    }
    fn load64(&self, a: u64) -> Result<u64, DmaFault> {
        self.0.load_be64(self.offset(a, 8)?).map_err(|_| DmaFault { address: a, len: 8 })
    }
    fn store32(&self, a: u64, v: u32) -> Result<(), DmaFault> {
        self.0.store_be32(self.offset(a, 4)?, v).map_err(|_| DmaFault { address: a, len: 4 })
    }
    fn store64(&self, a: u64, v: u64) -> Result<(), DmaFault> {
        self.0.store_be64(self.offset(a, 8)?, v).map_err(|_| DmaFault { address: a, len: 8 })
    }
}

/// Interrupts since somebody last looked, by vector.
#[derive(Clone, Default)]
pub struct Raised(pub Vec<u16>);

impl Interrupts for Raised {
    fn raise(&mut self, vector: u16) {
        self.0.push(vector);
    }
}

struct Node {
    hca: hca_model::Hca,
    port: PortIndex,
    memory: Guest,
    raised: Raised,
    trouble: Rc<Trouble>,
}

/// All devices, their fabric and the clock.
pub struct World {
    now: Cell<u64>,
    /// When all devices that were killed come back.
    pub revival: Cell<Option<u64>>,
    /// Foreign memory that is mapped, in pieces.
    pub mapped: Cell<usize>,
    /// What is to happen to a node's device, and when.
    events: RefCell<Vec<(u64, usize, Event)>>,
    inner: RefCell<Inner>,
}

type Event = Box<dyn FnOnce(&mut hca_model::Hca)>;

struct Inner {
    nodes: Vec<Node>,
    fabric: Fabric,
}

impl Inner {
    /// Everything that can be done at `now`, but not without end.
    fn settle(&mut self, now: u64) {
        for _ in 0..100_000 {
            let mut more = false;
            for node in &mut self.nodes {
                while let Some(packet) = self.fabric.receive(node.port, now) {
                    node.hca.receive(packet);
                    more = true;
                }
                let mut wire = self.fabric.wire(node.port, now);
                more |= node.hca.poll(now, &node.memory, &mut node.raised, &mut wire);
                let up = node.hca.link_is_up() && !node.hca.is_killed();
                self.fabric.set_link(node.port, up, now);
            }
            self.fabric.poll(now);
            more |= self.fabric.next_deadline().is_some_and(|d| d <= now);
            if !more {
                return;
            }
        }
        panic!("the models do not come to rest");
    }

    fn next_deadline(&self) -> Option<u64> {
        let devices = self.nodes.iter().filter_map(|n| n.hca.next_deadline());
        devices.chain(self.fabric.next_deadline()).min()
    }
}

impl World {
    /// A fabric of these devices, cables plugged in, bus mastering on.
    pub fn new(profiles: impl IntoIterator<Item = Profile>, config: FabricConfig) -> Rc<Self> {
        Self::with_memory(profiles, config, REGION)
    }

    /// The same with so many bytes of memory for each.
    pub fn with_memory(
        profiles: impl IntoIterator<Item = Profile>,
        config: FabricConfig,
        bytes: usize,
    ) -> Rc<Self> {
        let mut fabric = Fabric::new(config);
        let nodes = profiles
            .into_iter()
            .map(|profile| {
                let port = fabric.attach(&profile.node_description).expect("a port");
                let mut hca = hca_model::Hca::new(profile);
                hca.config_write(4, &[0x06, 0x04]);
                hca.port_mut().set_cable(true);
                Node {
                    hca,
                    port,
                    memory: Guest(leaked(bytes)),
                    raised: Raised::default(),
                    trouble: Rc::default(),
                }
            })
            .collect();
        Rc::new(Self {
            now: Cell::new(1),
            revival: Cell::new(None),
            mapped: Cell::new(0),
            events: RefCell::default(),
            inner: RefCell::new(Inner { nodes, fabric }),
        })
    }

    /// Lets everything run until it rests.
    pub fn settle(&self) {
        if self.revival.get().is_some_and(|at| at <= self.now.get()) {
            self.revival.set(None);
            self.inner.borrow_mut().nodes.iter_mut().for_each(|node| node.hca.revive());
        }
        let due = |event: &mut (u64, usize, Event)| event.0 <= self.now.get();
        let due: Vec<_> = self.events.borrow_mut().extract_if(.., due).collect();
        due.into_iter().for_each(|(_, node, event)| self.model(node, event));
        self.inner.borrow_mut().settle(self.now.get());
    }

    /// Something happens to a device in so many nanoseconds.
    pub fn later(&self, node: usize, delay: u64, event: impl FnOnce(&mut hca_model::Hca) + 'static) {
        self.events.borrow_mut().push((self.now() + delay, node, Box::new(event)));
    }

    /// When something happens next.
    fn next_deadline(&self) -> Option<u64> {
        let events = self.events.borrow().iter().map(|event| event.0).min();
        self.inner.borrow().next_deadline().into_iter().chain(events).min()
    }

    /// Lets time pass.
    pub fn pass(&self, nanoseconds: u64) {
        let end = self.now.get() + nanoseconds;
        loop {
            self.settle();
            if self.now.get() >= end {
                return;
            }
            let next = self.next_deadline().unwrap_or(end);
            self.now.set(next.clamp(self.now.get() + 1, end));
        }
    }

    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// Looks into (or changes) the model of a node.
    pub fn model<T>(&self, node: usize, look: impl FnOnce(&mut hca_model::Hca) -> T) -> T {
        look(&mut self.inner.borrow_mut().nodes[node].hca)
    }

    pub fn fabric<T>(&self, look: impl FnOnce(&mut Fabric) -> T) -> T {
        look(&mut self.inner.borrow_mut().fabric)
    }

    /// Interrupts of a node since the last call.
    pub fn raised(&self, node: usize) -> Vec<u16> {
        std::mem::take(&mut self.inner.borrow_mut().nodes[node].raised.0)
    }

    /// What a node's model refused or warned of.
    pub fn complaints(&self, node: usize) -> Vec<String> {
        self.model(node, |hca| {
            let bad = hca.log().entries().filter(|e| e.level != hca_model::log::Level::Info);
            bad.map(ToString::to_string).collect()
        })
    }

    /// The platform of a node.
    pub fn platform(self: &Rc<Self>, node: usize) -> ModelPlatform {
        let port = self.model(node, |hca| hca.bar());
        let bar = ModelBar::new(Box::leak(Box::new(port)));
        ModelPlatform { world: Rc::clone(self), node, bar, trouble: self.trouble(node) }
    }

    /// Returns what a node's platform does to its driver.
    pub fn trouble(&self, node: usize) -> Rc<Trouble> {
        Rc::clone(&self.inner.borrow().nodes[node].trouble)
    }

    /// Writes a register of a node's device past its driver.
    pub fn write_register(&self, node: usize, offset: usize, value: u32) {
        let port = self.model(node, |hca| hca.bar());
        port.write(offset, &value.to_be_bytes());
    }

    /// Writes a dword of a node's configuration space past its driver.
    pub fn write_config(&self, node: usize, offset: u16, value: u32) {
        self.model(node, |hca| hca.config_write(offset.into(), &value.to_le_bytes()));
    }

    /// A node's memory, as the driver sees it.
    pub fn memory(&self, node: usize) -> DmaSlice<'static> {
        self.inner.borrow().nodes[node].memory.0
    }

    /// A node's DMA region.
    pub fn region(&self, node: usize) -> DmaRegion {
        let memory = self.memory(node);
        // SAFETY: the memory is leaked, and nobody but one driver after another and the model uses it, in one thread.
        unsafe { DmaRegion::new(memory.va() as *mut u8, memory.device_address(), memory.len()) }
            .expect("aligned")
    }

    /// Brings the HCA of a node up.
    pub fn bring_up(self: &Rc<Self>, node: usize, config: &Config) -> Result<Driver, Error> {
        let storage = Box::leak(Box::new(HcaStorage::<BLOCKS>::new()));
        Hca::bring_up(self.platform(node), self.region(node), host_region(), storage.parts(), config)
    }

    /// As [`World::bring_up`], and waits for the subnet manager.
    pub fn ready(self: &Rc<Self>, node: usize) -> Driver {
        self.ready_with(node, &Config::DEFAULT)
    }

    /// The same with another configuration.
    pub fn ready_with(self: &Rc<Self>, node: usize, config: &Config) -> Driver {
        let mut hca = self.bring_up(node, config).expect("brought up");
        for _ in 0..1000 {
            if hca.port().expect("a port").state == driver_mlx::LinkState::Active {
                return hca;
            }
            self.pass(10_000_000);
        }
        panic!("the port does not become active");
    }
}

/// Memory for what a driver remembers of its work requests.
pub fn host_region() -> HostRegion {
    HostRegion::from_static(Box::leak(vec![0; 1 << 17].into_boxed_slice())).expect("large enough")
}

/// The driver on the model.
pub type Driver = Hca<'static, ModelPlatform>;

/// `len` zeroed bytes that live for the rest of the process, seen at [`DEVICE`] by the device.
fn leaked(len: usize) -> DmaSlice<'static> {
    #[repr(align(4096))]
    #[derive(Clone)]
    struct Page(#[allow(dead_code)] [u8; 4096]);
    let pages = Box::leak(vec![Page([0; 4096]); len / 4096].into_boxed_slice());
    let va = pages.as_mut_ptr().cast::<u8>();
    // The region is made from the address again, for each bring-up.
    va.expose_provenance();
    // SAFETY: leaked, and used by one thread, through slices and the driver, from here on.
    unsafe { DmaSlice::from_raw(va, DEVICE, len) }
}

/// BAR0 of a model, or a view of it from an offset on.
#[derive(Clone, Copy)]
pub struct ModelBar {
    port: &'static BarPort,
    start: usize,
    len: usize,
}

impl ModelBar {
    fn new(port: &'static std::sync::Arc<BarPort>) -> Self {
        Self { port, start: 0, len: port.len() }
    }

    /// Where offset `offset` of the view is in the BAR.
    fn at(&self, offset: usize, len: usize) -> usize {
        assert!(offset + len <= self.len, "outside of the view");
        self.start + offset
    }
}

/// A queue's register of a model.
#[derive(Clone, Copy)]
pub struct ModelRegister {
    bar: ModelBar,
    offset: usize,
}

impl std::fmt::Debug for ModelRegister {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.offset)
    }
}

impl DoorbellRegister for ModelRegister {
    fn ring(&mut self, value: u64) {
        self.write(0, value);
    }
    fn write(&mut self, offset: usize, value: u64) {
        self.bar.port.write(self.bar.at(self.offset + offset, 8), &value.to_be_bytes());
    }
}

impl Bar for ModelBar {
    type DoorbellRegister = ModelRegister;

    fn len(&self) -> usize {
        self.len
    }
    fn read32(&self, offset: usize) -> u32 {
        let mut bytes = [0; 4];
        self.port.read(self.at(offset, 4), &mut bytes);
        u32::from_be_bytes(bytes)
    }
    unsafe fn write32(&self, offset: usize, value: u32) {
        self.port.write(self.at(offset, 4), &value.to_be_bytes());
    }
    unsafe fn doorbell_register(&self, offset: usize, _: usize) -> ModelRegister {
        ModelRegister { bar: *self, offset }
    }
}

/// Bits of the command register.
const MEMORY_SPACE: u32 = 1 << 1;
const BUS_MASTER: u32 = 1 << 2;
const INTX_OFF: u32 = 1 << 10;

/// A node as the driver's platform.
#[derive(Clone)]
pub struct ModelPlatform {
    world: Rc<World>,
    node: usize,
    bar: ModelBar,
    trouble: Rc<Trouble>,
}

/// What a platform may do to a driver.
#[derive(Debug, Default)]
pub struct Trouble {
    /// The function cannot be reset.
    pub no_reset: Cell<bool>,
    /// Bus mastering is somebody else's.
    pub no_bus_master: Cell<bool>,
    /// No page is mapped write-combining.
    pub no_write_combining: Cell<bool>,
    /// Waits end at once, for no reason.
    pub restless: Cell<bool>,
    /// Accesses of configuration space so far.
    pub accesses: Cell<u32>,
    /// Those that fail.
    pub failing: RefCell<std::ops::Range<u32>>,
}

impl Trouble {
    fn strikes(&self) -> bool {
        let access = self.accesses.replace(self.accesses.get() + 1);
        self.failing.borrow().contains(&access)
    }
}

impl ModelPlatform {
    fn command(&self) -> u32 {
        let mut bytes = [0; 4];
        self.world.model(self.node, |hca| hca.config_read(4, &mut bytes));
        u32::from_le_bytes(bytes) & 0xffff
    }

    fn set_command(&self, command: u32) {
        self.world.model(self.node, |hca| hca.config_write(4, &command.to_le_bytes()));
    }
}

impl Platform for ModelPlatform {
    type Bar = ModelBar;

    fn bar(&self) -> ModelBar {
        self.bar
    }
    fn uar_write_combining(&self, offset: usize, len: usize) -> Option<ModelBar> {
        assert!(offset >= 4096 && offset.is_multiple_of(4096) && len == 4096, "a UAR page");
        if self.trouble.no_write_combining.get() {
            return None;
        }
        Some(ModelBar { start: offset, len, ..self.bar })
    }
    fn now(&self) -> Instant {
        Instant::from_nanos(self.world.now())
    }
    fn idle(&self, deadline: Instant) {
        let now = self.world.now();
        let deadline = if self.trouble.restless.get() {
            deadline.min(Instant::from_nanos(now + 1000))
        } else {
            deadline
        };
        let before = self.world.inner.borrow().nodes[self.node].raised.0.len();
        self.world.settle();
        if self.world.inner.borrow().nodes[self.node].raised.0.len() > before {
            return;
        }
        let now = self.world.now();
        let next = self
            .world
            .next_deadline()
            .map_or(deadline, |next| Instant::from_nanos(next.min(deadline.as_nanos())));
        self.world.now.set((next.max(Instant::from_nanos(now + 1))).as_nanos());
        self.world.settle();
    }
    unsafe fn map(&self, va: usize, _: usize, _: bool) -> Result<u64, MapError> {
        self.world.mapped.set(self.world.mapped.get() + 1);
        // Nothing is there; a key for it can be made all the same.
        Ok(1 << 40 | va as u64)
    }
    unsafe fn unmap(&self, _: u64, _: usize) {
        self.world.mapped.set(self.world.mapped.get() - 1);
    }
    fn read_config(&self, offset: u16) -> Option<u32> {
        if self.trouble.strikes() {
            return None;
        }
        let mut bytes = [0; 4];
        self.world.model(self.node, |hca| hca.config_read(offset.into(), &mut bytes));
        Some(u32::from_le_bytes(bytes))
    }
    unsafe fn write_config(&self, offset: u16, value: u32) {
        // Data alone is not lost: what lay there before would be used in its place, by any driver.
        if self.trouble.strikes() && offset != recovery::VENDOR + 0x14 {
            return;
        }
        self.world.model(self.node, |hca| hca.config_write(offset.into(), &value.to_le_bytes()));
    }
    unsafe fn reset_function(&self) -> bool {
        if self.trouble.no_reset.get() {
            return false;
        }
        self.world.model(self.node, hca_model::Hca::reset);
        // SAFETY: this function's contract.
        unsafe { self.restore_function() };
        true
    }
    unsafe fn restore_function(&self) {
        let master = self.command() & BUS_MASTER;
        self.set_command(INTX_OFF | MEMORY_SPACE | master);
    }
    unsafe fn set_bus_master(&self, on: bool) -> bool {
        if self.trouble.no_bus_master.get() {
            return false;
        }
        if on && !self.trouble.no_reset.get() {
            let left = self.world.model(self.node, |hca| (hca.life(), hca.pages().given()));
            assert_eq!(left, (hca_model::device::Life::Disabled, 0), "it has not let go");
        }
        let master = if on { BUS_MASTER } else { 0 };
        self.set_command(self.command() & !BUS_MASTER | master);
        !self.world.model(self.node, |hca| hca.is_killed()) && self.command() & BUS_MASTER == master
    }
}
