//! Records of nodes, ports, links and tables: what the subnet manager knows, in the form of each attribute.

use ib_mgmt::sa::{
    BlockRecord, GuidInfoRecord, LinkRecord, NodeRecord, PortInfoRecord, SlToVlRecord, SmInfoRecord,
    SwitchInfoRecord,
};
use ib_mgmt::smp::{GuidInfo, NodeDescription, PKeyTable};

use super::query::{Components, Query};
use super::subnet::Subnet;
use crate::infiniband::attributes;
use crate::infiniband::manager::{PortRecord, SM_LID};
use crate::infiniband::packet::LID_MULTICAST;
use std::collections::BTreeSet;

/// Groups of one block of the multicast table.
const MULTICAST_BLOCK: u32 = 32;

/// The records of a list that the query means.
fn meant(query: &Query<'_>, components: Components, records: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    records.filter(|record| query.means(components, record, 0)).collect()
}

/// The ports in service, by the switch's number for them.
fn ports<'a>(subnet: &'a Subnet<'_>) -> impl Iterator<Item = (u8, &'a PortRecord)> {
    (1u8..).zip(subnet.manager.records()).filter(|(_, port)| port.active)
}

pub(super) fn nodes(subnet: &Subnet<'_>, query: &Query<'_>) -> Vec<Vec<u8>> {
    let switch = NodeRecord {
        lid: SM_LID,
        info: subnet.switch.node_info(0),
        description: subnet.switch.description(),
    };
    let ports = ports(subnet).filter_map(|(_, port)| {
        let description = port.description.unwrap_or(NodeDescription([0; 64]));
        Some(NodeRecord { lid: port.lid, info: port.node_info?, description })
    });
    let records = std::iter::once(switch).chain(ports);
    meant(query, super::query::NODE, records.map(|record| record.to_bytes().to_vec()))
}

pub(super) fn port_infos(subnet: &Subnet<'_>, query: &Query<'_>) -> Vec<Vec<u8>> {
    let tables = subnet.tables();
    let switch = (0..=subnet.switch.port_count()).filter_map(|port_num| {
        let info = subnet.switch.port_info(&tables, port_num, 0)?;
        Some(PortInfoRecord { end_port_lid: SM_LID, port_num, info })
    });
    let ports = ports(subnet).filter_map(|(_, port)| {
        Some(PortInfoRecord { end_port_lid: port.lid, port_num: 1, info: port.port_info? })
    });
    // Bit 31 of the modifier: the capability mask names bits that are to be set (IBTA 15.2.5.3).
    let capabilities = query.has(7) && query.mad.attr_mod() >> 31 != 0;
    let wanted = query.field(24, 4) as u32;
    let records = switch.chain(ports);
    records
        .filter(|record| !capabilities || record.info.capability_mask() & wanted == wanted)
        .map(|record| record.to_bytes().to_vec())
        .filter(|record| query.means(super::query::PORT_INFO, record, u64::from(capabilities) << 7))
        .collect()
}

pub(super) fn switch_infos(subnet: &Subnet<'_>, query: &Query<'_>) -> Vec<Vec<u8>> {
    let mut record = SwitchInfoRecord::zeroed();
    record.set_lid(SM_LID).set_info(&subnet.switch.switch_info(&subnet.tables()));
    meant(query, super::query::SWITCH_INFO, std::iter::once(record.as_bytes().to_vec()))
}

pub(super) fn sm_infos(subnet: &Subnet<'_>, query: &Query<'_>) -> Vec<Vec<u8>> {
    let mut record = SmInfoRecord::zeroed();
    record.set_lid(SM_LID).set_info(&attributes::sm_info(subnet.manager));
    meant(query, super::query::SM_INFO, std::iter::once(record.as_bytes().to_vec()))
}

pub(super) fn links(subnet: &Subnet<'_>, query: &Query<'_>) -> Vec<Vec<u8>> {
    let both_ways = ports(subnet).flat_map(|(number, port)| {
        let mut out = LinkRecord::zeroed();
        out.set_from_lid(SM_LID).set_from_port(number).set_to_port(1).set_to_lid(port.lid);
        let mut back = LinkRecord::zeroed();
        back.set_from_lid(port.lid).set_from_port(1).set_to_port(number).set_to_lid(SM_LID);
        [out, back]
    });
    meant(query, super::query::LINK, both_ways.map(|record| record.as_bytes().to_vec()))
}

pub(super) fn linear_forwarding(subnet: &Subnet<'_>, query: &Query<'_>) -> Vec<Vec<u8>> {
    let tables = subnet.tables();
    let blocks = subnet.routes.len().div_ceil(64).max(1);
    let records = (0..blocks).filter_map(|number| {
        let mut record = BlockRecord::zeroed();
        record
            .set_lid(SM_LID)
            .set_block_num(number as u16)
            .set_block(&attributes::linear_block(&tables, number)?);
        Some(record.as_bytes().to_vec())
    });
    meant(query, super::query::LINEAR_FORWARDING, records)
}

/// The blocks of the multicast table that hold a group, in the positions that have ports.
pub(super) fn multicast_forwarding(subnet: &Subnet<'_>, query: &Query<'_>) -> Vec<Vec<u8>> {
    let tables = subnet.tables();
    let blocks: BTreeSet<u32> = subnet
        .groups
        .iter()
        .map(|group| u32::from(group.mlid.saturating_sub(LID_MULTICAST)) / MULTICAST_BLOCK)
        .collect();
    let positions = 0..=u32::from(subnet.switch.port_count()) / 16;
    let records =
        blocks.into_iter().flat_map(|block| positions.clone().map(move |position| (block, position)));
    let records = records.filter_map(|(block, position)| {
        let mut record = BlockRecord::zeroed();
        record
            .set_lid(SM_LID)
            .set_block_num((position << 12 | block) as u16)
            .set_block(&attributes::multicast_block(&tables, position << 28 | block)?);
        Some(record.as_bytes().to_vec())
    });
    meant(query, super::query::MULTICAST_FORWARDING, records)
}

/// The virtual lanes of service levels, at the ports that map them; the switch says that it does not.
pub(super) fn sl_to_vl(subnet: &Subnet<'_>, query: &Query<'_>) -> Vec<Vec<u8>> {
    let records = ports(subnet).filter_map(|(_, port)| {
        let mut record = SlToVlRecord::zeroed();
        // An adapter's packets come in by no port of it.
        record.set_lid(port.lid).set_output_port_num(1).set_sl_to_vl(&port.sl_to_vl?);
        Some(record.as_bytes().to_vec())
    });
    meant(query, super::query::SL_TO_VL, records)
}

/// VL arbitration, block by block, of the ports that have some; the switch says that it has none.
pub(super) fn vl_arbitration(subnet: &Subnet<'_>, query: &Query<'_>) -> Vec<Vec<u8>> {
    let blocks = ports(subnet).flat_map(|(_, port)| {
        query.look(port.vl_arbitration.len());
        port.vl_arbitration.iter().map(move |(number, block)| {
            let mut record = BlockRecord::zeroed();
            record.set_lid(port.lid).set_block_num(1 << 8 | u16::from(*number)).set_block(block);
            record.as_bytes().to_vec()
        })
    });
    meant(query, super::query::VL_ARBITRATION, blocks)
}

pub(super) fn pkey_tables(subnet: &Subnet<'_>, query: &Query<'_>) -> Vec<Vec<u8>> {
    let mut switch = BlockRecord::zeroed();
    switch.set_lid(SM_LID).set_block(&attributes::pkeys());
    let ports = ports(subnet).map(|(_, port)| {
        let mut table = PKeyTable::default();
        for (to, from) in table.0.iter_mut().zip(&port.pkeys) {
            *to = *from;
        }
        let mut record = BlockRecord::zeroed();
        record.set_lid(port.lid).set_port_num(1).set_block(&table.to_bytes());
        record
    });
    let records = std::iter::once(switch).chain(ports);
    meant(query, super::query::PKEY_TABLE, records.map(|record| record.as_bytes().to_vec()))
}

pub(super) fn guid_infos(subnet: &Subnet<'_>, query: &Query<'_>) -> Vec<Vec<u8>> {
    let block = |lid: u16, guids: [u8; 64]| {
        let mut record = GuidInfoRecord::zeroed();
        record.set_lid(lid);
        if let Some(room) = record.as_bytes_mut().last_chunk_mut() {
            *room = guids;
        }
        record.as_bytes().to_vec()
    };
    let ports = ports(subnet).filter_map(|(_, port)| {
        let guid = port.node_info?.port_guid();
        Some(block(port.lid, GuidInfo([guid, 0, 0, 0, 0, 0, 0, 0]).to_bytes()))
    });
    let records = std::iter::once(block(SM_LID, attributes::guids())).chain(ports);
    meant(query, super::query::GUID_INFO, records)
}
