//! A client of the subnet administrator: queries with retries, matched by transaction id. No I/O:
//! the owner sends what [`Client::poll`] hands out to QP1 of the port's SM LID, and feeds received
//! MADs to [`Client::input`].

use super::{CLASS_VERSION, PathMask, PathRecord, SaMad};
use crate::mad::{Mad, attr, class, method, status};
use ib_types::{Duration, Gid, Instant, PKey, ServiceLevel, Wake};

/// Limits of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Time to wait for a response before the query is sent again.
    pub timeout: Duration,
    /// Number of times that a query is sent before it fails; 0 counts as 1.
    pub tries: u8,
}

impl Default for ClientConfig {
    /// A second, three tries.
    fn default() -> Self {
        ClientConfig { timeout: Duration::from_secs(1), tries: 3 }
    }
}

/// Names a query until it is answered, failed or cancelled. The value is the query's transaction
/// id, so it is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueryId(u64);

/// All slots are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientFull;

impl core::fmt::Display for ClientFull {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("no free slot for a subnet administration query")
    }
}

impl core::error::Error for ClientFull {}

/// Why a query failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryError {
    /// No answer to any try.
    Timeout,
    /// The subnet administrator answered with this MAD status, see [`crate::mad::status`].
    Status(u16),
    /// The response has several segments, which this client does not request.
    Rmpp,
    /// The answer is about other ports than the query.
    Mismatch,
}

impl core::fmt::Display for QueryError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            QueryError::Timeout => f.write_str("the subnet administrator does not answer"),
            QueryError::Status(status::SA_NO_RECORDS) => {
                f.write_str("the subnet administrator knows no such record")
            }
            QueryError::Status(status) => write!(f, "the subnet administrator answers status {status:#06x}"),
            QueryError::Rmpp => f.write_str("the subnet administrator's answer has several segments"),
            QueryError::Mismatch => f.write_str("the subnet administrator's answer is about other ports"),
        }
    }
}

impl core::error::Error for QueryError {}

/// A question for a path between two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathQuery {
    /// The own port's GID.
    pub sgid: Gid,
    /// The other port's GID.
    pub dgid: Gid,
    /// Partition key.
    pub pkey: PKey,
    /// Service level, when it matters.
    pub sl: Option<ServiceLevel>,
    /// Traffic class, when it matters.
    pub traffic_class: Option<u8>,
    /// Service id, when it matters (quality of service by service).
    pub service_id: Option<u64>,
}

/// Action for the owner, see [`Client::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a MAD is 256 bytes and there is no heap")]
#[must_use = "the client leaves it to its owner"]
pub enum Action {
    /// Send this MAD to QP1 of the SM LID, with the SM's service level.
    Send {
        /// The query.
        id: QueryId,
        /// The owner's cookie.
        owner: u32,
        /// The MAD.
        mad: Mad,
    },
    /// The query is over without an answer.
    Failed {
        /// The query.
        id: QueryId,
        /// The owner's cookie.
        owner: u32,
        /// Why.
        error: QueryError,
    },
    /// Nothing for now.
    Idle(Wake),
}

/// An answered query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The query.
    pub id: QueryId,
    /// The owner's cookie.
    pub owner: u32,
    /// The answer; its records begin at [`SaMad::record_data`].
    pub result: Result<SaMad, QueryError>,
}

impl Response {
    /// The answer to a path query.
    pub fn path(&self) -> Result<PathRecord, QueryError> {
        let mad = self.result?;
        PathRecord::from_slice(mad.record_data()).ok_or(QueryError::Mismatch)
    }
}

/// Event counters, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ClientCounters {
    /// MADs sent, repetitions included.
    pub sent: u64,
    /// Repetitions.
    pub retries: u64,
    /// Queries answered without an error.
    pub answered: u64,
    /// Queries answered with an error.
    pub refused: u64,
    /// Queries without a response.
    pub timeouts: u64,
    /// "Busy" answers, after which the query is repeated in due time.
    pub busy: u64,
    /// MADs that answer no query of ours.
    pub foreign: u64,
}

/// Room for one query.
#[derive(Clone, Copy, Debug)]
pub struct QuerySlot {
    active: bool,
    tries_left: u8,
    owner: u32,
    /// When to send (again), or, with no tries left, to fail.
    deadline: Instant,
    request: SaMad,
}

impl QuerySlot {
    /// A free slot; all bytes zero.
    pub const EMPTY: QuerySlot = QuerySlot {
        active: false,
        tries_left: 0,
        owner: 0,
        deadline: Instant::ORIGIN,
        request: SaMad::zeroed(),
    };
}

/// The client. Create one client per port.
#[derive(Debug)]
pub struct Client<'s> {
    slots: &'s mut [QuerySlot],
    config: ClientConfig,
    next_tid: u64,
    counters: ClientCounters,
    /// No query is due before this time. [`Instant::ORIGIN`] after each change of the queries.
    due: Instant,
}

impl<'s> Client<'s> {
    /// A client with room for `slots.len()` queries at a time; what the slots held is forgotten.
    /// `seed` sets where the transaction ids begin, so that answers to an earlier life of the node
    /// are not taken for answers to this one.
    pub fn new(slots: &'s mut [QuerySlot], config: ClientConfig, seed: u64) -> Client<'s> {
        slots.fill(QuerySlot::EMPTY);
        let counters = ClientCounters::default();
        Client { slots, config, next_tid: seed, counters, due: Instant::ORIGIN }
    }

    /// Forgets all questions; `seed` as in [`Client::new`].
    pub fn restart(&mut self, seed: u64) {
        self.slots.fill(QuerySlot::EMPTY);
        (self.next_tid, self.due) = (seed, Instant::ORIGIN);
    }

    /// Queries a path. `owner` is the caller's cookie and comes back with the outcome.
    pub fn query_path(&mut self, now: Instant, query: &PathQuery, owner: u32) -> Result<QueryId, ClientFull> {
        let mut record = PathRecord::zeroed();
        let mut mask =
            PathMask::DGID | PathMask::SGID | PathMask::REVERSIBLE | PathMask::NUMB_PATH | PathMask::PKEY;
        record.set_dgid(query.dgid).set_sgid(query.sgid).set_pkey(query.pkey);
        record.set_reversible(true).set_numb_path(1);
        if let Some(sl) = query.sl {
            record.set_sl(sl);
            mask |= PathMask::SL;
        }
        if let Some(traffic_class) = query.traffic_class {
            record.set_traffic_class(traffic_class);
            mask |= PathMask::TRAFFIC_CLASS;
        }
        if let Some(service_id) = query.service_id {
            record.set_service_id(service_id);
            mask |= PathMask::SERVICE_ID_56MSB | PathMask::SERVICE_ID_8LSB;
        }
        self.query(now, method::GET, attr::PATH_RECORD, mask.bits(), record.as_bytes(), owner)
    }

    /// Any other request: Get, Set or Delete of one record (at most 200 bytes, the rest is
    /// dropped).
    pub fn query(
        &mut self,
        now: Instant,
        method: u8,
        attr_id: u16,
        component_mask: u64,
        record: &[u8],
        owner: u32,
    ) -> Result<QueryId, ClientFull> {
        let tid = self.next_tid;
        let slot = self.slots.iter_mut().find(|slot| !slot.active).ok_or(ClientFull)?;
        (self.next_tid, self.due) = (self.next_tid.wrapping_add(1), Instant::ORIGIN);
        let mut request = SaMad::request(method, attr_id, component_mask, tid);
        request.set_record_data(record);
        *slot =
            QuerySlot { active: true, tries_left: self.config.tries.max(1), owner, deadline: now, request };
        Ok(QueryId(tid))
    }

    /// Forgets a query; false when it was over already. A late answer counts as foreign.
    pub fn cancel(&mut self, id: QueryId) -> bool {
        self.due = Instant::ORIGIN;
        let slot = self.slots.iter_mut().find(|slot| slot.active && slot.request.tid() == id.0);
        slot.map(|slot| slot.active = false).is_some()
    }

    /// Gives one thing to do; call until it is [`Action::Idle`].
    pub fn poll(&mut self, now: Instant) -> Action {
        if now < self.due {
            return Action::Idle(Wake::by(self.due));
        }
        let mut next = Instant::MAX;
        for slot in self.slots.iter_mut().filter(|slot| slot.active) {
            if slot.deadline > now {
                next = next.min(slot.deadline);
                continue;
            }
            let id = QueryId(slot.request.tid());
            let Some(tries_left) = slot.tries_left.checked_sub(1) else {
                slot.active = false;
                self.counters.timeouts += 1;
                return Action::Failed { id, owner: slot.owner, error: QueryError::Timeout };
            };
            self.counters.sent += 1;
            self.counters.retries += u64::from(tries_left + 1 < self.config.tries.max(1));
            slot.tries_left = tries_left;
            slot.deadline = now + self.config.timeout;
            return Action::Send { id, owner: slot.owner, mad: slot.request.to_mad() };
        }
        self.due = next;
        Action::Idle(Wake::by(next))
    }

    /// Takes a received MAD. `None`: it answers no query of ours (counted), or says "busy".
    #[must_use = "the answer comes once"]
    pub fn input(&mut self, mad: &Mad) -> Option<Response> {
        let answer = SaMad::from_mad(mad);
        let slot = self.slots.iter_mut().find(|slot| slot.active && slot.request.tid() == answer.tid());
        let expected = |request: &SaMad| match request.method() {
            method::SET => method::GET_RESP,
            other => other | method::RESPONSE,
        };
        let slot = slot.filter(|slot| {
            answer.mgmt_class() == class::SUBN_ADM
                && answer.class_version() == CLASS_VERSION
                && answer.method() == expected(&slot.request)
                && answer.attr_id() == slot.request.attr_id()
        });
        let Some(slot) = slot else {
            self.counters.foreign += 1;
            return None;
        };
        if answer.status() & status::BUSY != 0 {
            self.counters.busy += 1;
            return None;
        }
        slot.active = false;
        self.due = Instant::ORIGIN;
        let result = check(&slot.request, answer);
        match result {
            Ok(_) => self.counters.answered += 1,
            Err(_) => self.counters.refused += 1,
        }
        Some(Response { id: QueryId(answer.tid()), owner: slot.owner, result })
    }

    /// Queries under way.
    pub fn active(&self) -> usize {
        self.slots.iter().filter(|slot| slot.active).count()
    }

    /// Counters since the start.
    pub fn counters(&self) -> ClientCounters {
        self.counters
    }
}

fn check(request: &SaMad, answer: SaMad) -> Result<SaMad, QueryError> {
    if answer.status() != status::OK {
        return Err(QueryError::Status(answer.status()));
    }
    if !answer.is_single_segment() {
        return Err(QueryError::Rmpp);
    }
    if answer.attr_id() == attr::PATH_RECORD && request.method() == method::GET {
        let asked = PathRecord::from_slice(request.record_data()).ok_or(QueryError::Mismatch)?;
        let given = PathRecord::from_slice(answer.record_data()).ok_or(QueryError::Mismatch)?;
        let mask = PathMask::from_bits_retain(request.component_mask());
        if (mask.contains(PathMask::DGID) && asked.dgid() != given.dgid())
            || (mask.contains(PathMask::SGID) && asked.sgid() != given.sgid())
        {
            return Err(QueryError::Mismatch);
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_types::Lid;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn query_is_sent_after_an_idle_poll() {
        let mut slots = [QuerySlot::EMPTY; 2];
        let mut client = Client::new(&mut slots, ClientConfig::default(), 1);
        let now = Instant::ORIGIN + SECOND;
        assert!(matches!(client.poll(now), Action::Idle(Wake::Idle)));
        let id = client.query(now, method::GET, attr::PATH_RECORD, 0, &[], 7).expect("room");
        assert!(matches!(client.poll(now), Action::Send { owner: 7, .. }));
        assert!(matches!(client.poll(now), Action::Idle(Wake::At(_))));
        assert!(client.cancel(id));
        assert!(matches!(client.poll(now), Action::Idle(Wake::Idle)));
    }

    fn query() -> PathQuery {
        PathQuery {
            sgid: Gid::new(Gid::DEFAULT_PREFIX, 1),
            dgid: Gid::new(Gid::DEFAULT_PREFIX, 2),
            pkey: PKey::DEFAULT,
            sl: None,
            traffic_class: None,
            service_id: None,
        }
    }

    fn send(action: Action) -> (QueryId, Mad) {
        match action {
            Action::Send { id, mad, .. } => (id, mad),
            other => panic!("{other:?}"),
        }
    }

    fn answer(request: &Mad, dlid: u16) -> Mad {
        let mut mad = SaMad::from_mad(&request.to_response(0));
        let mut record = PathRecord::from_slice(mad.record_data()).unwrap();
        record.set_dlid(Lid::new(dlid)).set_slid(Lid::new(1)).set_mtu(5);
        mad.set_record_data(record.as_bytes());
        mad.to_mad()
    }

    #[test]
    fn asks_and_understands_the_answer() {
        let mut slots = [QuerySlot::EMPTY; 2];
        let mut client = Client::new(&mut slots, ClientConfig::default(), 0x77);
        let id = client.query_path(Instant::from_nanos(5), &query(), 42).unwrap();
        let (sent, mad) = send(client.poll(Instant::from_nanos(5)));
        assert_eq!(sent, id);
        let b = mad.as_bytes();
        assert_eq!(b[..4], [1, 3, 2, 1]);
        assert_eq!((&b[16..18], &b[48..56]), (&[0, 0x35][..], &[0, 0, 0, 0, 0, 0, 0x38, 0x0c][..]));
        assert_eq!(b[56 + 49..56 + 52], [0x81, 0xff, 0xff]);
        assert_eq!(
            client.poll(Instant::from_nanos(6)),
            Action::Idle(Wake::At(Instant::from_nanos(5) + SECOND))
        );
        let response = client.input(&answer(&mad, 9)).unwrap();
        assert_eq!((response.id, response.owner), (id, 42));
        assert_eq!(response.path().unwrap().dlid(), Lid::new(9));
        assert_eq!(client.active(), 0);
        assert_eq!(client.poll(Instant::from_nanos(7)), Action::Idle(Wake::Idle));
        // A duplicate response matches no query.
        assert_eq!(client.input(&answer(&mad, 9)), None);
        assert_eq!(client.counters().foreign, 1);
    }

    #[test]
    fn three_tries_then_failed() {
        let mut slots = [QuerySlot::EMPTY; 1];
        let mut client = Client::new(&mut slots, ClientConfig::default(), 1);
        let id = client.query_path(Instant::ORIGIN, &query(), 7).unwrap();
        assert_eq!(client.query_path(Instant::ORIGIN, &query(), 8), Err(ClientFull));
        for t in 0..3 {
            let (_, mad) = send(client.poll(Instant::ORIGIN + t * SECOND));
            assert_eq!(mad.tid(), 1);
            assert_eq!(
                client.poll(Instant::ORIGIN + t * SECOND + Duration::from_nanos(1)),
                Action::Idle(Wake::At(Instant::ORIGIN + (t + 1) * SECOND))
            );
        }
        assert_eq!(
            client.poll(Instant::ORIGIN + 3 * SECOND),
            Action::Failed { id, owner: 7, error: QueryError::Timeout }
        );
        let counters = client.counters();
        assert_eq!((counters.sent, counters.retries, counters.timeouts), (3, 2, 1));
        assert!(client.query_path(Instant::ORIGIN, &query(), 9).is_ok());
    }

    #[test]
    fn errors_are_told_and_strangers_ignored() {
        let mut slots = [QuerySlot::EMPTY; 1];
        let mut client = Client::new(&mut slots, ClientConfig::default(), 1);
        client.query_path(Instant::ORIGIN, &query(), 7).unwrap();
        let (_, mad) = send(client.poll(Instant::ORIGIN));
        for spoil in [
            |m: &mut Mad| _ = m.set_tid(99),
            |m: &mut Mad| _ = m.set_mgmt_class(7),
            |m: &mut Mad| _ = m.set_method(method::GET_TABLE_RESP),
            |m: &mut Mad| _ = m.set_attr_id(attr::MC_MEMBER_RECORD),
        ] {
            let mut foreign = answer(&mad, 3);
            spoil(&mut foreign);
            assert_eq!(client.input(&foreign), None);
        }
        assert_eq!(client.counters().foreign, 4);
        assert_eq!(client.input(&mad.to_response(status::BUSY)), None);
        assert_eq!(client.active(), 1);
        let refused = client.input(&mad.to_response(status::SA_NO_RECORDS)).unwrap();
        assert_eq!(refused.path(), Err(QueryError::Status(0x0300)));
    }

    #[test]
    fn an_answer_about_other_ports_is_refused() {
        for spoil in [
            |record: &mut PathRecord| _ = record.set_dgid(Gid([3; 16])),
            |record: &mut PathRecord| _ = record.set_sgid(Gid([3; 16])),
        ] {
            let mut slots = [QuerySlot::EMPTY; 1];
            let mut client = Client::new(&mut slots, ClientConfig::default(), 1);
            client.query_path(Instant::ORIGIN, &query(), 7).unwrap();
            let (_, mad) = send(client.poll(Instant::ORIGIN));
            let mut wrong = SaMad::from_mad(&answer(&mad, 3));
            let mut record = PathRecord::from_slice(wrong.record_data()).unwrap();
            spoil(&mut record);
            wrong.set_record_data(record.as_bytes());
            assert_eq!(client.input(&wrong.to_mad()).unwrap().path(), Err(QueryError::Mismatch));
        }
    }

    #[test]
    fn cancelled_queries_are_forgotten() {
        let mut slots = [QuerySlot::EMPTY; 1];
        let mut client =
            Client::new(&mut slots, ClientConfig { timeout: Duration::from_nanos(10), tries: 0 }, 1);
        let id = client.query_path(Instant::ORIGIN, &query(), 7).unwrap();
        assert!(client.cancel(id) && !client.cancel(id));
        assert_eq!(client.poll(Instant::from_nanos(100)), Action::Idle(Wake::Idle));
    }

    proptest! {
        #[test]
        fn any_input_is_survived(bytes in proptest::collection::vec(any::<u8>(), 256), tid in 0u64..4) {
            let mut slots = [QuerySlot::EMPTY; 2];
            let mut client = Client::new(&mut slots, ClientConfig::default(), 0);
            client.query_path(Instant::ORIGIN, &query(), 1).unwrap();
            client.query(Instant::ORIGIN, method::SET, attr::MC_MEMBER_RECORD, 3, &[1; 52], 2).unwrap();
            let mut mad = Mad::from_slice(&bytes).unwrap();
            mad.set_tid(tid).set_mgmt_class(3).set_class_version(2).set_method(0x81);
            mad.set_attr_id(if tid == 0 { attr::PATH_RECORD } else { attr::MC_MEMBER_RECORD });
            if let Some(response) = client.input(&mad) {
                prop_assert!(tid < 2);
                let _ = response.path();
            }
        }
    }
}
