//! What crosses crates, in one process: N nodes, each a driver with a platform of its own on an emulated HCA, on one fabric,
//! under one seeded scheduler and one virtual clock. No threads, no system calls: a run is a function of its seed.
//!
//! | module | subject |
//! |---|---|
//! | [`memory`] | a node's DMA region, as the node and as its HCA see it |
//! | [`keep`] | what stays for the rest of the process on purpose |
//! | [`world`] | clock, devices, fabric, scheduler |
//! | [`platform`] | [`driver_mlx::Platform`] on the world |
//! | [`node`] | a node: brought up, port Active |
//! | [`dat`] | adapters: the full stack of a node |
//! | [`net`] | any number of adapters with DAT objects |
//! | [`pair`] | two adapters with their DAT objects, in a blocking style |
//! | [`player`] | a consumer that does random things and keeps account of all of them |
//! | [`readme`] | tables in READMEs that have to be what tests say |
//! | [`seeds`] | tests that are functions of a seed |
//! | [`verbs`] | a reliable connection on the driver alone |
//!
//! What stands on it: the target `in_process` and the bench `instructions` of the package `tests`, and tests of libraries. No
//! library's ordinary build depends on it.

mod bounce;
pub mod dat;
mod kept;
pub mod lives;
pub mod memory;
pub mod net;
pub mod node;
pub mod pair;
pub mod platform;
pub mod player;
pub mod rds;
pub mod readme;
pub mod seeds;
mod trouble;
pub mod verbs;
pub mod world;

pub use kept::keep;
pub use memory::{Memory, SOLE_ACCESS, foreign, host_region};
pub use node::Node;
pub use platform::{ModelBar, ModelPlatform, ModelRegister};
pub use trouble::Trouble;
pub use world::{Next, Stalled, Task, World, WorldConfig};
