//! Tests of the server over real sockets, without QEMU. Clients are a third-party client, a client
//! that sends every legal message and many illegal ones, and drivers that move data meanwhile.

mod attacks;
mod crowd;
mod hostile;
mod joined;
mod page;
mod private;
mod program;
mod protocol;
mod shares;
mod stock;
mod support;
mod timer;
mod trunks;
mod uplinks;
mod wakeups;
mod whole;
