//! Unmodified Linux guests: they test the emulated HCA and are peers of the unikernel.
//!
//! | module | what |
//! |---|---|
//! | `recipe`, `image`, `files` | the kernels, and images made of Debian packages |
//! | `kind` | description of a guest: image, processors, memory, HCAs |
//! | `overlay`, `program` | additions at each start: first process, programs of the user |
//! | `guest` | one running guest, which runs scripts |
//! | `network` | the Ethernet between guests |
//! | `lab` | several guests on one fabric |
//! | `ready` | time from power on to an Active port |
//! | `run` | guests that run a script, and unikernels beside them |

mod cpio;
mod files;
mod guest;
mod image;
mod kind;
mod lab;
mod network;
mod overlay;
mod program;
mod ready;
mod recipe;
mod run;

pub use guest::{Answer, Guest, KernelMessage, Options as GuestOptions};
pub use image::{Image, image};
pub use kind::{Group, Kind, WORDS, Word};
pub use lab::{Cable, Lab, Options};
pub use network::Hub;
pub use overlay::Settings;
pub use program::compile;
pub use ready::Ready;
pub use recipe::{Kernel, Recipe};
pub use run::{Run, Unikernel, run};
