//! DAT 1.2 and RDS for firmware in C: a static library without an operating system, libc, threads or allocator. What it needs of the machine
//! are the functions of a [`MlxPlatform`] that the firmware gives it.
//!
//! | module | subject |
//! |---|---|
//! | `abi` | the structures of the header |
//! | `platform` | the firmware's functions, as the driver's platform |
//! | `function` | the HCA's PCI function: reset and bus mastering |
//! | `memory` | memory that the firmware gives |
//! | `registers` | BAR0 |
//! | `node` | the one HCA, with its adapter and sockets |
//! | `place` | where it is, for one call at a time |
//! | `sockets` | sockets by number |
//! | `life` | `mlx_open`, `mlx_poll`, `mlx_close` |
//! | `calls` | the calls of DAT and of RDS under their names |
//! | `text` | texts for people, in a buffer |
//!
//! The calls are those of libdat and librds, from [`dat_calls`] and [`rds_calls`]. Calls that wait move everything on meanwhile, and let the
//! machine idle between; everything else moves on in `mlx_poll`. One call at a time: who calls from an interrupt or from one of the
//! platform's functions, while another call is under way, is refused.
//!
//! On a host the library has no names for C, which are libdat's and librds's there: only its tests run.
#![cfg_attr(target_os = "none", no_std)]
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod abi;
#[cfg(target_os = "none")]
#[allow(unsafe_code)]
mod calls;
#[allow(unsafe_code)]
mod function;
#[allow(unsafe_code)]
pub mod life;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod node;
#[allow(unsafe_code)]
mod place;
#[allow(unsafe_code)]
mod platform;
#[allow(unsafe_code)]
pub mod registers;
mod sockets;
mod text;

pub use abi::{MlxConfig, MlxPlatform};
pub use node::Node;

/// A mistake of the library's: the firmware hears of it, and does not come back.
#[cfg(target_os = "none")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    platform::stop(info)
}
