//! DAT 1.2 (uDAPL) for C programs: the 72 functions of `<dat/udat.h>` on [`dat_nostd`], in a Linux process.
//!
//! | module | subject |
//! |---|---|
//! | `calls` | the functions under their names, and those that open IAs |
//! | `waits` | calls that wait, in which threads can be cancelled |
//! | `node`, `nodes` | a device that is open, behind its lock; all of them |
//! | `service` | the thread that moves everything on |
//! | `registry` | names, and the devices that are open under them |
//! | `process` | what is left of all that after a fork |
//! | `foreign`, `provider` | providers that programs register, and this library as one |
//!
//! What the calls do is in [`dat_calls`], which firmware shares. What it has in common with the library of RDS is [`capi_device`]: opening devices, their locks, their threads.
//!
//! # Locks and threads
//! Every open device has a node: an adapter with one lock, and one thread of the library's, which sleeps until the HCA interrupts, polls,
//! wakes those who wait, and makes upcalls, with the lock free. Calls take the lock and do not sleep with it, but for commands
//! to the firmware. A thread that waits sleeps on a descriptor of its own, so that any signal handler ends the wait.
//! A thread can be cancelled only in that sleep, except in calls that only post or dequeue.
#![deny(unsafe_code)]

mod agent;
mod binding;
#[allow(unsafe_code)]
pub mod calls;
#[allow(unsafe_code)]
mod foreign;
#[allow(unsafe_code)]
mod node;
#[allow(unsafe_code)]
mod nodes;
#[allow(unsafe_code)]
mod process;
#[allow(unsafe_code)]
mod provider;
mod registry;
mod service;
#[allow(unsafe_code)]
mod waits;

pub use dat_calls::layout;
