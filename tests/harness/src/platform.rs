//! [`driver_mlx::Platform`] on the world: registers of a model HCA, the virtual clock, and idling that runs the world.

use crate::bounce::Bounce;
use crate::trouble::Trouble;
use crate::world::World;
use driver_mlx::{Bar, DoorbellRegister, Instant, MapError, Platform};
use hca_model::BarPort;
use hca_model::device::Life;
use std::cell::{Cell, OnceCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// The registers of one node's HCA, and whether anything is behind them.
pub(crate) struct Registers {
    pub(crate) port: Arc<BarPort>,
    /// The function is gone from the bus: reads give all ones, writes nothing.
    pub(crate) gone: Cell<bool>,
    /// Called after a write to a UAR page.
    pub(crate) rung: OnceCell<Box<dyn Fn()>>,
}

/// Start of the UAR pages in the BAR: registers come first.
const UARS: usize = 0x1_0000;

/// BAR0 of a model HCA, or a view of one of its pages.
#[derive(Clone, Copy)]
pub struct ModelBar {
    pub(crate) registers: &'static Registers,
    start: usize,
    len: usize,
}

impl fmt::Debug for ModelBar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModelBar")
    }
}

impl ModelBar {
    /// Leaked, because a `Bar` is `Copy` and queues hold it without a lifetime.
    pub(crate) fn new(port: Arc<BarPort>) -> Self {
        let registers = crate::keep(Registers { port, gone: Cell::new(false), rung: OnceCell::new() });
        Self { registers, start: 0, len: registers.port.len() }
    }

    /// Writes 32 bits, without a driver.
    pub fn poke32(&self, offset: usize, value: u32) {
        self.write(offset, &value.to_be_bytes());
    }

    /// Writes 64 bits, without a driver.
    pub fn poke64(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_be_bytes());
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let at = self.at(offset, bytes.len());
        if !self.registers.gone.get() {
            self.registers.port.write(at, bytes);
            if let Some(rung) = self.registers.rung.get().filter(|_| at >= UARS) {
                rung();
            }
        }
    }

    /// Returns the place in the BAR of `len` bytes at an offset of the view.
    fn at(&self, offset: usize, len: usize) -> usize {
        assert!(offset + len <= self.len, "a register outside of the view");
        self.start + offset
    }
}

/// The register of one queue.
#[derive(Clone, Copy, Debug)]
pub struct ModelRegister {
    bar: ModelBar,
    offset: usize,
}

impl DoorbellRegister for ModelRegister {
    fn ring(&mut self, value: u64) {
        self.write(0, value);
    }

    fn write(&mut self, offset: usize, value: u64) {
        self.bar.write(self.offset + offset, &value.to_be_bytes());
    }
}

impl Bar for ModelBar {
    type DoorbellRegister = ModelRegister;

    fn len(&self) -> usize {
        self.len
    }

    fn read32(&self, offset: usize) -> u32 {
        if self.registers.gone.get() {
            return u32::MAX;
        }
        let mut bytes = [0; 4];
        self.registers.port.read(self.at(offset, 4), &mut bytes);
        u32::from_be_bytes(bytes)
    }

    unsafe fn write32(&self, offset: usize, value: u32) {
        self.write(offset, &value.to_be_bytes());
    }

    unsafe fn doorbell_register(&self, offset: usize, _: usize) -> ModelRegister {
        ModelRegister { bar: *self, offset }
    }
}

/// The command register, bits of it, and one that is set only where nothing answers.
const COMMAND: u16 = 4;
const MEMORY_SPACE: u32 = 1 << 1;
const BUS_MASTER: u32 = 1 << 2;
const INTX_OFF: u32 = 1 << 10;
const GONE: u32 = 1 << 15;

/// One node's platform.
#[derive(Clone)]
pub struct ModelPlatform {
    pub(crate) world: Rc<World>,
    pub(crate) node: usize,
    pub(crate) bar: ModelBar,
    pub(crate) bounce: Bounce,
    pub(crate) trouble: Rc<Trouble>,
}

impl fmt::Debug for ModelPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelPlatform({})", self.node)
    }
}

impl Platform for ModelPlatform {
    type Bar = ModelBar;

    fn bar(&self) -> ModelBar {
        self.bar
    }

    fn uar_write_combining(&self, offset: usize, len: usize) -> Option<ModelBar> {
        assert!(offset >= 4096 && offset.is_multiple_of(4096) && len == 4096, "a UAR page");
        (!self.trouble.no_write_combining.get()).then_some(ModelBar { start: offset, len, ..self.bar })
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.world.now())
    }

    fn idle(&self, deadline: Instant) {
        let soon = if self.trouble.restless.get() { self.world.now() + 1_000 } else { u64::MAX };
        self.world.idle(deadline.as_nanos().min(soon));
    }

    /// The model reaches a node's region and nothing else of this process; of other memory it gets a copy.
    unsafe fn map(&self, va: usize, len: usize, writable: bool) -> Result<u64, MapError> {
        if va < 4096 { Err(MapError::BadAddress) } else { Ok(self.bounce.map(va, len, writable)) }
    }

    unsafe fn unmap(&self, device_address: u64, len: usize) {
        self.bounce.unmap(device_address, len);
    }

    fn read_config(&self, offset: u16) -> Option<u32> {
        (!self.trouble.loses_read()).then(|| self.config(offset))
    }

    unsafe fn write_config(&self, offset: u16, value: u32) {
        if !self.trouble.loses_write(offset) {
            self.set_config(offset, value);
        }
    }

    unsafe fn reset_function(&self) -> bool {
        if self.trouble.no_reset.get() {
            return false;
        }
        self.world.with_hca(self.node, hca_model::Hca::reset);
        // SAFETY: this function's contract.
        unsafe { self.restore_function() };
        true
    }

    unsafe fn restore_function(&self) {
        self.set_command(self.command() & BUS_MASTER | INTX_OFF | MEMORY_SPACE);
    }

    unsafe fn set_bus_master(&self, on: bool) -> bool {
        if self.trouble.no_bus_master.get() {
            return false;
        }
        if on && !self.trouble.no_reset.get() {
            let left = self.world.with_hca(self.node, |hca| (hca.life(), hca.pages().given()));
            assert_eq!(left, (Life::Disabled, 0), "the HCA still has its last driver's memory");
        }
        let master = if on { BUS_MASTER } else { 0 };
        self.set_command(self.command() & !BUS_MASTER | master);
        self.command() & (BUS_MASTER | GONE) == master
    }

    fn dma_is_coherent(&self) -> bool {
        self.bounce.is_empty()
    }

    unsafe fn sync_for_device(&self, va: usize, len: usize) {
        self.bounce.sync_for_device(va, len);
    }

    unsafe fn sync_for_cpu(&self, va: usize, len: usize) {
        self.bounce.sync_for_cpu(va, len);
    }
}

impl ModelPlatform {
    fn command(&self) -> u32 {
        self.config(COMMAND) & 0xffff
    }

    /// Reads a dword of configuration space past the driver.
    fn config(&self, offset: u16) -> u32 {
        let mut bytes = [0; 4];
        self.world.with_hca(self.node, |hca| hca.config_read(offset.into(), &mut bytes));
        u32::from_le_bytes(bytes)
    }

    /// Writes a dword of configuration space past the driver.
    pub fn set_config(&self, offset: u16, value: u32) {
        self.world.with_hca(self.node, |hca| hca.config_write(offset.into(), &value.to_le_bytes()));
    }

    fn set_command(&self, command: u32) {
        self.set_config(COMMAND, command);
    }

    /// The world it is in.
    #[must_use]
    pub fn world(&self) -> &Rc<World> {
        &self.world
    }

    /// The node's number.
    #[must_use]
    pub fn node(&self) -> usize {
        self.node
    }
}
