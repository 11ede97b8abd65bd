//! A firmware whose HCA is emulated: the functions of a `struct mlx_platform` on a world with a
//! virtual clock, and an RDS peer that sends back what it receives.
#![allow(dead_code)] // Each test binary uses what it needs.
#![allow(unsafe_code)] // The firmware's side of a C interface.

use core::ffi::{c_char, c_int, c_uint, c_void};
use dat_nostd::{Adapter, AdapterConfig, Bar, adapter_storage};
use driver_mlx::{DmaRegion, Instant};
use harness::{ModelBar, ModelPlatform, World, WorldConfig};
use hca_model::{Hca, Profile};
use mlx_firmware::registers::{Emulated, emulate};
use mlx_firmware::{MlxConfig, MlxPlatform, Node, life};
use rds_calls::calls::{rds_bind, rds_close, rds_recv, rds_sendto, rds_socket};
use rds_nostd::{Arrival, Generation, Msg, MsgFlags, Rds, RdsConfig, RdsStorage, SocketHandle};
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub const ENOMEM: c_int = -12;
pub const ENODEV: c_int = -19;
pub const EINVAL: c_int = -22;
pub const ENOTRECOVERABLE: c_int = -131;
pub const SECOND: u64 = 1_000_000_000;
/// Memory of an HCA for which opening resets one left at work, and then fails.
const TOO_LITTLE: usize = 4096;
/// Longest sleep of a firmware, which has a peer to poll.
const NAP: u64 = 10_000_000;

/// Lets tests, which are threads, make one call at a time, as the header demands.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Registers(ModelBar);

impl Emulated for Registers {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn read32(&self, offset: usize) -> u32 {
        self.0.read32(offset)
    }
    fn write32(&self, offset: usize, value: u32) {
        self.0.poke32(offset, value);
    }
    fn write64(&self, offset: usize, value: u64) {
        self.0.poke64(offset, value);
    }
}

adapter_storage! {
    struct Tables { bar: ModelBar, dma_bytes: 32 << 20, eps: 8, evds: 16 }
}

/// A node that sends back what it receives.
struct Peer {
    adapter: Adapter<'static, ModelPlatform>,
    rds: Rds<'static>,
    socket: SocketHandle,
}

/// Where the peer is.
pub const PEER: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 0, 0, 2), 4000);
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

impl Peer {
    fn open(platform: ModelPlatform, region: DmaRegion) -> Self {
        let parts = harness::keep(Tables::new()).parts();
        let config = AdapterConfig::new("ib0", IpAddr::V4(PEER.0), &[], 7);
        let up = dat_calls::bring_up(platform, (region, harness::host_region()), parts, &config, 99);
        let mut adapter = up.expect("the peer comes up");
        let storage = harness::keep(RdsStorage::<4, 4, 256>::new());
        let config = RdsConfig::new(Generation::from_wall_clock(driver_mlx::Duration::from_secs(1)));
        let mut rds = Rds::start(&mut adapter, storage.parts(), config).expect("starts");
        let socket = rds.bind(SocketAddr::from(PEER)).expect("binds");
        Self { adapter, rds, socket }
    }

    fn step(&mut self, now: u64) {
        let Self { adapter, rds, socket } = self;
        let now = Instant::from_nanos(now);
        let _ = adapter.poll(now);
        let _ = rds.poll(adapter, now);
        let mut buffer = [0; 20_000];
        while let Ok(Arrival::Message(message)) =
            rds.recvmsg(adapter, *socket, &mut buffer, MsgFlags::empty())
        {
            let back = Msg::to(&message.from, &buffer[..message.len]);
            rds.sendmsg(adapter, *socket, back).expect("room");
        }
    }
}

/// A firmware.
pub struct Bed {
    pub world: Rc<World>,
    base: usize,
    bar_len: usize,
    peer: RefCell<Option<Peer>>,
    /// Lengths that `memory` was asked for: for the HCA, and beside.
    pub asked: RefCell<Vec<(usize, bool)>>,
    /// Everything that was said.
    pub said: RefCell<Vec<String>>,
    /// Change to the HCA before `reset` resets it.
    pub cure: Cell<fn(&mut Hca)>,
    /// Number of calls of `reset`.
    pub resets: Cell<u32>,
    /// State of bus mastering at the last call of `reset`.
    pub mastered_at_reset: Cell<Option<bool>>,
    /// For a driver that has the HCA before.
    before: RefCell<Option<(ModelPlatform, DmaRegion)>>,
}

/// Command register: memory decoding, bus mastering.
const COMMAND: usize = 4;
const MEMORY_SPACE: u8 = 1 << 1;
const BUS_MASTER: u8 = 1 << 2;
/// Writes by which a machine's firmware sets the function up: BAR0 and BAR1, device control
/// (256-byte payloads), device control 2 (completion time-out), MSI-X control (enabled), and the
/// command register, without bus mastering.
const ASSIGNED: [(usize, &[u8]); 5] = [
    (0x10, &[0, 0, 0, 0xf0, 0x12, 0, 0, 0]),
    (0x68, &[0x30, 0x28]),
    (0x88, &[5]),
    (0x9f, &[0x80]),
    (COMMAND, &[MEMORY_SPACE, 0x04]),
];
/// End of the part of configuration space that only software and resets change. The vendor-specific
/// capability follows.
const CONFIGURATION: usize = 0xc0;

impl Bed {
    /// A machine with this HCA, with `memory` bytes that it reaches. Bus mastering is off.
    pub fn new(profile: Profile, memory: usize) -> Box<Self> {
        let world = World::new(&WorldConfig::new(1));
        let (platform, region) = world.attach(profile, memory);
        let registers: &'static Registers =
            Box::leak(Box::new(Registers(driver_mlx::Platform::bar(&platform))));
        let base = Box::leak(Box::new(0u64));
        let base = core::ptr::from_mut(base).expose_provenance();
        emulate(base, registers);
        let bed = Self {
            world,
            base,
            bar_len: registers.len(),
            peer: RefCell::default(),
            asked: RefCell::default(),
            said: RefCell::default(),
            cure: Cell::new(|_| ()),
            resets: Cell::new(0),
            mastered_at_reset: Cell::new(None),
            before: RefCell::new(Some((platform, region))),
        };
        bed.hca(configure);
        Box::new(bed)
    }

    /// The same with a peer on the fabric.
    pub fn with_peer(profile: Profile, memory: usize) -> Box<Self> {
        let bed = Self::new(profile, memory);
        let (platform, region) = bed.world.attach(Profile::node(1), 32 << 20);
        *bed.peer.borrow_mut() = Some(Peer::open(platform, region));
        bed
    }

    /// A driver brings the HCA up and vanishes, as with a watchdog's reset of the processor alone.
    pub fn leave_running(&self) {
        self.world.enable(0);
        let (platform, region) = self.before.take().expect("once");
        let node = harness::Node::bring_up_on(platform, region, &driver_mlx::Config::DEFAULT);
        core::mem::forget(node.expect("comes up").hca);
    }

    /// Does something with the HCA.
    pub fn hca<T>(&self, work: impl FnOnce(&mut Hca) -> T) -> T {
        self.world.with_hca(0, work)
    }

    /// All functions.
    pub fn platform(&self) -> MlxPlatform {
        MlxPlatform {
            context: core::ptr::from_ref(self).cast_mut().cast(),
            bar: Some(bar),
            memory: Some(memory),
            now: Some(now),
            idle: Some(idle),
            panic: Some(panic),
            say: Some(say),
            map: None,
            unmap: None,
            read_config: Some(read_config),
            write_config: Some(write_config),
            reset: Some(reset),
            bus_master: Some(bus_master),
            sync_for_device: None,
            sync_for_cpu: None,
        }
    }

    /// Required functions only: the machine itself switches bus mastering on, as [`Bed::enable`]
    /// does.
    pub fn least(&self) -> MlxPlatform {
        let platform = self.platform();
        MlxPlatform { read_config: None, write_config: None, reset: None, bus_master: None, ..platform }
    }

    /// Switches bus mastering on.
    pub fn enable(&self) {
        self.world.enable(0);
    }

    /// Switches bus mastering off.
    pub fn disable(&self) {
        self.hca(|hca| hca.config_write(COMMAND, &[MEMORY_SPACE, 0x04]));
    }

    /// Configuration space up to the vendor-specific capability.
    pub fn configuration(&self) -> [u8; CONFIGURATION] {
        let mut bytes = [0; CONFIGURATION];
        self.hca(|hca| hca.config_read(0, &mut bytes));
        bytes
    }

    /// `mlx_open` with so much memory.
    pub fn open(&self, platform: &MlxPlatform, dma_length: usize) -> c_int {
        let address = u32::from_ne_bytes(OWN.octets());
        let config = MlxConfig { address, shared_keys: 0, seed: [3, 5], boot: SECOND, dma_length };
        // SAFETY: functions as the header wants them, and memory of this world's.
        unsafe { life::open(platform, &config) }
    }

    /// Returns everything that was said since the last call.
    pub fn said(&self) -> String {
        self.said.take().join("\n")
    }

    /// A bound socket.
    pub fn socket(&self, port: u16) -> i32 {
        let own = address(OWN, port);
        // SAFETY: an address of its length.
        unsafe {
            let fd = rds_socket::<Node>(21, 5, 0).expect("a socket") as i32;
            assert_eq!(rds_bind::<Node>(fd, own.as_ptr().cast(), own.len() as u32), Ok(0));
            fd
        }
    }

    /// Sends so many bytes to the peer.
    pub fn send(&self, fd: i32, bytes: &[u8]) {
        let to = address(PEER.0, PEER.1);
        // SAFETY: a buffer and an address of their lengths.
        let sent = unsafe {
            let (at, len) = (bytes.as_ptr().cast(), bytes.len());
            rds_sendto::<Node>(fd, at, len, 0, to.as_ptr().cast(), to.len() as u32)
        };
        assert_eq!(sent, Ok(bytes.len() as isize));
    }

    /// The next message, waited for; or an error's number.
    pub fn receive(&self, fd: i32) -> Result<Vec<u8>, i32> {
        let mut buffer = vec![0; 20_000];
        // SAFETY: a buffer of its length.
        let len = unsafe { rds_recv::<Node>(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) }?;
        buffer.truncate(len as usize);
        Ok(buffer)
    }

    /// Closes a socket.
    pub fn close_socket(&self, fd: i32) -> Result<isize, i32> {
        // SAFETY: any number may be closed.
        unsafe { rds_close::<Node>(fd) }
    }

    /// Calls `mlx_poll`, and sleeps as it says, for so long.
    pub fn run(&self, nanoseconds: u64) {
        let end = self.world.now() + nanoseconds;
        while self.world.now() < end {
            let until = life::poll().min(end);
            self.sleep(until);
        }
    }

    fn sleep(&self, until: u64) {
        let now = self.world.now();
        self.world.idle(until.clamp(now + 1, now + NAP));
        // Not while the peer itself waits for something.
        if let Ok(mut peer) = self.peer.try_borrow_mut()
            && let Some(peer) = peer.as_mut()
        {
            peer.step(self.world.now());
        }
    }
}

impl Drop for Bed {
    /// The next test, which has another HCA, finds none open, and none that could still access
    /// memory: the library keeps both beyond a bed.
    fn drop(&mut self) {
        let _ = life::close();
        self.hca(|hca| {
            hca.revive();
            *hca.misbehaviour_mut() = Default::default();
        });
        let _ = self.open(&self.platform(), TOO_LITTLE);
    }
}

/// Sets configuration space up as a machine's firmware does.
fn configure(hca: &mut Hca) {
    for (offset, bytes) in ASSIGNED {
        hca.config_write(offset, bytes);
    }
}

/// `struct sockaddr_in`.
fn address(ip: Ipv4Addr, port: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&2u16.to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&ip.octets());
    bytes
}

/// # Safety
/// `context` is a bed's.
unsafe fn bed<'b>(context: *mut c_void) -> &'b Bed {
    // SAFETY: this function's contract.
    unsafe { &*context.cast::<Bed>() }
}

unsafe extern "C" fn bar(context: *mut c_void, len: *mut usize) -> *mut c_void {
    // SAFETY: the library's context, and its place for the length.
    unsafe {
        let bed = bed(context);
        *len = bed.bar_len;
        core::ptr::with_exposed_provenance_mut(bed.base)
    }
}

unsafe extern "C" fn memory(context: *mut c_void, len: usize, device_address: *mut u64) -> *mut c_void {
    // SAFETY: the library's context.
    let bed = unsafe { bed(context) };
    bed.asked.borrow_mut().push((len, !device_address.is_null()));
    if device_address.is_null() {
        let pages: &'static mut [u64] = vec![u64::MAX; len / 8 + 512].leak();
        let to_page = pages.as_ptr().cast::<u8>().align_offset(4096);
        return pages.as_mut_ptr().cast::<u8>().wrapping_add(to_page).cast();
    }
    let all = bed.world.memory(0).as_slice();
    if len > all.len() {
        return core::ptr::null_mut();
    }
    // SAFETY: the library's place for the address.
    unsafe { *device_address = all.device_address() };
    core::ptr::with_exposed_provenance_mut(all.va())
}

unsafe extern "C" fn now(context: *mut c_void) -> u64 {
    // SAFETY: the library's context.
    let world = &unsafe { bed(context) }.world;
    // Calls cost time: a loop that never sleeps meets its deadlines too.
    world.idle(world.now() + 1000);
    world.now()
}

unsafe extern "C" fn idle(context: *mut c_void, until: u64) {
    // SAFETY: the library's context.
    unsafe { bed(context) }.sleep(until);
}

unsafe extern "C" fn panic(_: *mut c_void, _: *const c_char, _: usize) {}

unsafe extern "C" fn say(context: *mut c_void, text: *const c_char, len: usize) {
    // SAFETY: the library's context, and what it says.
    let (bed, text) = unsafe { (bed(context), core::slice::from_raw_parts(text.cast(), len)) };
    bed.said.borrow_mut().push(String::from_utf8_lossy(text).into_owned());
}

unsafe extern "C" fn read_config(context: *mut c_void, offset: c_uint) -> u32 {
    let mut bytes = [0; 4];
    // SAFETY: the library's context.
    unsafe { bed(context) }.hca(|hca| hca.config_read(offset as usize, &mut bytes));
    u32::from_le_bytes(bytes)
}

unsafe extern "C" fn write_config(context: *mut c_void, offset: c_uint, value: u32) {
    // SAFETY: the library's context.
    unsafe { bed(context) }.hca(|hca| hca.config_write(offset as usize, &value.to_le_bytes()));
}

unsafe extern "C" fn reset(context: *mut c_void) -> c_int {
    // SAFETY: the library's context.
    let bed = unsafe { bed(context) };
    bed.resets.set(bed.resets.get() + 1);
    bed.hca(|hca| {
        if hca.is_killed() {
            return -1;
        }
        bed.mastered_at_reset.set(Some(hca.bus_master()));
        bed.cure.get()(hca);
        hca.reset();
        configure(hca);
        0
    })
}

unsafe extern "C" fn bus_master(context: *mut c_void, on: c_int) -> c_int {
    let master = if on == 0 { 0 } else { BUS_MASTER };
    // SAFETY: the library's context.
    unsafe { bed(context) }.hca(|hca| {
        hca.config_write(COMMAND, &[MEMORY_SPACE | master, 0x04]);
        c_int::from(hca.is_killed() || hca.bus_master() != (on != 0))
    })
}
