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
//! | `frames`, [`Ip`] | IP over InfiniBand or Ethernet: the queue pair; ARP, neighbours, packets in and out |
//! | `net` | with the feature `net`: sockets over those packets, by smoltcp |
//! | `held` | datagrams whose sender's MAC address is being asked for |
//! | `info` | how the port stands |
//! | [`Port`] | dispatch by class, port state, timers |
//!
//! The protocols themselves are `ib-mgmt`'s. The port's owner calls [`Port::poll`] with the time, and takes the connection
//! manager's events from [`Port::cm`]; after each poll it calls [`Port::service`], which does what takes the HCA's commands.
//!
//! On Ethernet a path needs no subnet administrator. A GID is an IP address, whose MAC address is
//! found by ARP or IPv6 neighbour discovery; that of a link-local GID made of one is read from it.
//!
//! The feature `multicast` reports groups that an Ethernet port has joined by IGMP and MLD. Switches then forward their
//! frames.
//!
//! Not supported yet: IPv6 packets, and neighbour discovery on InfiniBand; IPoIB's connected mode, IP in more than one
//! partition, answers to performance management queries (they are counted).
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod frames;
mod group;
mod gsi;
mod held;
mod info;
mod inform;
mod ip;
#[cfg(feature = "net")]
pub mod net;
mod partition;
mod path;
mod port;
mod queue;
mod storage;

/// The management protocols, for who stands above the port.
pub use ib_mgmt;

pub use frames::{IP_SENDS, TxSlot};
pub use group::GroupSlot;
pub use gsi::GsiCounters;
pub use info::{PortInfo, gid_of};
pub use ip::{AddressResolution, Ip, IpConfig, IpCounters, IpError, MemberSlot};
pub use partition::Partitions;
pub use path::{PathEntry, Resolution};
pub use port::{Port, PortConfig, PortCounters};
pub use storage::{PortParts, PortStorage};
