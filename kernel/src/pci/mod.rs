//! PCI as the unikernel needs it: functions and their BARs, MSI-X and PCI Express capabilities,
//! bridges and slots, function-level reset.
//!
//! The code is generic over the access to configuration space, so that unit tests run it on a fake
//! one. Only reading is public. Functions that write to configuration space are private to the
//! unikernel or `unsafe`, because a BAR or the command register can give a device any memory.
//! Applications use `unikernel::device::Device`.
//!
//! pci_types' header views size BARs without turning decoding off and panic on a reserved type. Its
//! addresses and command register are used here. Sections are those of the PCI Express Base
//! Specification 5.0.
//!
//! | module | subject |
//! |---|---|
//! | `function` | a function's header, access to configuration space, what can be wrong |
//! | `bar` | where BARs are and how large |
//! | `express`, `msix` | the two capabilities |
//! | `bus_errors` | errors that Advanced Error Reporting has recorded |
//! | `reset` | command register and function-level reset, by the driver |
//! | `enumerate` | which functions there are |
//! | `bridges` | bus numbers, and the way through bridges |
//! | `slots` | hot-plug ports: power and link |
//! | [`assign`] | addresses for BARs that have none |
//! | `inventory` | handing out each function once |

pub mod assign;
mod bar;
mod bridges;
mod bus_errors;
mod enumerate;
mod express;
mod function;
mod inventory;
mod msix;
#[allow(unsafe_code, reason = "the driver's access to configuration space is `unsafe`")]
mod reset;
mod slots;
#[cfg(test)]
mod tests;

pub use bar::MemoryBar;
pub(crate) use bridges::open_bridges;
pub(crate) use bus_errors::BusErrors;
pub use driver_mlx::pci::VENDOR_MELLANOX;
pub(crate) use enumerate::functions;
pub use enumerate::{Buses, Done, MAX_FUNCTIONS, Numbers};
pub use express::Express;
pub(crate) use function::ConfigAccess;
pub use function::{ConfigRead, Error, Function};
pub(crate) use inventory::Inventory;
pub use msix::Msix;
pub use slots::{Slot, State};
