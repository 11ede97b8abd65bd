//! Unmodified Linux guests: they test the emulated HCA and are peers of the unikernel.
//!
//! | module | what |
//! |---|---|
//! | `recipe`, `image`, `files` | the kernels, and images made of Debian packages |
//! | `kind` | description of a guest: image, processors, memory, HCAs |
//! | `overlay`, `program` | additions at each start: first process, programs of this project |
//! | `guest` | one running guest, which runs scripts |
//! | `network` | the Ethernet between guests |
//! | `lab` | several guests on one fabric |
//! | `judge` | common parts of tests with guests |
//! | `ready`, `power_on` | time from power on to an Active port, of Linux and the unikernel |
//! | `run` | `cargo xtask guests` |
//! | `demo` | the half of `cargo xtask demo --with-linux` with Linux |

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
