//! Attribute data that the switch's subnet management agent answers with, block by block (IBTA volume 1 chapter 14.2.5).

use ib_mgmt::smp::{GuidInfo, PKeyTable, SmInfo};

use super::manager::{DEFAULT_PKEY, Manager, SM_LID};
use super::multicast::Group;
use super::switch::{LINEAR_CAP, MULTICAST_CAP, NO_PORT, SWITCH_GUID, Tables};
use crate::infiniband::packet::LID_MULTICAST;

/// LIDs of one block of the linear table, and of the multicast table.
const LINEAR_BLOCK: usize = 64;
const MULTICAST_BLOCK: usize = 32;

/// Attribute data: `content`, zero behind it.
pub(super) fn block(content: &[u8]) -> [u8; 64] {
    let mut data = [0; 64];
    for (to, from) in data.iter_mut().zip(content) {
        *to = *from;
    }
    data
}

pub(super) fn guids() -> [u8; 64] {
    GuidInfo([SWITCH_GUID, 0, 0, 0, 0, 0, 0, 0]).to_bytes()
}

pub(super) fn pkeys() -> [u8; 64] {
    let mut table = PKeyTable::default();
    table.0[0] = DEFAULT_PKEY;
    table.to_bytes()
}

/// SM_Key: OpenSM's, which heeds no subnet manager that has another.
const SM_KEY: u64 = 1;

/// The subnet manager, as it shows itself: master, of the highest priority, so that no other takes its place.
pub(super) fn sm_info(manager: &Manager) -> SmInfo {
    let mut info = SmInfo::zeroed();
    info.set_guid(SWITCH_GUID)
        .set_sm_key(SM_KEY)
        .set_act_count(manager.activity())
        .set_priority(15)
        .set_sm_state(3);
    info
}

/// Block `number` of the linear forwarding table; `None` beyond its end.
pub(super) fn linear_block(tables: &Tables<'_>, number: usize) -> Option<[u8; 64]> {
    if number > usize::from(LINEAR_CAP) / LINEAR_BLOCK {
        return None;
    }
    let mut data = [NO_PORT; 64];
    for (lid, port) in (number * LINEAR_BLOCK..).zip(&mut data) {
        *port = match tables.routes.get(lid) {
            _ if lid == usize::from(SM_LID) => 0,
            Some(Some(index)) => index.0 as u8 + 1,
            _ => NO_PORT,
        };
    }
    Some(data)
}

/// A block of the multicast forwarding table: 32 groups, for 16 ports; `None` beyond its end.
pub(super) fn multicast_block(tables: &Tables<'_>, modifier: u32) -> Option<[u8; 64]> {
    let (number, position) = ((modifier & 0x1ff) as usize, modifier >> 28);
    if number > usize::from(MULTICAST_CAP) / MULTICAST_BLOCK {
        return None;
    }
    let first = usize::from(LID_MULTICAST) + number * MULTICAST_BLOCK;
    let mut data = [0; 64];
    for (mlid, mask) in (first..).zip(data.as_chunks_mut::<2>().0) {
        let group = tables.groups.iter().find(|group| usize::from(group.mlid) == mlid);
        let mut ports = 0u16;
        for receiver in group.into_iter().flat_map(Group::receivers) {
            let port = receiver.0 + 1;
            if port / 16 == position {
                ports |= 1 << (port % 16);
            }
        }
        *mask = ports.to_be_bytes();
    }
    Some(data)
}
