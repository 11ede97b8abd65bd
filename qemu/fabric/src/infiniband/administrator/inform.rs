//! Subscriptions, and the reports that answer them (IBTA volume 1, sections 13.4.11 and 15.2.5.12).

use ib_mgmt::mad::{attr, method, status};
use ib_mgmt::sa::{InformInfo, InformInfoRecord, Notice, SaMad, notice_type, producer, trap};
use ib_types::Gid;

use super::query::{INFORM, Query};
use super::subnet::{Address, Records, Subnet};
use crate::ports::PortIndex;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Subscriptions that one port can have.
const SHARE: usize = 64;
/// Reports that can wait for the answers of one port: two about each port of a switch, all subscriptions to an event several times over.
const ROOM: usize = 512;
/// How long a report waits for its answer, and how often it is sent.
const REPORT_NS: u64 = 1_000_000_000;
const REPORT_TRIES: u8 = 3;

/// A transaction: the number of a report.
type Number = u64;
/// Whose doing an event is; `None` for the subnet manager's.
type Cause = Option<PortIndex>;

struct Subscription {
    gid: Gid,
    to: Address,
    info: InformInfo,
}

struct Report {
    port: PortIndex,
    cause: Cause,
    to: Address,
    notice: Notice,
    due: u64,
    tries_left: u8,
}

/// The reports that wait for one port, by whose doing they are about, the oldest first.
#[derive(Default)]
struct Waiting {
    by_cause: BTreeMap<Cause, VecDeque<Number>>,
    count: usize,
}

impl Waiting {
    /// Takes a report in. Where there is no room, the oldest about whoever has done the most goes.
    fn put(&mut self, cause: Cause, number: Number) -> Option<Number> {
        self.by_cause.entry(cause).or_default().push_back(number);
        self.count += 1;
        if self.count <= ROOM {
            return None;
        }
        let room_of =
            |(_, queue): &(&Cause, &VecDeque<Number>)| (queue.len(), Reverse(queue.front().copied()));
        let (&busiest, _) = self.by_cause.iter().max_by_key(room_of)?;
        let oldest = self.by_cause.get(&busiest)?.front().copied()?;
        self.remove(busiest, oldest);
        Some(oldest)
    }

    fn remove(&mut self, cause: Cause, number: Number) {
        let Some(queue) = self.by_cause.get_mut(&cause) else { return };
        // The older a number, the smaller.
        if let Ok(at) = queue.binary_search(&number) {
            queue.remove(at);
            self.count -= 1;
        }
        if queue.is_empty() {
            self.by_cause.remove(&cause);
        }
    }
}

/// Subscriptions and reports under way.
#[derive(Default)]
pub(super) struct Informs {
    subscriptions: BTreeMap<PortIndex, Vec<Subscription>>,
    reports: BTreeMap<Number, Report>,
    /// The same by when they are to be sent next.
    schedule: BTreeSet<(u64, Number)>,
    waiting: BTreeMap<PortIndex, Waiting>,
    last: Number,
}

impl Informs {
    /// Set(InformInfo).
    pub(super) fn set(
        &mut self,
        subnet: &Subnet<'_>,
        from: PortIndex,
        to: &Address,
        query: &Query<'_>,
    ) -> Records {
        let info = InformInfo::from_slice(&query.record()).unwrap_or_default();
        let Some(gid) = subnet.manager.record(from).filter(|port| port.active).and_then(|port| port.gid())
        else {
            return Err(status::SA_REQ_INVALID);
        };
        if info.is_generic() > 1 || info.subscribe() > 1 {
            return Err(status::SA_REQ_INVALID);
        }
        // Reports go to the QP that the subscription names, QP1 unless it is another's.
        let to = Address { qpn: if info.qpn() == 0 { to.qpn } else { info.qpn() }, grh: None, ..*to };
        let same = |known: &Subscription| {
            known.to.qpn == to.qpn && without_action(&known.info) == without_action(&info)
        };
        let own = self.subscriptions.entry(from).or_default();
        if info.subscribe() == 0 {
            let before = own.len();
            own.retain(|known| !same(known));
            if own.len() == before {
                return Err(status::SA_REQ_INVALID);
            }
        } else if !own.iter().any(same) {
            if own.len() >= SHARE {
                return Err(status::SA_NO_RESOURCES);
            }
            own.push(Subscription { gid, to, info });
        }
        Ok(vec![info.as_bytes().to_vec()])
    }

    /// A port is gone, and its subscriptions with it.
    pub(super) fn leave(&mut self, port: PortIndex) {
        self.subscriptions.remove(&port);
        let waiting = self.waiting.remove(&port).unwrap_or_default();
        for number in waiting.by_cause.into_values().flatten() {
            self.forget(number);
        }
    }

    pub(super) fn records(&self, query: &Query<'_>) -> Vec<Vec<u8>> {
        let numbered = self.subscriptions.values().flat_map(|own| (0u16..).zip(own));
        let records = numbered.map(|(number, known)| {
            let mut record = InformInfoRecord::zeroed();
            record.set_subscriber_gid(known.gid).set_inform_enum(number).set_inform_info(&known.info);
            record.as_bytes().to_vec()
        });
        records.filter(|record| query.means(INFORM, record, 0)).collect()
    }

    /// Reports an event to whoever subscribed to it. Answers how many subscriptions were looked at, and reports made.
    pub(super) fn report(&mut self, notice: &Notice, cause: Cause, now: u64) -> u64 {
        let Self { subscriptions, reports, schedule, waiting, last } = self;
        let mut looked = 0;
        for (&port, own) in subscriptions {
            looked += own.len() as u64;
            for known in own.iter().filter(|known| wants(&known.info, notice)) {
                looked += 1;
                *last += 1;
                let report =
                    Report { port, cause, to: known.to, notice: *notice, due: now, tries_left: REPORT_TRIES };
                reports.insert(*last, report);
                schedule.insert((now, *last));
                if let Some(oldest) = waiting.entry(port).or_default().put(cause, *last)
                    && let Some(report) = reports.remove(&oldest)
                {
                    schedule.remove(&(report.due, oldest));
                }
            }
        }
        looked
    }

    /// A report that is not waited for any more.
    fn forget(&mut self, number: Number) {
        let Some(report) = self.reports.remove(&number) else { return };
        self.schedule.remove(&(report.due, number));
        if let Some(waiting) = self.waiting.get_mut(&report.port) {
            waiting.remove(report.cause, number);
        }
    }

    /// A report was answered.
    pub(super) fn answered(&mut self, from: PortIndex, tid: u64) {
        if self.reports.get(&tid).is_some_and(|report| report.port == from) {
            self.forget(tid);
        }
    }

    /// The next report to send now.
    pub(super) fn poll(&mut self, now: u64) -> Option<(Address, SaMad)> {
        while let Some(&(due, number)) = self.schedule.first().filter(|(due, _)| *due <= now) {
            self.schedule.remove(&(due, number));
            let Some(report) = self.reports.get_mut(&number).filter(|report| report.tries_left != 0) else {
                self.forget(number);
                continue;
            };
            report.tries_left -= 1;
            report.due = now.saturating_add(REPORT_NS);
            self.schedule.insert((report.due, number));
            let mut mad = SaMad::request(method::REPORT, attr::NOTICE, 0, number);
            mad.set_record_data(report.notice.as_bytes());
            return Some((report.to, mad));
        }
        None
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.schedule.first().map(|(due, _)| *due)
    }
}

/// A subscription apart from whether it begins or ends, and from its subscriber's response time.
fn without_action(info: &InformInfo) -> InformInfo {
    let mut info = *info;
    info.set_subscribe(0).set_resp_time_value(0).set_qpn(0);
    info
}

/// Whether a subscription is to this event.
fn wants(info: &InformInfo, notice: &Notice) -> bool {
    let everyone = info.gid().is_zero() && info.lid_range_begin() == 0xffff;
    let last = if info.lid_range_end() == 0 { info.lid_range_begin() } else { info.lid_range_end() };
    let producer_is_meant = if info.gid().is_zero() {
        everyone || (info.lid_range_begin()..=last).contains(&notice.issuer_lid())
    } else {
        info.gid() == notice.issuer_gid() || info.gid() == notice.gid()
    };
    let either = |wanted: u32, all: u32, is: u32| wanted == all || wanted == is;
    producer_is_meant
        && (info.is_generic() == 1) == notice.is_generic()
        && either(info.trap_type().into(), notice_type::ALL.into(), notice.notice_type().into())
        && either(info.trap_number().into(), trap::ALL.into(), notice.trap_number().into())
        && either(info.producer_type(), producer::ALL, notice.producer_type())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREVER: u64 = 3600 * REPORT_NS;

    fn event(number: u16, lid: u16) -> Notice {
        Notice::generic(notice_type::INFORMATIONAL, producer::CA, number, lid)
    }

    /// Ports that each have `each` subscriptions to everything, told apart by their QPs.
    fn subscribers(ports: u32, each: u32) -> Informs {
        let mut informs = Informs::default();
        for port in 0..ports {
            let own = (0..each).map(|qpn| Subscription {
                gid: Gid::new(1, u64::from(port)),
                to: Address { lid: port as u16 + 2, qpn: qpn + 1, vl: 0, sl: 0, pkey: 0xffff, grh: None },
                info: InformInfo::subscription(trap::ALL),
            });
            informs.subscriptions.insert(PortIndex(port), own.collect());
        }
        informs
    }

    fn sent(informs: &mut Informs, now: u64) -> Vec<(u32, u16, u64)> {
        std::iter::from_fn(|| informs.poll(now))
            .map(|(to, mad)| {
                let notice = Notice::from_slice(mad.record_data()).expect("a notice");
                (to.qpn, notice.issuer_lid(), mad.tid())
            })
            .collect()
    }

    #[test]
    fn every_subscription_hears_of_an_event() {
        let mut informs = subscribers(3, SHARE as u32);
        let looked = informs.report(&event(trap::CAPABILITY, 9), Some(PortIndex(7)), 0);
        assert_eq!(looked, 2 * 3 * SHARE as u64, "each is looked at, and has its report");
        let reports = sent(&mut informs, 0);
        assert_eq!(reports.len(), 3 * SHARE);
        for qpn in 1..=SHARE as u32 {
            assert_eq!(reports.iter().filter(|report| report.0 == qpn).count(), 3);
        }
        assert_eq!((sent(&mut informs, 1), informs.next_deadline()), (vec![], Some(REPORT_NS)));
        // Answers of a port end its own reports only.
        for (_, _, tid) in &reports {
            informs.answered(PortIndex(1), *tid);
        }
        assert_eq!(sent(&mut informs, REPORT_NS).len(), 2 * SHARE);
        informs.leave(PortIndex(2));
        assert_eq!(sent(&mut informs, 2 * REPORT_NS).len(), SHARE);
        // Three times is enough.
        assert_eq!(sent(&mut informs, FOREVER), []);
        let left = (informs.reports.len(), informs.schedule.len(), informs.next_deadline());
        assert_eq!(left, (0, 0, None));
        assert!(informs.waiting.values().all(|waiting| waiting.count == 0 && waiting.by_cause.is_empty()));
    }

    #[test]
    fn the_room_is_for_everybodys_doings() {
        let mut informs = subscribers(1, 2);
        for i in 0..2_000 {
            informs.report(&event(trap::CAPABILITY, i), Some(PortIndex(1)), 0);
        }
        // 250 others do one thing each: one who did much makes room.
        for port in 2..252 {
            informs.report(&event(trap::CAPABILITY, 10_000 + port as u16), Some(PortIndex(port)), 0);
        }
        assert_eq!((informs.reports.len(), informs.schedule.len()), (ROOM, ROOM));
        let reports = sent(&mut informs, 0);
        let others = reports.iter().filter(|report| report.1 > 10_000).count();
        assert_eq!((others, reports.len() - others), (500, ROOM - 500));
        assert!(reports.iter().all(|report| report.1 > 10_000 || report.1 >= 1_994), "the latest of it");
        // As many again: all have two shares of the room and the oldest go.
        for port in 0..254 {
            informs.report(&event(trap::CAPABILITY, 20_000 + port), Some(PortIndex(port.into())), 0);
        }
        let reports = sent(&mut informs, 0);
        assert_eq!(reports.iter().filter(|report| report.1 >= 20_000).count(), 508);
        assert_eq!(informs.reports.len(), ROOM);
    }

    #[test]
    fn subscriptions_choose() {
        let mut notice =
            Notice::generic(notice_type::SUBNET_MANAGEMENT, producer::CLASS_MANAGER, trap::IN_SERVICE, 1);
        notice.set_gid(Gid::new(1, 2)).set_issuer_gid(Gid::new(1, 9));
        let info = InformInfo::subscription(trap::IN_SERVICE);
        assert!(wants(&info, &notice));
        assert!(wants(&InformInfo::subscription(trap::ALL), &notice));
        assert!(!wants(&InformInfo::subscription(trap::OUT_OF_SERVICE), &notice));
        let other = |change: fn(&mut InformInfo)| {
            let mut info = info;
            change(&mut info);
            wants(&info, &notice)
        };
        assert!(!other(|info| {
            info.set_is_generic(0);
        }));
        assert!(!other(|info| {
            info.set_trap_type(4);
        }));
        assert!(other(|info| {
            info.set_producer_type(producer::CLASS_MANAGER);
        }));
        assert!(!other(|info| {
            info.set_producer_type(producer::CA);
        }));
        assert!(other(|info| {
            info.set_lid_range_begin(1);
        }));
        assert!(!other(|info| {
            info.set_lid_range_begin(2).set_lid_range_end(9);
        }));
        assert!(other(|info| {
            info.set_gid(Gid::new(1, 2));
        }));
        assert!(!other(|info| {
            info.set_gid(Gid::new(1, 3));
        }));
    }
}
