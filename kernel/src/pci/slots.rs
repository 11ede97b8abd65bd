//! Hot-plug ports: a slot with a card in it is switched on where it is off, its link is enabled, and waited for (PCI Express Base
//! Specification 5.0 sections 6.7.1, 6.6.1, 7.5.3.6 to 7.5.3.11).

use core::fmt;

use pci_types::PciAddress;

use super::express::CAPABILITY;
use super::function::{ConfigAccess, Function};

const LINK_CAPABILITIES: u16 = 0x0c;
const LINK: u16 = 0x10;
const SLOT_CAPABILITIES: u16 = 0x14;
const SLOT: u16 = 0x18;

/// In the capability's first word: the port type, and that there is a slot.
const PORT_TYPE_AT: u32 = 20;
const ROOT_PORT: u32 = 4;
const DOWNSTREAM_PORT: u32 = 6;
const IMPLEMENTED: u32 = 1 << 24;

const REPORTS_LINK: u32 = 1 << 20;
const LINK_DISABLED: u32 = 1 << 4;
const LINK_UP: u32 = 1 << 29;

const HAS_POWER_CONTROLLER: u32 = 1 << 1;
const HAS_LATCH: u32 = 1 << 2;
const HAS_POWER_INDICATOR: u32 = 1 << 4;
const TELLS_NO_COMPLETION: u32 = 1 << 18;

/// In the slot's control register.
const POWER_OFF: u32 = 1 << 10;
const POWER_INDICATOR: u32 = 0b11 << 8;
const POWER_INDICATOR_ON: u32 = 0b01 << 8;
/// In its status register, which is the upper half.
const POWER_FAULT: u32 = 1 << 17;
const COMMAND_COMPLETED: u32 = 1 << 20;
const LATCH_OPEN: u32 = 1 << 21;
const PRESENT: u32 = 1 << 22;

const STEP_NANOS: u64 = 10_000_000;
/// How long a command may take, and a link after its card got power.
const PATIENCE_NANOS: u64 = 1_000_000_000;
/// From the link's being up to the first access.
const SETTLE_NANOS: u64 = 100_000_000;

/// How long all slots of a machine together are waited for.
const MACHINE_NANOS: u64 = 10_000_000_000;

/// What became of a slot that something was to be done about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its power was off and is on now; the link is up.
    SwitchedOn,
    /// Its link was disabled, and is up now.
    Enabled,
    /// Its link came up late.
    Late,
    /// There is a card, but its latch is open: it gets no power.
    LatchOpen,
    /// There is a card whose power failed.
    PowerFault,
    /// There is a card, but no link to it.
    NoLink,
}

/// A slot that something was to be done about. Displays as a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its port.
    pub port: PciAddress,
    /// The number that people know it by.
    pub number: u16,
    /// What became of it.
    pub state: State,
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pci {}: slot {}: ", self.port, self.number)?;
        f.write_str(match self.state {
            State::SwitchedOn => "its power was off: switched on",
            State::Enabled => "its link was disabled: enabled",
            State::Late => "its link came up late",
            State::LatchOpen => "not used: there is a card, but the latch is open; close it and start again",
            State::PowerFault => "not used: the power of its card failed; seat it again, or try another slot",
            State::NoLink => {
                "not used: there is a card, but no link to it; seat it again, or try another slot"
            }
        })
    }
}

/// The capability of a port that has a slot.
fn slot(access: &impl ConfigAccess, port: &Function) -> Option<u16> {
    port.secondary_bus?;
    let at = port.capability(access, CAPABILITY).filter(|at| *at <= 0x100 - 0x1c)?;
    let first = access.read(port.address, at);
    let downstream = matches!(first >> PORT_TYPE_AT & 0xf, ROOT_PORT | DOWNSTREAM_PORT);
    (downstream && first & IMPLEMENTED != 0).then_some(at)
}

/// Time that slots may take: what is left of it, and how to let it pass.
pub(super) struct Patience<'w> {
    left: u64,
    /// Time that is left for links that firmware had already enabled.
    untouched: u64,
    wait: &'w mut dyn FnMut(u64),
}

impl<'w> Patience<'w> {
    /// For all slots of a machine together.
    pub(super) fn new(wait: &'w mut dyn FnMut(u64)) -> Self {
        Self { left: MACHINE_NANOS, untouched: PATIENCE_NANOS, wait }
    }

    /// For what waits otherwise.
    pub(super) fn wait(&mut self) -> &mut dyn FnMut(u64) {
        self.wait
    }

    /// Lets that much time pass. False if it is not there any more.
    fn spend(&mut self, nanos: u64) -> bool {
        let Some(left) = self.left.checked_sub(nanos) else { return false };
        self.left = left;
        (self.wait)(nanos);
        true
    }

    /// Waits until the link of a slot is up, as `done` says. Links that were already enabled (`touched` is false) have trained
    /// since power-on. They share one second, because a backplane can have many drives without a PCI link.
    fn link(&mut self, touched: bool, done: impl Fn() -> bool) -> bool {
        if touched {
            return self.until(done);
        }
        while !done() && self.untouched >= STEP_NANOS && self.spend(STEP_NANOS) {
            self.untouched -= STEP_NANOS;
        }
        done()
    }

    /// Waits until `done`, and says whether it is.
    fn until(&mut self, done: impl Fn() -> bool) -> bool {
        for _ in 0..PATIENCE_NANOS / STEP_NANOS {
            if done() || !self.spend(STEP_NANOS) {
                break;
            }
        }
        done()
    }
}

/// Does for a card in `port`'s slot what it wants to be reached, and says so; None where that is nothing.
pub(super) fn wake(access: &impl ConfigAccess, port: &Function, patience: &mut Patience<'_>) -> Option<Slot> {
    let at = slot(access, port)?;
    let read = |offset| access.read(port.address, at + offset);
    let capabilities = read(SLOT_CAPABILITIES);
    let status = read(SLOT);
    if status & PRESENT == 0 {
        return None;
    }
    let tell = |state| Some(Slot { port: port.address, number: (capabilities >> 19) as u16, state });
    let off = capabilities & HAS_POWER_CONTROLLER != 0 && status & POWER_OFF != 0;
    if off && capabilities & HAS_LATCH != 0 && status & LATCH_OPEN != 0 {
        return tell(State::LatchOpen);
    }
    if off && status & POWER_FAULT != 0 {
        return tell(State::PowerFault);
    }
    if off {
        let mut control = status & 0xffff & !POWER_OFF;
        if capabilities & HAS_POWER_INDICATOR != 0 {
            control = control & !POWER_INDICATOR | POWER_INDICATOR_ON;
        }
        // Ones clear what the status says; an older command's completion is not this one's.
        access.write(port.address, at + SLOT, status & 0xffff | COMMAND_COMPLETED);
        access.write(port.address, at + SLOT, control);
        if capabilities & TELLS_NO_COMPLETION == 0 {
            patience.until(|| read(SLOT) & COMMAND_COMPLETED != 0);
        }
    }
    let link = read(LINK);
    let disabled = link & LINK_DISABLED != 0;
    if disabled {
        access.write(port.address, at + LINK, link & 0xffff & !LINK_DISABLED);
    }
    let was_up = link & LINK_UP != 0 && !off && !disabled;
    if read(LINK_CAPABILITIES) & REPORTS_LINK == 0 {
        // Nobody says when it is up.
        if off || disabled {
            patience.spend(PATIENCE_NANOS);
        }
    } else if !was_up {
        if !patience.link(off || disabled, || read(LINK) & LINK_UP != 0) {
            return tell(if read(SLOT) & POWER_FAULT != 0 { State::PowerFault } else { State::NoLink });
        }
        patience.spend(SETTLE_NANOS);
    }
    match (off, disabled, was_up) {
        (true, ..) => tell(State::SwitchedOn),
        (_, true, _) => tell(State::Enabled),
        (_, _, false) if read(LINK_CAPABILITIES) & REPORTS_LINK != 0 => tell(State::Late),
        _ => None,
    }
}
