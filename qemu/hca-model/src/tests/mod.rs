//! Tests that drive the device as a guest does: through BAR0, configuration space and memory.

mod adversary;
mod bring_up;
mod budget;
mod cards;
mod compression;
mod delivery;
mod devx;
mod foreign;
pub(crate) mod guest;
mod hostile;
mod large_pages;
mod memic;
mod nic;
mod objects;
mod port;
mod queues;
mod registers;
mod take_over;
