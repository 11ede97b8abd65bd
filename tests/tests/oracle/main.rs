//! What programs that are not ours make of the emulated HCA and of its packets.

mod datagrams;
mod ipxe;
mod opensm;
mod pyverbs;
mod skips;
mod tshark;
