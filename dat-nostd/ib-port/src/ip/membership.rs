//! Groups that an Ethernet port has joined: the HCA receives their frames, and reports by IGMP and MLD make switches forward
//! them. Reports are not suppressed by those of other hosts, which switches do not forward (RFC 4541, section 2.1.1).

use ib_mgmt::ethernet::group_mac;
use ib_mgmt::membership::{Query, Report, is_reported};
use ib_types::{Duration, Gid, Instant, MacAddress, Wake};

use crate::frames::REPORTS;

/// Reports of a change (robustness variable: RFC 2236 8.1, RFC 2710 7.1).
const REPEATS: u8 = 2;
/// Longest distance of these reports (RFC 3376 8.11, RFC 3810 9.11).
const REPEAT_WITHIN: Duration = Duration::from_secs(1);

/// Room for a group of an Ethernet port.
#[derive(Clone, Copy, Debug)]
pub struct MemberSlot {
    /// The group; zero if the entry is free.
    group: Gid,
    /// Frames of the group are to be received.
    wanted: bool,
    /// The HCA receives them.
    joined: bool,
    /// Reports to be sent.
    left: u8,
    /// When the next one is due.
    at: Instant,
}

/// The work of the HCA for groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attachment {
    /// Receive frames to this address.
    Join(MacAddress),
    /// Receive none any more.
    Leave(MacAddress),
}

/// The groups of a port.
#[derive(Debug)]
pub(super) struct Memberships<'s> {
    members: &'s mut [MemberSlot],
    /// No group waits for the HCA: [`Memberships::attachment`] need not look.
    attached: bool,
    /// When the next report is due; early if in doubt.
    report_at: Wake,
    /// Varies the delay of replies.
    random: u64,
}

impl<'s> Memberships<'s> {
    pub(super) fn new(members: &'s mut [MemberSlot], mac: MacAddress) -> Self {
        members.fill(MemberSlot::EMPTY);
        let MacAddress([a, b, c, d, e, f]) = mac;
        let random = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        let (attached, report_at) = (true, Wake::Idle);
        Self { members, attached, report_at, random }
    }

    /// Joins a group, and reports it. Returns false if there is no room.
    pub(super) fn join(&mut self, group: Gid) -> bool {
        let known = self.members.iter().position(|member| member.group == group);
        let place = known.or_else(|| self.members.iter().position(|member| member.group.is_zero()));
        let Some(member) = place.and_then(|place| self.members.get_mut(place)) else { return false };
        if !member.wanted {
            (member.group, member.wanted) = (group, true);
            member.report(REPEATS);
            (self.attached, self.report_at) = (false, Wake::Now);
        }
        true
    }

    /// Ends [`Memberships::join`]. Returns false if the group was not joined.
    pub(super) fn leave(&mut self, group: Gid) -> bool {
        let Some(member) = self.wanted().find(|member| member.group == group) else { return false };
        member.wanted = false;
        member.report(REPEATS);
        (self.attached, self.report_at) = (false, Wake::Now);
        true
    }

    /// The groups of the port.
    fn wanted(&mut self) -> impl Iterator<Item = &mut MemberSlot> {
        self.members.iter_mut().filter(|member| member.wanted)
    }

    /// Reports that no group is a member any longer, once: the port is closed.
    pub(super) fn leave_all(&mut self) {
        for member in self.wanted() {
            member.wanted = false;
            member.report(1);
        }
        self.report_at = Wake::Now;
    }

    /// Reports all groups again: another switch may be there.
    pub(super) fn report_all(&mut self) {
        self.wanted().for_each(|member| member.report(REPEATS));
        self.report_at = Wake::Now;
    }

    /// Takes a query: replies follow within its time.
    #[inline(never)]
    pub(super) fn queried(&mut self, now: Instant, query: &Query) {
        for member in self.members.iter_mut() {
            let is_asked = if query.group.is_zero() {
                member.group.ipv4().is_some() == query.is_ipv4
            } else {
                member.group == query.group
            };
            if member.wanted && is_asked && is_reported(member.group) {
                let at = now + within(&mut self.random, query.max_response);
                // A report of a change that is due earlier is a reply too.
                member.at = if member.left == 0 { at } else { member.at.min(at) };
                member.left = member.left.max(1);
            }
        }
        self.report_at = Wake::Now;
    }

    /// Returns whether a group waits for the HCA.
    pub(super) fn wants_service(&self) -> bool {
        !self.attached
    }

    /// Returns the next work of the HCA.
    pub(super) fn attachment(&self) -> Option<(usize, Attachment)> {
        self.members.iter().enumerate().find_map(|(index, member)| {
            let mac = group_mac(member.group);
            let attachment = if member.wanted { Attachment::Join(mac) } else { Attachment::Leave(mac) };
            (member.wanted != member.joined).then_some((index, attachment))
        })
    }

    /// Returns whether another group that the HCA receives has the same MAC address.
    pub(super) fn is_shared(&self, index: usize, mac: MacAddress) -> bool {
        let mut others = self.members.iter().enumerate().filter(|(other, _)| *other != index);
        others.any(|(_, member)| member.joined && group_mac(member.group) == mac)
    }

    /// The HCA has done its work for a group.
    pub(super) fn set_attached(&mut self, index: usize) {
        if let Some(member) = self.members.get_mut(index) {
            member.joined = member.wanted;
            member.free_if_over();
        }
        self.attached = self.attachment().is_none();
    }

    /// Returns when a report is due.
    pub(super) fn report_at(&self) -> Wake {
        self.report_at
    }

    /// Returns a report that is due. `own` are the source addresses, of IPv4 and IPv6.
    // Seldom: apart, so that a poll without one takes no notice of it.
    #[inline(never)]
    pub(super) fn due(&mut self, now: Instant, own: [Gid; 2]) -> Option<Report> {
        let mut due = None;
        self.report_at = Wake::Idle;
        for member in self.members.iter_mut() {
            if due.is_none() && member.left > 0 && member.at <= now {
                let family = usize::from(member.group.ipv4().is_none());
                due = Some(Report::new(own[family], member.group, member.wanted));
                member.left -= 1;
                member.at = now + within(&mut self.random, REPEAT_WITHIN);
            }
            if member.left > 0 {
                self.report_at = self.report_at.earliest(Wake::At(member.at));
            } else {
                member.free_if_over();
            }
        }
        due
    }
}

impl MemberSlot {
    /// A free entry; all bytes zero.
    pub const EMPTY: Self =
        Self { group: Gid::ZERO, wanted: false, joined: false, left: 0, at: Instant::ORIGIN };

    /// Reports a change at once, unless the group is not reported.
    fn report(&mut self, times: u8) {
        if REPORTS && is_reported(self.group) {
            (self.left, self.at) = (times, Instant::ORIGIN);
        }
    }

    /// Frees the entry of a group that was left, unless something is left to be done for it.
    fn free_if_over(&mut self) {
        if !self.wanted && !self.joined && self.left == 0 {
            *self = Self::EMPTY;
        }
    }
}

/// Returns a random time within `limit`.
fn within(random: &mut u64, limit: Duration) -> Duration {
    // The multiplier of a linear congruential generator (Knuth's MMIX).
    *random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
    Duration::from_nanos((limit.as_nanos() as u64 >> 10) * (*random >> 54))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const OWN: [Gid; 2] = [Gid::from_ipv4([10, 0, 0, 1]), Gid::link_local(MAC)];
    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const GROUP: Gid = Gid::from_ipv4([239, 1, 2, 3]);
    /// Another group with the same MAC address.
    const TWIN: Gid = Gid::from_ipv4([238, 129, 2, 3]);
    const GROUP_6: Gid = Gid([0xff, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
    const ALL_HOSTS: Gid = ib_mgmt::membership::ALL_HOSTS;
    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Instant {
        Instant::ORIGIN + Duration::from_millis(millis)
    }

    /// Reports due until then, in order; the clock goes from one to the next.
    fn reports(groups: &mut Memberships<'_>, now: &mut Instant, until: Instant) -> Vec<Report> {
        let mut sent = Vec::new();
        loop {
            sent.extend(groups.due(*now, OWN));
            match groups.report_at().deadline(*now) {
                Some(next) if next <= until => *now = next,
                _ => break,
            }
        }
        *now = until;
        sent
    }

    /// Does the HCA's work, and returns it.
    fn attach(groups: &mut Memberships<'_>) -> Vec<Attachment> {
        let mut done = Vec::new();
        while let Some((index, attachment)) = groups.attachment() {
            match attachment {
                Attachment::Leave(mac) if groups.is_shared(index, mac) => {}
                _ => done.push(attachment),
            }
            groups.set_attached(index);
        }
        assert!(!groups.wants_service());
        done
    }

    fn report(group: Gid, is_member: bool) -> Report {
        Report::new(OWN[usize::from(group.ipv4().is_none())], group, is_member)
    }

    fn query(group: Gid, is_ipv4: bool) -> Query {
        Query { is_ipv4, group, max_response: 10 * SECOND }
    }

    #[test]
    fn a_group_is_reported_twice_when_joined_and_when_left() {
        let mut slots = [MemberSlot::EMPTY; 4];
        let mut groups = Memberships::new(&mut slots, MAC);
        let mut now = at(5);
        assert!(groups.join(GROUP) && groups.join(ALL_HOSTS) && groups.join(GROUP_6));
        assert_eq!(attach(&mut groups).len(), 3);
        assert!(groups.join(GROUP) && !groups.wants_service(), "joined already");
        let sent = reports(&mut groups, &mut now, at(1005));
        let joined = [GROUP, GROUP_6].map(|group| report(group, true));
        assert_eq!(sent[..2], joined);
        assert_eq!(sent.len(), 4, "not of all hosts");
        assert!(joined.iter().all(|report| sent[2..].contains(report)));
        assert_eq!(groups.report_at(), Wake::Idle);

        assert!(groups.leave(GROUP) && !groups.leave(GROUP));
        assert_eq!(attach(&mut groups), [Attachment::Leave(group_mac(GROUP))]);
        let left = report(GROUP, false);
        assert_eq!(reports(&mut groups, &mut now, at(2005)), [left; 2]);
        // Its entry is free again.
        assert!(groups.join(TWIN) && groups.join(GROUP));
        assert!(!groups.join(Gid::from_ipv4([239, 9, 9, 9])), "no room");
    }

    #[test]
    fn queries_are_answered_in_their_time() {
        let mut slots = [MemberSlot::EMPTY; 4];
        let mut groups = Memberships::new(&mut slots, MAC);
        let mut now = at(0);
        assert!(groups.join(GROUP) && groups.join(TWIN) && groups.join(GROUP_6) && groups.join(ALL_HOSTS));
        attach(&mut groups);
        reports(&mut groups, &mut now, at(1000));
        groups.queried(now, &query(Gid::ZERO, true));
        assert!(groups.report_at() == Wake::Now, "the time of the replies is found by the next poll");
        let sent = reports(&mut groups, &mut now, at(11_000));
        assert!(sent.len() == 2 && [GROUP, TWIN].iter().all(|group| sent.contains(&report(*group, true))));
        groups.queried(now, &query(TWIN, true));
        assert_eq!(reports(&mut groups, &mut now, at(21_000)), [report(TWIN, true)]);
        groups.queried(now, &query(Gid::ZERO, false));
        assert_eq!(reports(&mut groups, &mut now, at(31_000)), [report(GROUP_6, true)]);
        // Groups that were left are not reported, nor are others.
        assert!(groups.leave(TWIN));
        assert_eq!(reports(&mut groups, &mut now, at(32_000)), [report(TWIN, false); 2]);
        for group in [TWIN, Gid::from_ipv4([239, 7, 7, 7]), ALL_HOSTS] {
            groups.queried(now, &query(group, true));
        }
        assert_eq!(reports(&mut groups, &mut now, at(60_000)), []);
    }

    #[test]
    fn groups_with_one_mac_address_do_not_take_it_from_each_other() {
        let mut slots = [MemberSlot::EMPTY; 4];
        let mut groups = Memberships::new(&mut slots, MAC);
        assert!(groups.join(GROUP) && groups.join(TWIN));
        assert_eq!(attach(&mut groups), [Attachment::Join(group_mac(GROUP)); 2]);
        assert!(groups.leave(GROUP));
        assert_eq!(attach(&mut groups), []);
        assert!(groups.leave(TWIN));
        assert_eq!(attach(&mut groups), [Attachment::Leave(group_mac(GROUP))]);
    }

    #[test]
    fn closing_reports_each_group_once() {
        let mut slots = [MemberSlot::EMPTY; 4];
        let mut groups = Memberships::new(&mut slots, MAC);
        assert!(groups.join(GROUP) && groups.join(GROUP_6));
        let mut now = at(100);
        assert_eq!(reports(&mut groups, &mut now, at(1100)).len(), 4);
        // Another switch may be there.
        groups.report_all();
        assert_eq!(reports(&mut groups, &mut now, at(2100)).len(), 4);
        groups.leave_all();
        let left = [GROUP, GROUP_6].map(|group| report(group, false));
        assert_eq!(reports(&mut groups, &mut now, at(9000)), left);
        assert_eq!(groups.report_at(), Wake::Idle);
    }
}
