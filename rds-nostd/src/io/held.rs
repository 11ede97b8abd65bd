//! Requests of peers whose addresses are not known to be theirs: they wait until ARP says whose they are.

use core::net::IpAddr;

use dat_nostd::{Adapter, AddressResolution, CrHandle, Duration, Instant, Platform, Wake};

use crate::io::connect::refuse;
use crate::node::Rds;

/// So many wait at once; further ones are refused, and come again.
const PLACES: usize = 32;
/// How long one waits for an answer.
const LIMIT: Duration = Duration::from_secs(3);
/// How long from one look to the next.
const APART: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug)]
struct Request {
    /// 0 if the place is free.
    cr_bits: u64,
    until: Instant,
}

/// Requests that wait.
#[derive(Debug)]
pub(crate) struct Held {
    requests: [Request; PLACES],
    count: usize,
}

impl Held {
    pub(crate) const EMPTY: Self =
        Self { requests: [Request { cr_bits: 0, until: Instant::ORIGIN }; PLACES], count: 0 };
}

/// Whether somebody is who he says he is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The address is that of the port that the request came from, or nobody can tell.
    Right,
    /// It is another port's, or nobody's.
    Wrong,
    /// It is being looked up.
    Unknown,
}

/// Whether the port `gid` has an address, as far as that is known now.
pub(crate) fn identify<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    address: IpAddr,
    gid: [u8; 16],
) -> Identity {
    let known = match (adapter.known_gid(&address), address) {
        (Some(known), _) => known,
        (None, IpAddr::V4(address)) => match adapter.ip().map(|mut ip| ip.resolve(address)) {
            Some(AddressResolution::Known(known)) => known.0,
            Some(AddressResolution::Pending) => return Identity::Unknown,
            Some(AddressResolution::Failed) => return Identity::Wrong,
            // Without IP over InfiniBand nobody can be asked: then a port's share of connections is all that bounds it.
            None => return Identity::Right,
        },
        (None, IpAddr::V6(_)) => return Identity::Right,
    };
    if known == gid { Identity::Right } else { Identity::Wrong }
}

impl Rds<'_> {
    /// A request waits until its sender's address is known.
    pub(crate) fn hold<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, cr: CrHandle, now: Instant) {
        match self.held.requests.iter_mut().find(|request| request.cr_bits == 0) {
            Some(free) => {
                *free = Request { cr_bits: cr.bits(), until: now + LIMIT };
                self.held.count += 1;
            }
            None => self.refuse_request(adapter, cr),
        }
    }

    /// Looks whether the addresses of those that wait are known now. Answers when to look again.
    #[inline]
    pub(crate) fn look_up_held<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, now: Instant) -> Wake {
        if self.held.count == 0 { Wake::Idle } else { self.look_up(adapter, now) }
    }

    #[cold]
    fn look_up<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, now: Instant) -> Wake {
        for place in 0..PLACES {
            let Some(request) = self.held.requests.get(place).copied().filter(|request| request.cr_bits != 0)
            else {
                continue;
            };
            let cr = CrHandle::from_bits(request.cr_bits);
            let asked = adapter.cr_query(cr).map(|query| (query.remote_address, query.remote_gid));
            let identity = asked.map(|(address, gid)| identify(adapter, address, gid));
            if identity == Ok(Identity::Unknown) && now < request.until {
                continue;
            }
            if let Some(entry) = self.held.requests.get_mut(place) {
                entry.cr_bits = 0;
                self.held.count -= 1;
            }
            match identity {
                Ok(Identity::Right) => self.connection_requested(adapter, cr, now),
                Ok(_) => self.refuse_request(adapter, cr),
                // The request is gone, and whoever sent it with it.
                Err(_) => refuse(adapter, cr),
            }
        }
        if self.held.count == 0 { Wake::Idle } else { Wake::At(now + APART) }
    }
}
