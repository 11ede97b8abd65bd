//! Several servers joined into one fabric: each HCA of a server with `--uplink` has its cable in a
//! server with `--listen`.
//!
//! The listening server owns the fabric, its subnet manager and its faults. Each cable is a
//! separate stream. A broken stream is a cut cable, which is reconnected when the peer server is
//! reachable again. Streams are not authenticated.

pub(crate) mod address;
pub(crate) mod buffers;
pub(crate) mod door;
pub(crate) mod hub;
pub(crate) mod netdev;
mod roster;
pub(crate) mod spoke;
pub(crate) mod stream;

pub use address::Address;
pub use hub::CableState;
