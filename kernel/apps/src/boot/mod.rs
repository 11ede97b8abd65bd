//! Boot images over RDS and RDMA: the protocol, its server (`app=serve`) and its client (`rdmaboot.efi`).
//!
//! The client sends a [`Request`] for a part of an image to port [`PORT`] of the server. The [`Reply`] contains the image's size
//! and checksum, and a cookie of the part in the server's memory. The client reads the part by RDMA and requests the next one.
//!
//! The server keeps no state of a client but the last cookie, so that a server that restarts continues with any client. An image
//! that changes meanwhile has another checksum, which ends the transfer.

mod client;
mod message;
mod server;
mod settings;

pub use client::{Client, FetchError, Progress, Store};
pub use message::{MAX_NAME, MAX_PART, Malformed, MessageKind, Name, PORT, Reply, Request, Status, VERSION};
pub use server::{Image, Served, Server};
pub use settings::{Settings, SettingsError};

#[cfg(test)]
mod tests;
