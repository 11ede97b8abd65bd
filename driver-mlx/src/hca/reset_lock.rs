//! The semaphore that the functions of a card share: who has it may reset the firmware. It lies behind the vendor-specific capability, in
//! configuration space (PRM, vendor-specific capability; space and address as in Linux's mlx5).

use crate::pci::capability::VENDOR;
use crate::platform::Platform;
use crate::types::Duration;

/// The space of semaphores.
const SEMAPHORES: u32 = 0x0a;
/// The one for resets.
const RESET: u32 = 0x20;

/// Registers of the capability.
const CONTROL: u16 = 0x04;
const COUNTER: u16 = 0x08;
const GATEWAY: u16 = 0x0c;
const ADDRESS: u16 = 0x10;
const DATA: u16 = 0x14;
/// In the address register: set to start a write; reads as set once a read is done.
const FLAG: u32 = 1 << 31;

/// Header registers, and the length that a list of capabilities cannot exceed.
const STATUS: u16 = 0x04;
const HAS_CAPABILITIES: u32 = 1 << 20;
const FIRST_CAPABILITY: u16 = 0x34;
const MOST_CAPABILITIES: usize = 48;

/// Looks at a register until it says what it should, and the interval between them: two seconds, as Linux waits.
const LOOKS: usize = 2048;
const DISTANCE: Duration = Duration::from_millis(1);

/// What became of the attempt to take the semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResetLock {
    /// It is ours, by this ticket at this offset of configuration space.
    Held(u16),
    /// Another function has it: it is resetting the card, or writing down its state.
    Busy,
    /// This function has no such capability (a virtual function), or configuration space is out of reach.
    Absent,
}

impl ResetLock {
    /// Tries to take it; at most some seconds.
    pub(super) fn take<P: Platform>(platform: &P) -> Self {
        let Some(base) = capability(platform) else { return Self::Absent };
        let Some(taken) = with_gateway(platform, base, || {
            let ticket = platform.read_config(base + COUNTER).unwrap_or(0);
            let ours = write(platform, base, ticket) && read(platform, base) == Some(ticket);
            ours && ticket != 0
        }) else {
            return Self::Absent;
        };
        if taken { Self::Held(base) } else { Self::Busy }
    }

    /// Gives it back.
    pub(super) fn release<P: Platform>(self, platform: &P) {
        if let Self::Held(base) = self {
            // If this cannot be done now, the reset has freed the semaphore.
            let _ = with_gateway(platform, base, || write(platform, base, 0));
        }
    }
}

/// Runs `access` with the capability's own lock, in the space of semaphores; `None` if either is not to be had.
fn with_gateway<P: Platform, T>(platform: &P, base: u16, access: impl FnOnce() -> T) -> Option<T> {
    let taken = until(platform, || {
        if platform.read_config(base + GATEWAY)? != 0 {
            return Some(false);
        }
        let ticket = platform.read_config(base + COUNTER)?;
        platform.write_config(base + GATEWAY, ticket);
        Some(platform.read_config(base + GATEWAY)? == ticket)
    });
    if !taken {
        return None;
    }
    platform.write_config(base + CONTROL, SEMAPHORES);
    let there = platform.read_config(base + CONTROL).is_some_and(|control| control >> 29 != 0);
    let done = there.then(access);
    platform.write_config(base + GATEWAY, 0);
    done
}

fn write<P: Platform>(platform: &P, base: u16, value: u32) -> bool {
    platform.write_config(base + DATA, value);
    platform.write_config(base + ADDRESS, RESET | FLAG);
    until(platform, || Some(platform.read_config(base + ADDRESS)? & FLAG == 0))
}

fn read<P: Platform>(platform: &P, base: u16) -> Option<u32> {
    platform.write_config(base + ADDRESS, RESET);
    let there = until(platform, || Some(platform.read_config(base + ADDRESS)? & FLAG != 0));
    if there { platform.read_config(base + DATA) } else { None }
}

/// Looks until `done` says so; `false` when it takes too long, or configuration space is out of reach.
fn until<P: Platform>(platform: &P, mut done: impl FnMut() -> Option<bool>) -> bool {
    for _ in 0..LOOKS {
        match done() {
            Some(true) => return true,
            Some(false) => platform.idle(platform.now() + DISTANCE),
            None => return false,
        }
    }
    false
}

/// Offset of the vendor-specific capability.
fn capability<P: Platform>(platform: &P) -> Option<u16> {
    if platform.read_config(STATUS)? & HAS_CAPABILITIES == 0 {
        return None;
    }
    let mut offset = platform.read_config(FIRST_CAPABILITY)? as u16 & 0xfc;
    for _ in 0..MOST_CAPABILITIES {
        // A function that is away reads as all ones: the walk ends at its limit, at an offset that has no room for the capability.
        if !(0x40..=0x100 - (DATA + 4)).contains(&offset) {
            return None;
        }
        let word = platform.read_config(offset)?;
        if word as u8 == VENDOR {
            return Some(offset);
        }
        offset = (word >> 8) as u16 & 0xfc;
    }
    None
}
