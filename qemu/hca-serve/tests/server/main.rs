//! The server over real sockets, without QEMU: somebody else's client, a client that says everything that the protocol allows
//! and much that it does not, and drivers on served HCAs that move data meanwhile.

mod attacks;
mod hostile;
mod joined;
mod private;
mod program;
mod protocol;
mod shares;
mod stock;
mod support;
mod wakeups;
mod whole;
