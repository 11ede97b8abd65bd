//! Adapters on one fabric of emulated HCAs in this process.
#![allow(unused_imports)] // Each test binary uses what it needs.

pub use harness::net::*;
