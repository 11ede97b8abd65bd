//! Frames that an Ethernet port receives besides RoCE: those to its own MAC address, broadcasts, and
//! groups that were joined. The vport's lists and a flow table select them.

use super::ethernet::set_addresses;
use crate::cmd::{Tail, input};
use crate::error::Error;
use crate::hca::firmware::Firmware;
use crate::hca::memory::Memory;
use crate::platform::Platform;
use crate::qp::Qp;
use crate::types::MacAddress;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::tirc;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::steering::{
    dest_format_struct, flow_context, flow_table_context, fte_match_param, fte_match_set_lyr_2_4,
};
use mlx5_prm::value::{FlowAction, FlowDestination, FlowTableType, NicVportList, TirDisp};

/// Groups that can be joined at once.
const GROUPS: usize = 32;
/// Entries of the flow table: the own address, broadcast, groups.
const OWN: usize = 0;
const BROADCAST: usize = 1;
const FIRST_GROUP: usize = 2;
const LOG_ENTRIES: u32 = 6;
/// `match_criteria_enable`: the outer headers.
const OUTER: u32 = 1;
const ANY_BIT: MacAddress = MacAddress([0xff; 6]);

const _: () = assert!(FIRST_GROUP + GROUPS <= 1 << LOG_ENTRIES);

/// What the raw-packet QP receives.
#[derive(Debug, Default)]
pub(super) struct FrameFilter {
    groups: [Option<MacAddress>; GROUPS],
    /// Of the QP that receives.
    steering: Option<Steering>,
}

/// Objects of the device that lead frames to the QP, as far as they were created.
#[derive(Clone, Copy, Debug, Default)]
struct Steering {
    rqn: u32,
    tirn: Option<u32>,
    table: Option<u32>,
    group: Option<u32>,
    /// Entries of the table, a bit each.
    entries: u64,
}

impl FrameFilter {
    /// Leads frames to a receive queue.
    pub(super) fn start<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        mac: MacAddress,
        (domain, rqn): (u32, u32),
    ) -> Result<(), Error> {
        self.steering = Some(Steering { rqn, ..Steering::default() });
        set_addresses(firmware, memory, NicVportList::UC, 1, &|_| mac)?;
        self.write_groups(firmware, memory)?;
        self.create(firmware, memory, domain, rqn)?;
        self.set_entry(firmware, memory, OWN, mac)?;
        self.set_entry(firmware, memory, BROADCAST, MacAddress::BROADCAST)?;
        for (index, group) in self.groups.into_iter().enumerate() {
            if let Some(group) = group {
                self.set_entry(firmware, memory, FIRST_GROUP + index, group)?;
            }
        }
        Ok(())
    }

    /// Ends what leads frames to `qp`, the raw-packet QP, if it receives. Returns the first error; the rest is done anyway.
    pub(super) fn stop<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        qp: &Qp<P::Bar>,
    ) -> Result<(), Error> {
        let Some(steering) = self.steering.take() else { return Ok(()) };
        steering.destroy(firmware, memory, qp)
    }
}

impl FrameFilter {
    /// Returns whether a QP receives.
    pub(super) fn is_started(&self) -> bool {
        self.steering.is_some()
    }

    /// As [`Hca::join_ethernet_group`](crate::Hca::join_ethernet_group).
    pub(super) fn join<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        group: MacAddress,
    ) -> Result<bool, Error> {
        if self.groups.contains(&Some(group)) {
            return Ok(false);
        }
        let full = Error::Limit { what: "groups", asked: GROUPS as u64 + 1, limit: GROUPS as u64 };
        let free = self.groups.iter().position(Option::is_none).ok_or(full)?;
        self.set_group(free, Some(group));
        let done = self.write_groups(firmware, memory);
        let done = done.and_then(|()| self.set_entry(firmware, memory, FIRST_GROUP + free, group));
        if done.is_err() {
            self.set_group(free, None);
        }
        done.map(|()| true)
    }

    /// As [`Hca::leave_ethernet_group`](crate::Hca::leave_ethernet_group).
    pub(super) fn leave<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        group: MacAddress,
    ) -> Result<bool, Error> {
        let Some(at) = self.groups.iter().position(|joined| *joined == Some(group)) else {
            return Ok(false);
        };
        self.delete_entry(firmware, memory, FIRST_GROUP + at)?;
        self.set_group(at, None);
        self.write_groups(firmware, memory).map(|()| true)
    }

    /// Forgets the objects of a device that was reset.
    pub(super) fn begin_generation(&mut self) {
        self.steering = None;
    }

    fn set_group(&mut self, index: usize, group: Option<MacAddress>) {
        if let Some(place) = self.groups.get_mut(index) {
            *place = group;
        }
    }

    /// Sets the vport's list of groups, while a QP receives.
    fn write_groups<P: Platform>(
        &self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
    ) -> Result<(), Error> {
        if self.steering.is_none() {
            return Ok(());
        }
        let address = |index: usize| {
            let joined = self.groups.iter().flatten().copied();
            core::iter::once(MacAddress::BROADCAST).chain(joined).nth(index).unwrap_or_default()
        };
        let count = 1 + self.groups.iter().flatten().count();
        set_addresses(firmware, memory, NicVportList::MC, count, &address)
    }

    /// Creates TIR, flow table and its group, and makes the table the root.
    fn create<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        domain: u32,
        rqn: u32,
    ) -> Result<(), Error> {
        let Some(steering) = &mut self.steering else { return Err(Error::WrongState) };
        let mut create = input::<{ create_tir_in::SIZE }>(Opcode::CREATE_TIR, 0);
        let context = create_tir_in::ctx.of_mut(&mut create);
        tirc::disp_type.set(context, TirDisp::DIRECT.0);
        tirc::inline_rqn.set(context, rqn);
        tirc::transport_domain.set(context, domain);
        let mut out = [0; create_tir_out::SIZE];
        firmware.exec(memory, &create, &mut out)?;
        steering.tirn = Some(create_tir_out::tirn.get32(&out));

        let mut create = input::<{ create_flow_table_in::SIZE }>(Opcode::CREATE_FLOW_TABLE, 0);
        create_flow_table_in::table_type.set(&mut create, FlowTableType::NIC_RX.0);
        let context = create_flow_table_in::flow_table_context.of_mut(&mut create);
        flow_table_context::log_size.set(context, LOG_ENTRIES);
        let mut out = [0; create_flow_table_out::SIZE];
        firmware.exec(memory, &create, &mut out)?;
        let table = create_flow_table_out::table_id.get32(&out);
        steering.table = Some(table);

        let mut create = input::<{ create_flow_group_in::SIZE }>(Opcode::CREATE_FLOW_GROUP, 0);
        create_flow_group_in::table_type.set(&mut create, FlowTableType::NIC_RX.0);
        create_flow_group_in::table_id.set(&mut create, table);
        create_flow_group_in::end_flow_index.set(&mut create, (1u32 << LOG_ENTRIES) - 1);
        create_flow_group_in::match_criteria_enable.set(&mut create, OUTER);
        write_destination(create_flow_group_in::match_criteria.of_mut(&mut create), ANY_BIT);
        let mut out = [0; create_flow_group_out::SIZE];
        firmware.exec(memory, &create, &mut out)?;
        steering.group = Some(create_flow_group_out::group_id.get32(&out));

        let mut set = input::<{ set_flow_table_root_in::SIZE }>(Opcode::SET_FLOW_TABLE_ROOT, 0);
        set_flow_table_root_in::table_type.set(&mut set, FlowTableType::NIC_RX.0);
        set_flow_table_root_in::table_id.set(&mut set, table);
        firmware.exec(memory, &set, &mut [0; set_flow_table_root_out::SIZE])
    }

    /// Leads frames to `destination` to the QP, if one receives.
    fn set_entry<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        index: usize,
        destination: MacAddress,
    ) -> Result<(), Error> {
        let Some(steering) = &mut self.steering else { return Ok(()) };
        let (Some(tirn), Some(table), Some(group)) = (steering.tirn, steering.table, steering.group) else {
            return Err(Error::WrongState);
        };
        let mut set = input::<{ set_fte_in::SIZE }>(Opcode::SET_FLOW_TABLE_ENTRY, 0);
        set_fte_in::table_type.set(&mut set, FlowTableType::NIC_RX.0);
        set_fte_in::table_id.set(&mut set, table);
        set_fte_in::flow_index.set(&mut set, index as u32);
        let context = set_fte_in::flow_context.of_mut(&mut set);
        flow_context::group_id.set(context, group);
        // Completions of frames have the tag in the place of the queue's number.
        flow_context::flow_tag.set(context, steering.rqn);
        flow_context::action.set(context, FlowAction::FWD_DEST.bits());
        flow_context::destination_list_size.set(context, 1u32);
        write_destination(flow_context::match_value.of_mut(context), destination);
        let mut entry = [0; dest_format_struct::SIZE];
        dest_format_struct::destination_type.set(&mut entry, FlowDestination::TIR.0);
        dest_format_struct::destination_id.set(&mut entry, tirn);
        let tail = Tail { count: 1, entry: &|_| u64::from_be_bytes(entry) };
        firmware.exec_with(memory, &set, tail, &mut [0; set_fte_out::SIZE])?;
        steering.entries |= 1 << index;
        Ok(())
    }

    fn delete_entry<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        index: usize,
    ) -> Result<(), Error> {
        let Some(steering) = &mut self.steering else { return Ok(()) };
        if let (Some(table), true) = (steering.table, steering.entries >> index & 1 != 0) {
            firmware.exec(memory, &delete_input(table, index), &mut [0; delete_fte_out::SIZE])?;
            steering.entries &= !(1 << index);
        }
        Ok(())
    }
}

impl Steering {
    fn destroy<P: Platform>(
        &self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        qp: &Qp<P::Bar>,
    ) -> Result<(), Error> {
        let mut result = Ok(());
        if let Some(table) = self.table {
            for index in (0..1 << LOG_ENTRIES).filter(|index| self.entries >> index & 1 != 0) {
                let delete = delete_input(table, index);
                result = result.and(firmware.destroy(memory, qp, &delete, &mut [0; delete_fte_out::SIZE]));
            }
        }
        if let (Some(table), Some(group)) = (self.table, self.group) {
            let mut destroy = input::<{ destroy_flow_group_in::SIZE }>(Opcode::DESTROY_FLOW_GROUP, 0);
            destroy_flow_group_in::table_type.set(&mut destroy, FlowTableType::NIC_RX.0);
            destroy_flow_group_in::table_id.set(&mut destroy, table);
            destroy_flow_group_in::group_id.set(&mut destroy, group);
            let done = firmware.destroy(memory, qp, &destroy, &mut [0; destroy_flow_group_out::SIZE]);
            result = result.and(done);
        }
        // Firmware takes the last table away as the root, too (Linux, fs_core.c, update_root_ft_destroy).
        if let Some(table) = self.table {
            let mut destroy = input::<{ destroy_flow_table_in::SIZE }>(Opcode::DESTROY_FLOW_TABLE, 0);
            destroy_flow_table_in::table_type.set(&mut destroy, FlowTableType::NIC_RX.0);
            destroy_flow_table_in::table_id.set(&mut destroy, table);
            let done = firmware.destroy(memory, qp, &destroy, &mut [0; destroy_flow_table_out::SIZE]);
            result = result.and(done);
        }
        if let Some(tirn) = self.tirn {
            let mut destroy = input::<{ destroy_tir_in::SIZE }>(Opcode::DESTROY_TIR, 0);
            destroy_tir_in::tirn.set(&mut destroy, tirn);
            result = result.and(firmware.destroy(memory, qp, &destroy, &mut [0; destroy_tir_out::SIZE]));
        }
        result
    }
}

fn delete_input(table: u32, index: usize) -> [u8; delete_fte_in::SIZE] {
    let mut delete = input::<{ delete_fte_in::SIZE }>(Opcode::DELETE_FLOW_TABLE_ENTRY, 0);
    delete_fte_in::table_type.set(&mut delete, FlowTableType::NIC_RX.0);
    delete_fte_in::table_id.set(&mut delete, table);
    delete_fte_in::flow_index.set(&mut delete, index as u32);
    delete
}

/// Writes a destination address into a `fte_match_param`: as a value, or as a mask.
fn write_destination(to: &mut [u8], mac: MacAddress) {
    let (high, low) = mac.halves();
    let outer = fte_match_param::outer_headers.of_mut(to);
    fte_match_set_lyr_2_4::dmac_47_16.set(outer, u32::from(high) << 16 | low >> 16);
    fte_match_set_lyr_2_4::dmac_15_0.set(outer, low & 0xffff);
}
