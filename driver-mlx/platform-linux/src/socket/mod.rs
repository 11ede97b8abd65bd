//! An emulated HCA behind the socket of a vfio-user server.

mod client;
mod device;
mod wire;

pub(crate) use client::Client;
pub(crate) use device::{Device, open};
