//! Paths: between any two ports in a common partition there is one, through the switch.

use ib_mgmt::mad::{method, status};
use ib_mgmt::sa::{PathRecord, selector};
use ib_mgmt::smp::PortInfo;
use ib_types::{Gid, Lid, PKey, ServiceLevel};

use super::query::{Query, by_code, by_rate};
use super::subnet::{RATE_100G, Records, Subnet};
use crate::infiniband::manager::{DEFAULT_PKEY, SM_LID};
use crate::infiniband::switch::SWITCH_GUID;
use crate::ports::PortIndex;

/// Rate code of NDR, 400 Gb/s: the management port is in nobody's way.
const FASTEST: u8 = 21;

/// One end of a path: a port, or the switch's management port.
#[derive(Clone, Copy)]
struct End<'a> {
    gid: Gid,
    lid: u16,
    mtu: u8,
    /// The code of its link's rate.
    rate: u8,
    pkeys: &'a [u16],
}

/// The rate of a link of four lanes, as the port tells it.
fn rate_of(info: &PortInfo) -> u8 {
    match (info.link_speed_ext_active(), info.link_speed_active()) {
        // FDR, EDR, HDR, NDR.
        (1, _) => 12,
        (2, _) => RATE_100G,
        (4, _) => 17,
        (8, _) => FASTEST,
        // SDR, DDR, QDR.
        (_, 1) => 3,
        (_, 2) => 6,
        (_, 4) => 7,
        _ => RATE_100G,
    }
}

fn ends<'a>(subnet: &'a Subnet<'_>) -> Vec<End<'a>> {
    let gid = Gid::new(Gid::DEFAULT_PREFIX, SWITCH_GUID);
    let switch = End { gid, lid: SM_LID, mtu: 5, rate: FASTEST, pkeys: &[DEFAULT_PKEY] };
    let ports = subnet.manager.records().filter(|port| port.active).filter_map(|port| {
        let info = port.port_info?;
        let (mtu, rate) = (info.neighbor_mtu(), rate_of(&info));
        Some(End { gid: port.gid()?, lid: port.lid, mtu, rate, pkeys: &port.pkeys })
    });
    std::iter::once(switch).chain(ports).collect()
}

/// A P_Key of the source by which the two may talk; the one asked for, if one is.
fn pkey(query: &Query<'_>, source: &End<'_>, destination: &End<'_>) -> Option<u16> {
    let asked = query.has(13).then(|| query.field(50, 2) as u16 & 0x7fff);
    let talks = |own: &&u16| {
        asked.is_none_or(|asked| asked == **own & 0x7fff)
            && destination.pkeys.iter().any(|theirs| ib_mgmt::smp::pkeys_match(**own, *theirs))
    };
    source.pkeys.iter().find(talks).copied()
}

pub(super) fn records(subnet: &Subnet<'_>, from: PortIndex, query: &Query<'_>) -> Records {
    let ends = ends(subnet);
    let table = query.mad.method() == method::GET_TABLE;
    let named = |by_gid: bool, gid_at: usize, by_lid: bool, lid_at: usize| -> Option<Vec<End<'_>>> {
        if !by_gid && !by_lid {
            return None;
        }
        let fits = |end: &&End<'_>| {
            (!by_gid || end.gid == query.gid(gid_at))
                && (!by_lid || u64::from(end.lid) == query.field(lid_at, 2))
        };
        Some(ends.iter().filter(fits).copied().collect())
    };
    let sources = match named(query.has(3), 24, query.has(5), 42) {
        Some(found) if found.is_empty() && query.has(3) => return Err(status::SA_INVALID_GID),
        Some(found) => found,
        None if table => ends.clone(),
        None => return Err(status::SA_INSUFFICIENT_COMPONENTS),
    };
    if query.has(2) && query.gid(8).is_multicast() {
        return Ok(to_group(subnet, from, query, &sources));
    }
    let destinations = match named(query.has(2), 8, query.has(4), 40) {
        Some(found) => found,
        None if table => ends.clone(),
        None => return Err(status::SA_INSUFFICIENT_COMPONENTS),
    };
    query.look(sources.len() * destinations.len());
    let parameters = |source: &End<'_>, destination: &End<'_>| {
        let mtu = source.mtu.min(destination.mtu);
        let pkey = pkey(query, source, destination)?;
        // As fast as the slower of the two.
        let rate = std::cmp::min_by_key(source.rate, destination.rate, |rate| by_rate(*rate));
        fits(subnet, query, mtu, rate).then_some((pkey, mtu, rate))
    };
    let paths = || {
        let pairs = sources.iter().flat_map(|source| destinations.iter().map(move |to| (source, to)));
        pairs.filter_map(|(source, to)| Some((source, to, parameters(source, to)?)))
    };
    let found = paths().count();
    query.admits(found, PathRecord::LEN)?;
    // A Get requests some number of paths, of which there is one between any two ports.
    let wanted = if table { found } else { 1 };
    let records = paths().take(wanted).map(|(source, to, (pkey, mtu, rate))| {
        let mut record = record(subnet, query, source, (to.gid, to.lid), (pkey, mtu));
        record.set_rate(rate).as_bytes().to_vec()
    });
    Ok(records.collect())
}

/// Whether a path of this MTU and rate is one that the query admits. A path goes by service level 0 and is not raw.
fn fits(subnet: &Subnet<'_>, query: &Query<'_>, mtu: u8, rate: u8) -> bool {
    (!query.has(15) || query.field(52, 2) & 0xf == 0)
        && (!query.has(6) || query.field(44, 1) & 0x80 == 0)
        && (!query.has(12) || query.field(49, 1) & 0x7f != 0)
        && query.selects(16, 17, 54, mtu, by_code)
        && query.selects(18, 19, 55, rate, by_rate)
        && query.selects(20, 21, 56, subnet.packet_life_time, by_code)
}

/// The paths to a group's members are one (IBTA 15.2.5.16): its LID and its parameters.
fn to_group(subnet: &Subnet<'_>, from: PortIndex, query: &Query<'_>, sources: &[End<'_>]) -> Vec<Vec<u8>> {
    let Some(group) = subnet.groups.get(query.gid(8)) else { return Vec::new() };
    let p = group.parameters;
    let own = subnet.manager.record(from).and_then(|record| record.gid());
    // Of whoever asks, unless sources are named.
    let named = query.has(3) || query.has(5);
    let sources = sources.iter().filter(|source| named || Some(source.gid) == own);
    let reachable = sources.filter(|source| {
        source.pkeys.iter().any(|pkey| pkey & 0x7fff == p.pkey & 0x7fff) && fits(subnet, query, p.mtu, p.rate)
    });
    reachable
        .map(|source| {
            let mut record = record(subnet, query, source, (group.mgid, group.mlid), (p.pkey, p.mtu));
            record
                .set_reversible(false)
                .set_rate(p.rate)
                .set_sl(ServiceLevel::new(p.sl))
                .set_flow_label(p.flow_label);
            record.set_hop_limit(p.hop_limit).set_traffic_class(p.tclass);
            record.as_bytes().to_vec()
        })
        .collect()
}

fn record(
    subnet: &Subnet<'_>,
    query: &Query<'_>,
    source: &End<'_>,
    destination: (Gid, u16),
    (pkey, mtu): (u16, u8),
) -> PathRecord {
    let mut record = PathRecord::zeroed();
    record
        .set_dgid(destination.0)
        .set_sgid(source.gid)
        .set_dlid(Lid::new(destination.1))
        .set_slid(Lid::new(source.lid))
        .set_reversible(true)
        .set_numb_path(1)
        .set_pkey(PKey::new(pkey))
        .set_mtu_selector(selector::EXACTLY)
        .set_mtu(mtu)
        .set_rate_selector(selector::EXACTLY)
        .set_packet_life_time_selector(selector::EXACTLY)
        .set_packet_life_time(subnet.packet_life_time);
    // Flow label and hop limit 0: the path stays on the subnet, no GRH is needed. Traffic class and service are the asker's.
    if query.has(10) {
        record.set_traffic_class(query.field(48, 1) as u8);
    }
    if query.has(14) {
        record.set_qos_class((query.field(52, 2) >> 4) as u16);
    }
    if query.has(0) && query.has(1) {
        record.set_service_id(query.field(0, 8));
    }
    record
}
