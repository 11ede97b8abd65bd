//! Whose addresses are whose.

use core::net::IpAddr;

use dat_nostd::{Adapter, AddressResolution, Platform};

/// Whether somebody is who he says he is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The address is that of the port that the request came from, or nobody can tell.
    Right,
    /// It is another port's, or nobody's.
    Wrong,
    /// It is being looked up, or could be.
    Unknown,
}

/// Whether the port `gid` has an address, as far as that is known now. The network is asked only if `may_ask`: that takes an entry of the
/// table of neighbours, and three broadcasts if nobody answers.
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
            // Without IP over InfiniBand nobody can be asked: then a port's share of connections is all that bounds it.
            None => return Identity::Right,
        },
        // Without neighbour discovery, IPv6 addresses outside the static table cannot be verified.
        // Only the share of a port bounds their connections.
        (None, IpAddr::V6(_)) => return Identity::Right,
    };
    if known == gid { Identity::Right } else { Identity::Wrong }
}
