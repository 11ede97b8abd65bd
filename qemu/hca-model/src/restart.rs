//! What a restart of its machine does to the device: as a rule everything is as at power-on. After a warm one (kexec, a loader that starts
//! the next system, a crash kernel) nothing is: whoever comes next finds what the one before left.

use crate::hca::Hca;
use crate::log::Subject;

/// Whether restarts are warm, and what they did so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Restarts {
    warm: bool,
    /// There is no machine: no time passes until the next one.
    held: bool,
    resets: u64,
}

impl Restarts {
    /// Whether the device stands still.
    pub(crate) const fn held(&self) -> bool {
        self.held
    }

    pub(crate) fn count_reset(&mut self) {
        self.resets += 1;
    }
}

impl Hca {
    /// From now on restarts of the machine are warm, or as a rule. A device whose machine went warm stays as it is until the next one
    /// comes.
    pub fn set_warm(&mut self, warm: bool) {
        self.restarts.warm = warm;
    }

    /// Whether restarts of the machine are warm.
    #[must_use]
    pub const fn is_warm(&self) -> bool {
        self.restarts.warm
    }

    /// How often everything went back to its state at power-on, by a function-level reset or a restart that was not warm.
    #[must_use]
    pub const fn resets(&self) -> u64 {
        self.restarts.resets
    }

    /// The machine resets its devices, as at the beginning of a boot.
    pub fn machine_reset(&mut self) {
        if self.restarts.warm {
            self.device.log.info(Subject::Device, "warm restart: nothing is reset");
        } else {
            self.reset();
        }
    }

    /// The machine is gone, and its memory with it.
    pub fn machine_gone(&mut self) {
        self.machine_reset();
        // Between two machines there is no memory that DMA could reach. In the restarts that this stands for there is no such time either.
        self.restarts.held = self.restarts.warm;
    }

    /// A machine is there.
    pub fn machine_found(&mut self) {
        self.restarts.held = false;
    }
}
