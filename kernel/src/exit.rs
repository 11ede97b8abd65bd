//! How the machine ends: values for QEMU's `isa-debug-exit` device.
//!
//! The device turns a written `v` into the process status `(2v + 1) & 0xff`, so a status of 0 cannot be asked
//! for; a 0 from QEMU means that the machine was reset, which with `-no-reboot` is a triple fault. The values
//! start at 16 to stay clear of QEMU's own status 1.

/// The machine's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// ACPI switches the machine off.
    Off,
    /// A reset, which boots the image again.
    Reset,
    /// The CPU halts; the console shows the result until the machine is switched off.
    Halt,
}

/// Why the unikernel ended. The number is the value written; [`ExitCode::status`] is what the host sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// The application did all it was asked for, and its data was right. Host status 33.
    Success = 0x10,
    /// The command line is wrong; one line said how. Host status 35.
    Usage = 0x11,
    /// The application ran and failed; it said how. Host status 37.
    Failed = 0x12,
    /// A Rust panic: a defect in the unikernel. Host status 39.
    Panic = 0x13,
    /// A CPU exception: a defect in the unikernel, or `app=fault`. Host status 41.
    Fault = 0x14,
    /// The device that the application needs is not there or cannot be used. Host status 43.
    NoDevice = 0x15,
    /// The machine cannot be used: too little memory, no long mode, no clock. Host status 45.
    Machine = 0x16,
    /// The device stopped answering while in use. Host status 47.
    DeviceLost = 0x17,
}

impl ExitCode {
    /// The exit status that QEMU's process ends with.
    #[must_use]
    pub const fn status(self) -> u8 {
        ((self as u8) << 1) | 1
    }
}

#[cfg(test)]
mod tests {
    use super::ExitCode;

    #[test]
    fn statuses_are_those_documented() {
        let all = [
            (ExitCode::Success, 33),
            (ExitCode::Usage, 35),
            (ExitCode::Failed, 37),
            (ExitCode::Panic, 39),
            (ExitCode::Fault, 41),
            (ExitCode::NoDevice, 43),
            (ExitCode::Machine, 45),
            (ExitCode::DeviceLost, 47),
        ];
        for (code, status) in all {
            assert_eq!(code.status(), status, "{code:?}");
        }
    }
}
