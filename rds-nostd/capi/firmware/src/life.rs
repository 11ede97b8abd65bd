//! Opening, polling and closing the HCA.

use crate::abi::{MlxConfig, MlxPlatform};
use crate::memory::{Given, PAGE, Regions};
use crate::node::{FRAMES, Inner, Memory, NODE, Protocol};
use crate::platform::{Firmware, tell_panics};
use crate::sockets::Numbers;
use core::cell::UnsafeCell;
use core::fmt;
use core::net::Ipv4Addr;
use core::time::Duration;
use dat_calls::{BringUpError, NAMES, Node as _, bring_up};
use dat_nostd::{AdapterConfig, CloseFlags, OpenError, Platform, SoleAccess};
use driver_mlx::{Config, Error, PortType};
use rds_calls::Iovs;
use rds_calls::recovery::Health;
use rds_nostd::{Generation, Rds, RdsConfig, RdsError};

/// Default for the bytes that the HCA reaches: enough for newer cards, whose firmware needs 200
/// MiB.
const DEFAULT_DMA: usize = 256 << 20;

/// Names of IAs on Ethernet ports.
pub const ROCE_NAMES: [&str; 2] = ["roce0", "roce0-dat"];

// Linux's numbers.
const ENODEV: i32 = 19;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENETDOWN: i32 = 100;
const ENOTRECOVERABLE: i32 = 131;

/// State of the HCA while it is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Past {
    /// Never opened since the machine started: another driver may have left it at work.
    Unknown,
    /// The HCA has released all memory.
    Released,
    /// The HCA may still access its last memory.
    InUse,
}

/// Memory of the HCA's tables, borrowed while it is open.
struct Lent {
    memory: UnsafeCell<Memory>,
    iovs: UnsafeCell<Iovs>,
    given: UnsafeCell<Option<Given>>,
    past: UnsafeCell<Past>,
}

// SAFETY: only the open device uses it, and at most one is open.
unsafe impl Sync for Lent {}

static LENT: Lent = Lent {
    memory: UnsafeCell::new(Memory::new()),
    iovs: UnsafeCell::new(Iovs::new()),
    given: UnsafeCell::new(None),
    past: UnsafeCell::new(Past::Unknown),
};

/// Error of opening or closing the HCA.
struct Refused {
    number: i32,
}

/// Interval at which [`close`] checks for outstanding acknowledgements.
const APART: Duration = Duration::from_micros(100);
/// A call is in progress, or a device is open.
const BUSY: Refused = Refused { number: EBUSY };

impl Refused {
    fn because(platform: &MlxPlatform, number: i32, why: &dyn fmt::Display) -> Self {
        platform.say(why);
        Self { number }
    }
}

/// `mlx_open`: brings the HCA up and waits until its port is reachable by address. Returns 0 or a
/// negative error number.
///
/// # Safety
/// Both pointers are null, or as `<mlx/firmware.h>` requires.
pub unsafe fn open(platform: *const MlxPlatform, config: *const MlxConfig) -> i32 {
    // SAFETY: this function's contract.
    let (Some(given), Some(config)) = (unsafe { platform.as_ref() }, unsafe { config.as_ref() }) else {
        return -EINVAL;
    };
    let opened = NODE.open(BUSY, |id| {
        tell_panics(*given);
        // SAFETY: this function's contract.
        let firmware = unsafe { Firmware::new(*given) };
        let firmware = firmware.map_err(|why| Refused::because(given, EINVAL, &why))?;
        // SAFETY: no device is open, so no other reference exists.
        let (memory, iovs) = unsafe { (&mut *LENT.memory.get(), &mut *LENT.iovs.get()) };
        start(firmware, config, id, memory, iovs)
    });
    opened.map_or_else(|refused| -refused.number, |()| 0)
}

fn start(
    firmware: Firmware,
    config: &MlxConfig,
    id: u8,
    memory: &'static mut Memory,
    iovs: &'static mut Iovs,
) -> Result<Inner, Refused> {
    let given = *firmware.given();
    let refused = |number, why: &dyn fmt::Display| Refused::because(&given, number, why);
    let dma = match config.dma_length {
        0 => DEFAULT_DMA,
        len if len.is_multiple_of(PAGE) => len,
        len => return Err(refused(EINVAL, &format_args!("dma_length is {len}: it has to be whole pages"))),
    };
    make_sure_of_release(&firmware)?;
    let why = "unusable memory: `memory` must return whole pages with a device address other than 0";
    // SAFETY: calls do not overlap, and nothing refers to `given`.
    let kept = unsafe { &mut *LENT.given.get() };
    // Memory is requested once and then reused.
    let lent = kept.filter(|kept| kept.dma_len() == dma).or_else(|| firmware.memory(dma));
    // SAFETY:
    // 1. The header requires it of the memory that `memory` returns.
    // 2. `make_sure_of_release` has checked that the last device released the memory. The adapter
    //    that had the regions is dropped.
    let regions = lent.and_then(|lent| unsafe { lent.regions() });
    let Regions { dma, host, map, users } = regions.ok_or_else(|| refused(ENOMEM, &why))?;
    // Unusable memory is requested again the next time.
    *kept = lent;
    memory.clear();
    let Memory { tables, notes, rds, whole } = memory;
    let address = Ipv4Addr::from(config.address.to_ne_bytes());
    let [high, low] = config.seed;
    let seed = u128::from(high) << 64 | u128::from(low);
    let hca = Config { physical_function: firmware.is_physical(), ..Config::DEFAULT };
    let settings = AdapterConfig { hca, ..AdapterConfig::new(NAMES[0], address.into(), &[], seed) };
    if !firmware.let_master_bus() {
        release(&firmware);
        return Err(refused(ENODEV, &"bus mastering does not read back as switched on"));
    }
    let parts = tables.parts().with_block_tables(map, users);
    let up = bring_up(firmware, (dma, host), parts, &settings, id);
    let mut adapter = up.map_err(|error| {
        let refused = refused(number(&error), &error);
        release(&firmware);
        refused
    })?;
    let settings = RdsConfig {
        send_frames: FRAMES / 2,
        seed: low,
        isolate_peers: config.shared_keys == 0,
        // SAFETY: C programs offer memory that they do not touch while a peer may access it, and
        // one thread calls this library.
        rdma_within: Some(unsafe { SoleAccess::promised() }),
        ..RdsConfig::new(Generation::from_wall_clock(Duration::from_nanos(config.boot)))
    };
    let rds = match Rds::start(&mut adapter, rds.parts(), settings) {
        Ok(rds) => rds,
        Err(error) => {
            let _ = adapter.close();
            release(&firmware);
            return Err(refused(ENOMEM, &error));
        }
    };
    let (sockets, health) = (Numbers::NONE, Health::Working);
    let waiting = Protocol { rds, sockets, whole, iovs, health, failed: None, firmware };
    Ok(Inner { adapter, beside: notes.parts(address.into()), waiting })
}

/// Returns Linux's number of a bring-up error.
fn number(error: &BringUpError) -> i32 {
    match error {
        BringUpError::Open(OpenError::PortNotActive { .. }) | BringUpError::NoIp => ENETDOWN,
        BringUpError::Open(OpenError::Hca(
            Error::InsufficientPages { .. } | Error::OutOfMemory { .. } | Error::OutOfHostMemory { .. },
        )) => ENOMEM,
        BringUpError::Open(OpenError::Hca(_)) | BringUpError::Names(_) => ENODEV,
    }
}

/// Makes sure that the HCA cannot access the memory that it is about to be opened with.
///
/// An HCA that another driver left running, e.g. before a watchdog's reset of the processor, is
/// reset if possible. Otherwise bring-up finds out whether a takeover works. After a failure of
/// this library only a reset is proof.
fn make_sure_of_release(firmware: &Firmware) -> Result<(), Refused> {
    // SAFETY: calls do not overlap, and nothing refers to `past`.
    let past = unsafe { &mut *LENT.past.get() };
    match *past {
        // SAFETY: no adapter drives the function.
        Past::InUse if !unsafe { firmware.reset_function() } => {
            // SAFETY: no adapter drives the function.
            unsafe { firmware.set_bus_master(false) };
            let why = "the HCA may still access the memory of its last use, and cannot be reset: give `reset`, or \
                       `read_config` and `write_config`";
            return Err(Refused::because(firmware.given(), ENOTRECOVERABLE, &why));
        }
        // SAFETY: no adapter drives the function.
        Past::Unknown if firmware.is_left_running() && !unsafe { firmware.reset_function() } => {
            firmware.given().say(&"another driver left the HCA running, and it cannot be reset");
        }
        _ => {}
    }
    *past = Past::Released;
    Ok(())
}

/// Cuts off an HCA whose adapter is gone: clears bus mastering, and resets an HCA that did not
/// respond. Returns false if the HCA may still access memory.
fn release(firmware: &Firmware) -> bool {
    // SAFETY: calls do not overlap, and the adapter that had the tables is dropped.
    let in_use = unsafe { (*LENT.memory.get()).tables.region_in_use() };
    // SAFETY: the adapter that drove the function is dropped.
    let is_off = unsafe { firmware.set_bus_master(false) };
    // SAFETY: as above.
    let past = if !in_use || unsafe { firmware.reset_function() } { Past::Released } else { Past::InUse };
    // SAFETY: calls do not overlap, and nothing refers to `past`.
    unsafe { *LENT.past.get() = past };
    is_off || past == Past::Released
}

/// `mlx_poll`: makes progress. Returns when to call it next, in nanoseconds of the platform's
/// clock; 0 for immediately.
pub fn poll() -> u64 {
    NODE.work().map_or(0, |rest| rest.as_nanos())
}

/// Returns the names of the open adapter's IAs: with RDMA-CM framing, and with our own. While it is
/// not open, they are those of InfiniBand.
pub fn ia_names() -> [&'static str; 2] {
    match NODE.lock().map_or(PortType::InfiniBand, |node| node.adapter.port_type()) {
        PortType::InfiniBand => NAMES,
        PortType::Ethernet => ROCE_NAMES,
    }
}

/// `mlx_close`: disconnects peers, destroys every object, and returns the HCA to its original
/// state.
pub fn close() -> i32 {
    let closed =
        NODE.close(BUSY, |Inner { mut adapter, waiting: Protocol { mut rds, firmware, .. }, .. }| {
            // Objects that are left are closed with the adapter.
            while rds.stop(&mut adapter, CloseFlags::Graceful, |_| {}) == Err(RdsError::Again) {
                let now = adapter.now();
                let _ = rds.poll(&mut adapter, now);
                adapter.idle(now + APART);
            }
            let refused = |number, why: &dyn fmt::Display| Refused::because(firmware.given(), number, why);
            let closed = adapter.close().map_err(|error| refused(ENODEV, &error));
            if !release(&firmware) {
                let why =
                    "the HCA may still access memory: it did not answer, was not reset, and masters the bus";
                return Err(refused(ENOTRECOVERABLE, &why));
            }
            closed
        });
    closed.map_or_else(|refused| -refused.number, |()| 0)
}
