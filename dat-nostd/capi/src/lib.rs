//! DAT 1.2 (uDAPL) for C programs: the 72 functions of `<dat/udat.h>` on [`dat_nostd`], in a Linux process.
//!
//! | module | subject |
//! |---|---|
//! | `calls` | the functions, as C calls them: arguments are checked and handed on |
//! | `args` | what C's pointers point to |
//! | `layout` | structures with the layout of the headers |
//! | `convert` | between those and `dat_nostd`'s |
//! | `handles` | handles as C has them |
//! | `node`, `asides` | an adapter behind its lock, and what C programs may hold pointers to |
//! | `nodes`, `reach` | from a handle to its node |
//! | `waits`, `service` | threads that wait, and the thread that moves everything on |
//! | `registry` | names, and the devices that are open under them |
//! | `process` | what is left of all that after a fork |
//! | `foreign`, `provider` | providers that programs register, and this library as one |
//!
//! What it has in common with the library of RDS is [`capi_device`]: opening devices, their locks, their threads.
//!
//! # Locks and threads
//! Every open device has a node: an adapter with one lock, and one thread of the library's, which sleeps until the HCA interrupts, polls,
//! wakes those who wait, and makes upcalls, with the lock free. Calls take the lock and do not sleep with it, but for commands
//! to the firmware. A thread that waits sleeps on a descriptor of its own, so that any signal handler ends the wait.
//!
//! # Handles
//! Handles are `dat_nostd`'s numbers in pointers: object kind, adapter, generation and slot. No call reads through one, so that a handle
//! that is null, stale, of another kind or a stray number is INVALID_HANDLE.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod args;
mod asides;
#[allow(unsafe_code)]
pub mod calls;
mod convert;
#[allow(unsafe_code)]
mod foreign;
mod handles;
pub mod layout;
mod node;
#[allow(unsafe_code)]
mod nodes;
#[allow(unsafe_code)]
mod process;
#[allow(unsafe_code)]
mod provider;
mod reach;
mod registry;
#[allow(unsafe_code)]
mod service;
mod waits;
