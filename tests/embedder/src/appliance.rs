//! Where the appliance runs: its registers, memory, clock and interrupts. This is all that an embedder writes.

use driver_mlx::{Bar, DmaRegion, DmaSlice, DoorbellRegister, HostRegion, Instant, MapError, Platform};
use hca_model::bar::{BAR0_SIZE, BarPort};
use hca_model::world::{NodePort, World};
use hca_model::{DmaFault, GuestMemory, Interrupts, Profile};
use rdma_fabric::infiniband::FabricConfig;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Bytes of DMA memory.
pub const MEMORY: usize = 16 << 20;
/// Bytes of the memory that stays on this side.
const HOST_MEMORY: usize = MEMORY / 16;
/// Where the device sees it.
const DEVICE_ADDRESS: u64 = 0x4000_0000;

/// BAR0 of the emulated HCA; real ones take `driver_mlx::MmioBar`.
#[derive(Clone, Copy)]
pub struct Registers(&'static BarPort);

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
        self.0.0.write(self.1 + offset, &value.to_be_bytes());
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

/// The appliance.
pub struct Appliance {
    registers: Registers,
    started: std::time::Instant,
    world: RefCell<World>,
    bus: RefCell<Bus>,
}

impl Appliance {
    /// An appliance with one HCA, the memory to share with it, and the driver's own.
    pub fn new() -> (Self, DmaRegion, HostRegion) {
        let layout = Layout::from_size_align(MEMORY, 4096).expect("a power of two");
        // SAFETY: the layout's size is not 0.
        let va = unsafe { alloc_zeroed(layout) };
        if va.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: new memory that is never freed and has no other user than the stack.
        let region = unsafe { DmaRegion::new(va, DEVICE_ADDRESS, MEMORY) }.expect("aligned");
        // SAFETY: as above; this is the emulated device's side of it, which runs in the same thread.
        let ram = unsafe { DmaSlice::from_raw(va, DEVICE_ADDRESS, MEMORY) };
        let mut world = World::new(FabricConfig::default());
        let node = world.add(Profile::node(0), "appliance").expect("the switch is empty");
        let hca = world.hca_mut(node).expect("added");
        // What a machine's PCI code does: memory decoding and bus mastering on (Command, at 4).
        hca.config_write(4, &[0x06, 0x04]);
        let registers = Registers(Box::leak(Box::new(Arc::clone(&hca.bar()))));
        let bus = Bus { memory: Ram(ram), pending: Pending(Cell::new(false)) };
        let appliance = Self {
            registers,
            started: std::time::Instant::now(),
            world: RefCell::new(world),
            bus: RefCell::new(bus),
        };
        let host = Box::leak(vec![0; HOST_MEMORY / 8].into_boxed_slice());
        (appliance, region, HostRegion::from_static(host).expect("large enough"))
    }

    /// GUID of the HCA's port; hardware has it printed on it.
    pub fn port_guid(&self) -> u64 {
        Profile::port_guid_of(0)
    }

    /// Random bits; take them from the processor or a noise source.
    pub fn entropy(&self) -> u128 {
        std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |elapsed| elapsed.as_nanos())
    }
}

impl Platform for Appliance {
    type Bar = Registers;

    fn bar(&self) -> Registers {
        self.registers
    }
    fn uar_write_combining(&self, _: usize, _: usize) -> Option<Registers> {
        None
    }
    fn now(&self) -> Instant {
        Instant::from_nanos(self.started.elapsed().as_nanos() as u64)
    }
    fn idle(&self, deadline: Instant) {
        let bus = &mut *self.bus.borrow_mut();
        while !bus.pending.0.take() && self.now() < deadline {
            self.world.borrow_mut().poll(self.now().as_nanos(), core::slice::from_mut(bus));
        }
    }
    unsafe fn map(&self, _: usize, _: usize, _: bool) -> Result<u64, MapError> {
        Err(MapError::Unsupported)
    }
    unsafe fn unmap(&self, _: u64, _: usize) {}
}

/// What the emulated HCA is plugged into: memory and interrupts.
struct Bus {
    memory: Ram,
    pending: Pending,
}

impl NodePort for Bus {
    fn parts(&mut self) -> (&dyn GuestMemory, &mut dyn Interrupts) {
        (&self.memory, &mut self.pending)
    }
}

struct Pending(Cell<bool>);

impl Interrupts for Pending {
    fn raise(&mut self, _vector: u16) {
        self.0.set(true);
    }
}

/// The memory, as the emulated HCA's DMA reaches it.
struct Ram(DmaSlice<'static>);

impl Ram {
    fn at<R>(
        &self,
        address: u64,
        len: usize,
        access: impl FnOnce(usize) -> Result<R, driver_mlx::OutOfBounds>,
    ) -> Result<R, DmaFault> {
        let fault = DmaFault { address, len };
        let offset = address.checked_sub(DEVICE_ADDRESS).ok_or(fault)?;
        access(offset as usize).map_err(|_| fault)
    }
}

impl GuestMemory for Ram {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        self.at(address, buf.len(), |offset| self.0.read(offset, buf))
    }
    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.at(address, data.len(), |offset| self.0.write(offset, data))
    }
    fn load32(&self, address: u64) -> Result<u32, DmaFault> {
        self.at(address, 4, |offset| self.0.load_be32(offset))
    }
    fn load64(&self, address: u64) -> Result<u64, DmaFault> {
        self.at(address, 8, |offset| self.0.load_be64(offset))
    }
    fn store32(&self, address: u64, value: u32) -> Result<(), DmaFault> {
        self.at(address, 4, |offset| self.0.store_be32(offset, value))
    }
    fn store64(&self, address: u64, value: u64) -> Result<(), DmaFault> {
        self.at(address, 8, |offset| self.0.store_be64(offset, value))
    }
}
