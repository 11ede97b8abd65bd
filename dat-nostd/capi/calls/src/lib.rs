//! The calls of DAT 1.2 (uDAPL) as C makes them, on [`dat_nostd`], wherever they run. Without an operating system, standard library or
//! allocator; what runs them says how a device's lock is taken and how one waits: [`Node`].
//!
//! | module | subject |
//! |---|---|
//! | [`calls`] | the functions: arguments are checked and handed on |
//! | `args` | what C's pointers point to |
//! | [`layout`] | structures with the layout of the headers |
//! | `convert` | between those and `dat_nostd`'s |
//! | `handles` | handles as C has them |
//! | `node`, `state` | an adapter behind its lock |
//! | `beside`, `by_slot`, `asides` | what is known of objects beside their adapter, and what C programs may hold pointers to |
//! | `device` | bringing one up |
//! | `reach` | from a handle to its node |
//! | `waits` | calls that wait |
//! | `table` | all calls with their arguments, for those who export them |
//!
//! # Handles
//! Handles are `dat_nostd`'s numbers in pointers: object kind, adapter, generation and slot. No call reads through one, so that a handle
//! that is null, stale, of another kind or a stray number is INVALID_HANDLE.
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

#[allow(unsafe_code)]
pub mod args;
mod asides;
mod beside;
mod by_slot;
#[allow(unsafe_code)]
pub mod calls;
mod convert;
mod device;
mod handles;
pub mod layout;
mod node;
mod reach;
#[allow(unsafe_code)]
mod state;
mod table;
#[allow(unsafe_code)]
mod waits;

pub use asides::SocketAddress;
pub use beside::{Beside, Storage};
pub use calls::requests;
pub use convert::name;
pub use device::{BringUpError, NAMES, bring_up};
pub use handles::{Kinded, NULL, RawHandle, adapter_of};
pub use node::{Node, Opened, Sleep, open_ia};
pub use state::{Call, State};
pub use waits::{Pause, Turn, Wait, WaitCall};
