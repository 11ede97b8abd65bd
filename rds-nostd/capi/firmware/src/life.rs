//! The HCA comes and goes.

use crate::node::{FRAMES, Inner, MAX_DMA, Memory, NODE, Protocol};
use crate::platform::{Firmware, Memory as Given, MlxConfig, MlxPlatform, PAGE, tell_panics};
use crate::sockets::Numbers;
use core::cell::UnsafeCell;
use core::fmt;
use core::net::Ipv4Addr;
use core::time::Duration;
use dat_calls::{BringUpError, NAMES, bring_up};
use dat_nostd::{AdapterConfig, OpenError, SoleAccess};
use rds_calls::Pieces;
use rds_nostd::{Generation, Rds, RdsConfig};

// Numbers of Linux.
const ENODEV: i32 = 19;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENETDOWN: i32 = 100;

/// Memory of the HCA's tables, which is handed out while it is open.
struct Lent {
    memory: UnsafeCell<Memory>,
    pieces: UnsafeCell<Pieces>,
    given: UnsafeCell<Option<Given>>,
}

// SAFETY: it is the open device's, of which there is one.
unsafe impl Sync for Lent {}

static LENT: Lent = Lent {
    memory: UnsafeCell::new(Memory::new()),
    pieces: UnsafeCell::new(Pieces::new()),
    given: UnsafeCell::new(None),
};

/// Why the HCA was not opened, or not closed.
struct Refused {
    number: i32,
}

/// A call is under way, or a device is open.
const BUSY: Refused = Refused { number: EBUSY };

impl Refused {
    fn because(platform: &MlxPlatform, number: i32, why: &dyn fmt::Display) -> Self {
        platform.say(why);
        Self { number }
    }
}

/// `mlx_open`: brings the HCA up and waits until its port can be reached by address. 0 or a negative number of an error.
///
/// # Safety
/// Both are as `<mlx/firmware.h>` says, or null.
pub unsafe fn open(platform: *const MlxPlatform, config: *const MlxConfig) -> i32 {
    // SAFETY: this function's contract.
    let (Some(given), Some(config)) = (unsafe { platform.as_ref() }, unsafe { config.as_ref() }) else {
        return -EINVAL;
    };
    let opened = NODE.open(BUSY, |id| {
        tell_panics(*given);
        // SAFETY: the caller's.
        let firmware = unsafe { Firmware::new(*given) };
        let firmware = firmware.map_err(|why| Refused::because(given, EINVAL, &why))?;
        // SAFETY: no device is open, so nobody else has them.
        let (memory, pieces) = unsafe { (&mut *LENT.memory.get(), &mut *LENT.pieces.get()) };
        start(firmware, config, id, memory, pieces)
    });
    opened.map_or_else(|refused| -refused.number, |()| 0)
}

fn start(
    firmware: Firmware,
    config: &MlxConfig,
    id: u8,
    memory: &'static mut Memory,
    pieces: &'static mut Pieces,
) -> Result<Inner, Refused> {
    let given = *firmware.given();
    let refused = |number, why: &dyn fmt::Display| Refused::because(&given, number, why);
    let dma = match config.dma_length {
        0 => MAX_DMA,
        len if len <= MAX_DMA && len.is_multiple_of(PAGE) => len,
        _ => return Err(refused(EINVAL, &"dma_length: whole pages, at most 64 MiB")),
    };
    let why = "no memory: whole pages, which the HCA reaches at an address other than 0";
    // SAFETY: one call at a time, and nothing refers to it.
    let kept = unsafe { &mut *LENT.given.get() };
    // What was given once is used again.
    let lent = kept.filter(|kept| kept.dma_len == dma).or_else(|| firmware.memory(dma));
    // SAFETY: no device is open; it is nobody else's, as the header says.
    let regions = lent.and_then(|lent| unsafe { lent.regions() });
    let regions = regions.ok_or_else(|| refused(ENOMEM, &why))?;
    // What is of no use is asked for again the next time.
    *kept = lent;
    memory.clear();
    let Memory { tables, notes, rds, whole } = memory;
    let address = Ipv4Addr::from(config.address.to_ne_bytes());
    let [high, low] = config.seed;
    let seed = u128::from(high) << 64 | u128::from(low);
    let settings = AdapterConfig::new(NAMES[0], address.into(), &[], seed);
    let up = bring_up(firmware, regions, tables.parts(), &settings, id);
    let mut adapter = up.map_err(|error| {
        let number = match error {
            BringUpError::Open(OpenError::PortNotActive { .. }) | BringUpError::NoIp => ENETDOWN,
            BringUpError::Open(OpenError::Hca(_)) | BringUpError::Names(_) => ENODEV,
        };
        refused(number, &error)
    })?;
    let settings = RdsConfig {
        send_frames: FRAMES / 2,
        seed: low,
        // RDS_GET_MR says nothing of who the memory is for.
        isolate_peers: false,
        // SAFETY: as with the library for processes; and one thread calls this one.
        rdma_within: Some(unsafe { SoleAccess::promised() }),
        ..RdsConfig::new(Generation::from_wall_clock(Duration::from_nanos(config.boot)))
    };
    let rds = match Rds::start(&mut adapter, rds.parts(), settings) {
        Ok(rds) => rds,
        Err(error) => {
            let _ = adapter.close();
            return Err(refused(ENOMEM, &error));
        }
    };
    let waiting = Protocol { rds, sockets: Numbers::NONE, whole, pieces };
    Ok(Inner { adapter, beside: notes.parts(address.into()), waiting })
}

/// `mlx_poll`: moves everything on. When it wants to be called again: nanoseconds of the platform's clock, 0 for at once.
pub fn poll() -> u64 {
    NODE.work().map_or(0, |rest| rest.as_nanos())
}

/// `mlx_close`: peers are told, every object is destroyed, and the HCA is handed back as it was.
pub fn close() -> i32 {
    let closed = NODE.close(BUSY, |Inner { mut adapter, waiting: Protocol { rds, .. }, .. }| {
        let given = *adapter.platform().given();
        // What is left is closed with the adapter.
        let _ = rds.stop(&mut adapter);
        adapter.close().map_err(|error| Refused::because(&given, ENODEV, &error))
    });
    closed.map_or_else(|refused| -refused.number, |()| 0)
}
