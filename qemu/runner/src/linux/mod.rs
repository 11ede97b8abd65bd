//! Unmodified Linux guests: the outside judges of the emulated HCA and the peers of the unikernel.
//!
//! | module | what |
//! |---|---|
//! | `recipe`, `image`, `files` | the kernels, and what is made of Debian packages once |
//! | `kind` | what one guest is: image, processors, memory, HCAs |
//! | `overlay`, `program` | what a guest gets at each start: its first process, programs of ours |
//! | `guest` | one running guest, which takes scripts and answers |
//! | `network` | the Ethernet between guests |
//! | `lab` | several guests on one fabric |
//! | `judge` | what tests with guests have in common |
//! | `ready`, `power_on` | time from power on to an Active port; measured for Linux and for the unikernel |
//! | `run` | `cargo xtask guests` |
//! | `demo` | the half of `cargo xtask demo --with-linux` that is about Linux |

mod cpio;
mod demo;
mod files;
mod guest;
mod image;
pub mod judge;
mod kind;
mod lab;
mod network;
mod overlay;
pub mod power_on;
pub mod program;
mod ready;
mod recipe;
mod run;

pub use demo::Demo;
pub use guest::{Answer, Guest, KernelMessage, Options as GuestOptions};
pub use image::{Image, image};
pub use kind::{Group, Kind};
pub use lab::{Cable, Lab, Options};
pub use network::Hub;
pub use overlay::Settings;
pub use program::compile;
pub use ready::Ready;
pub use recipe::{Kernel, Recipe};
pub use run::{Run, run};
