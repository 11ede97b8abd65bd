//! Function-level reset, and what of configuration space it takes with it.

use pci_types::CommandRegister;

use super::function::{ConfigAccess, Error, FIRST_BAR, Function};

/// The capability of conventional PCI for what PCI Express has its own bits for (Advanced Features, PCI ECN of 2006).
const ADVANCED_FEATURES: u8 = 0x13;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
/// Nanoseconds that a function may take to answer again after its reset. Linux's limit
/// (`PCIE_RESET_READY_POLL_MS`): a ConnectX-7 with hundreds of virtual functions needs a second for each.
const LONGEST_RESET: u64 = 60 * SECOND;

/// What software has put into a function's configuration space, and a reset takes away. Its MSI-X table is elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Saved {
    command: CommandRegister,
    bars: [u32; 6],
    /// Where the PCI Express capability is, and its device control registers.
    express: Option<(u16, [u32; 2])>,
}

/// The device control registers in the PCI Express capability; the upper half of each is a status register, whose ones clear.
const CONTROLS: [u16; 2] = [0x08, 0x28];

/// How a function is reset: the register with the bit that begins it, and the one with the bit that says that transactions are pending.
struct Way {
    start: (u16, u32),
    pending: (u16, u32),
}

impl Function {
    /// What a reset would take away.
    pub(crate) fn save(&self, access: &impl ConfigAccess) -> Saved {
        let controls = |at: u16| CONTROLS.map(|register| access.read(self.address, at + register) & 0xffff);
        let express = self.capability(access, super::express::CAPABILITY).filter(|at| *at <= 0x100 - 0x2c);
        Saved {
            command: self.command(access),
            bars: core::array::from_fn(|i| access.read(self.address, FIRST_BAR + i as u16 * 4)),
            express: express.map(|at| (at, controls(at))),
        }
    }

    /// Puts back what a reset has taken away, if it has, so that the function's registers can be read. Bus mastering stays as it is.
    /// Nothing is done to a function that does not answer.
    pub(crate) fn restore(&self, access: &impl ConfigAccess, saved: &Saved) {
        if access.read(self.address, 0) as u16 != self.vendor {
            return;
        }
        let Saved { command, bars, express } = saved;
        let master = CommandRegister::BUS_MASTER_ENABLE;
        let before = self.command(access);
        let command = (*command - master) | (before & master);
        let whole = before == command
            && bars.iter().zip(0..).all(|(bar, i)| access.read(self.address, FIRST_BAR + i * 4) == *bar);
        if whole {
            return;
        }
        for (bar, i) in bars.iter().zip(0..) {
            access.write(self.address, FIRST_BAR + i * 4, *bar);
        }
        if let Some((at, controls)) = express {
            for (register, control) in CONTROLS.iter().zip(controls) {
                access.write(self.address, at + register, *control);
            }
        }
        self.set_command(access, command);
    }

    /// Resets this function alone (section 6.6.2) and gives it back what it had in configuration space, but for bus mastering, which is off
    /// then. `wait(nanos)` lets that much time pass.
    ///
    /// # Errors
    /// [`Error::NoFunctionLevelReset`]; [`Error::ResetTimedOut`].
    pub(crate) fn reset(&self, access: &impl ConfigAccess, mut wait: impl FnMut(u64)) -> Result<(), Error> {
        let way = self.way_to_reset(access).ok_or(Error::NoFunctionLevelReset)?;
        let saved = self.save(access);
        self.stop_bus_master(access);
        let (register, pending) = way.pending;
        // Transactions that do not end are no reason to leave the function as it is.
        let _ = (0..=100).any(|attempt| {
            if attempt > 0 {
                wait(MILLISECOND);
            }
            access.read(self.address, register) & pending == 0
        });
        let (register, start) = way.start;
        access.write(self.address, register, access.read(self.address, register) & 0xffff | start);
        // 100 ms without any access; then the function may still answer with retries for a while.
        wait(100 * MILLISECOND);
        let (mut waited, mut pause) = (0, 10 * MILLISECOND);
        while access.read(self.address, 0) as u16 != self.vendor {
            if waited >= LONGEST_RESET {
                return Err(Error::ResetTimedOut);
            }
            wait(pause);
            waited += pause;
            pause = (pause * 2).min(SECOND);
        }
        self.restore(access, &saved);
        Ok(())
    }

    /// By PCI Express (section 7.5.3), or by Advanced Features.
    fn way_to_reset(&self, access: &impl ConfigAccess) -> Option<Way> {
        if let Ok(express) = self.express(access)
            && express.function_level_reset
        {
            let control = express.at + 0x08;
            return Some(Way { start: (control, 1 << 15), pending: (control, 1 << 21) });
        }
        let at = self.capability(access, ADVANCED_FEATURES).filter(|at| *at <= 0x100 - 8)?;
        // Function-level reset, and that the function says whether transactions are pending.
        let able = access.read(self.address, at) >> 24 & 0b11 == 0b11;
        able.then_some(Way { start: (at + 4, 1), pending: (at + 4, 1 << 8) })
    }
}
