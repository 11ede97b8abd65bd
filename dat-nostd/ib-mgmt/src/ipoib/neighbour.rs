//! The neighbour table: maps IP addresses to hardware addresses, by ARP (RFC 826) or neighbour
//! discovery (RFC 4861). Entries have the states of neighbour unreachability detection (RFC 4861, section 7.3), as hosts use them for
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

use core::fmt;
use core::net::Ipv4Addr;
use ib_types::{Duration, Gid, Instant, MacAddress, QpNumber, Wake};

use super::{Arp, ArpOperation, HwAddr};

/// An IP address of a neighbour. A [`Gid`] is an IPv6 address, or an IPv4-mapped one.
pub trait NetworkAddress: Copy + PartialEq + fmt::Debug {
    /// The address that is none.
    const UNSPECIFIED: Self;
    /// Returns whether a single host may have it.
    fn is_host(&self) -> bool;
}

impl NetworkAddress for Ipv4Addr {
    const UNSPECIFIED: Self = Self::UNSPECIFIED;

    fn is_host(&self) -> bool {
        !self.is_multicast() && !self.is_broadcast() && !self.is_loopback()
    }
}

impl NetworkAddress for Gid {
    const UNSPECIFIED: Self = Self::ZERO;

    fn is_host(&self) -> bool {
        let ipv4 = self.ipv4().map(Ipv4Addr::from);
        !self.is_multicast() && *self != Self::new(0, 1) && ipv4.is_none_or(|ip| ip.is_host())
    }
}

/// A hardware address of a neighbour.
pub trait HardwareAddress: Copy + PartialEq + fmt::Debug {
    /// The address that is none.
    const NONE: Self;
    /// Returns whether a single interface may have it.
    fn is_host(&self) -> bool;
    /// Returns whether both lead to the same interface.
    fn is_same(&self, other: &Self) -> bool;
}

impl HardwareAddress for HwAddr {
    const NONE: Self = Self { flags: 0, qpn: QpNumber::new(0), gid: Gid::ZERO };

    fn is_host(&self) -> bool {
        self.qpn > QpNumber::GSI
            && self.qpn != QpNumber::MULTICAST
            && !self.gid.is_zero()
            && !self.gid.is_multicast()
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.qpn, self.gid) == (other.qpn, other.gid)
    }
}

impl HardwareAddress for MacAddress {
    const NONE: Self = Self([0; 6]);

    fn is_host(&self) -> bool {
        *self != Self::NONE && !self.is_multicast()
    }

    fn is_same(&self, other: &Self) -> bool {
        self == other
    }
}

/// Content of an ARP message, a solicitation or an advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim<A, H> {
    /// Requests the hardware address of `target`; otherwise announces that of `sender`.
    pub is_request: bool,
    /// Address of the sender; unspecified if it has none yet.
    pub sender: A,
    /// Its hardware address.
    pub sender_hw: H,
    /// The address that is requested, or the reply's receiver.
    pub target: A,
}

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
pub struct NeighbourSlot<A = Ipv4Addr, H = HwAddr> {
    state: NeighbourState,
    tries_left: u8,
    ip: A,
    hw: H,
    /// When the state ends, or the next request is due.
    deadline: Instant,
    used: Instant,
}

impl<A: NetworkAddress, H: HardwareAddress> NeighbourSlot<A, H> {
    /// A free entry; all bytes zero.
    pub const EMPTY: Self = Self {
        state: NeighbourState::Empty,
        tries_left: 0,
        ip: A::UNSPECIFIED,
        hw: H::NONE,
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
pub struct Neighbour<A = Ipv4Addr, H = HwAddr> {
    /// The IP address.
    pub ip: A,
    /// The hardware address, if resolved.
    pub hw: Option<H>,
    /// State.
    pub state: NeighbourState,
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourLookup<H = HwAddr> {
    /// The hardware address.
    Known(H),
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
pub enum NeighbourAction<A = Ipv4Addr, H = HwAddr> {
    /// Send a request for `ip`: to the neighbour only, or (`None`) by broadcast.
    Request {
        /// Requested address.
        ip: A,
        /// Destination of the request.
        to: Option<H>,
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
pub struct Neighbours<'s, A = Ipv4Addr, H = HwAddr> {
    slots: &'s mut [NeighbourSlot<A, H>],
    config: NeighbourConfig,
    counters: NeighbourCounters,
    /// No timer is due before this.
    next_deadline: Instant,
}

impl<'s, A: NetworkAddress, H: HardwareAddress> Neighbours<'s, A, H> {
    /// Creates a table of at most `slots.len()` neighbours. Previous contents of the slots are
    /// lost.
    pub fn new(slots: &'s mut [NeighbourSlot<A, H>], config: NeighbourConfig) -> Self {
        slots.fill(NeighbourSlot::EMPTY);
        Self { slots, config, counters: NeighbourCounters::default(), next_deadline: Instant::MAX }
    }

    /// Counters since the start.
    pub fn counters(&self) -> NeighbourCounters {
        self.counters
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = Neighbour<A, H>> + '_ {
        self.slots.iter().filter(|slot| slot.state != NeighbourState::Empty).map(|slot| Neighbour {
            ip: slot.ip,
            hw: slot.is_known().then_some(slot.hw),
            state: slot.state,
        })
    }

    fn find(&mut self, ip: A) -> Option<&mut NeighbourSlot<A, H>> {
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
        let idle = |slot: &NeighbourSlot<A, H>| slot.state != NeighbourState::Incomplete;
        let oldest = self.slots.iter().enumerate().filter(|(_, slot)| idle(slot)).min_by_key(|(_, s)| s.used);
        let index = oldest.map(|(index, _)| index)?;
        self.counters.evicted += 1;
        Some(index)
    }

    /// Returns the hardware address of a neighbour for sending. Starts a request if the address is
    /// not resolved.
    pub fn lookup(&mut self, now: Instant, ip: A) -> NeighbourLookup<H> {
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
    pub fn peek(&self, ip: A) -> Option<Neighbour<A, H>> {
        self.iter().find(|neighbour| neighbour.ip == ip)
    }

    /// Processes a received message. `own` are the own addresses. Returns whether the sender waits
    /// for a reply, because it requests one of them.
    #[must_use = "the peer waits for the reply"]
    pub fn claimed(&mut self, now: Instant, claim: &Claim<A, H>, own: &[A], own_hw: &H) -> bool {
        let (ip, hw) = (claim.sender, claim.sender_hw);
        if !hw.is_host() || !ip.is_host() {
            self.counters.malformed += 1;
            return false;
        }
        if own.contains(&ip) {
            // Its own announcement that came back, or a port that claims the same address.
            if !hw.is_same(own_hw) {
                self.counters.conflicts += 1;
            }
            return false;
        }
        let for_us = own.contains(&claim.target);
        let asked = claim.is_request && for_us;
        // Duplicate address detection: the address has no owner yet.
        if ip != A::UNSPECIFIED {
            self.learn(now, claim, for_us);
        }
        self.counters.answered += u64::from(asked);
        asked
    }

    fn learn(&mut self, now: Instant, claim: &Claim<A, H>, for_us: bool) {
        let reachable = now + self.config.reachable;
        let reply = !claim.is_request && for_us;
        let known = self.slots.iter().position(|s| s.state != NeighbourState::Empty && s.ip == claim.sender);
        let index = match known {
            Some(index) => index,
            // Cache the sender of an ARP request for our address: its next packet needs a reply.
            None if for_us && claim.is_request => match self.allocate() {
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
            *slot = NeighbourSlot { ip: claim.sender, used: now, ..NeighbourSlot::EMPTY };
        }
        let moved = slot.is_known() && !slot.hw.is_same(&claim.sender_hw);
        let waited = matches!(slot.state, NeighbourState::Incomplete | NeighbourState::Probe);
        slot.hw = claim.sender_hw;
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
    pub fn poll(&mut self, now: Instant) -> NeighbourAction<A, H> {
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

    fn idle(&self) -> NeighbourAction<A, H> {
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
    pub fn forget(&mut self, ip: A) {
        if let Some(slot) = self.find(ip).filter(|slot| slot.state != NeighbourState::Incomplete) {
            *slot = NeighbourSlot::EMPTY;
        }
    }
}

impl Neighbours<'_> {
    /// Processes a received ARP message of IP over InfiniBand. Returns the reply to its sender if
    /// it is a request for `own_ip`.
    #[must_use = "the peer waits for the reply"]
    pub fn input(&mut self, now: Instant, arp: &Arp, own_ip: Ipv4Addr, own_hw: &HwAddr) -> Option<Arp> {
        let claim = Claim {
            is_request: arp.operation == ArpOperation::Request,
            sender: arp.sender_ip,
            sender_hw: arp.sender_hw,
            target: arp.target_ip,
        };
        self.claimed(now, &claim, &[own_ip], own_hw).then_some(Arp {
            operation: ArpOperation::Reply,
            sender_hw: *own_hw,
            sender_ip: own_ip,
            target_hw: Some(arp.sender_hw),
            target_ip: arp.sender_ip,
        })
    }
}

impl<A, H> NeighbourSlot<A, H> {
    fn ask(&mut self, now: Instant, tries: u8) {
        self.state = NeighbourState::Incomplete;
        self.tries_left = tries.max(1);
        self.deadline = now;
    }
}

#[cfg(test)]
#[path = "neighbour_tests.rs"]
mod tests;
