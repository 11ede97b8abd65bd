//! PCI as the unikernel needs it: which functions there are, where their BARs are, MSI-X and PCI Express
//! capabilities, bridges and slots, function-level reset. Generic over the access to configuration space, so that it runs on a fake one.
//!
//! pci_types' own header views size BARs without turning decoding off and panic on a reserved type, and its trait is
//! unsafe to call; its addresses and command register are used here. Sections are those of the PCI Express
//! Base Specification 5.0.
//!
//! | module | subject |
//! |---|---|
//! | `function` | a function's header, access to configuration space, what can be wrong |
//! | `bar` | where BARs are and how large |
//! | `express`, `msix` | the two capabilities |
//! | `reset` | function-level reset, and what it takes away |
//! | `enumerate` | which functions there are |
//! | `bridges` | bus numbers, and the way through bridges |
//! | `slots` | hot-plug ports: power and link |
//! | [`assign`] | addresses for BARs that have none |

pub mod assign;
mod bar;
mod bridges;
mod enumerate;
mod express;
mod function;
mod msix;
mod reset;
mod slots;
#[cfg(test)]
mod tests;

pub use bar::MemoryBar;
pub use bridges::open_bridges;
pub use enumerate::{Buses, Done, MAX_FUNCTIONS, Numbers, functions};
pub use express::Express;
pub use function::{ConfigAccess, Error, Function, VENDOR_MELLANOX};
pub use msix::Msix;
pub use reset::Saved;
pub use slots::{Slot, State};
