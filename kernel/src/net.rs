//! IP sockets on an adapter's port, InfiniBand or Ethernet: ICMP, TCP and UDP by `smoltcp`.
//!
//! An [`Adapter`](crate::adapter::Adapter) is the [`PacketLink`] of a [`Host`]; [`adapter::wait_ip_up`](crate::adapter::wait_ip_up)
//! waits until it moves packets. `examples/udp_echo.rs` is a complete application:
//!
//! ```ignore
#![doc = include_str!("../examples/udp_echo.rs")]
//! ```
pub use dat_nostd::net::*;
