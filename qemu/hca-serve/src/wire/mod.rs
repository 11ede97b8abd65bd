//! The vfio-user protocol on a socket: messages as bytes, and a client's stream of them.

pub mod channel;
mod input;
pub mod protocol;
