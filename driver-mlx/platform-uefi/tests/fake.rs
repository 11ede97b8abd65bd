//! A firmware with one PCI function: an emulated HCA. Its protocols are as tables of functions, like a real firmware's.
//!
//! It is strict where the specification is, and has the quirks of boards that tests switch on.

use crate::{handles, images};
use driver_mlx::Platform;
use harness::{ModelPlatform, World, WorldConfig};
use hca_model::Profile;
use platform_uefi::{Clock, Device, Error, Firmware, functions};
use r_efi::efi::{
    AllocateType, Boolean, BootServices, Event, EventNotify, Guid, Handle, LocateSearchType, MemoryType,
    OPEN_PROTOCOL_BY_CHILD_CONTROLLER, OPEN_PROTOCOL_BY_DRIVER, PhysicalAddress, Status, SystemTable, Tpl,
};
use r_efi::protocols::{device_path, pci_io};
use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::{MaybeUninit, offset_of};
use std::rc::Rc;

/// Bytes that the function can reach.
const MEMORY: usize = 192 << 20;
const PAGE: usize = 4096;
const MEMORY_SPACE: u64 = pci_io::ATTRIBUTE_MEMORY;
const MASTER: u64 = pci_io::ATTRIBUTE_BUS_MASTER;
const DUAL: u64 = pci_io::ATTRIBUTE_DUAL_ADDRESS_CYCLE;
const ROM: u64 = pci_io::ATTRIBUTE_EMBEDDED_ROM;

/// Quirks of boards.
#[derive(Clone, Copy, Default)]
pub struct Quirks {
    /// `Attributes` refuses to enable.
    pub attributes_refused: bool,
    /// The command register keeps bus mastering off.
    pub no_bus_master: bool,
    /// BAR0 has no address.
    pub no_bar: bool,
    /// `Map` maps one page less.
    pub short_map: bool,
    /// `Map` returns an address within a page.
    pub unaligned_map: bool,
    /// The firmware's own driver does not stop.
    pub kept: bool,
}

pub struct State {
    pub world: Rc<World>,
    platform: ModelPlatform,
    pub quirks: Quirks,
    /// Attributes as `Attributes` remembers them, which is not the register.
    pub attributes: u64,
    /// Buffers of `AllocateBuffer`: offset in the world's memory and pages.
    pub buffers: BTreeMap<usize, usize>,
    /// Pages mapped, by token.
    pub maps: BTreeMap<usize, usize>,
    next_token: usize,
    /// Blocks of pool and pages, by address.
    pub blocks: BTreeMap<usize, Layout>,
    pub events: BTreeMap<usize, (Tpl, EventNotify, usize)>,
    pub level: Tpl,
    pub levels: Vec<Tpl>,
    pub opened: Vec<u32>,
    pub connected: u32,
    pub longest_stall: usize,
    /// Allocation is an error now.
    pub exiting: bool,
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// Calls `work` with the firmware's state.
pub fn with<R>(work: impl FnOnce(&mut State) -> R) -> R {
    STATE.with_borrow_mut(|state| work(state.as_mut().expect("a firmware")))
}

const PCI: Handle = 0x1000 as Handle;
const IMAGE: Handle = 0x2000 as Handle;

/// Device path of the function.
static PATH: [u8; 10] = [1, 1, 6, 0, 0, 0x10, 0x7f, 0xff, 4, 0];

/// The function's handle.
pub fn function() -> Handle {
    PCI
}

/// The program's handle.
pub fn image() -> Handle {
    IMAGE
}

/// The firmware, with its HCA.
pub fn firmware(profile: Profile, quirks: Quirks) -> Firmware {
    firmware_and_table(profile, quirks).0
}

/// The same, and the system table.
pub fn firmware_and_table(profile: Profile, quirks: Quirks) -> (Firmware, *mut SystemTable) {
    handles::clear();
    handles::add(PCI, device_path::PROTOCOL_GUID, PATH.as_ptr().cast());
    let world = World::new(&WorldConfig::new(7));
    let (platform, _) = world.attach(profile, MEMORY);
    // As at power-on: firmware that decodes registers and does not let the function master the bus.
    platform.set_config(4, 0x2);
    STATE.set(Some(State {
        world,
        platform,
        quirks,
        attributes: ROM | MEMORY_SPACE,
        buffers: BTreeMap::new(),
        maps: BTreeMap::new(),
        next_token: 0x77,
        blocks: BTreeMap::new(),
        events: BTreeMap::new(),
        level: r_efi::efi::TPL_APPLICATION,
        levels: Vec::new(),
        opened: Vec::new(),
        connected: 0,
        longest_stall: 0,
        exiting: false,
    }));
    let mut services: Box<MaybeUninit<BootServices>> = Box::new(MaybeUninit::zeroed());
    let table = services.as_mut_ptr();
    // SAFETY: the table's memory; the other members stay null, and calling one ends the test.
    unsafe {
        (&raw mut (*table).raise_tpl).write(raise_tpl);
        (&raw mut (*table).restore_tpl).write(restore_tpl);
        (&raw mut (*table).allocate_pages).write(allocate_pages);
        (&raw mut (*table).free_pages).write(free_pages);
        (&raw mut (*table).allocate_pool).write(allocate_pool);
        (&raw mut (*table).free_pool).write(free_pool);
        (&raw mut (*table).create_event).write(create_event);
        (&raw mut (*table).close_event).write(close_event);
        (&raw mut (*table).stall).write(stall);
        (&raw mut (*table).open_protocol).write(open_protocol);
        (&raw mut (*table).close_protocol).write(close_protocol);
        (&raw mut (*table).connect_controller).write(connect_controller);
        (&raw mut (*table).locate_handle_buffer).write(locate_handle_buffer);
        (&raw mut (*table).install_protocol_interface).write(handles::install);
        (&raw mut (*table).uninstall_protocol_interface).write(handles::uninstall);
        (&raw mut (*table).load_image).write(images::load);
        (&raw mut (*table).start_image).write(images::start);
        (&raw mut (*table).unload_image).write(images::unload);
    }
    Box::leak(services);
    let mut system: Box<MaybeUninit<SystemTable>> = Box::new(MaybeUninit::zeroed());
    // SAFETY: as above.
    unsafe {
        system
            .as_mut_ptr()
            .byte_add(offset_of!(SystemTable, boot_services))
            .cast::<*mut BootServices>()
            .write(table)
    };
    let system = Box::leak(system).as_mut_ptr();
    // SAFETY: the tables are leaked, and each test has one thread.
    (unsafe { Firmware::new(IMAGE, system) }.expect("boot services"), system)
}

/// The world's clock.
pub fn clock(firmware: Firmware) -> Clock {
    Clock::of(firmware, || with(|state| state.world.now()))
}

/// Opens the HCA.
pub fn open(firmware: Firmware) -> Result<Device, Error> {
    let hca = functions(firmware)?.find(|function| function.identity().is_some()).expect("an HCA");
    Device::open(firmware, &hca, clock(firmware))
}

/// Signals `ExitBootServices`.
pub fn exit_boot_services() {
    let events: Vec<_> = with(|state| {
        state.exiting = true;
        state.events.iter().map(|(event, (_, notify, context))| (*event, *notify, *context)).collect()
    });
    for (event, notify, context) in events {
        // SAFETY: the program's own function and context.
        unsafe { notify(event as Event, context as *mut c_void) };
    }
}

impl State {
    /// The command register.
    pub fn command(&self) -> u32 {
        self.platform.read_config(4).expect("it answers") & 0xffff
    }

    fn allocate(&mut self, bytes: usize, align: usize) -> *mut c_void {
        assert!(!self.exiting, "the memory map is final");
        let layout = Layout::from_size_align(bytes.max(1), align).expect("a size");
        // SAFETY: the size is not 0.
        let memory = unsafe { alloc(layout) };
        self.blocks.insert(memory.expose_provenance(), layout);
        memory.cast()
    }

    fn free(&mut self, address: usize) -> Status {
        assert!(!self.exiting, "the memory map is final");
        let layout = self.blocks.remove(&address).expect("allocated before");
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(std::ptr::with_exposed_provenance_mut(address), layout) };
        Status::SUCCESS
    }

    /// The registers of configuration space, as `width` says.
    fn config(&mut self, offset: u32, width: pci_io::Width, count: usize) -> Option<u16> {
        let offset = u16::try_from(offset).ok()?;
        (width == pci_io::WIDTH_UINT32 && count == 1 && offset.is_multiple_of(4)).then_some(offset)
    }

    fn set_command(&mut self, command: u32) {
        let stuck = if self.quirks.no_bus_master { 4 } else { 0 };
        self.platform.set_config(4, command & !stuck);
    }
}

unsafe extern "efiapi" fn raise_tpl(level: Tpl) -> Tpl {
    with(|state| {
        assert!(level >= state.level, "levels are only raised");
        state.levels.push(level);
        std::mem::replace(&mut state.level, level)
    })
}

unsafe extern "efiapi" fn restore_tpl(level: Tpl) {
    with(|state| {
        assert!(level <= state.level, "levels are only restored");
        state.level = level;
    });
}

unsafe extern "efiapi" fn allocate_pages(
    _: AllocateType,
    _: MemoryType,
    pages: usize,
    address: *mut PhysicalAddress,
) -> Status {
    let memory = with(|state| state.allocate(pages * PAGE, PAGE));
    // SAFETY: the caller's variable.
    unsafe { address.write(memory as u64) };
    Status::SUCCESS
}

unsafe extern "efiapi" fn free_pages(address: PhysicalAddress, pages: usize) -> Status {
    with(|state| {
        assert_eq!(state.blocks[&(address as usize)].size(), pages * PAGE);
        state.free(address as usize)
    })
}

unsafe extern "efiapi" fn allocate_pool(_: MemoryType, bytes: usize, memory: *mut *mut c_void) -> Status {
    // SAFETY: the caller's variable.
    unsafe { memory.write(with(|state| state.allocate(bytes, 8))) };
    Status::SUCCESS
}

unsafe extern "efiapi" fn free_pool(memory: *mut c_void) -> Status {
    with(|state| state.free(memory as usize))
}

unsafe extern "efiapi" fn create_event(
    kind: u32,
    level: Tpl,
    notify: Option<EventNotify>,
    context: *mut c_void,
    event: *mut Event,
) -> Status {
    assert_eq!(kind, r_efi::efi::EVT_SIGNAL_EXIT_BOOT_SERVICES);
    let number = with(|state| {
        let number = 0x500 + state.events.len();
        state.events.insert(number, (level, notify.expect("a function"), context as usize));
        number
    });
    // SAFETY: the caller's variable.
    unsafe { event.write(number as Event) };
    Status::SUCCESS
}

unsafe extern "efiapi" fn close_event(event: Event) -> Status {
    with(|state| state.events.remove(&(event as usize))).expect("an event");
    Status::SUCCESS
}

unsafe extern "efiapi" fn stall(microseconds: usize) -> Status {
    let world = with(|state| {
        state.longest_stall = state.longest_stall.max(microseconds);
        state.world.clone()
    });
    let end = world.now() + microseconds as u64 * 1000;
    while world.now() < end {
        world.idle(end);
    }
    Status::SUCCESS
}

unsafe extern "efiapi" fn locate_handle_buffer(
    _: LocateSearchType,
    guid: *mut Guid,
    _: *mut c_void,
    count: *mut usize,
    handles: *mut *mut Handle,
) -> Status {
    let list = with(|state| state.allocate(size_of::<Handle>(), 8)).cast::<Handle>();
    // SAFETY: the caller's variables, and a block for one handle.
    unsafe {
        assert!(guid.read() == pci_io::PROTOCOL_GUID);
        list.write(PCI);
        count.write(1);
        handles.write(list);
    }
    Status::SUCCESS
}

unsafe extern "efiapi" fn open_protocol(
    handle: Handle,
    guid: *mut Guid,
    protocol: *mut *mut c_void,
    agent: Handle,
    controller: Handle,
    attributes: u32,
) -> Status {
    assert_eq!(agent, IMAGE);
    // SAFETY: the caller's variable.
    let guid = unsafe { guid.read() };
    if guid != pci_io::PROTOCOL_GUID {
        let Some(found) = handles::find(handle, &guid) else { return Status::UNSUPPORTED };
        // SAFETY: the caller's variable.
        unsafe { protocol.write(found) };
        return Status::SUCCESS;
    }
    assert_eq!(handle, PCI);
    if attributes == OPEN_PROTOCOL_BY_CHILD_CONTROLLER {
        handles::adopt(controller);
    }
    let by_driver = attributes & OPEN_PROTOCOL_BY_DRIVER != 0;
    if by_driver && controller != PCI {
        return Status::INVALID_PARAMETER;
    }
    let is_taken = |state: &mut State| state.quirks.kept || state.opened == [OPEN_PROTOCOL_BY_DRIVER];
    if by_driver && with(is_taken) {
        return Status::ACCESS_DENIED;
    }
    if by_driver {
        with(|state| state.opened.push(attributes));
    }
    // SAFETY: the caller's variable.
    unsafe { protocol.write((&raw const PROTOCOL).cast_mut().cast()) };
    Status::SUCCESS
}

unsafe extern "efiapi" fn close_protocol(
    _: Handle,
    _: *mut Guid,
    agent: Handle,
    controller: Handle,
) -> Status {
    assert_eq!(agent, IMAGE);
    if handles::orphan(controller) {
        return Status::SUCCESS;
    }
    assert_eq!(controller, PCI);
    with(|state| state.opened.pop()).expect("opened before");
    Status::SUCCESS
}

unsafe extern "efiapi" fn connect_controller(
    _: Handle,
    _: *mut Handle,
    _: *mut device_path::Protocol,
    recursive: Boolean,
) -> Status {
    assert!(bool::from(recursive));
    with(|state| {
        assert!(state.opened.is_empty(), "drivers start when the function is closed");
        state.connected += 1;
    });
    Status::SUCCESS
}

/// The function's protocol.
static PROTOCOL: Protocol = Protocol(pci_io::Protocol {
    poll_mem: poll,
    poll_io: poll,
    mem: pci_io::Access { read: mem_read, write: mem_write },
    io: pci_io::Access { read: no_io, write: no_io },
    pci: pci_io::ConfigAccess { read: config_read, write: config_write },
    copy_mem: copy,
    map,
    unmap,
    allocate_buffer,
    free_buffer,
    flush,
    get_location,
    attributes,
    get_bar_attributes,
    set_bar_attributes,
    rom_size: 0,
    rom_image: std::ptr::null_mut(),
});

#[repr(transparent)]
struct Protocol(pci_io::Protocol);
// SAFETY: functions and a null pointer.
unsafe impl Sync for Protocol {}

type Io = *mut pci_io::Protocol;

unsafe extern "efiapi" fn poll(
    _: Io,
    _: pci_io::Width,
    _: u8,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: *mut u64,
) -> Status {
    Status::UNSUPPORTED
}

unsafe extern "efiapi" fn no_io(_: Io, _: pci_io::Width, _: u8, _: u64, _: usize, _: *mut c_void) -> Status {
    Status::UNSUPPORTED
}

unsafe extern "efiapi" fn copy(_: Io, _: pci_io::Width, _: u8, _: u64, _: u8, _: u64, _: usize) -> Status {
    Status::UNSUPPORTED
}

unsafe extern "efiapi" fn flush(_: Io) -> Status {
    Status::SUCCESS
}

/// Bytes of an access to BAR0, and the registers.
fn access(width: pci_io::Width, bar: u8, offset: u64, count: usize) -> Option<(harness::ModelBar, usize)> {
    let bytes = 1 << width;
    let registers = with(|state| state.platform.bar());
    let inside = offset + bytes <= driver_mlx::Bar::len(&registers) as u64 && offset.is_multiple_of(bytes);
    (bar == 0 && count == 1 && width >= pci_io::WIDTH_UINT32 && inside)
        .then_some((registers, offset as usize))
}

unsafe extern "efiapi" fn mem_read(
    _: Io,
    width: pci_io::Width,
    bar: u8,
    offset: u64,
    count: usize,
    buffer: *mut c_void,
) -> Status {
    let Some((registers, offset)) = access(width, bar, offset, count) else {
        return Status::INVALID_PARAMETER;
    };
    assert_eq!(width, pci_io::WIDTH_UINT32, "the driver reads registers of 32 bits");
    let value = driver_mlx::Bar::read32(&registers, offset);
    // SAFETY: the caller's variable. Registers are big-endian, numbers of the protocol are not.
    unsafe { buffer.cast::<u32>().write(value.swap_bytes()) };
    Status::SUCCESS
}

unsafe extern "efiapi" fn mem_write(
    _: Io,
    width: pci_io::Width,
    bar: u8,
    offset: u64,
    count: usize,
    buffer: *mut c_void,
) -> Status {
    let Some((registers, offset)) = access(width, bar, offset, count) else {
        return Status::INVALID_PARAMETER;
    };
    // SAFETY: the caller's variable, as wide as it says.
    unsafe {
        match width {
            pci_io::WIDTH_UINT32 => registers.poke32(offset, buffer.cast::<u32>().read().swap_bytes()),
            _ => registers.poke64(offset, buffer.cast::<u64>().read().swap_bytes()),
        }
    }
    Status::SUCCESS
}

unsafe extern "efiapi" fn config_read(
    _: Io,
    width: pci_io::Width,
    offset: u32,
    count: usize,
    buffer: *mut c_void,
) -> Status {
    with(|state| {
        let Some(offset) = state.config(offset, width, count) else { return Status::INVALID_PARAMETER };
        // SAFETY: the caller's variable.
        unsafe { buffer.cast::<u32>().write(state.platform.read_config(offset).expect("it answers")) };
        Status::SUCCESS
    })
}

unsafe extern "efiapi" fn config_write(
    _: Io,
    width: pci_io::Width,
    offset: u32,
    count: usize,
    buffer: *mut c_void,
) -> Status {
    with(|state| {
        let Some(offset) = state.config(offset, width, count) else { return Status::INVALID_PARAMETER };
        // SAFETY: the caller's variable.
        let value = unsafe { buffer.cast::<u32>().read() };
        if offset == 4 {
            state.set_command(value)
        } else {
            state.platform.set_config(offset, value)
        }
        Status::SUCCESS
    })
}

unsafe extern "efiapi" fn map(
    _: Io,
    operation: pci_io::Operation,
    host: *mut c_void,
    bytes: *mut usize,
    device: *mut PhysicalAddress,
    token: *mut *mut c_void,
) -> Status {
    assert_eq!(operation, pci_io::OPERATION_BUS_MASTER_COMMON_BUFFER, "other mappings are copies");
    with(|state| {
        let memory = state.world.memory(0).as_slice();
        let offset = host as usize - memory.va();
        let pages = state.buffers[&offset];
        // SAFETY: the caller's variables.
        unsafe {
            assert_eq!(bytes.read(), pages * PAGE, "a buffer is mapped as a whole");
            bytes.write((pages - usize::from(state.quirks.short_map)) * PAGE);
            let within = if state.quirks.unaligned_map { 0x18 } else { 0 };
            device.write(memory.device_address() + offset as u64 + within);
            token.write(state.next_token as *mut c_void);
        }
        state.maps.insert(state.next_token, pages);
        state.next_token += 1;
    });
    Status::SUCCESS
}

unsafe extern "efiapi" fn unmap(_: Io, token: *mut c_void) -> Status {
    with(|state| state.maps.remove(&(token as usize))).expect("mapped before");
    Status::SUCCESS
}

unsafe extern "efiapi" fn allocate_buffer(
    _: Io,
    _: AllocateType,
    _: MemoryType,
    pages: usize,
    host: *mut *mut c_void,
    attributes: pci_io::Attribute,
) -> Status {
    // As EDK2: other attributes are unsupported.
    if attributes & !(pci_io::ATTRIBUTE_MEMORY_WRITE_COMBINE | pci_io::ATTRIBUTE_MEMORY_CACHED) != 0 {
        return Status::UNSUPPORTED;
    }
    with(|state| {
        assert!(!state.exiting, "the memory map is final");
        // From 1 MiB on, so that no buffer begins where the memory does.
        let offset = state.buffers.last_key_value().map_or(1 << 20, |(at, pages)| at + pages * PAGE);
        if offset + pages * PAGE > MEMORY {
            return Status::OUT_OF_RESOURCES;
        }
        state.buffers.insert(offset, pages);
        // SAFETY: the caller's variable.
        unsafe { host.write((state.world.memory(0).addresses().start + offset) as *mut c_void) };
        Status::SUCCESS
    })
}

unsafe extern "efiapi" fn free_buffer(_: Io, pages: usize, host: *mut c_void) -> Status {
    with(|state| {
        let offset = host as usize - state.world.memory(0).addresses().start;
        assert_eq!(state.buffers.remove(&offset), Some(pages));
    });
    Status::SUCCESS
}

unsafe extern "efiapi" fn get_location(
    _: Io,
    segment: *mut usize,
    bus: *mut usize,
    device: *mut usize,
    function: *mut usize,
) -> Status {
    // SAFETY: the caller's variables.
    unsafe {
        segment.write(1);
        bus.write(0x3b);
        device.write(0);
        function.write(1);
    }
    Status::SUCCESS
}

unsafe extern "efiapi" fn attributes(
    _: Io,
    operation: pci_io::AttributeOperation,
    asked: pci_io::Attribute,
    result: *mut pci_io::Attribute,
) -> Status {
    with(|state| {
        let supported = MEMORY_SPACE | MASTER | DUAL | ROM;
        let next = match operation {
            pci_io::ATTRIBUTE_OPERATION_GET => {
                // SAFETY: the caller's variable.
                unsafe { result.write(state.attributes) };
                return Status::SUCCESS;
            }
            pci_io::ATTRIBUTE_OPERATION_ENABLE if state.quirks.attributes_refused => {
                return Status::UNSUPPORTED;
            }
            pci_io::ATTRIBUTE_OPERATION_ENABLE => state.attributes | asked,
            pci_io::ATTRIBUTE_OPERATION_DISABLE => state.attributes & !asked,
            pci_io::ATTRIBUTE_OPERATION_SET => asked,
            _ => return Status::INVALID_PARAMETER,
        };
        if asked & !supported != 0 {
            return Status::UNSUPPORTED;
        }
        // As EDK2: attributes that it remembers as set are not written again.
        let changed = state.attributes ^ next;
        state.attributes = next;
        let register = [(MEMORY_SPACE, 2), (MASTER, 4)].iter().fold(
            state.command(),
            |command, (attribute, bit)| match (changed & attribute != 0, next & attribute != 0) {
                (true, true) => command | bit,
                (true, false) => command & !bit,
                _ => command,
            },
        );
        state.set_command(register);
        Status::SUCCESS
    })
}

unsafe extern "efiapi" fn get_bar_attributes(
    _: Io,
    bar: u8,
    _: *mut pci_io::Attribute,
    resources: *mut *mut c_void,
) -> Status {
    if bar != 0 {
        return Status::UNSUPPORTED;
    }
    with(|state| {
        let mut bytes = [0_u8; 48];
        bytes[..3].copy_from_slice(&[0x8a, 0x2b, 0]);
        bytes[46] = 0x79;
        let len = driver_mlx::Bar::len(&state.platform.bar()) as u64;
        let base: u64 = if state.quirks.no_bar { 0 } else { 0xc0_0000_0000 };
        bytes[14..22].copy_from_slice(&base.to_le_bytes());
        // Not the end of the range: its alignment, less one.
        bytes[22..30].copy_from_slice(&(len - 1).to_le_bytes());
        bytes[38..46].copy_from_slice(&len.to_le_bytes());
        let block = state.allocate(bytes.len(), 8);
        // SAFETY: a block of this size, and the caller's variable.
        unsafe {
            block.cast::<[u8; 48]>().write(bytes);
            resources.write(block);
        }
    });
    Status::SUCCESS
}

unsafe extern "efiapi" fn set_bar_attributes(_: Io, _: u64, _: u8, _: *mut u64, _: *mut u64) -> Status {
    Status::UNSUPPORTED
}
