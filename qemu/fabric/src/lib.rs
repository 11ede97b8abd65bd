//! An emulated network for emulated adapters, as a pure library: no threads, no sockets, no clock.
//!
//! A test or a server attaches ports, sends packets at one port and receives them at another. Time
//! is an argument. Everything random follows from one seed, so every run can be repeated.
//!
//! | module | subject |
//! |---|---|
//! | [`infiniband`] | packets, switch, subnet manager and administrator |
//! | [`ethernet`] | frames and switch |
//! | [`packet`] | a packet of any medium, its ICRC computed lazily |
//! | `links`, `egress`, `buffers` | links of a switch, the queue of each, and buffers of packets |
//! | [`losses`], [`counters`] | losses by flow, and packets by what happened to them |
//! | [`capture`] | pcapng |
//! | [`faults`], [`cuts`] | injected faults, and links that go down |
//! | [`agenda`] | members of a set that have work, and deadlines |
//! | [`ports`] | numbers of the switch's ports |
//! | [`medium`], [`wire`] | an InfiniBand fabric and an Ethernet switch, and the cable of an adapter |
//! | [`random`] | seeded random numbers |
//! | [`work`] | the unit in which work is charged to its cause |
#![forbid(unsafe_code)]

pub mod agenda;
mod buffers;
pub mod capture;
pub mod counters;
pub mod cuts;
mod egress;
pub mod ethernet;
pub mod faults;
pub mod infiniband;
mod links;
pub mod losses;
pub mod medium;
pub mod packet;
pub mod ports;
pub mod random;
pub mod wire;
pub mod work;
