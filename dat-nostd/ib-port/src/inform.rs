//! Subscriptions to the subnet administrator's notices of ports that come into service or go out of it, traps 64 and 65
//! (IBTA 13.4.11 and 14.4.10).
//!
//! Such a port may have another LID than before, so its path is not believed any longer.

use ib_mgmt::mad::{Mad, attr};
use ib_mgmt::sa::{InformInfo, Notice, QueryError, SaMad, trap};
use ib_types::{Duration, Gid, Instant, Wake};

/// The traps subscribed to.
const TRAPS: [u16; 2] = [trap::IN_SERVICE, trap::OUT_OF_SERVICE];
/// Pause after a refusal. Paths end without subscriptions too, only later.
const PAUSE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be asked for at a time.
    Wanted(Instant),
    Asked,
    Subscribed,
}

/// The subscriptions, by their position in [`TRAPS`].
#[derive(Debug)]
pub(crate) struct Subscriptions {
    states: [State; TRAPS.len()],
    /// The earliest time in `states`: most polls look at nothing else.
    due: Instant,
    /// Ports that came or went, as reported.
    pub(crate) reports: u64,
}

impl Subscriptions {
    pub(crate) const fn new() -> Self {
        Self { states: [State::Wanted(Instant::ORIGIN); TRAPS.len()], due: Instant::ORIGIN, reports: 0 }
    }

    /// Pending requests get no reply, and the subnet manager stores no subscription.
    pub(crate) fn restart(&mut self) {
        self.states = [State::Wanted(Instant::ORIGIN); TRAPS.len()];
        self.due = Instant::ORIGIN;
    }

    /// The subnet manager may have forgotten: subscribes again, which changes nothing if it has not.
    pub(crate) fn renew(&mut self) {
        for state in self.states.iter_mut().filter(|state| **state == State::Subscribed) {
            *state = State::Wanted(Instant::ORIGIN);
            self.due = Instant::ORIGIN;
        }
    }

    /// Returns the next subscription that is due, and its index.
    pub(crate) fn question(&mut self, now: Instant) -> Option<(u32, InformInfo)> {
        if now < self.due {
            return None;
        }
        let due = |state: &State| matches!(state, State::Wanted(at) if *at <= now);
        let Some(index) = self.states.iter().position(due) else {
            let at = |state: &State| if let State::Wanted(at) = state { *at } else { Instant::MAX };
            self.due = self.states.iter().map(at).min().unwrap_or(Instant::MAX);
            return None;
        };
        *self.states.get_mut(index)? = State::Asked;
        Some((index as u32, InformInfo::subscription(*TRAPS.get(index)?)))
    }

    /// The subnet administrator's answer.
    pub(crate) fn answer(&mut self, now: Instant, index: u32, result: Result<SaMad, QueryError>) {
        let Some(state) = self.states.get_mut(index as usize).filter(|state| **state == State::Asked) else {
            return;
        };
        if result.is_ok() {
            *state = State::Subscribed;
        } else {
            *state = State::Wanted(now + PAUSE);
            self.due = self.due.min(now + PAUSE);
        }
    }

    /// The subscription could not be asked for, for want of room in the client.
    pub(crate) fn unask(&mut self, now: Instant, index: u32) {
        self.answer(now, index, Err(QueryError::Timeout));
    }

    /// When a subscription is due next.
    pub(crate) fn poll_at(&self) -> Wake {
        Wake::by(self.due)
    }

    /// Returns the GID of the port that a notice is about, if it is one of those subscribed to.
    pub(crate) fn reported(&mut self, report: &Mad) -> Option<Gid> {
        let notice = Notice::from_slice(SaMad::from_mad(report).record_data())?;
        let ours =
            report.attr_id() == attr::NOTICE && notice.is_generic() && TRAPS.contains(&notice.trap_number());
        self.reports += u64::from(ours);
        ours.then(|| notice.gid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mgmt::mad::{class, method, status};
    use ib_mgmt::sa::{CLASS_VERSION, notice_type, producer};

    #[test]
    fn subscribes_once_and_again_after_a_refusal() {
        let mut own = Subscriptions::new();
        let mut now = Instant::ORIGIN;
        let asked = |own: &mut Subscriptions, now| {
            core::iter::from_fn(|| own.question(now))
                .map(|(index, info)| (index, info.trap_number(), info.subscribe()))
                .collect::<std::vec::Vec<_>>()
        };
        assert_eq!(own.poll_at(), Wake::At(now));
        assert_eq!(asked(&mut own, now), [(0, 64, 1), (1, 65, 1)]);
        assert_eq!(own.poll_at(), Wake::Idle);
        own.answer(now, 0, Ok(SaMad::zeroed()));
        own.answer(now, 1, Err(QueryError::Status(status::SA_NO_RESOURCES)));
        own.answer(now, 9, Ok(SaMad::zeroed()));
        assert_eq!(asked(&mut own, now), []);
        now += PAUSE;
        assert_eq!(own.poll_at(), Wake::At(now));
        assert_eq!(asked(&mut own, now), [(1, 65, 1)]);
        // An answer is awaited, so only the other is asked for again.
        own.renew();
        assert_eq!(asked(&mut own, now), [(0, 64, 1)]);
        own.unask(now, 0);
        assert_eq!(own.poll_at(), Wake::At(now + PAUSE));
        own.restart();
        assert_eq!(asked(&mut own, now), [(0, 64, 1), (1, 65, 1)]);
    }

    #[test]
    fn reports_name_ports() {
        let mut own = Subscriptions::new();
        let report = |number, attribute| {
            let mut notice =
                Notice::generic(notice_type::SUBNET_MANAGEMENT, producer::CLASS_MANAGER, number, 1);
            notice.set_gid(Gid::new(1, 2));
            let mut mad =
                SaMad::from_mad(&Mad::new(class::SUBN_ADM, CLASS_VERSION, method::REPORT, attribute, 7));
            mad.set_record_data(notice.as_bytes());
            mad.to_mad()
        };
        for number in TRAPS {
            assert_eq!(own.reported(&report(number, attr::NOTICE)), Some(Gid::new(1, 2)));
        }
        assert_eq!(own.reported(&report(trap::GROUP_CREATED, attr::NOTICE)), None);
        assert_eq!(own.reported(&report(trap::IN_SERVICE, attr::PATH_RECORD)), None);
        assert_eq!(own.reports, 2);
    }
}
