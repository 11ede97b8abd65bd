//! Requests of peers whose addresses are not known to be theirs: they wait until ARP says whose they are.

use dat_nostd::{CrHandle, Duration, Instant};

/// So many wait at once, and so many of one port, whatever addresses they give; further ones are refused, and come again.
const PLACES: usize = 32;
const PLACES_OF_PORT: usize = 2;
/// How long one waits for an answer.
const LIMIT: Duration = Duration::from_secs(3);
/// How long from one look to the next.
pub(crate) const APART: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug)]
struct Request {
    /// 0 if the place is free.
    cr_bits: u64,
    /// The port that it came from.
    gid: [u8; 16],
    until: Instant,
}

impl Request {
    const NONE: Self = Self { cr_bits: 0, gid: [0; 16], until: Instant::ORIGIN };
}

/// Requests that wait.
#[derive(Debug)]
pub(crate) struct Held {
    requests: [Request; PLACES],
    count: usize,
}

impl Held {
    pub(crate) const EMPTY: Self = Self { requests: [Request::NONE; PLACES], count: 0 };

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there is a place for another request of a port.
    pub(crate) fn has_place_for(&self, gid: [u8; 16]) -> bool {
        let theirs =
            self.requests.iter().filter(|request| request.cr_bits != 0 && request.gid == gid).count();
        self.count < PLACES && theirs < PLACES_OF_PORT
    }

    /// A request waits from now on; false if there is no place.
    pub(crate) fn add(&mut self, cr: CrHandle, gid: [u8; 16], now: Instant) -> bool {
        let has_place = self.has_place_for(gid);
        let free = self.requests.iter_mut().find(|request| has_place && request.cr_bits == 0);
        let Some(free) = free else { return false };
        *free = Request { cr_bits: cr.bits(), gid, until: now + LIMIT };
        self.count += 1;
        true
    }

    /// The places of those that wait.
    pub(crate) fn places(&self) -> impl Iterator<Item = usize> + use<> {
        0..PLACES
    }

    /// The request in a place, and until when it waits.
    pub(crate) fn get(&self, place: usize) -> Option<(CrHandle, Instant)> {
        let request = self.requests.get(place).filter(|request| request.cr_bits != 0)?;
        Some((CrHandle::from_bits(request.cr_bits), request.until))
    }

    /// The request in a place waits no more.
    pub(crate) fn remove(&mut self, place: usize) {
        if let Some(request) = self.requests.get_mut(place).filter(|request| request.cr_bits != 0) {
            request.cr_bits = 0;
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port has two places, whatever it asks for, until they are given back.
    #[test]
    fn no_port_takes_all_places() {
        let (mut held, now) = (Held::EMPTY, Instant::ORIGIN);
        let cr = |number: u8| CrHandle::from_bits(u64::from(number));
        for number in 1..=9 {
            assert_eq!(held.add(cr(number), [1; 16], now), number <= 2);
        }
        for port in 2..=17 {
            assert!(held.add(cr(port), [port; 16], now), "another port");
        }
        let first = held.places().find(|&place| held.get(place).is_some_and(|(found, _)| found == cr(1)));
        held.remove(first.expect("it waits"));
        assert!(held.has_place_for([1; 16]) && held.add(cr(10), [1; 16], now));
        assert!(!held.has_place_for([1; 16]));
    }
}
