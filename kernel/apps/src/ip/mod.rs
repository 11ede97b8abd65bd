//! An IP host on the adapter: smoltcp on whole IP packets, the link beneath it with its addresses being the adapter's business.
//!
//! | module | subject |
//! |---|---|
//! | `link` | where packets come from and go to |
//! | `host` | address, routes, the answer to pings |
//! | `services` | `app=ip`: echo, discard, source and SHA-256 by TCP, echo and discard by UDP |
//! | `ping` | `app=ping` |
//! | `client` | `app=tcp`: sends a number of bytes, takes what comes back |
//! | `digest` | SHA-256, and bytes to send |

mod client;
mod digest;
mod host;
mod link;
mod ping;
mod services;
#[cfg(test)]
mod tests;

pub use client::{Client, ClientConfig, ClientError, ClientReport, ClientStorage, Expect};
pub use digest::Digest;
pub use host::{Host, HostConfig, PacketBuffers};
pub use link::{AdapterLink, PacketLink};
pub use ping::{Ping, PingConfig, PingReport, PingStorage};
pub use services::{Served, Service, Services, ServicesSlots, ServicesStorage};
pub use smoltcp::iface::SocketStorage as SocketSlot;

/// Bytes of a TCP socket's buffer, one each way.
pub const TCP_BUFFER: usize = 64 << 10;

/// Nanoseconds as smoltcp counts time.
fn instant(now: u64) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros((now / 1000) as i64)
}

/// A time of smoltcp's in nanoseconds, never before it.
fn nanos(at: smoltcp::time::Instant) -> u64 {
    u64::try_from(at.total_micros()).unwrap_or(0).saturating_mul(1000)
}
