//! The one error type of the crate's control path. Post and poll have small ones of their own.

use crate::dma::OutOfBounds;
use crate::platform::MapError;
use core::fmt;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CmdStatus, DeliveryStatus, HealthSyndrome};

/// Stage of bring-up, operation or tear-down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u8)]
pub enum Step {
    /// Looking whether the device is there, and its interface revision.
    #[default]
    Presence = 0,
    /// Waiting for firmware to finish its own start.
    Initializing,
    /// Handing over the command queue.
    CommandQueue,
    /// ENABLE_HCA.
    EnableHca,
    /// Agreeing on the interface step sequence ID.
    Issi,
    /// Giving the pages that firmware boots with.
    BootPages,
    /// Telling firmware the host's byte order.
    HostEndianness,
    /// Reading and setting capabilities.
    Capabilities,
    /// Giving the pages that firmware runs with.
    InitPages,
    /// INIT_HCA.
    InitHca,
    /// Reading the capabilities that hold after INIT_HCA, and the board's name.
    Identify,
    /// Allocating the control UAR page.
    Uar,
    /// Creating and arming event queues.
    EventQueues,
    /// Protection domain and reserved key.
    Resources,
    /// Bringing up and reading the port.
    Port,
    /// Normal operation.
    Running,
    /// Tear-down.
    TearDown,
    /// Reset after a failure.
    Recovery,
}

impl Step {
    /// A short name for reports: lower case, words joined by underscores.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Presence => "presence",
            Self::Initializing => "initializing",
            Self::CommandQueue => "command_queue",
            Self::EnableHca => "enable_hca",
            Self::Issi => "issi",
            Self::BootPages => "boot_pages",
            Self::HostEndianness => "host_endianness",
            Self::Capabilities => "capabilities",
            Self::InitPages => "init_pages",
            Self::InitHca => "init_hca",
            Self::Identify => "identify",
            Self::Uar => "uar",
            Self::EventQueues => "event_queues",
            Self::Resources => "resources",
            Self::Port => "port",
            Self::Running => "running",
            Self::TearDown => "tear_down",
            Self::Recovery => "recovery",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why the device can no longer be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum FatalCause {
    /// All registers read all ones: the function is gone from the bus.
    LinkDead,
    /// Somebody else set `nic_interface` to this.
    Interface(u8),
    /// Firmware reports an error.
    Syndrome {
        /// Which.
        syndrome: HealthSyndrome,
        /// The extended code.
        extended: u16,
    },
    /// Commands timed out until no slot was left, or MANAGE_PAGES did, which has one slot.
    CommandsLost,
    /// Somebody has reset the function: it does not know this driver's command queue any more.
    Forgotten,
    /// The health counter stands still, and a command was not answered in time.
    Hung,
    /// An attempt at recovery failed.
    NotRecovered,
    /// The device reported an internal error by event.
    InternalError,
}

impl fmt::Display for FatalCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkDead => f.write_str("its registers read all ones"),
            Self::Interface(state) => write!(f, "nic_interface is {state}"),
            Self::Syndrome { syndrome, extended } => write!(f, "{syndrome}, extended syndrome {extended:#x}"),
            Self::CommandsLost => f.write_str("it answers no command any more"),
            Self::Forgotten => f.write_str("somebody has reset it"),
            Self::Hung => f.write_str("its health counter stands still and it answers no command"),
            Self::NotRecovered => f.write_str("it did not recover"),
            Self::InternalError => f.write_str("it reported an internal error"),
        }
    }
}

/// What the health poll noticed and does not act upon, as Linux's mlx5 does not: it is for a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HealthWarning {
    /// The health buffer, which all functions of a card share, tells of an error, but firmware does not ask for a reset.
    Syndrome {
        /// Which.
        syndrome: HealthSyndrome,
        /// The extended code.
        extended: u16,
    },
    /// The health counter did not move for three polls. If firmware does not run, commands will tell.
    CounterStands,
}

impl fmt::Display for HealthWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syndrome { syndrome, extended } => {
                write!(f, "the card reports {syndrome}, extended syndrome {extended:#x}, and goes on")
            }
            Self::CounterStands => f.write_str("the health counter stands still"),
        }
    }
}

/// A firmware command that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CommandError {
    /// When it was issued.
    pub step: Step,
    /// Which command.
    pub opcode: Opcode,
    /// Its modifier.
    pub op_mod: u16,
    /// Whether firmware could take the command at all.
    pub delivery: DeliveryStatus,
    /// How firmware answered; meaningful only when the delivery was good.
    pub status: CmdStatus,
    /// Firmware's own code for the reason, which the vendor can decode.
    pub syndrome: u32,
}

/// Why the driver could not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Error {
    /// The device does not answer: its registers read all ones.
    NotPresent,
    /// A command interface revision this driver does not know.
    InterfaceRevision(u16),
    /// The interface is in reset (`nic_interface` 7), or stays in another state than "full driver" though the function was enabled: a
    /// function-level reset is needed.
    NicInterface(u8),
    /// The geometry of the command queue makes no sense or has fewer than two entries.
    CommandQueue {
        /// log2 of the number of entries, as the device says.
        log_size: u8,
        /// log2 of the bytes of an entry, as the device says.
        log_stride: u8,
    },
    /// The device did not react in time.
    Timeout {
        /// Where.
        step: Step,
        /// The command that was not answered, if it was one. Its slot is never used again.
        opcode: Option<Opcode>,
        /// How long was waited, in milliseconds.
        waited_ms: u64,
        /// What the health buffer said then; 0 if firmware saw nothing wrong with itself.
        syndrome: HealthSyndrome,
    },
    /// Firmware refused a command.
    Command(CommandError),
    /// Every slot of the command queue is in use, or lost to a command that was never answered.
    NoCommandSlot,
    /// A ticket of a command that does not exist (any more).
    BadTicket,
    /// Firmware needs more memory than the region has left. Nothing was given to it by this step.
    InsufficientPages {
        /// Pages of 4 KiB that firmware asks for.
        needed: u64,
        /// Pages that could be given.
        available: u64,
    },
    /// The region handed in at start is used up (or too fragmented) for an allocation of this many bytes.
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The host region has no room for what a queue's work requests are remembered by.
    OutOfHostMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The map in [`HcaStorage`](crate::HcaStorage) is too small for the region.
    StorageTooSmall {
        /// Blocks of 4 KiB that the region has.
        needed: usize,
        /// Blocks that the map can hold.
        available: usize,
    },
    /// The HCA lacks a capability without which this driver cannot work; the PRM's name of the field.
    MissingCapability(&'static str),
    /// More was asked for than the HCA can do.
    Limit {
        /// The PRM's name of the limiting field.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// What there is.
        limit: u64,
    },
    /// An argument is outside its range; its name.
    InvalidArgument(&'static str),
    /// The device answered something that cannot be; the field's name.
    BadAnswer {
        /// Where.
        step: Step,
        /// The PRM's name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The device has failed or is gone; only a reset helps.
    Fatal(FatalCause),
    /// A recovery so soon after the last one is refused: [`Config::recovery_grace`](crate::Config::recovery_grace).
    RecoveryTooSoon {
        /// How long to wait, in milliseconds.
        wait_ms: u64,
    },
    /// So many attempts at recovery in a row have failed that no other is made: the device stays unusable.
    RecoveryGivenUp {
        /// How many.
        attempts: u32,
    },
    /// The memory (or the memory key) is not one that this HCA gave out.
    NotAllocated,
    /// Memory keys still lead to the buffer.
    InUse,
    /// An access outside a slice.
    OutOfBounds,
    /// The platform could not map memory.
    Map(MapError),
    /// The queue is not in the state this needs.
    WrongState,
    /// The object is from before a recovery, which ended it.
    Stale,
}

impl Error {
    /// The outcome for an object's memory if creating the object failed with this error.
    ///
    /// `Ok` if firmware refused, because then there is no object. `Err` after a time-out, on a device
    /// that has failed, and without the command's ticket, because the object may exist.
    pub(crate) const fn not_created(&self) -> Result<(), Self> {
        match self {
            Self::Timeout { .. } | Self::Fatal(_) | Self::BadTicket => Err(*self),
            _ => Ok(()),
        }
    }

    /// Whether a function-level reset may help where bring-up failed with this: the device was left by somebody in a state that it does not
    /// leave by itself, or does not answer.
    #[must_use]
    pub fn wants_reset(&self) -> bool {
        match self {
            Self::NotPresent | Self::NicInterface(_) | Self::Fatal(_) | Self::CommandQueue { .. } => true,
            Self::Timeout { step, .. } => *step <= Step::Port,
            Self::Command(error) => error.step <= Step::Capabilities && error.step != Step::HostEndianness,
            _ => false,
        }
    }
}

impl CommandError {
    /// Whether firmware refused to destroy an object because others refer to it, as a window does to the region that it is bound to: it says
    /// "resource busy", and cards say "bad resource state" (PRM, command status).
    #[must_use]
    pub const fn is_in_use(&self) -> bool {
        matches!(self.delivery, DeliveryStatus::OK)
            && matches!(self.status, CmdStatus::RES_BUSY | CmdStatus::BAD_RES_STATE)
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (op_mod {:#x}) at step {}: ", self.opcode, self.op_mod, self.step)?;
        if self.delivery == DeliveryStatus::OK {
            write!(f, "status {}, syndrome {:#x}", self.status, self.syndrome)
        } else {
            write!(f, "not delivered: {}", self.delivery)
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotPresent => f.write_str("the device does not answer"),
            Self::InterfaceRevision(rev) => write!(f, "unknown command interface revision {rev}"),
            Self::NicInterface(state) => {
                write!(f, "the interface was left in state {state}; reset the function")
            }
            Self::CommandQueue { log_size, log_stride } => {
                write!(f, "unusable command queue: log_cmdq_size {log_size}, log_cmdq_stride {log_stride}")
            }
            Self::Timeout { step, opcode, waited_ms, syndrome } => {
                match opcode {
                    Some(opcode) => write!(f, "{opcode} at step {step} was not answered in {waited_ms} ms")?,
                    None => write!(f, "the device did not get past step {step} in {waited_ms} ms")?,
                }
                if syndrome.0 == 0 { Ok(()) } else { write!(f, "; health syndrome {syndrome}") }
            }
            Self::Command(error) => error.fmt(f),
            Self::NoCommandSlot => f.write_str("no command slot is free"),
            Self::BadTicket => f.write_str("no such command is in flight"),
            Self::InsufficientPages { needed, available } => {
                write!(f, "firmware needs {needed} pages of 4 KiB, {available} are available")
            }
            Self::OutOfHostMemory { bytes } => write!(f, "no room for {bytes} bytes in the host region"),
            Self::OutOfMemory { bytes } => write!(f, "no room for {bytes} bytes in the DMA region"),
            Self::StorageTooSmall { needed, available } => {
                write!(
                    f,
                    "the region has {needed} blocks of 4 KiB, the storage describes at most {available}"
                )
            }
            Self::MissingCapability(name) => write!(f, "the HCA lacks the capability {name}"),
            Self::Limit { what, asked, limit } => write!(f, "{asked} exceeds {what}, which is {limit}"),
            Self::InvalidArgument(name) => write!(f, "{name} is out of range"),
            Self::BadAnswer { step, field, value } => {
                write!(f, "impossible answer at step {step}: {field} is {value:#x}")
            }
            Self::Fatal(cause) => write!(f, "the device has failed: {cause}"),
            Self::RecoveryTooSoon { wait_ms } => {
                write!(f, "the last recovery was too short a time ago; try again in {wait_ms} ms")
            }
            Self::RecoveryGivenUp { attempts } => {
                write!(
                    f,
                    "{attempts} attempts at recovery have failed in a row: restart the machine or switch it off"
                )
            }
            Self::NotAllocated => f.write_str("the memory is not of this HCA"),
            Self::InUse => f.write_str("the buffer is registered"),
            Self::OutOfBounds => f.write_str("access outside a DMA slice"),
            Self::Map(error) => error.fmt(f),
            Self::WrongState => f.write_str("the queue is in the wrong state"),
            Self::Stale => f.write_str("the object went with a recovery of the device: make it again"),
        }
    }
}

impl core::error::Error for Error {}

/// A call that takes something over for good has failed, and gives it back.
#[derive(Debug)]
pub struct Rejected<T> {
    /// Why.
    pub error: Error,
    /// What was to be given up.
    pub value: T,
}

impl<T> From<Rejected<T>> for Error {
    fn from(rejected: Rejected<T>) -> Self {
        rejected.error
    }
}

impl From<OutOfBounds> for Error {
    fn from(_: OutOfBounds) -> Self {
        Self::OutOfBounds
    }
}

impl From<MapError> for Error {
    fn from(error: MapError) -> Self {
        Self::Map(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is not there, or was never taken by firmware, is not in use.
    #[test]
    fn refused_because_it_is_in_use() {
        let refused = |delivery, status| {
            let (step, opcode) = (Step::default(), Opcode::DESTROY_MKEY);
            CommandError { step, opcode, op_mod: 0, delivery, status, syndrome: 0 }.is_in_use()
        };
        assert!(refused(DeliveryStatus::OK, CmdStatus::RES_BUSY));
        assert!(refused(DeliveryStatus::OK, CmdStatus::BAD_RES_STATE));
        assert!(!refused(DeliveryStatus::OK, CmdStatus::BAD_RES));
        assert!(!refused(DeliveryStatus::INTERNAL_ERR, CmdStatus::RES_BUSY));
    }
}
