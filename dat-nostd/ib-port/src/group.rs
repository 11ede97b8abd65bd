//! Multicast groups this port is in: joined at the subnet administrator, kept over its changes, left at the end
//! (IBA volume 1, section 15.2.5.17; RFC 4391, sections 4 and 5).

use driver_mlx::Lid;
use ib_mgmt::mad::method;
use ib_mgmt::sa::{McMemberMask, McMemberRecord, QueryError, join_state, selector};
use ib_types::{Duration, Gid, Instant, Mtu, PKey, QKey, Wake};

/// First wait after a refusal; doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(16);
/// Refusals after which the broadcast group is taken for one that nobody has made yet.
const REFUSALS: u8 = 2;
/// Q_Key, MTU code (2048), and rate code (10 Gb/s) of a broadcast group that this port makes: what subnet managers choose.
const QKEY: QKey = QKey::new(0x0b1b);
const MTU: u8 = 4;
const RATE: u8 = 3;

/// What a group is to this port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Free = 0,
    /// The broadcast group of IPoIB, whose parameters all others take over.
    Broadcast,
    /// Sends and receives.
    Member,
    /// Sends.
    SendOnly,
}

impl Kind {
    fn join_state(self) -> u8 {
        if self == Kind::SendOnly { join_state::SEND_ONLY_NON_MEMBER } else { join_state::FULL_MEMBER }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    Idle = 0,
    /// To be asked for at a time.
    Wanted {
        at: Instant,
    },
    Asked,
    Joined,
    /// To be left.
    Leaving,
    /// The administrator was told.
    Left,
}

/// Room for one group.
#[derive(Clone, Copy, Debug)]
pub struct GroupSlot {
    kind: Kind,
    state: State,
    /// The queue pair receives the group's packets.
    attached: bool,
    refusals: u8,
    wait: Duration,
    used: Instant,
    mgid: Gid,
    /// From the last answer; MLID 0: there was none.
    record: McMemberRecord,
}

impl GroupSlot {
    /// A free entry; all bytes zero.
    pub const EMPTY: GroupSlot = GroupSlot {
        kind: Kind::Free,
        state: State::Idle,
        attached: false,
        refusals: 0,
        wait: Duration::ZERO,
        used: Instant::ORIGIN,
        mgid: Gid::ZERO,
        record: McMemberRecord::zeroed(),
    };

    fn is_live(&self) -> bool {
        self.kind != Kind::Free && !matches!(self.state, State::Leaving | State::Left)
    }

    fn receives(&self) -> bool {
        matches!(self.kind, Kind::Broadcast | Kind::Member)
    }

    /// Whether there is nothing to do about it until an answer comes or somebody wants something.
    fn is_settled(&self) -> bool {
        match self.state {
            State::Idle | State::Asked | State::Left => true,
            State::Joined => self.attached || !self.receives(),
            State::Wanted { .. } | State::Leaving => false,
        }
    }
}

/// A question for the subnet administrator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) index: u32,
    pub(crate) method: u8,
    pub(crate) mask: u64,
    pub(crate) record: McMemberRecord,
}

/// The queue pair has to be told of a group, or no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attachment {
    Attach(u32, Gid),
    Detach(u32, Gid),
}

/// The groups.
#[derive(Debug)]
pub(crate) struct Groups<'s> {
    slots: &'s mut [GroupSlot],
    /// Nothing is to be asked or told, now or later, until something changes: a poll need not look at the entries.
    settled: bool,
    /// Joins answered, refused.
    pub(crate) joins: u64,
    pub(crate) refused: u64,
}

impl<'s> Groups<'s> {
    pub(crate) fn new(slots: &'s mut [GroupSlot]) -> Self {
        slots.fill(GroupSlot::EMPTY);
        Self { slots, settled: false, joins: 0, refused: 0 }
    }

    /// Enters a group, or raises send-only to member. False when the table is full.
    pub(crate) fn want(&mut self, now: Instant, mgid: Gid, kind: Kind) -> bool {
        self.settled = false;
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.is_live() && slot.mgid == mgid) {
            slot.used = now;
            if slot.kind == Kind::SendOnly && kind == Kind::Member {
                slot.kind = kind;
                slot.state = State::Wanted { at: now };
            }
            return true;
        }
        let free = self.slots.iter().position(|slot| slot.kind == Kind::Free);
        // A group that is only sent to can be joined again.
        let idle = || {
            let idle = self.slots.iter().enumerate().filter(|(_, slot)| {
                slot.kind == Kind::SendOnly && matches!(slot.state, State::Joined | State::Wanted { .. })
            });
            idle.min_by_key(|(_, slot)| slot.used).map(|(index, _)| index)
        };
        let Some(slot) = free.or_else(idle).and_then(|index| self.slots.get_mut(index)) else {
            return false;
        };
        *slot = GroupSlot { kind, state: State::Wanted { at: now }, used: now, mgid, ..GroupSlot::EMPTY };
        true
    }

    /// Leaves a group; false when the port is not in it.
    pub(crate) fn leave(&mut self, mgid: Gid) -> bool {
        self.settled = false;
        let slot = self.slots.iter_mut().find(|slot| slot.is_live() && slot.mgid == mgid);
        slot.map(GroupSlot::leave).is_some()
    }

    /// Leaves all groups.
    pub(crate) fn leave_all(&mut self) {
        self.settled = false;
        self.slots.iter_mut().filter(|slot| slot.is_live()).for_each(GroupSlot::leave);
    }

    /// Whether nothing is left to leave.
    pub(crate) fn all_left(&self) -> bool {
        self.slots.iter().all(|slot| !matches!(slot.state, State::Leaving | State::Left))
    }

    /// The fabric has changed: every group is joined anew. Until the answer the old parameters serve.
    pub(crate) fn rejoin(&mut self, now: Instant) {
        self.settled = false;
        for slot in self.slots.iter_mut().filter(|slot| slot.is_live() && slot.state != State::Asked) {
            slot.state = State::Wanted { at: now };
            slot.wait = Duration::ZERO;
        }
    }

    /// The HCA was reset: nobody answers what was asked, and every group that was wanted is joined as if for the first time.
    pub(crate) fn begin_again(&mut self, now: Instant) {
        self.settled = false;
        for slot in self.slots.iter_mut() {
            let GroupSlot { kind, mgid, .. } = *slot;
            let wanted =
                GroupSlot { kind, mgid, used: now, state: State::Wanted { at: now }, ..GroupSlot::EMPTY };
            *slot = if slot.is_live() { wanted } else { GroupSlot::EMPTY };
        }
    }

    /// The partition has changed: the broadcast group is another one, and all others are forgotten.
    pub(crate) fn restart(&mut self, now: Instant, broadcast: Gid) {
        self.settled = false;
        self.slots.fill(GroupSlot::EMPTY);
        self.want(now, broadcast, Kind::Broadcast);
    }

    /// The queue pair is another one.
    pub(crate) fn detached(&mut self) {
        self.settled = false;
        self.slots.iter_mut().for_each(|slot| slot.attached = false);
    }

    fn broadcast_slot(&self) -> Option<&GroupSlot> {
        self.slots.iter().find(|slot| slot.is_live() && slot.kind == Kind::Broadcast)
    }

    /// The broadcast group's parameters, once it was joined.
    pub(crate) fn broadcast(&self) -> Option<&McMemberRecord> {
        self.broadcast_slot().map(|slot| &slot.record).filter(|record| record.mlid() != Lid::new(0))
    }

    /// Whether the broadcast group's packets arrive.
    pub(crate) fn is_attached(&self) -> bool {
        self.broadcast_slot().is_some_and(|slot| slot.attached)
    }

    /// A group's parameters: `Ok(None)` while it is being joined, `Err` if the port is not in it or was refused.
    pub(crate) fn parameters(&mut self, now: Instant, mgid: Gid) -> Result<Option<&McMemberRecord>, ()> {
        let slot = self.slots.iter_mut().find(|slot| slot.is_live() && slot.mgid == mgid).ok_or(())?;
        slot.used = now;
        match slot.state {
            _ if slot.record.mlid() != Lid::new(0) => Ok(Some(&slot.record)),
            State::Wanted { .. } if slot.refusals > 0 => Err(()),
            _ => Ok(None),
        }
    }

    /// The next question that is due.
    pub(crate) fn question(&mut self, now: Instant, port_gid: Gid, pkey: PKey) -> Option<Question> {
        if self.settled {
            return None;
        }
        let pattern = self.broadcast().copied();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let index = index as u32;
            let mut record = McMemberRecord::zeroed();
            record.set_mgid(slot.mgid).set_port_gid(port_gid).set_join_state(slot.kind.join_state());
            let named = McMemberMask::MGID | McMemberMask::PORT_GID | McMemberMask::JOIN_STATE;
            if slot.state == State::Leaving && !slot.attached {
                slot.state = State::Left;
                return Some(Question { index, method: method::DELETE, mask: named.bits(), record });
            }
            let due = matches!(slot.state, State::Wanted { at } if at <= now);
            if !due || slot.kind != Kind::Broadcast && pattern.is_none() {
                continue;
            }
            slot.state = State::Asked;
            record.set_pkey(pkey.full_member());
            let mut mask = named | McMemberMask::PKEY;
            let creation = McMemberMask::QKEY
                | McMemberMask::MTU_SELECTOR
                | McMemberMask::MTU
                | McMemberMask::TRAFFIC_CLASS
                | McMemberMask::RATE_SELECTOR
                | McMemberMask::RATE
                | McMemberMask::SL
                | McMemberMask::FLOW_LABEL
                | McMemberMask::HOP_LIMIT;
            match (slot.kind, &pattern) {
                (Kind::Broadcast, _) if slot.refusals >= REFUSALS => {
                    mask |= creation | McMemberMask::SCOPE;
                    record.set_qkey(QKEY).set_mtu(MTU).set_rate(RATE).set_scope(2);
                    record.set_mtu_selector(selector::EXACTLY).set_rate_selector(selector::EXACTLY);
                }
                (Kind::Member, Some(like)) => {
                    mask |= creation;
                    record.set_qkey(like.qkey()).set_mtu(like.mtu()).set_rate(like.rate());
                    record.set_mtu_selector(selector::EXACTLY).set_rate_selector(selector::EXACTLY);
                    record.set_traffic_class(like.traffic_class()).set_sl(like.sl());
                    record.set_flow_label(like.flow_label()).set_hop_limit(like.hop_limit());
                }
                _ => {}
            }
            return Some(Question { index, method: method::SET, mask: mask.bits(), record });
        }
        self.settled = self.slots.iter().all(GroupSlot::is_settled);
        None
    }

    /// The question could not be asked for want of room.
    pub(crate) fn unask(&mut self, now: Instant, question: &Question) {
        self.settled = false;
        if let Some(slot) = self.slots.get_mut(question.index as usize) {
            slot.state = match slot.state {
                State::Left => State::Leaving,
                _ => State::Wanted { at: now + FIRST_WAIT / 10 },
            };
        }
    }

    /// The administrator's answer about a group.
    pub(crate) fn answer(&mut self, now: Instant, index: u32, result: Result<McMemberRecord, QueryError>) {
        self.settled = false;
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        match slot.state {
            // Left or not: there is nothing more to be done about it.
            State::Left => *slot = GroupSlot::EMPTY,
            State::Asked => {}
            _ => return,
        }
        if slot.state != State::Asked {
            return;
        }
        let refused = match result {
            Ok(record) if record.mgid() == slot.mgid && is_usable(&record) => {
                slot.record = record;
                slot.state = State::Joined;
                slot.refusals = 0;
                slot.wait = Duration::ZERO;
                self.joins += 1;
                return;
            }
            Ok(_) => true,
            Err(error) => matches!(error, QueryError::Status(_)),
        };
        self.refused += 1;
        if refused {
            slot.refusals = slot.refusals.saturating_add(1);
        }
        slot.wait = (2 * slot.wait).clamp(FIRST_WAIT, LONGEST_WAIT);
        slot.state = State::Wanted { at: now + slot.wait };
    }

    /// What the queue pair has to be told next.
    pub(crate) fn attachment(&self) -> Option<Attachment> {
        if self.settled {
            return None;
        }
        self.slots.iter().enumerate().find_map(|(index, slot)| match (slot.attached, slot.state) {
            (false, State::Joined) if slot.receives() => Some(Attachment::Attach(index as u32, slot.mgid)),
            (true, State::Leaving) => Some(Attachment::Detach(index as u32, slot.mgid)),
            _ => None,
        })
    }

    /// It was told.
    pub(crate) fn set_attached(&mut self, index: u32, attached: bool) {
        self.settled = false;
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.attached = attached;
        }
    }

    /// When the next question is due.
    pub(crate) fn poll_at(&self) -> Wake {
        if self.settled {
            return Wake::Idle;
        }
        let joined = self.broadcast().is_some();
        let wakes = self.slots.iter().map(|slot| match slot.state {
            State::Wanted { at } if joined || slot.kind == Kind::Broadcast => Wake::At(at),
            State::Leaving if !slot.attached => Wake::Now,
            _ => Wake::Idle,
        });
        wakes.fold(Wake::Idle, Wake::earliest)
    }
}

impl GroupSlot {
    fn leave(&mut self) {
        // What the administrator does not know of need not be left.
        let known = self.record.mlid() != Lid::new(0) || self.state == State::Asked;
        *self = if known { GroupSlot { state: State::Leaving, ..*self } } else { GroupSlot::EMPTY };
    }
}

/// An answer that cannot be sent to is refused: no multicast LID, no MTU.
fn is_usable(record: &McMemberRecord) -> bool {
    record.mlid().is_multicast() && Mtu::from_code(record.mtu()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mgmt::ipoib::broadcast_mgid;
    use ib_mgmt::mad::status;

    const SECOND: Duration = Duration::from_secs(1);

    fn granted(mgid: Gid) -> McMemberRecord {
        let mut record = McMemberRecord::zeroed();
        record
            .set_mgid(mgid)
            .set_mlid(Lid::new(0xc001))
            .set_mtu(4)
            .set_qkey(QKEY)
            .set_rate(3)
            .set_hop_limit(1);
        record
    }

    fn ask(groups: &mut Groups<'_>, now: Instant) -> Option<Question> {
        groups.question(now, Gid::new(1, 2), PKey::new(0xffff))
    }

    #[test]
    fn the_broadcast_group_comes_first_and_sets_the_pattern() {
        let mut slots = [GroupSlot::EMPTY; 3];
        let mut groups = Groups::new(&mut slots);
        let (all, some) = (broadcast_mgid(PKey::DEFAULT), Gid::new(0xff12_401b_ffff_0000, 5));
        assert!(groups.want(Instant::ORIGIN, some, Kind::Member));
        assert!(groups.want(Instant::ORIGIN, all, Kind::Broadcast));
        let question = ask(&mut groups, Instant::ORIGIN).expect("a join");
        assert_eq!((question.record.mgid(), question.method), (all, method::SET));
        // Joining a group that exists takes MGID, port GID, P_Key and join state, and asks for nothing else.
        assert_eq!(question.mask, 1 | 1 << 1 | 1 << 7 | 1 << 16);
        assert!(ask(&mut groups, Instant::ORIGIN).is_none() && groups.broadcast().is_none());
        groups.answer(Instant::ORIGIN, question.index, Ok(granted(all)));
        assert_eq!(groups.attachment(), Some(Attachment::Attach(question.index, all)));
        groups.set_attached(question.index, true);
        let second = ask(&mut groups, Instant::ORIGIN).expect("the other");
        assert_eq!((second.record.mgid(), second.record.qkey(), second.record.mtu()), (some, QKEY, 4));
        groups.answer(Instant::ORIGIN, second.index, Ok(granted(some)));
        assert!(matches!(groups.parameters(Instant::ORIGIN, some), Ok(Some(_))));
        // After a change of the fabric both are asked for again, and serve meanwhile.
        groups.rejoin(Instant::from_nanos(5));
        assert!(groups.broadcast().is_some());
        assert_eq!(ask(&mut groups, Instant::from_nanos(5)).map(|q| q.record.mgid()), Some(some));
        assert_eq!(ask(&mut groups, Instant::from_nanos(5)).map(|q| q.record.mgid()), Some(all));
        assert!(ask(&mut groups, Instant::from_nanos(5)).is_none());
    }

    #[test]
    fn refusals_wait_longer_each_time_and_make_the_group_at_last() {
        let mut slots = [GroupSlot::EMPTY; 1];
        let mut groups = Groups::new(&mut slots);
        let all = broadcast_mgid(PKey::DEFAULT);
        groups.want(Instant::ORIGIN, all, Kind::Broadcast);
        let mut now = Instant::ORIGIN;
        for wait in [1, 2, 4, 8, 16, 16] {
            let question = ask(&mut groups, now).expect("due");
            let creates = question.mask & McMemberMask::QKEY.bits() != 0;
            assert_eq!(creates, now >= Instant::ORIGIN + 3 * SECOND, "at {now:?}");
            let error = QueryError::Status(status::SA_REQ_INVALID);
            groups.answer(now, question.index, Err(error));
            assert!(ask(&mut groups, now).is_none());
            assert_eq!(groups.poll_at(), Wake::At(now + wait * SECOND));
            now += wait * SECOND;
        }
        // An answer that leads nowhere counts as a refusal.
        let question = ask(&mut groups, now).expect("due");
        groups.answer(now, question.index, Ok(*granted(all).set_mlid(Lid::new(7))));
        assert!(groups.broadcast().is_none());
    }

    #[test]
    fn leaving_detaches_first_and_frees_the_entry() {
        let mut slots = [GroupSlot::EMPTY; 2];
        let mut groups = Groups::new(&mut slots);
        let (all, some) = (broadcast_mgid(PKey::DEFAULT), Gid::new(0xff12_401b_ffff_0000, 5));
        groups.want(Instant::ORIGIN, all, Kind::Broadcast);
        let question = ask(&mut groups, Instant::ORIGIN).expect("a join");
        groups.answer(Instant::ORIGIN, question.index, Ok(granted(all)));
        groups.set_attached(question.index, true);
        // A group that was never asked for is simply forgotten.
        groups.want(Instant::ORIGIN, some, Kind::SendOnly);
        assert!(groups.leave(some) && !groups.leave(some));
        groups.leave_all();
        assert!(ask(&mut groups, Instant::ORIGIN).is_none(), "attached still");
        assert_eq!(groups.attachment(), Some(Attachment::Detach(question.index, all)));
        groups.set_attached(question.index, false);
        let bye = ask(&mut groups, Instant::ORIGIN).expect("a leave");
        assert_eq!((bye.method, bye.record.mgid()), (method::DELETE, all));
        assert!(!groups.all_left());
        groups.answer(Instant::ORIGIN, bye.index, Err(QueryError::Timeout));
        assert!(groups.all_left() && groups.broadcast().is_none());
    }

    #[test]
    fn what_is_settled_stirs_again() {
        let mut slots = [GroupSlot::EMPTY; 3];
        let mut groups = Groups::new(&mut slots);
        let (all, some) = (broadcast_mgid(PKey::DEFAULT), Gid::new(0xff12_401b_ffff_0000, 5));
        let now = Instant::ORIGIN;
        let settle = |groups: &mut Groups<'_>, mgid| {
            let question = ask(groups, now).expect("a join");
            groups.answer(now, question.index, Ok(granted(mgid)));
            assert_eq!(groups.attachment(), Some(Attachment::Attach(question.index, mgid)));
            groups.set_attached(question.index, true);
            assert!(ask(groups, now).is_none() && groups.settled);
            assert_eq!((groups.attachment(), groups.poll_at()), (None, Wake::Idle));
        };
        groups.want(now, all, Kind::Broadcast);
        settle(&mut groups, all);
        groups.want(now, some, Kind::Member);
        settle(&mut groups, some);
        // The queue pair is another one: both are attached anew.
        groups.detached();
        while let Some(Attachment::Attach(index, _)) = groups.attachment() {
            groups.set_attached(index, true);
        }
        assert!(ask(&mut groups, now).is_none() && groups.settled);
        groups.leave(some);
        assert!(matches!(groups.attachment(), Some(Attachment::Detach(..))));
        groups.rejoin(now);
        assert_eq!((groups.poll_at(), ask(&mut groups, now).is_some()), (Wake::At(now), true));
    }

    #[test]
    fn send_only_groups_make_room() {
        let mut slots = [GroupSlot::EMPTY; 2];
        let mut groups = Groups::new(&mut slots);
        let gid = |n| Gid::new(0xff12_401b_ffff_0000, n);
        assert!(
            groups.want(Instant::ORIGIN, gid(1), Kind::SendOnly)
                && groups.want(Instant::from_nanos(1), gid(2), Kind::SendOnly)
        );
        assert!(
            groups.want(Instant::from_nanos(2), gid(1), Kind::SendOnly)
                && groups.want(Instant::from_nanos(3), gid(3), Kind::Member)
        );
        assert!(matches!(groups.parameters(Instant::from_nanos(4), gid(1)), Ok(None)));
        assert_eq!(groups.parameters(Instant::from_nanos(4), gid(2)), Err(()));
        assert!(groups.want(Instant::from_nanos(5), gid(1), Kind::Member));
        assert!(!groups.want(Instant::from_nanos(6), gid(4), Kind::SendOnly));
    }
}
