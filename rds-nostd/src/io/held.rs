//! Connection requests from unverified addresses, which wait until ARP resolves the address.

use dat_nostd::{CrHandle, Duration, Instant};

/// Maximum of held requests, in total and per port, whatever their addresses. The peer repeats
/// requests beyond it, which are refused.
const PLACES: usize = 32;
const PLACES_OF_PORT: usize = 2;
/// Maximum wait for ARP.
const LIMIT: Duration = Duration::from_secs(3);
/// Interval between checks.
pub(crate) const APART: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug)]
struct Request {
    cr: CrHandle,
    /// GID of the port that sent it.
    gid: [u8; 16],
    until: Instant,
}

/// All held requests.
#[derive(Debug)]
pub(crate) struct Held {
    requests: [Option<Request>; PLACES],
    count: usize,
}

impl Held {
    pub(crate) const EMPTY: Self = Self { requests: [None; PLACES], count: 0 };

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether a port can hold another request.
    pub(crate) fn has_place_for(&self, gid: [u8; 16]) -> bool {
        let theirs = self.requests.iter().flatten().filter(|request| request.gid == gid);
        self.count < PLACES && theirs.count() < PLACES_OF_PORT
    }

    /// Holds a request. Returns false if there is no space.
    pub(crate) fn add(&mut self, cr: CrHandle, gid: [u8; 16], now: Instant) -> bool {
        let has_place = self.has_place_for(gid);
        let free = self.requests.iter_mut().find(|request| has_place && request.is_none());
        let Some(free) = free else { return false };
        *free = Some(Request { cr, gid, until: now + LIMIT });
        self.count += 1;
        true
    }

    /// Returns the indices of all slots.
    pub(crate) fn places(&self) -> impl Iterator<Item = usize> + use<> {
        0..PLACES
    }

    /// Returns the request in a slot, and its deadline.
    pub(crate) fn get(&self, place: usize) -> Option<(CrHandle, Instant)> {
        let request = self.requests.get(place).copied().flatten()?;
        Some((request.cr, request.until))
    }

    /// Removes the request from a slot.
    pub(crate) fn remove(&mut self, place: usize) {
        let removed = self.requests.get_mut(place).and_then(Option::take);
        self.count -= usize::from(removed.is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port can hold two requests until they are removed, whatever their contents.
    #[test]
    fn a_port_holds_two_requests() {
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
