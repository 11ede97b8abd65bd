//! An emulated network for emulated adapters, as a pure library: no threads, no sockets, no clock.
//!
//! A test or a server attaches ports, sends packets at one port and receives them at another. Time
//! is an argument. Everything random follows from one seed, so every run can be repeated.
//!
//! | module | subject |
//! |---|---|
//! | [`infiniband`] | packets, switch, subnet manager and administrator, losses, captures |
//! | [`ethernet`] | frames |
//! | [`faults`], [`cuts`] | injected faults, and links that go down |
//! | [`ports`] | numbers of the switch's ports |
//! | [`medium`], [`wire`] | a switch of any kind, and the cable of an adapter |
//! | [`random`] | seeded random numbers |
//! | [`work`] | the unit in which work is charged to its cause |
#![forbid(unsafe_code)]

pub mod cuts;
pub mod ethernet;
pub mod faults;
pub mod infiniband;
pub mod medium;
pub mod ports;
pub mod random;
pub mod wire;
pub mod work;
