//! The subnet administrator (IBTA volume 1, chapter 15): answers queries about the subnet at the subnet manager's LID, QP1.
//!
//! | module | subject |
//! |---|---|
//! | `subnet` | what the administrator knows and changes |
//! | `query` | which records a request means |
//! | `tables`, `path` | nodes, ports, links, tables; paths |
//! | `member`, `service`, `inform` | groups, services, subscriptions |
//!
//! Tables go by the reliable multi-packet protocol. What is asked for with an attribute, a method or a length that makes no
//! sense is answered with the status that says so.

mod inform;
mod member;
mod path;
mod query;
mod service;
mod subnet;
mod tables;

use ib_mgmt::mad::{ClassPortInfo, Mad, attr, class, method, status};
use ib_mgmt::rmpp::{self, Sender, SenderConfig, Step};
use ib_mgmt::sa::{CLASS_VERSION, Notice, RECORD_DATA_LEN, SaMad};
use ib_types::{Gid, Instant};

use crate::ports::PortIndex;
use inform::Informs;
use query::{Query, TABLE_LIMIT};
use service::Services;
use subnet::Records;

pub(super) use subnet::{Address, Subnet};

/// Bit of capability mask 2: send-only full members.
const SEND_ONLY_FULL_MEMBER_SUPPORTED: u32 = 1 << 12;
/// Tables under way to one port at a time.
const TRANSFERS: usize = 16;
/// Bytes of records that count as one step of work: they are made one by one and sent in segments.
const RECORD_BYTES_PER_STEP: usize = 16;

/// A table on its way.
struct Transfer {
    port: PortIndex,
    to: Address,
    template: SaMad,
    payload: Vec<u8>,
    sender: Sender,
    /// When the sender has something to do.
    due: u64,
}

/// The subnet administrator's own state.
#[derive(Default)]
pub(super) struct Administrator {
    services: Services,
    informs: Informs,
    transfers: Vec<Transfer>,
    /// Steps of work since [`take_looked`](Administrator::take_looked).
    looked: u64,
}

impl Administrator {
    /// A MAD that reached QP1 of the subnet manager's LID. Answers with what to send back at once.
    pub(super) fn input(
        &mut self,
        subnet: &mut Subnet<'_>,
        from: PortIndex,
        address: &Address,
        mad: &Mad,
        now: u64,
    ) -> Option<Mad> {
        let sa = SaMad::from_mad(mad);
        let ours = mad.mgmt_class() == class::SUBN_ADM;
        if ours
            && rmpp::is_active(&sa)
            && (sa.rmpp_type() != ib_mgmt::sa::rmpp::DATA || !sa.is_single_segment())
        {
            return self.transfer_input(address, &sa, now);
        }
        if ours && mad.method() == method::REPORT_RESP {
            self.informs.answered(from, mad.tid());
            return None;
        }
        if mad.is_response() || matches!(mad.method(), method::SEND | method::TRAP | method::REPORT) {
            return None;
        }
        if !ours {
            // Nobody else lives at this QP1; a Get deserves to know.
            return matches!(mad.method(), method::GET | method::SET)
                .then(|| mad.to_response(status::METHOD_NOT_SUPPORTED));
        }
        if mad.base_version() != 1 || mad.class_version() != CLASS_VERSION {
            return Some(mad.to_response(status::BAD_VERSION));
        }
        let room = match self.room(from, address, mad) {
            Ok(room) => room,
            Err(refusal) => return refusal.map(|status| mad.to_response(status)),
        };
        let query = Query::new(mad, room);
        let records = self.records(subnet, from, address, &query, now);
        let found: usize = records.iter().flatten().map(Vec::len).sum();
        self.looked +=
            query.looked() + subnet.manager.names().len() as u64 + (found / RECORD_BYTES_PER_STEP) as u64;
        match records {
            Err(status) => Some(mad.to_response(status)),
            Ok(records) => self.respond(from, address, &query, &records, now),
        }
    }

    /// Returns the bytes that a table for a port may have, before its records are made.
    ///
    /// # Errors
    /// The status of a refusal, or `None` if the same table is in progress.
    fn room(&self, port: PortIndex, to: &Address, mad: &Mad) -> Result<usize, Option<u16>> {
        if mad.method() != method::GET_TABLE {
            return Ok(TABLE_LIMIT);
        }
        let same = |known: &Transfer| {
            known.template.tid() == mad.tid() && (known.to.lid, known.to.qpn) == (to.lid, to.qpn)
        };
        if self.transfers.iter().any(same) {
            return Err(None);
        }
        let own = self.transfers.iter().filter(|transfer| transfer.port == port);
        let (count, bytes) =
            own.fold((0, 0), |(count, bytes), transfer| (count + 1, bytes + transfer.payload.len()));
        if count >= TRANSFERS { Err(Some(status::BUSY)) } else { Ok(TABLE_LIMIT.saturating_sub(bytes)) }
    }

    /// The steps of work that requests made since this was last asked.
    pub(super) fn take_looked(&mut self) -> u64 {
        std::mem::take(&mut self.looked)
    }

    fn records(
        &mut self,
        subnet: &mut Subnet<'_>,
        from: PortIndex,
        address: &Address,
        query: &Query<'_>,
        now: u64,
    ) -> Records {
        let read = matches!(query.mad.method(), method::GET | method::GET_TABLE);
        match (query.mad.method(), query.mad.attr_id()) {
            (method::GET, attr::CLASS_PORT_INFO) => Ok(vec![class_port_info()]),
            (_, attr::PATH_RECORD) if read => path::records(subnet, from, query),
            (_, attr::NODE_RECORD) if read => Ok(tables::nodes(subnet, query)),
            (_, attr::PORT_INFO_RECORD) if read => Ok(tables::port_infos(subnet, query)),
            (_, attr::SWITCH_INFO_RECORD) if read => Ok(tables::switch_infos(subnet, query)),
            (_, attr::SM_INFO_RECORD) if read => Ok(tables::sm_infos(subnet, query)),
            (_, attr::LINK_RECORD) if read => Ok(tables::links(subnet, query)),
            (_, attr::LINEAR_FORWARDING_RECORD) if read => Ok(tables::linear_forwarding(subnet, query)),
            (_, attr::MULTICAST_FORWARDING_RECORD) if read => Ok(tables::multicast_forwarding(subnet, query)),
            (_, attr::SL_TO_VL_RECORD) if read => Ok(tables::sl_to_vl(subnet, query)),
            (_, attr::VL_ARBITRATION_RECORD) if read => Ok(tables::vl_arbitration(subnet, query)),
            (_, attr::PKEY_TABLE_RECORD) if read => Ok(tables::pkey_tables(subnet, query)),
            (_, attr::GUID_INFO_RECORD) if read => Ok(tables::guid_infos(subnet, query)),
            (_, attr::INFORM_INFO_RECORD) if read => Ok(self.informs.records(query)),
            (_, attr::SERVICE_RECORD) if read => Ok(self.services.records(query, now)),
            (_, attr::MC_MEMBER_RECORD) if read => Ok(member::records(subnet, from, query)),
            (method::SET, attr::MC_MEMBER_RECORD) => member::join(subnet, from, query),
            (method::DELETE, attr::MC_MEMBER_RECORD) => member::leave(subnet, from, query),
            (method::SET, attr::SERVICE_RECORD) => self.services.register(subnet, from, query, now),
            (method::DELETE, attr::SERVICE_RECORD) => self.services.withdraw(subnet, from, query, now),
            (method::SET, attr::INFORM_INFO) => self.informs.set(subnet, from, address, query),
            (method::GET | method::SET | method::GET_TABLE | method::DELETE | method::GET_MULTI, _) => {
                Err(status::ATTR_NOT_SUPPORTED)
            }
            _ => Err(status::METHOD_NOT_SUPPORTED),
        }
    }

    /// The answer for Get, Set and Delete: one record; for GetTable the beginning of a transfer.
    fn respond(
        &mut self,
        port: PortIndex,
        to: &Address,
        query: &Query<'_>,
        records: &[Vec<u8>],
        now: u64,
    ) -> Option<Mad> {
        let mad = query.mad;
        let units = records.first().map_or(0, |record| record.len().div_ceil(8)) as u16;
        let mut template = SaMad::from_mad(&mad.to_response(status::OK));
        template.set_attribute_offset(units);
        if mad.method() != method::GET_TABLE {
            let [record] = records else {
                let refusal =
                    if records.is_empty() { status::SA_NO_RECORDS } else { status::SA_TOO_MANY_RECORDS };
                return Some(mad.to_response(refusal));
            };
            let mut data = [0; RECORD_DATA_LEN];
            for (to, from) in data.iter_mut().zip(record) {
                *to = *from;
            }
            return Some(template.set_record_data(&data).to_mad());
        }
        if let Err(status) = query.admits(records.len(), usize::from(units) * 8) {
            return Some(mad.to_response(status));
        }
        let mut payload = Vec::new();
        for record in records {
            payload.extend_from_slice(record);
            payload.resize(payload.len().next_multiple_of(8), 0);
        }
        let sender = Sender::new(payload.len(), SenderConfig::default());
        if sender.segments() == 1 {
            // One segment: an asker that misses it asks again.
            return Some(sender.segment(1, &template, &payload).to_mad());
        }
        self.transfers.push(Transfer { port, to: *to, template, payload, sender, due: now });
        None
    }

    /// An acknowledgement, the end of a transfer, or a request in segments.
    fn transfer_input(&mut self, address: &Address, sa: &SaMad, now: u64) -> Option<Mad> {
        if sa.rmpp_type() == ib_mgmt::sa::rmpp::DATA {
            // No request that is known here needs more than one segment.
            return Some(rmpp::abort(sa, rmpp::status::UNSPECIFIED).to_mad());
        }
        let transfer = self.transfers.iter_mut().find(|known| {
            known.template.tid() == sa.tid() && (known.to.lid, known.to.qpn) == (address.lid, address.qpn)
        })?;
        let reply = transfer.sender.input(Instant::from_nanos(now), sa);
        transfer.due = now;
        reply.map(|reply| reply.to_mad())
    }

    /// A port is out of service: what it subscribed to, announced and asked for is over.
    pub(super) fn leave(&mut self, port: PortIndex) {
        self.services.leave(port);
        self.informs.leave(port);
        self.transfers.retain(|transfer| transfer.port != port);
    }

    /// Reports an event, and whose doing it is, to whoever subscribed to it.
    pub(super) fn report(&mut self, notice: &Notice, about: Option<PortIndex>, now: u64) {
        self.looked += self.informs.report(notice, about, now);
    }

    /// The next MAD to send now.
    pub(super) fn poll(&mut self, now: u64) -> Option<(Address, Mad)> {
        if let Some((to, mad)) = self.informs.poll(now) {
            return Some((to, mad.to_mad()));
        }
        let mut next = None;
        self.transfers.retain_mut(|transfer| {
            if next.is_some() || transfer.due > now {
                return true;
            }
            match transfer.sender.poll(Instant::from_nanos(now)) {
                Step::Send(number) => {
                    let mad = transfer.sender.segment(number, &transfer.template, &transfer.payload);
                    next = Some((transfer.to, mad.to_mad()));
                    true
                }
                Step::Wait(until) => {
                    transfer.due = until.as_nanos();
                    true
                }
                Step::Done | Step::Failed(_) => false,
            }
        });
        next
    }

    /// When [`poll`](Self::poll) has something to send next.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        let transfers = self.transfers.iter().map(|transfer| transfer.due);
        transfers.chain(self.informs.next_deadline()).min()
    }
}

fn class_port_info() -> Vec<u8> {
    let mut info = ClassPortInfo::zeroed();
    // Response time code 18: a second, as OpenSM says.
    info.set_base_version(1)
        .set_class_version(CLASS_VERSION)
        .set_capability_mask2(SEND_ONLY_FULL_MEMBER_SUPPORTED)
        .set_resp_time_value(18);
    info.as_bytes().to_vec()
}

/// GID of the subnet manager, the issuer of what it reports itself.
pub(super) fn manager_gid() -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, super::switch::SWITCH_GUID)
}
