//! UEFI programs: the self-test of all cards, and boot over RDMA. They share the firmware's console, a report in a file beside
//! the program, settings in a variable.
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

#[allow(unsafe_code)]
mod arguments;
#[allow(unsafe_code)]
pub mod boot;
pub mod bootset;
#[allow(unsafe_code)]
pub mod console;
#[allow(unsafe_code)]
pub mod entry;
#[allow(unsafe_code)]
pub mod file;
#[allow(unsafe_code)]
mod memory;
mod path;
#[allow(unsafe_code)]
pub mod selftest;
#[allow(unsafe_code)]
mod variable;
