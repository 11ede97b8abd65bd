//! DAT 1.2 and RDS for firmware in C: a static library without operating system, libc, threads or
//! allocator. The firmware supplies the functions of a [`MlxPlatform`].
//!
//! | module | subject |
//! |---|---|
//! | `abi` | the structures of the header |
//! | `platform` | the firmware's functions, as the driver's platform |
//! | `function` | the HCA's PCI function: reset and bus mastering |
//! | `memory` | memory that the firmware donates |
//! | `registers` | BAR0 |
//! | `node` | the one HCA, with its adapter and sockets |
//! | `place` | storage of the one HCA, for one call at a time |
//! | `sockets` | sockets by number |
//! | `life` | `mlx_open`, `mlx_poll`, `mlx_close` |
//! | `calls` | the exported calls of DAT and RDS |
//! | `text` | log texts in a fixed buffer |
//!
//! The calls are those of libdat and librds, from [`dat_calls`] and [`rds_calls`]. Blocking calls
//! make progress and let the machine idle; otherwise `mlx_poll` makes progress. The library refuses
//! a call from an interrupt, or from a platform function, while another call runs.
//!
//! On a host, where only tests run, the library exports no C names, because libdat and librds
//! export them.
#![cfg_attr(any(target_os = "none", target_os = "uefi"), no_std)]
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod abi;
#[cfg(any(target_os = "none", target_os = "uefi"))]
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

/// Reports a panic to the firmware, which must not return.
#[cfg(any(target_os = "none", target_os = "uefi"))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    platform::stop(info)
}
