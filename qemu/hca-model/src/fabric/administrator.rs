//! The subnet administrator (IBTA volume 1, chapter 15): answers queries about the subnet at the subnet manager's LID, QP1.
//!
//! Answers fit one MAD: a GetTable that matches more than that says "too many records". Offsets and component mask bits are
//! written down here from the specification's tables, independent of the client's.

use ib_mgmt::Gid;
use ib_mgmt::mad::{ClassPortInfo, Mad, attr, class, method, status};

use super::PortIndex;
use super::manager::{DEFAULT_PKEY, Manager, PortRecord};
use super::multicast::{Group, Groups, Parameters};

/// Attribute offset (BE16, in 8-byte units), component mask and record of an SA MAD.
const ATTRIBUTE_OFFSET_AT: usize = 44;
const COMPONENT_MASK_AT: usize = 48;
const RECORD_AT: usize = 56;
/// Bytes of records in one MAD.
const RECORD_ROOM: usize = 200;
/// RMPP header: version, type, response time and flags.
const RMPP_AT: usize = 24;
/// Class version of subnet administration.
const CLASS_VERSION: u8 = 2;

/// Rate code of every path: 100 Gb/s.
const RATE_100G: u8 = 16;
/// Packet life time of every path: 4.096 us × 2^8, about a millisecond.
const PACKET_LIFE: u8 = 8;
/// Selector "exactly".
const EXACTLY: u8 = 2 << 6;

/// The MAD's bytes as a query.
struct Query<'a> {
    mad: &'a Mad,
}

impl Query<'_> {
    fn mask(&self) -> u64 {
        self.number(COMPONENT_MASK_AT, 8)
    }

    fn has(&self, bit: u32) -> bool {
        self.mask() >> bit & 1 != 0
    }

    fn number(&self, at: usize, len: usize) -> u64 {
        let bytes = self.mad.as_bytes().get(at..at + len).unwrap_or_default();
        bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// A field of the record.
    fn field(&self, at: usize, len: usize) -> u64 {
        self.number(RECORD_AT + at, len)
    }

    fn gid(&self, at: usize) -> Gid {
        let bytes = self.mad.as_bytes().get(RECORD_AT + at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(Gid::ZERO, |bytes| Gid(*bytes))
    }

    fn gid_matches(&self, bit: u32, at: usize, gid: Option<Gid>) -> bool {
        !self.has(bit) || Some(self.gid(at)) == gid
    }

    fn matches(&self, bit: u32, at: usize, len: usize, value: u64) -> bool {
        !self.has(bit) || self.field(at, len) == value
    }

    /// Whether a selector and a 6-bit value (of MTU, rate or life) at `at` admit `value`.
    fn selects(&self, selector_bit: u32, value_bit: u32, at: usize, value: u8) -> bool {
        if !self.has(value_bit) {
            return true;
        }
        let byte = self.field(at, 1) as u8;
        let (selector, wanted) = (byte >> 6, byte & 0x3f);
        match if self.has(selector_bit) { selector } else { 2 } {
            0 => value > wanted,
            1 => value < wanted,
            2 => value == wanted,
            _ => true,
        }
    }
}

/// Answers a MAD that reached the subnet administrator from a port; `None` for what wants no answer.
pub(super) fn answer(manager: &Manager, groups: &mut Groups, from: PortIndex, mad: &Mad) -> Option<Mad> {
    if mad.is_response() || matches!(mad.method(), method::SEND | method::TRAP | method::REPORT) {
        return None;
    }
    if mad.mgmt_class() != class::SUBN_ADM {
        // Nobody else lives at this QP1; a Get deserves to know.
        return matches!(mad.method(), method::GET | method::SET)
            .then(|| mad.to_response(status::METHOD_NOT_SUPPORTED));
    }
    if mad.base_version() != 1 || mad.class_version() != CLASS_VERSION {
        return Some(mad.to_response(status::BAD_VERSION));
    }
    let query = Query { mad };
    let reply = match (mad.method(), mad.attr_id()) {
        (method::GET, attr::CLASS_PORT_INFO) => Ok(vec![class_port_info()]),
        (method::GET | method::GET_TABLE, attr::PATH_RECORD) => paths(manager, from, &query),
        (method::GET | method::GET_TABLE, attr::NODE_RECORD) => Ok(node_records(manager, &query)),
        (method::GET | method::GET_TABLE, attr::PORT_INFO_RECORD) => Ok(port_info_records(manager, &query)),
        (method::GET | method::GET_TABLE, attr::MC_MEMBER_RECORD) => {
            Ok(group_records(manager, groups, from, &query))
        }
        (method::SET, attr::MC_MEMBER_RECORD) => join(manager, groups, from, &query),
        (method::DELETE, attr::MC_MEMBER_RECORD) => leave(manager, groups, from, &query),
        // A subscription to notices: accepted, there are none to send.
        (method::SET, attr::INFORM_INFO) => return Some(mad.to_response(status::OK)),
        (method::GET | method::SET | method::GET_TABLE | method::DELETE, _) => {
            Err(status::ATTR_NOT_SUPPORTED)
        }
        _ => Err(status::METHOD_NOT_SUPPORTED),
    };
    Some(match reply {
        Err(status) => mad.to_response(status),
        Ok(records) => respond(mad, &records),
    })
}

/// Puts records into a response: one for Get, Set and Delete; all, in an RMPP segment that is first and last, for GetTable.
fn respond(mad: &Mad, records: &[Vec<u8>]) -> Mad {
    let table = mad.method() == method::GET_TABLE;
    let len: usize = records.iter().map(|record| record.len().next_multiple_of(8)).sum();
    if !table && records.is_empty() {
        return mad.to_response(status::SA_NO_RECORDS);
    }
    if (!table && records.len() > 1) || len > RECORD_ROOM {
        return mad.to_response(status::SA_TOO_MANY_RECORDS);
    }
    let mut reply = mad.to_response(status::OK);
    let bytes = reply.as_bytes_mut();
    let Some(area) = bytes.get_mut(RECORD_AT..) else { return reply };
    area.fill(0);
    let mut at = 0;
    for record in records {
        if let Some(place) = area.get_mut(at..at + record.len()) {
            place.copy_from_slice(record);
        }
        at += record.len().next_multiple_of(8);
    }
    let units = records.first().map_or(0, |record| record.len().div_ceil(8)) as u16;
    if let Some(place) = bytes.get_mut(ATTRIBUTE_OFFSET_AT..ATTRIBUTE_OFFSET_AT + 2) {
        place.copy_from_slice(&units.to_be_bytes());
    }
    if table && let Some(rmpp) = bytes.get_mut(RMPP_AT..RMPP_AT + 12) {
        // Version 1, DATA, no response time given, active + first + last; segment 1; 20 bytes of SA header and the records.
        rmpp[..4].copy_from_slice(&[1, 1, 0x1f << 3 | 7, 0]);
        rmpp[4..8].copy_from_slice(&1u32.to_be_bytes());
        rmpp[8..12].copy_from_slice(&(20 + len as u32).to_be_bytes());
    }
    reply
}

fn class_port_info() -> Vec<u8> {
    let mut info = ClassPortInfo::zeroed();
    // Response time code 18: a second, as OpenSM says.
    info.set_base_version(1).set_class_version(CLASS_VERSION).set_resp_time_value(18);
    info.as_bytes().to_vec()
}

fn paths(manager: &Manager, from: PortIndex, query: &Query<'_>) -> Result<Vec<Vec<u8>>, u16> {
    let by_gid = |gid: Gid| manager.records().find(|port| port.active && port.gid() == Some(gid));
    let by_lid = |lid: u64| manager.records().find(|port| port.active && u64::from(port.lid) == lid);
    let has_source = query.has(3) || query.has(5);
    let source: Vec<&PortRecord> = match () {
        () if query.has(3) => vec![by_gid(query.gid(24)).ok_or(status::SA_INVALID_GID)?],
        () if query.has(5) => by_lid(query.field(42, 2)).into_iter().collect(),
        () => manager.record(from).filter(|port| port.active).into_iter().collect(),
    };
    if query.mad.method() == method::GET && !has_source {
        return Err(status::SA_INSUFFICIENT_COMPONENTS);
    }
    if query.has(2) && query.gid(8).is_multicast() {
        return Err(status::SA_NO_RECORDS);
    }
    let destination: Vec<&PortRecord> = match () {
        () if query.has(2) => by_gid(query.gid(8)).into_iter().collect(),
        () if query.has(4) => by_lid(query.field(40, 2)).into_iter().collect(),
        () if query.mad.method() == method::GET => return Err(status::SA_INSUFFICIENT_COMPONENTS),
        () => manager.records().filter(|port| port.active).collect(),
    };
    let mut records = Vec::new();
    for source in &source {
        for destination in &destination {
            let mtu = mtu(source).min(mtu(destination));
            let fits = query.gid_matches(2, 8, destination.gid())
                && query.matches(4, 40, 2, u64::from(destination.lid))
                && query.matches(5, 42, 2, u64::from(source.lid))
                && (!query.has(13) || query.field(50, 2) as u16 | 0x8000 == DEFAULT_PKEY)
                && (!query.has(15) || query.field(52, 2) & 0xf == 0)
                && query.selects(16, 17, 54, mtu)
                && query.selects(18, 19, 55, RATE_100G)
                && query.selects(20, 21, 56, PACKET_LIFE);
            if fits {
                records.push(path_record(query, source, destination, mtu));
            }
        }
    }
    Ok(records)
}

fn mtu(port: &PortRecord) -> u8 {
    port.port_info.map_or(1, |info| info.neighbor_mtu())
}

fn path_record(query: &Query<'_>, source: &PortRecord, destination: &PortRecord, mtu: u8) -> Vec<u8> {
    let mut record = vec![0; 64];
    record[8..24].copy_from_slice(&destination.gid().unwrap_or_default().0);
    record[24..40].copy_from_slice(&source.gid().unwrap_or_default().0);
    record[40..42].copy_from_slice(&destination.lid.to_be_bytes());
    record[42..44].copy_from_slice(&source.lid.to_be_bytes());
    // Flow label and hop limit 0: the path stays on the subnet, no GRH is needed. The traffic class is the asker's.
    if query.has(10) {
        record[48] = query.field(48, 1) as u8;
    }
    // Reversible, one path.
    record[49] = 0x81;
    let pkey = if query.has(13) { query.field(50, 2) as u16 } else { DEFAULT_PKEY };
    record[50..52].copy_from_slice(&pkey.to_be_bytes());
    record[54] = EXACTLY | mtu;
    record[55] = EXACTLY | RATE_100G;
    record[56] = EXACTLY | PACKET_LIFE;
    record
}

/// NodeRecord: LID (2), reserved (2), NodeInfo (40), NodeDescription (64). Mask bits 0 LID, 4 node type, 7 node GUID, 8 port GUID.
fn node_records(manager: &Manager, query: &Query<'_>) -> Vec<Vec<u8>> {
    let known = manager.records().filter(|port| port.active);
    known
        .filter_map(|port| {
            let info = port.node_info?;
            let fits = query.matches(0, 0, 2, u64::from(port.lid))
                && query.matches(4, 6, 1, u64::from(info.node_type()))
                && query.matches(7, 16, 8, info.node_guid())
                && query.matches(8, 24, 8, info.port_guid());
            fits.then(|| {
                let mut record = port.lid.to_be_bytes().to_vec();
                record.extend_from_slice(&[0; 2]);
                record.extend_from_slice(info.as_bytes());
                record.extend_from_slice(&port.description.map_or([0; 64], |text| text.0));
                record
            })
        })
        .collect()
}

/// PortInfoRecord: LID (2), port number (1), reserved (1), PortInfo (64). Mask bits 0 LID, 1 port number, 4 GID prefix, 5 base LID.
fn port_info_records(manager: &Manager, query: &Query<'_>) -> Vec<Vec<u8>> {
    let known = manager.records().filter(|port| port.active);
    known
        .filter_map(|port| {
            let info = port.port_info?;
            let fits = query.matches(0, 0, 2, u64::from(port.lid))
                && query.matches(1, 2, 1, u64::from(info.local_port_num()))
                && query.matches(5, 20, 2, u64::from(info.lid()));
            fits.then(|| {
                let mut record = port.lid.to_be_bytes().to_vec();
                record.extend_from_slice(&[info.local_port_num(), 0]);
                record.extend_from_slice(info.as_bytes());
                record
            })
        })
        .collect()
}

/// The GID that a MCMemberRecord names, or of the port that asks.
fn member(manager: &Manager, from: PortIndex, query: &Query<'_>) -> Result<(PortIndex, Gid), u16> {
    let own = manager.record(from).and_then(PortRecord::gid);
    let gid = if query.has(1) { query.gid(16) } else { own.ok_or(status::SA_INVALID_GID)? };
    let index = manager.records().position(|port| port.active && port.gid() == Some(gid));
    let index = index.ok_or(status::SA_INVALID_GID)?;
    Ok((PortIndex(index as u32), gid))
}

fn join(
    manager: &Manager,
    groups: &mut Groups,
    from: PortIndex,
    query: &Query<'_>,
) -> Result<Vec<Vec<u8>>, u16> {
    let (port, gid) = member(manager, from, query)?;
    let mgid = query.gid(0);
    let join_state = query.field(48, 1) as u8 & 0xf;
    if !query.has(0) || !query.has(16) || !mgid.is_multicast() || join_state & 7 == 0 {
        return Err(status::SA_REQ_INVALID);
    }
    if groups.get(mgid).is_none() {
        // Creating takes Q_Key, P_Key, SL, flow label and traffic class (IBTA 15.2.5.17.2).
        let needed = [2, 6, 7, 12, 13];
        if join_state & 1 == 0 || needed.iter().any(|bit| !query.has(*bit)) {
            return Err(status::SA_INSUFFICIENT_COMPONENTS);
        }
        let word = query.field(44, 4) as u32;
        let pick = |bit: u32, at: usize, default: u8| match query.field(at, 1) as u8 & 0x3f {
            value if query.has(bit) && value != 0 => value,
            _ => default,
        };
        let parameters = Parameters {
            qkey: query.field(32, 4) as u32,
            // A group's MTU is 2048 and its rate 10 Gb/s unless the creator says otherwise, as OpenSM does.
            mtu: pick(5, 38, 4).min(5),
            tclass: query.field(39, 1) as u8,
            pkey: query.field(40, 2) as u16,
            rate: pick(9, 42, 3),
            life: pick(11, 43, PACKET_LIFE),
            sl: (word >> 28) as u8,
            flow_label: word >> 8 & 0xf_ffff,
            hop_limit: word as u8,
            scope: mgid.0[1] & 0xf,
        };
        groups.create(mgid, parameters).ok_or(status::SA_NO_RESOURCES)?;
    }
    let group = groups.get(mgid).ok_or(status::SA_NO_RESOURCES)?;
    let p = group.parameters;
    let agrees = (!query.has(2) || query.field(32, 4) == u64::from(p.qkey))
        && (!query.has(7) || query.field(40, 2) as u16 & 0x7fff == p.pkey & 0x7fff);
    if !agrees {
        return Err(status::SA_REQ_INVALID);
    }
    groups.join(mgid, port, join_state & 7);
    let group = groups.get(mgid).ok_or(status::SA_NO_RESOURCES)?;
    Ok(vec![group_record(group, gid, group.join_state(port))])
}

fn leave(
    manager: &Manager,
    groups: &mut Groups,
    from: PortIndex,
    query: &Query<'_>,
) -> Result<Vec<Vec<u8>>, u16> {
    let (port, gid) = member(manager, from, query)?;
    let mgid = query.gid(0);
    let join_state = query.field(48, 1) as u8 & 7;
    let record = groups.get(mgid).map(|group| group_record(group, gid, join_state));
    let record = record.ok_or(status::SA_REQ_INVALID)?;
    if groups.leave(mgid, port, join_state) { Ok(vec![record]) } else { Err(status::SA_REQ_INVALID) }
}

fn group_records(manager: &Manager, groups: &Groups, from: PortIndex, query: &Query<'_>) -> Vec<Vec<u8>> {
    let gid = manager.record(from).and_then(PortRecord::gid).unwrap_or_default();
    let fits = |group: &&Group| {
        (!query.has(0) || query.gid(0) == group.mgid) && query.matches(3, 36, 2, u64::from(group.mlid))
    };
    groups.iter().filter(fits).map(|group| group_record(group, gid, group.join_state(from))).collect()
}

/// MCMemberRecord, 52 bytes.
fn group_record(group: &Group, port_gid: Gid, join_state: u8) -> Vec<u8> {
    let p = group.parameters;
    let mut record = vec![0; 52];
    record[0..16].copy_from_slice(&group.mgid.0);
    record[16..32].copy_from_slice(&port_gid.0);
    record[32..36].copy_from_slice(&p.qkey.to_be_bytes());
    record[36..38].copy_from_slice(&group.mlid.to_be_bytes());
    record[38] = EXACTLY | p.mtu;
    record[39] = p.tclass;
    record[40..42].copy_from_slice(&p.pkey.to_be_bytes());
    record[42] = EXACTLY | p.rate;
    record[43] = EXACTLY | p.life;
    let word = u32::from(p.sl) << 28 | p.flow_label << 8 | u32::from(p.hop_limit);
    record[44..48].copy_from_slice(&word.to_be_bytes());
    record[48] = p.scope << 4 | join_state;
    record
}
