//! Unmodified Linux guests on emulated HCAs.

mod action;
mod c_programs;
mod cards;
mod diags;
mod ethernet;
mod faults;
mod guests;
mod handover;
mod ip;
mod joined;
mod node;
mod objects;
mod page;
mod passthrough;
mod probe;
mod programs;
mod rds;
#[path = "../boot/uefi.rs"]
mod uefi;
mod unikernel;
mod verbs;
