//! Linux guests for this project's tests and demonstration.
//!
//! | module | what |
//! |---|---|
//! | [`judge`] | common parts of tests with guests |
//! | [`power_on`] | time from power on to an Active port, of Linux and the unikernel |
//! | [`program`] | programs of this project for guests |
//! | `demo` | the half of `cargo xtask demo --with-linux` with Linux |

mod demo;
pub mod judge;
pub mod power_on;
pub mod program;

pub use demo::Demo;
