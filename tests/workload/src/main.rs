//! The image of a test partner: `program=` on the command line selects it.
#![cfg_attr(target_os = "none", no_std, no_main)]
#![deny(unsafe_code)]
#![allow(clippy::result_large_err, reason = "an error contains its text, and there is no heap")]

#[cfg(target_os = "none")]
mod image;

/// A host has nothing to boot.
#[cfg(not(target_os = "none"))]
fn main() {}
