//! Errors of opening a device.

use core::fmt;
use driver_mlx::pci::is_flash_recovery;
use r_efi::efi::Status;

/// Result of a call of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// Reason why a device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There are no boot services: a null table, or after `ExitBootServices`.
    NoFirmware,
    /// A call of the firmware failed.
    Call(&'static str, Status),
    /// Another driver has the function and refuses to release it.
    InUse,
    /// The driver does not support the function.
    NotAnHca {
        /// PCI vendor number.
        vendor: u16,
        /// PCI device number.
        device: u16,
    },
    /// BAR0 has no address.
    NoBar,
    /// Memory decoding or bus mastering stays off; the command register is given.
    SwitchedOff(u16),
    /// Firmware mapped less memory than asked for, or at an address that is not page-aligned.
    Mapping,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoFirmware => f.write_str("no UEFI boot services"),
            Self::Call(call, status) => write!(f, "{call}: {}", StatusName(status)),
            Self::InUse => f.write_str("the firmware's driver of the card does not release it"),
            Self::NotAnHca { vendor, device } => {
                write!(f, "{vendor:04x}:{device:04x} is no HCA of the mlx5 family")?;
                f.write_str(if is_flash_recovery(device) {
                    "; it is in flash recovery: its firmware is broken or missing"
                } else {
                    ""
                })
            }
            Self::NoBar => {
                f.write_str("BAR0 has no address: switch \"above 4G decoding\" on in the firmware's setup")
            }
            Self::SwitchedOff(command) => {
                write!(f, "memory decoding or bus mastering stays off: command register {command:#06x}")
            }
            Self::Mapping => f.write_str("the firmware did not map the memory for the device"),
        }
    }
}

impl core::error::Error for Error {}

/// A status in words, or as a number if it is a rare one.
struct StatusName(Status);

impl fmt::Display for StatusName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            Status::INVALID_PARAMETER => "invalid parameter",
            Status::UNSUPPORTED => "unsupported",
            Status::NOT_READY => "not ready",
            Status::DEVICE_ERROR => "device error",
            Status::OUT_OF_RESOURCES => "out of resources",
            Status::NOT_FOUND => "not found",
            Status::ACCESS_DENIED => "access denied",
            Status::ALREADY_STARTED => "already started",
            Status::SECURITY_VIOLATION => "security violation",
            status => return write!(f, "status {:#x}", status.as_usize()),
        };
        f.write_str(name)
    }
}

/// Converts a status of the firmware's call `call`. Warnings are errors too: none is expected.
pub(crate) fn check(call: &'static str, status: Status) -> Result<()> {
    if status == Status::SUCCESS { Ok(()) } else { Err(Error::Call(call, status)) }
}
