//! Applications on the sockets of an adapter's port ([`dat_nostd::net`]).
//!
//! | module | subject |
//! |---|---|
//! | `services` | `app=ip`: echo, discard, source and SHA-256 by TCP, echo and discard by UDP |
//! | `ping` | `app=ping` |
//! | `client` | `app=tcp`: sends a number of bytes, takes what comes back |
//! | `digest` | SHA-256, and bytes to send |

mod client;
mod digest;
mod ping;
mod services;
#[cfg(test)]
mod tests;

pub use client::{Client, ClientConfig, ClientError, ClientReport, ClientStorage, Expect};
pub use digest::Digest;
pub use ping::{Ping, PingConfig, PingReport, PingStorage};
pub use services::{Served, Service, Services, ServicesSlots, ServicesStorage};

/// Bytes of a TCP socket's buffer, one each way.
pub const TCP_BUFFER: usize = 64 << 10;
