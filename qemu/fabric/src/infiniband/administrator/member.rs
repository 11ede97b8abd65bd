//! Membership of multicast groups: join, leave, and who is in (IBTA volume 1, section 15.2.5.17).

use ib_mgmt::mad::{method, status};
use ib_mgmt::sa::{McMemberRecord, join_state, selector};
use ib_types::{Gid, Lid, PKey, QKey, ServiceLevel};

use super::query::{MEMBER, Query, by_code, by_rate};
use super::subnet::{RATE_100G, Records, Subnet};
use crate::infiniband::manager::PortRecord;
use crate::infiniband::multicast::{Group, JOIN_STATES, Parameters};
use crate::ports::PortIndex;

/// The port that a request is for: the asker itself, or whom a trusted asker names.
fn member(subnet: &Subnet<'_>, from: PortIndex, query: &Query<'_>) -> Result<(PortIndex, Gid), u16> {
    let gid_of = |index: PortIndex| {
        let record = subnet.manager.record(index).filter(|record| record.active)?;
        record.gid()
    };
    if !query.has(1) {
        return gid_of(from).map(|gid| (from, gid)).ok_or(status::SA_INVALID_GID);
    }
    let gid = query.gid(16);
    let index = subnet.manager.records().position(|port| port.active && port.gid() == Some(gid));
    let index = PortIndex(index.ok_or(status::SA_INVALID_GID)? as u32);
    if index != from && !subnet.is_trusted(query.sm_key()) {
        return Err(status::SA_REQ_INVALID);
    }
    Ok((index, gid))
}

fn in_partition(subnet: &Subnet<'_>, port: PortIndex, pkey: u16) -> bool {
    subnet.manager.record(port).is_some_and(|record| record.is_in_partition(pkey))
}

fn mtu(subnet: &Subnet<'_>, port: PortIndex) -> u8 {
    let info = subnet.manager.record(port).and_then(|record: &PortRecord| record.port_info);
    info.map_or(1, |info| info.neighbor_mtu())
}

/// The value of MTU, rate or life time that a creator asks for, or `default`: the best of what its selector admits.
fn choose(
    query: &Query<'_>,
    selector_bit: u32,
    value_bit: u32,
    at: usize,
    range: &[u8],
    default: u8,
) -> Option<u8> {
    let byte = query.field(at, 1) as u8;
    if !query.has(value_bit) || byte & 0x3f == 0 {
        return Some(default);
    }
    let selector = if query.has(selector_bit) { byte >> 6 } else { selector::EXACTLY };
    let wanted = range.iter().position(|code| *code == byte & 0x3f)?;
    match selector {
        selector::GREATER => range.get(wanted + 1).copied(),
        selector::LESS => wanted.checked_sub(1).and_then(|i| range.get(i)).copied(),
        selector::EXACTLY => range.get(wanted).copied(),
        _ => range.last().copied(),
    }
}

/// Creating a group takes Q_Key, P_Key, SL, flow label and traffic class (IBTA 15.2.5.17.2).
fn create(subnet: &mut Subnet<'_>, port: PortIndex, mgid: Gid, query: &Query<'_>) -> Result<(), u16> {
    let states = query.field(48, 1) as u8;
    let alive = states & (join_state::FULL_MEMBER | join_state::SEND_ONLY_FULL_MEMBER) != 0;
    if !alive || [2, 6, 7, 12, 13].iter().any(|bit| !query.has(*bit)) {
        return Err(status::SA_INSUFFICIENT_COMPONENTS);
    }
    let pkey = query.field(40, 2) as u16;
    if !in_partition(subnet, port, pkey) {
        return Err(status::SA_REQ_INVALID);
    }
    let word = query.field(44, 4) as u32;
    let scope = if query.has(15) { (states >> 4) & 0xf } else { mgid.0[1] & 0xf };
    // A group's MTU is 2048 and its rate 10 Gb/s unless the creator says otherwise, as OpenSM does.
    let port_mtu = mtu(subnet, port);
    let mtus: Vec<u8> = (1..=port_mtu.min(5)).collect();
    let mut rates: Vec<u8> = (2..=RATE_100G).filter(|code| by_rate(*code) <= by_rate(RATE_100G)).collect();
    rates.sort_by_key(|code| by_rate(*code));
    let lives: Vec<u8> = (0..=31).collect();
    let invalid = status::SA_REQ_INVALID;
    let parameters = Parameters {
        qkey: query.field(32, 4) as u32,
        mtu: choose(query, 4, 5, 38, &mtus, 4.min(port_mtu)).ok_or(invalid)?,
        tclass: query.field(39, 1) as u8,
        pkey: pkey | 0x8000,
        rate: choose(query, 8, 9, 42, &rates, 3).ok_or(invalid)?,
        life: choose(query, 10, 11, 43, &lives, subnet.packet_life_time).ok_or(invalid)?,
        sl: (word >> 28) as u8,
        flow_label: word >> 8 & 0xf_ffff,
        hop_limit: if query.has(14) { word as u8 } else { 0 },
        scope,
    };
    subnet.groups.create(mgid, parameters, Some(port)).map(|_| ()).ok_or(status::SA_NO_RESOURCES)
}

pub(super) fn join(subnet: &mut Subnet<'_>, from: PortIndex, query: &Query<'_>) -> Records {
    let (port, gid) = member(subnet, from, query)?;
    // A free MGID is searched for, then three look-ups follow.
    query.look(4 * subnet.groups.look_up_steps() as usize);
    let states = query.field(48, 1) as u8 & JOIN_STATES;
    if !query.has(16) || states == 0 {
        return Err(status::SA_REQ_INVALID);
    }
    let mut mgid = if query.has(0) { query.gid(0) } else { Gid::ZERO };
    if mgid.is_zero() {
        // The creator leaves the choice.
        let scope = if query.has(15) { query.field(48, 1) as u8 >> 4 } else { 2 };
        mgid = subnet.groups.free_mgid(scope).ok_or(status::SA_NO_RESOURCES)?;
    } else if !mgid.is_multicast() {
        return Err(status::SA_REQ_INVALID);
    }
    if subnet.groups.get(mgid).is_none() {
        create(subnet, port, mgid, query)?;
    }
    let group = subnet.groups.get(mgid).ok_or(status::SA_NO_RESOURCES)?;
    let p = group.parameters;
    let word = u64::from(p.sl) << 28 | u64::from(p.flow_label) << 8 | u64::from(p.hop_limit);
    let asked = query.field(44, 4);
    let agrees = query.matches(2, 32, 4, u64::from(p.qkey))
        && query.matches(3, 36, 2, u64::from(group.mlid))
        && query.matches(6, 39, 1, u64::from(p.tclass))
        && (!query.has(7) || query.field(40, 2) as u16 & 0x7fff == p.pkey & 0x7fff)
        && (!query.has(12) || asked >> 28 == word >> 28)
        && (!query.has(13) || asked >> 8 & 0xf_ffff == word >> 8 & 0xf_ffff)
        && query.selects(4, 5, 38, p.mtu, by_code)
        && query.selects(8, 9, 42, p.rate, by_rate);
    // A port that cannot take the group's packets would not get them (IBTA 15.2.5.17.3).
    if !agrees || mtu(subnet, port) < p.mtu || !in_partition(subnet, port, p.pkey) {
        return Err(status::SA_REQ_INVALID);
    }
    subnet.groups.join(mgid, port, states);
    let group = subnet.groups.get(mgid).ok_or(status::SA_NO_RESOURCES)?;
    Ok(vec![record(group, gid, group.join_state(port))])
}

pub(super) fn leave(subnet: &mut Subnet<'_>, from: PortIndex, query: &Query<'_>) -> Records {
    let (port, gid) = member(subnet, from, query)?;
    let mgid = query.gid(0);
    let states = query.field(48, 1) as u8 & JOIN_STATES;
    let left = subnet.groups.get(mgid).map(|group| record(group, gid, group.join_state(port) & !states));
    let left = left.ok_or(status::SA_REQ_INVALID)?;
    if subnet.groups.leave(mgid, port, states) { Ok(vec![left]) } else { Err(status::SA_REQ_INVALID) }
}

/// The groups, with the asker's own membership; to a trusted asker all members (IBTA 15.2.5.17.1).
pub(super) fn records(subnet: &Subnet<'_>, from: PortIndex, query: &Query<'_>) -> Vec<Vec<u8>> {
    let gid_of = |port| subnet.manager.record(port).and_then(PortRecord::gid).unwrap_or_default();
    let trusted = subnet.is_curious(query.sm_key()) && query.mad.method() == method::GET_TABLE;
    let mut records = Vec::new();
    for group in subnet.groups.iter() {
        let p = group.parameters;
        let fits = query.selects(4, 5, 38, p.mtu, by_code)
            && query.selects(8, 9, 42, p.rate, by_rate)
            && query.selects(10, 11, 43, p.life, by_code);
        if !fits {
            continue;
        }
        let before = records.len();
        if trusted {
            records.extend(group.members().map(|(port, state)| record(group, gid_of(port), state)));
        }
        if records.len() == before {
            let state = group.join_state(from);
            let gid = if state == 0 { Gid::ZERO } else { gid_of(from) };
            records.push(record(group, gid, state));
        }
    }
    // Membership in a partition does not depend on the kind of member.
    let pkey = |record: &[u8]| {
        !query.has(7)
            || record.get(40..42).is_some_and(|key| {
                key.iter().fold(0, |key, byte| key << 8 | u64::from(*byte)) & 0x7fff
                    == query.field(40, 2) & 0x7fff
            })
    };
    records.retain(|record| query.means(MEMBER, record, 1 << 7) && pkey(record));
    records
}

fn record(group: &Group, port_gid: Gid, states: u8) -> Vec<u8> {
    let p = group.parameters;
    let mut record = McMemberRecord::zeroed();
    record
        .set_mgid(group.mgid)
        .set_port_gid(port_gid)
        .set_qkey(QKey::new(p.qkey))
        .set_mlid(Lid::new(group.mlid))
        .set_mtu_selector(selector::EXACTLY)
        .set_mtu(p.mtu)
        .set_traffic_class(p.tclass)
        .set_pkey(PKey::new(p.pkey))
        .set_rate_selector(selector::EXACTLY)
        .set_rate(p.rate)
        .set_packet_life_time_selector(selector::EXACTLY)
        .set_packet_life_time(p.life)
        .set_sl(ServiceLevel::new(p.sl))
        .set_flow_label(p.flow_label)
        .set_hop_limit(p.hop_limit)
        .set_scope(p.scope)
        .set_join_state(states);
    record.as_bytes().to_vec()
}
