//! The semaphore that the functions of a card share: who has it may reset the firmware. It lies behind the vendor-specific capability, in
//! configuration space (PRM, vendor-specific capability; space and address as in Linux's mlx5).

use crate::control;
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

/// How long a register is looked at until it says what it should, and the interval between looks.
const PATIENCE: Duration = Duration::from_secs(2);
const DISTANCE: Duration = Duration::from_millis(1);

/// What became of the attempt to take the semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResetLock {
    /// It is ours, through the capability at this offset of configuration space.
    Held {
        /// Of the capability.
        base: u16,
        /// What was written, and reads so as long as the semaphore is ours.
        ticket: u32,
    },
    /// It may be ours, or another's: the device did not say.
    Unsure {
        /// As for the other.
        base: u16,
        /// As for the other.
        ticket: u32,
    },
    /// Another function has it: it is resetting the card, or writing down its state.
    Busy,
    /// This function has no such capability (a virtual function), or configuration space is out of reach.
    Absent,
}

impl ResetLock {
    /// Tries to take it; at most some seconds.
    pub(super) fn take<P: Platform>(platform: &P) -> Self {
        let Some(base) = capability(platform) else { return Self::Absent };
        let taken = with_gateway(platform, base, || {
            let ticket = platform.read_config(base + COUNTER).unwrap_or(0);
            if ticket == 0 {
                return Self::Busy;
            }
            let written = write(platform, base, ticket);
            match read(platform, base) {
                Some(owner) if owner != ticket => Self::Busy,
                Some(_) if written => Self::Held { base, ticket },
                _ => Self::Unsure { base, ticket },
            }
        });
        // Who keeps the gateway may be writing down the card's state.
        taken.map_or(Self::Busy, |taken| taken.unwrap_or(Self::Absent))
    }

    /// Gives it back; nothing is done if it is not ours any more, because a reset has freed it.
    pub(super) fn release<P: Platform>(self, platform: &P) {
        let (Self::Held { base, ticket } | Self::Unsure { base, ticket }) = self else { return };
        with_gateway(platform, base, || {
            give_back(
                platform,
                ticket,
                || read(platform, base),
                || {
                    write(platform, base, 0);
                },
            );
        });
    }
}

/// Runs `access` with the capability's own lock, in the space of semaphores; `None` if the lock, `Some(None)` if the space is not to be had.
/// Whatever happens, the lock is not kept.
fn with_gateway<P: Platform, T>(platform: &P, base: u16, access: impl FnOnce() -> T) -> Option<Option<T>> {
    let mut ours = None;
    let taken = until(platform, || {
        if platform.read_config(base + GATEWAY) != Some(0) {
            return false;
        }
        ours = platform.read_config(base + COUNTER).filter(|&ticket| ticket != 0);
        let Some(ticket) = ours else { return false };
        control::write_config(platform, base + GATEWAY, ticket);
        platform.read_config(base + GATEWAY) == ours
    });
    let done = taken.then(|| {
        control::write_config(platform, base + CONTROL, SEMAPHORES);
        let there = platform.read_config(base + CONTROL).is_some_and(|control| control >> 29 != 0);
        there.then(access)
    });
    if let Some(ticket) = ours {
        let owner = || platform.read_config(base + GATEWAY);
        give_back(platform, ticket, owner, || control::write_config(platform, base + GATEWAY, 0));
    }
    done
}

/// Frees what has our ticket, until it has not any more: for a moment, the device may take no write, or not say who owns it.
fn give_back<P: Platform>(platform: &P, ticket: u32, owner: impl Fn() -> Option<u32>, free: impl Fn()) {
    until(platform, || {
        let owner = owner();
        if owner == Some(ticket) {
            free();
        }
        owner.is_some_and(|owner| owner != ticket)
    });
}

fn write<P: Platform>(platform: &P, base: u16, value: u32) -> bool {
    control::write_config(platform, base + DATA, value);
    control::write_config(platform, base + ADDRESS, RESET | FLAG);
    until(platform, || platform.read_config(base + ADDRESS).is_some_and(|address| address & FLAG == 0))
}

fn read<P: Platform>(platform: &P, base: u16) -> Option<u32> {
    control::write_config(platform, base + ADDRESS, RESET);
    let there =
        until(platform, || platform.read_config(base + ADDRESS).is_some_and(|address| address & FLAG != 0));
    if there { platform.read_config(base + DATA) } else { None }
}

/// Looks until `done` says so; `false` when it takes too long.
fn until<P: Platform>(platform: &P, mut done: impl FnMut() -> bool) -> bool {
    let end = platform.now() + PATIENCE;
    loop {
        if done() {
            return true;
        }
        if platform.now() >= end {
            return false;
        }
        platform.idle(platform.now() + DISTANCE);
    }
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
