//! One port, InfiniBand or Ethernet (RoCE v2): QP1, dispatch of management datagrams, subnet
//! administration client, connection manager, IP over InfiniBand.
//!
//! | layer | subject |
//! |---|---|
//! | `queue` | memory and completions of datagram queues |
//! | `gsi` | QP1: datagrams in and out |
//! | `partition` | P_Keys, by value |
//! | `path`, `inform` | paths to other ports, remembered; subscriptions to ports that come and go |
//! | `group` | multicast groups: joined, kept, left |
//! | `ipoib`, [`Ip`] | IP over InfiniBand: the queue pair; ARP, neighbours, packets in and out |
//! | `info` | how the port stands |
//! | [`Port`] | dispatch by class, port state, timers |
//!
//! The protocols themselves are `ib-mgmt`'s. The port's owner calls [`Port::poll`] with the time, and takes the connection
//! manager's events from [`Port::cm`]; after each poll it calls [`Port::service`], which does what takes the HCA's commands.
//!
//! On Ethernet a path needs no subnet administrator. The MAC address of a peer is taken from its
//! link-local GID.
//!
//! Not supported yet: ARP, IP and other GIDs on Ethernet; IPv6 and its neighbour discovery, IPoIB's
//! connected mode, IP in more than one partition, answers to performance management queries (they
//! are counted).
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod group;
mod gsi;
mod info;
mod inform;
mod ip;
mod ipoib;
mod partition;
mod path;
mod port;
mod queue;
mod storage;

/// The management protocols, for who stands above the port.
pub use ib_mgmt;

pub use group::GroupSlot;
pub use gsi::GsiCounters;
pub use info::PortInfo;
pub use ip::{AddressResolution, Ip, IpConfig, IpCounters, IpError};
pub use ipoib::{IP_SENDS, TxSlot};
pub use partition::Partitions;
pub use path::{PathEntry, Resolution, driver_path};
pub use port::{Port, PortConfig, PortCounters};
pub use storage::{PortParts, PortStorage};
