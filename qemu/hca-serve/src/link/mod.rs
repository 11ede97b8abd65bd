//! Several servers joined into one network: a server with `--uplink` has the cables of its InfiniBand
//! HCAs, and one of its Ethernet switch, in a server with `--listen`.
//!
//! The listening server owns the fabric, its subnet manager and its faults. Each cable is a
//! separate stream. A broken stream is a cut cable, which is reconnected when the peer server is
//! reachable again. Streams are not authenticated.

pub(crate) mod address;
pub(crate) mod buffers;
mod cable;
pub(crate) mod door;
pub(crate) mod hub;
pub(crate) mod netdev;
pub(crate) mod notices;
mod roster;
pub(crate) mod spoke;
pub(crate) mod stream;
pub(crate) mod trunk;

pub use address::Address;
pub use hub::CableState;
pub use netdev::Ends;
