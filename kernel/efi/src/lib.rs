//! What UEFI programs share: the firmware's console, a report in a file beside the program, the self-test of all cards.
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

#[allow(unsafe_code)]
pub mod console;
#[allow(unsafe_code)]
pub mod entry;
#[allow(unsafe_code)]
pub mod file;
mod path;
#[allow(unsafe_code)]
pub mod selftest;
