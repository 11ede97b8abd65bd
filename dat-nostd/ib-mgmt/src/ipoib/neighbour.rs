//! The neighbour table: maps IPv4 addresses to hardware addresses, by ARP (RFC 826). Entries have
//! the states of neighbour unreachability detection (RFC 4861, section 7.3), as hosts use them for
//! ARP too. No I/O: the owner sends the requests and replies that [`Neighbours::poll`] and
//! [`Neighbours::input`] return.
//!
//! | state | what it means | what ends it |
//! |---|---|---|
//! | incomplete | broadcast requests are sent | a reply; or `tries` without one: failed |
//! | reachable | confirmed recently | time: stale |
//! | stale | the address was right once | use: delay |
//! | delay | in use, not confirmed | a message of the neighbour: reachable; time: probe |
//! | probe | requests to the neighbour only | a reply: reachable; none: incomplete |
//! | failed | no reply | time: freed |

use core::net::Ipv4Addr;
use ib_types::{Duration, Instant, QpNumber, Wake};

use super::{Arp, ArpOperation, HwAddr};

/// Times of a neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourConfig {
    /// Time between requests.
    pub retransmit: Duration,
    /// Broadcast requests before an address counts as failed; unicast requests before a neighbour
    /// is requested by broadcast again.
    pub tries: u8,
    /// Time for which a reply is valid without confirmation.
    pub reachable: Duration,
    /// Time for which a stale entry is used before it is probed.
    pub delay: Duration,
    /// Time for which a failure is stored.
    pub failed: Duration,
}

impl NeighbourConfig {
    /// The usual times: 1 s, 3 tries, 30 s, 5 s; a failure is stored for 1 s.
    pub const DEFAULT: NeighbourConfig = NeighbourConfig {
        retransmit: Duration::from_secs(1),
        tries: 3,
        reachable: Duration::from_secs(30),
        delay: Duration::from_secs(5),
        failed: Duration::from_secs(1),
    };
}

impl Default for NeighbourConfig {
    fn default() -> Self {
        NeighbourConfig::DEFAULT
    }
}

/// State of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum NeighbourState {
    /// No entry.
    #[default]
    Empty = 0,
    /// Requested by broadcast.
    Incomplete,
    /// Confirmed recently.
    Reachable,
    /// Resolved, not confirmed recently.
    Stale,
    /// Resolved and in use, soon to be probed.
    Delay,
    /// Resolved and being probed.
    Probe,
    /// No reply.
    Failed,
}

/// Slot of one neighbour.
#[derive(Clone, Copy, Debug)]
pub struct NeighbourSlot {
    state: NeighbourState,
    tries_left: u8,
    ip: Ipv4Addr,
    hw: HwAddr,
    /// When the state ends, or the next request is due.
    deadline: Instant,
    used: Instant,
}

impl NeighbourSlot {
    /// A free entry; all bytes zero.
    pub const EMPTY: NeighbourSlot = NeighbourSlot {
        state: NeighbourState::Empty,
        tries_left: 0,
        ip: Ipv4Addr::UNSPECIFIED,
        hw: HwAddr { flags: 0, qpn: QpNumber::new(0), gid: crate::Gid::ZERO },
        deadline: Instant::ORIGIN,
        used: Instant::ORIGIN,
    };

    fn is_known(&self) -> bool {
        use NeighbourState::{Delay, Probe, Reachable, Stale};
        matches!(self.state, Reachable | Stale | Delay | Probe)
    }
}

/// A copy of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The IP address.
    pub ip: Ipv4Addr,
    /// The hardware address, if resolved.
    pub hw: Option<HwAddr>,
    /// State.
    pub state: NeighbourState,
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourLookup {
    /// The hardware address.
    Known(HwAddr),
    /// A request is pending; call [`Neighbours::poll`].
    Pending,
    /// No reply.
    Failed,
    /// All entries have a pending request.
    Full,
}

/// Action for the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the table leaves it to its owner"]
pub enum NeighbourAction {
    /// Send a request for `ip`: to the neighbour only, or (`None`) by broadcast.
    Request {
        /// Requested address.
        ip: Ipv4Addr,
        /// Destination of the request.
        to: Option<HwAddr>,
    },
    /// Nothing for now.
    Idle(Wake),
}

/// Event counters, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NeighbourCounters {
    /// Requests sent by broadcast.
    pub requests: u64,
    /// Requests sent to a resolved neighbour.
    pub probes: u64,
    /// Requests for the own address, each with a reply.
    pub answered: u64,
    /// Replies to the own requests.
    pub replies: u64,
    /// Addresses without a reply.
    pub failures: u64,
    /// Messages without a usable address, for example with a multicast address.
    pub malformed: u64,
    /// Messages of another port that claims the own address.
    pub conflicts: u64,
    /// Entries whose hardware address changed.
    pub moves: u64,
    /// Messages about other addresses, and unsolicited replies.
    pub foreign: u64,
    /// Entries evicted for new ones.
    pub evicted: u64,
}

/// The table of a port.
#[derive(Debug)]
pub struct Neighbours<'s> {
    slots: &'s mut [NeighbourSlot],
    config: NeighbourConfig,
    counters: NeighbourCounters,
    /// No timer is due before this.
    next_deadline: Instant,
}

impl<'s> Neighbours<'s> {
    /// Creates a table of at most `slots.len()` neighbours. Previous contents of the slots are
    /// lost.
    pub fn new(slots: &'s mut [NeighbourSlot], config: NeighbourConfig) -> Neighbours<'s> {
        slots.fill(NeighbourSlot::EMPTY);
        Neighbours { slots, config, counters: NeighbourCounters::default(), next_deadline: Instant::MAX }
    }

    /// Counters since the start.
    pub fn counters(&self) -> NeighbourCounters {
        self.counters
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = Neighbour> + '_ {
        self.slots.iter().filter(|slot| slot.state != NeighbourState::Empty).map(|slot| Neighbour {
            ip: slot.ip,
            hw: slot.is_known().then_some(slot.hw),
            state: slot.state,
        })
    }

    fn find(&mut self, ip: Ipv4Addr) -> Option<&mut NeighbourSlot> {
        self.slots.iter_mut().find(|slot| slot.state != NeighbourState::Empty && slot.ip == ip)
    }

    fn arm(&mut self, deadline: Instant) {
        self.next_deadline = self.next_deadline.min(deadline);
    }

    /// Returns a slot for a new entry: a free one, or the least recently used one that is not
    /// incomplete.
    fn allocate(&mut self) -> Option<usize> {
        if let Some(free) = self.slots.iter().position(|slot| slot.state == NeighbourState::Empty) {
            return Some(free);
        }
        let idle = |slot: &NeighbourSlot| slot.state != NeighbourState::Incomplete;
        let oldest = self.slots.iter().enumerate().filter(|(_, slot)| idle(slot)).min_by_key(|(_, s)| s.used);
        let index = oldest.map(|(index, _)| index)?;
        self.counters.evicted += 1;
        Some(index)
    }

    /// Returns the hardware address of a neighbour for sending. Starts a request if the address is
    /// not resolved.
    pub fn lookup(&mut self, now: Instant, ip: Ipv4Addr) -> NeighbourLookup {
        let config = self.config;
        if let Some(slot) = self.find(ip) {
            if slot.is_known() {
                slot.used = now;
                let hw = slot.hw;
                // A due timer may not have run yet: do not treat the address as fresh.
                if slot.state == NeighbourState::Reachable && slot.deadline <= now {
                    slot.state = NeighbourState::Stale;
                }
                if slot.state == NeighbourState::Stale {
                    slot.state = NeighbourState::Delay;
                    slot.deadline = now + config.delay;
                    let deadline = slot.deadline;
                    self.arm(deadline);
                }
                return NeighbourLookup::Known(hw);
            }
            if slot.state == NeighbourState::Incomplete {
                return NeighbourLookup::Pending;
            }
            if slot.deadline > now {
                return NeighbourLookup::Failed;
            }
            // The failure has expired.
            slot.ask(now, config.tries);
            self.arm(now);
            return NeighbourLookup::Pending;
        }
        let Some(index) = self.allocate() else { return NeighbourLookup::Full };
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = NeighbourSlot { ip, used: now, ..NeighbourSlot::EMPTY };
            slot.ask(now, config.tries);
        }
        self.arm(now);
        NeighbourLookup::Pending
    }

    /// Returns the entry of an address. Sends no request, and does not count as use.
    pub fn peek(&self, ip: Ipv4Addr) -> Option<Neighbour> {
        self.iter().find(|neighbour| neighbour.ip == ip)
    }

    /// Processes a received ARP message. Returns the reply to its sender if it is a request for
    /// `own_ip`.
    #[must_use = "the peer waits for the reply"]
    pub fn input(&mut self, now: Instant, arp: &Arp, own_ip: Ipv4Addr, own_hw: &HwAddr) -> Option<Arp> {
        let (ip, hw) = (arp.sender_ip, arp.sender_hw);
        let hw_usable = hw.qpn > QpNumber::GSI
            && hw.qpn != QpNumber::MULTICAST
            && !hw.gid.is_zero()
            && !hw.gid.is_multicast();
        let ip_usable = !ip.is_multicast() && !ip.is_broadcast() && !ip.is_loopback();
        if !hw_usable || !ip_usable {
            self.counters.malformed += 1;
            return None;
        }
        if ip == own_ip {
            // Its own announcement that came back, or a port that claims the same address.
            if (hw.qpn, hw.gid) != (own_hw.qpn, own_hw.gid) {
                self.counters.conflicts += 1;
            }
            return None;
        }
        let for_us = arp.target_ip == own_ip;
        let asked = arp.operation == ArpOperation::Request && for_us;
        // Duplicate address detection: the address has no owner yet.
        if !ip.is_unspecified() {
            self.learn(now, arp, for_us);
        }
        asked.then(|| {
            self.counters.answered += 1;
            Arp {
                operation: ArpOperation::Reply,
                sender_hw: *own_hw,
                sender_ip: own_ip,
                target_hw: Some(hw),
                target_ip: ip,
            }
        })
    }

    fn learn(&mut self, now: Instant, arp: &Arp, for_us: bool) {
        let reachable = now + self.config.reachable;
        let reply = arp.operation == ArpOperation::Reply && for_us;
        let known = self.slots.iter().position(|s| s.state != NeighbourState::Empty && s.ip == arp.sender_ip);
        let index = match known {
            Some(index) => index,
            // Cache the sender of an ARP request for our address: its next packet needs a reply.
            None if for_us && arp.operation == ArpOperation::Request => match self.allocate() {
                Some(index) => index,
                None => return,
            },
            None => {
                self.counters.foreign += 1;
                return;
            }
        };
        let Some(slot) = self.slots.get_mut(index) else { return };
        if known.is_none() {
            *slot = NeighbourSlot { ip: arp.sender_ip, used: now, ..NeighbourSlot::EMPTY };
        }
        let moved = slot.is_known() && (slot.hw.qpn, slot.hw.gid) != (arp.sender_hw.qpn, arp.sender_hw.gid);
        let waited = matches!(slot.state, NeighbourState::Incomplete | NeighbourState::Probe);
        slot.hw = arp.sender_hw;
        if reply && waited {
            self.counters.replies += 1;
            slot.state = NeighbourState::Reachable;
            slot.deadline = reachable;
        } else if moved || !slot.is_known() {
            // Not confirmed: use of the address shows if the path works.
            slot.state = NeighbourState::Stale;
            slot.deadline = Instant::MAX;
        } else if matches!(slot.state, NeighbourState::Delay | NeighbourState::Probe) && for_us {
            // A request for our address confirms the entry.
            slot.state = NeighbourState::Reachable;
            slot.deadline = reachable;
        }
        let deadline = slot.deadline;
        self.counters.moves += u64::from(moved);
        self.arm(deadline);
    }

    /// Returns one action; call until it is [`NeighbourAction::Idle`].
    pub fn poll(&mut self, now: Instant) -> NeighbourAction {
        if now < self.next_deadline {
            return self.idle();
        }
        let config = self.config;
        for slot in self.slots.iter_mut().filter(|slot| slot.state != NeighbourState::Empty) {
            if slot.deadline > now {
                continue;
            }
            match slot.state {
                NeighbourState::Reachable => {
                    slot.state = NeighbourState::Stale;
                    slot.deadline = Instant::MAX;
                }
                NeighbourState::Delay => {
                    slot.state = NeighbourState::Probe;
                    slot.tries_left = config.tries.max(1);
                }
                NeighbourState::Failed => slot.state = NeighbourState::Empty,
                _ => {}
            }
            let asking = matches!(slot.state, NeighbourState::Incomplete | NeighbourState::Probe);
            if !asking {
                continue;
            }
            if slot.tries_left == 0 {
                if slot.state == NeighbourState::Probe {
                    // The neighbour may have moved: request it by broadcast.
                    slot.ask(now, config.tries);
                } else {
                    slot.state = NeighbourState::Failed;
                    slot.deadline = now + config.failed;
                    self.counters.failures += 1;
                    continue;
                }
            }
            slot.tries_left -= 1;
            slot.deadline = now + config.retransmit;
            let to = (slot.state == NeighbourState::Probe).then_some(slot.hw);
            match to {
                Some(_) => self.counters.probes += 1,
                None => self.counters.requests += 1,
            }
            return NeighbourAction::Request { ip: slot.ip, to };
        }
        let live = self.slots.iter().filter(|slot| slot.state != NeighbourState::Empty);
        self.next_deadline = live.map(|slot| slot.deadline).min().unwrap_or(Instant::MAX);
        self.idle()
    }

    fn idle(&self) -> NeighbourAction {
        NeighbourAction::Idle(Wake::by(self.next_deadline))
    }

    /// Call it when the fabric has changed: every resolved neighbour becomes stale, and is
    /// confirmed at its next use.
    pub fn doubt_all(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_known()) {
            slot.state = NeighbourState::Stale;
            slot.deadline = Instant::MAX;
        }
    }

    /// Removes a neighbour whose hardware address has no path. The next use requests it again.
    pub fn forget(&mut self, ip: Ipv4Addr) {
        if let Some(slot) = self.find(ip).filter(|slot| slot.state != NeighbourState::Incomplete) {
            *slot = NeighbourSlot::EMPTY;
        }
    }
}

impl NeighbourSlot {
    fn ask(&mut self, now: Instant, tries: u8) {
        self.state = NeighbourState::Incomplete;
        self.tries_left = tries.max(1);
        self.deadline = now;
    }
}

#[cfg(test)]
#[path = "neighbour_tests.rs"]
mod tests;
