//! How IP is used on a port, why packets are refused, what went by.

use core::fmt;
use core::net::Ipv4Addr;

use ib_mgmt::ipoib::{NeighbourConfig, NeighbourCounters};
use ib_types::Gid;

use crate::frames::FRAME_LEN;

/// How IP is used on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpConfig {
    /// Leading bits of the address that all neighbours share.
    pub prefix_len: u8,
    /// Who forwards packets for others than neighbours.
    pub gateway: Option<Ipv4Addr>,
    /// Longest packet, bytes, if the broadcast group or the Ethernet port allows it: at most 4092.
    pub max_mtu: u16,
    /// Times of ARP.
    pub neighbour: NeighbourConfig,
}

impl IpConfig {
    /// A /24 without a gateway, the group's MTU.
    pub const DEFAULT: IpConfig = IpConfig {
        prefix_len: 24,
        gateway: None,
        max_mtu: FRAME_LEN as u16 - 4,
        neighbour: NeighbourConfig::DEFAULT,
    };
}

impl Default for IpConfig {
    fn default() -> Self {
        IpConfig::DEFAULT
    }
}

/// Why a packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpError {
    /// There is no queue pair yet, or the broadcast group has not been joined.
    Down,
    /// Longer than the MTU.
    TooLong,
    /// No IPv4 packet.
    Malformed,
    /// Too many packets wait, for this neighbour or at all.
    Full,
    /// Nobody answers at that address.
    Unreachable,
    /// No neighbour's address, and there is no gateway.
    NoRoute,
}

impl fmt::Display for IpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IpError::Down => "IP is down: no queue pair, or the broadcast group has not been joined",
            IpError::TooLong => "the packet is longer than the MTU",
            IpError::Malformed => "not an IPv4 packet",
            IpError::Full => "too many packets wait to be sent",
            IpError::Unreachable => "nobody answers at that address",
            IpError::NoRoute => "no route to that address",
        })
    }
}

impl core::error::Error for IpError {}

/// What went by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpCounters {
    /// Frames received, ARP included.
    pub received: u64,
    /// Frames handed to the HCA, ARP included.
    pub sent: u64,
    /// Frames received that were too short or too long, and completions that cannot be.
    pub bad: u64,
    /// Packets dropped because nobody read them in time.
    pub overrun: u64,
    /// Frames of other protocols than IPv4 and ARP; IPv6 is one of them.
    pub other_protocol: u64,
    /// Packets given up because their neighbour, or the path to it, was not found.
    pub unreachable: u64,
    /// Frames that the HCA did not send.
    pub send_errors: u64,
    /// Joins that the subnet administrator granted, rejoins included.
    pub joins: u64,
    /// Joins that it refused, or did not answer.
    pub refused_joins: u64,
    /// Failed attempts to make the queue pair or to attach it to a group.
    pub setup_failures: u64,
    /// ARP.
    pub arp: NeighbourCounters,
}

/// What is known about the port that has an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressResolution {
    /// Its GID.
    Known(Gid),
    /// Being asked for; ask again when [`Port::poll`](crate::Port::poll) has run.
    Pending,
    /// Nobody answers.
    Failed,
}
