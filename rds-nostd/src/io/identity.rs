//! Verification that an IP address belongs to the port that uses it.

use core::net::IpAddr;

use dat_nostd::{Adapter, AddressResolution, Platform};

/// Result of the verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The address belongs to the port, or cannot be verified.
    Right,
    /// The address belongs to another port, or to none.
    Wrong,
    /// The address is not resolved yet.
    Unknown,
}

/// Checks whether an address belongs to the port `gid`. Starts a resolution only if `may_ask`,
/// because that costs an entry of the ARP table, and three broadcasts without a reply.
pub(crate) fn identify<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    (address, gid): (IpAddr, [u8; 16]),
    may_ask: bool,
) -> Identity {
    let known = match (adapter.known_gid(&address), address) {
        (Some(known), _) => known,
        (None, IpAddr::V4(address)) => match adapter.ip().map(|mut ip| {
            let asked = may_ask || ip.neighbours().any(|neighbour| neighbour.ip == address);
            if asked { ip.resolve(address) } else { AddressResolution::Pending }
        }) {
            Some(AddressResolution::Known(known)) => known.0,
            Some(AddressResolution::Pending) => return Identity::Unknown,
            Some(AddressResolution::Failed) => return Identity::Wrong,
            // Without IP over InfiniBand no address can be verified. Only the share of a port
            // bounds its connections.
            None => return Identity::Right,
        },
        // Without neighbour discovery, IPv6 addresses outside the static table cannot be verified.
        // Only the share of a port bounds their connections.
        (None, IpAddr::V6(_)) => return Identity::Right,
    };
    if known == gid { Identity::Right } else { Identity::Wrong }
}
