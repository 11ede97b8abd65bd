//! An emulated ConnectX-5 InfiniBand HCA, as a pure library: no threads, no sockets, no clock. Its network is [`rdma_fabric`].
//!
//! The device is driven from outside: a guest's register accesses enter through [`BarPort`], configuration space
//! through [`Hca::config_read`] and [`Hca::config_write`], guest memory, interrupts and the wire through the traits of
//! [`seams`], and time as an argument of [`Hca::poll`], which does a bounded amount of work a call.
//!
//! | module | subject |
//! |---|---|
//! | [`seams`], [`bar`], [`pci`] | what the guest and the host side of the device touch |
//! | [`hca`] | the device as it is driven: `poll`, reset, register effects |
//! | [`card`], [`habits`] | the kinds of cards, and what real ones do besides |
//! | `registers`, `doorbell` | what register writes ask for, and what UAR pages ring |
//! | [`device`] | the device's parts and life cycle |
//! | `cmd` | command interface and command handlers, methods of the parts that they are about |
//! | [`meter`] | what a guest may make its HCA cost: work per call, and host memory |
//! | `object` | UAR, EQ, CQ, memory keys, device memory, QP, shared receive queues, counters |
//! | [`port`] | the InfiniBand port: management agent, tables, counters |
//! | [`run`] | requests to other devices without packets |
//! | [`transport`] | QP data path in the IBTA's packet format |
//! | [`turn`] | a turn of a device on its cable |
//! | [`scheduler`], [`world`] | order of the turns of several devices, and their network |
//!
//! ```
//! use hca_model::seams::NoMemory;
//! use hca_model::{Hca, Interrupts, Profile};
//! use rdma_fabric::wire::Unplugged;
//!
//! struct Nobody;
//! impl Interrupts for Nobody {
//!     fn raise(&mut self, _vector: u16) {}
//! }
//!
//! let mut hca = Hca::new(Profile::node(0));
//! // Memory decoding, without which registers do not answer.
//! hca.config_write(4, &[0x02, 0x00]);
//! let bar = hca.bar();
//! let mut word = [0; 4];
//! for now in [0, 5_000_000] {
//!     hca.poll(now, &NoMemory, &mut Nobody, &mut Unplugged);
//! }
//! bar.read(0x1fc, &mut word);
//! assert_eq!(word[0] >> 7, 0, "`initializing` has cleared");
//! bar.read(0x004, &mut word);
//! assert_eq!(word[..2], [0, 5], "command interface revision");
//! ```
#![forbid(unsafe_code)]

pub mod adversary;
pub mod bar;
pub mod caps;
pub mod card;
mod cmd;
pub mod device;
mod doorbell;
mod guest_memory;
pub mod habits;
pub mod hca;
pub mod health;
mod icmd;
pub mod log;
pub mod measured;
pub mod meter;
mod object;
pub mod pages;
pub mod pci;
pub mod port;
pub mod profile;
pub mod recorder;
mod registers;
mod restart;
pub mod run;
pub mod scheduler;
pub mod seams;
pub mod spec;
pub mod transport;
pub mod turn;
mod vsc;
pub mod world;

#[cfg(test)]
mod tests;

pub use bar::BarPort;
pub use card::Card;
pub use habits::Habits;
pub use hca::Hca;
pub use object::census::Census;
pub use profile::Profile;
pub use seams::{DmaFault, GuestMemory, Interrupts, Io, Peers, copy_in_parts};
pub use spec::DeviceSpec;
