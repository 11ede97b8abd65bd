//! Several servers joined into one fabric: each HCA of a server with `--uplink` has its cable in a server with `--listen`.
//!
//! The fabric, its subnet manager and its faults are those of the server that listens. A cable is a stream of its own; a stream
//! that breaks is a cable that is cut, and is mended when the other server answers again. Streams are not authenticated.

pub(crate) mod address;
pub(crate) mod hub;
pub(crate) mod spoke;
pub(crate) mod stream;

pub use address::Address;
pub use hub::CableState;
