//! Subscriptions, and the reports that answer them (IBTA volume 1, sections 13.4.11 and 15.2.5.12).

use ib_mgmt::mad::{attr, method, status};
use ib_mgmt::sa::{InformInfo, InformInfoRecord, Notice, SaMad, notice_type, producer, trap};
use ib_types::Gid;

use super::query::{INFORM, Query};
use super::subnet::{Address, Records, Subnet};
use crate::fabric::ports::PortIndex;

/// Subscriptions that one port can have.
const SHARE: usize = 64;
/// Reports about one port that can wait for the answers of another.
const WAITING: usize = 16;
/// How long a report waits for its answer, and how often it is sent.
const REPORT_NS: u64 = 1_000_000_000;
const REPORT_TRIES: u8 = 3;

struct Subscription {
    port: PortIndex,
    gid: Gid,
    to: Address,
    info: InformInfo,
}

struct Report {
    port: PortIndex,
    /// Whose doing it reports; `None` for the subnet manager's.
    about: Option<PortIndex>,
    to: Address,
    mad: SaMad,
    due: u64,
    tries_left: u8,
}

/// Subscriptions and reports under way.
#[derive(Default)]
pub(super) struct Informs {
    subscriptions: Vec<Subscription>,
    reports: Vec<Report>,
    last_tid: u64,
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
            known.port == from
                && known.to.qpn == to.qpn
                && without_action(&known.info) == without_action(&info)
        };
        if info.subscribe() == 0 {
            let before = self.subscriptions.len();
            self.subscriptions.retain(|known| !same(known));
            if self.subscriptions.len() == before {
                return Err(status::SA_REQ_INVALID);
            }
        } else if !self.subscriptions.iter().any(same) {
            if self.subscriptions.iter().filter(|known| known.port == from).count() >= SHARE {
                return Err(status::SA_NO_RESOURCES);
            }
            self.subscriptions.push(Subscription { port: from, gid, to, info });
        }
        Ok(vec![info.as_bytes().to_vec()])
    }

    /// A port is gone, and its subscriptions with it.
    pub(super) fn leave(&mut self, port: PortIndex) {
        self.subscriptions.retain(|known| known.port != port);
        self.reports.retain(|report| report.port != port);
    }

    pub(super) fn records(&self, query: &Query<'_>) -> Vec<Vec<u8>> {
        let records = self.subscriptions.iter().enumerate().map(|(i, known)| {
            let earlier = self.subscriptions.iter().take(i).filter(|other| other.port == known.port).count();
            let mut record = InformInfoRecord::zeroed();
            record.set_subscriber_gid(known.gid).set_inform_enum(earlier as u16).set_inform_info(&known.info);
            record.as_bytes().to_vec()
        });
        records.filter(|record| query.means(INFORM, record, 0)).collect()
    }

    /// Reports an event that is a port's doing to whoever subscribed to it. What a port has done last counts: of too many reports about
    /// it the oldest goes.
    pub(super) fn report(&mut self, notice: &Notice, about: Option<PortIndex>, now: u64) {
        for known in self.subscriptions.iter().filter(|known| wants(&known.info, notice)) {
            let alike = |report: &Report| report.port == known.port && report.about == about;
            if self.reports.iter().filter(|report| alike(report)).count() >= WAITING
                && let Some(oldest) = self.reports.iter().position(alike)
            {
                self.reports.remove(oldest);
            }
            self.last_tid += 1;
            let mut mad = SaMad::request(method::REPORT, attr::NOTICE, 0, self.last_tid);
            mad.set_record_data(notice.as_bytes());
            self.reports.push(Report {
                port: known.port,
                about,
                to: known.to,
                mad,
                due: now,
                tries_left: REPORT_TRIES,
            });
        }
    }

    /// A report was answered.
    pub(super) fn answered(&mut self, from: PortIndex, tid: u64) {
        self.reports.retain(|report| report.port != from || report.mad.tid() != tid);
    }

    /// The next report to send now.
    pub(super) fn poll(&mut self, now: u64) -> Option<(Address, SaMad)> {
        self.reports.retain(|report| report.due > now || report.tries_left != 0);
        let report = self.reports.iter_mut().find(|report| report.due <= now)?;
        report.tries_left -= 1;
        report.due = now.saturating_add(REPORT_NS);
        Some((report.to, report.mad))
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.reports.iter().map(|report| report.due).min()
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
