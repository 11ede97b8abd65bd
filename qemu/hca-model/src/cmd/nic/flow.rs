//! Flow table, group, entry and counter commands.

use crate::cmd::refusal::{Outcome, Refusal};
use crate::device::Device;
use crate::object::nic::{Destination, Entry, FlowTable, Group, Match};
use mlx5_prm::caps::{flow_table_nic_cap, flow_table_prop_layout as props};
use mlx5_prm::commands::*;
use mlx5_prm::steering::*;
use mlx5_prm::value::{CapType, FlowAction, FlowDestination, FlowTableType, FteFields, TableMissAction};
use mlx5_prm::{Field, Tail};

/// Destinations, then counters of an entry in an input or output.
const LISTS: Tail =
    Tail { offset: set_fte_in::flow_context.offset + flow_context::destination.offset, stride: 8 };
/// `match_criteria_enable`: the outer headers.
const OUTER: u32 = 1;
/// SET_FLOW_TABLE_ENTRY changes an entry (`op_mod`).
const MODIFY: u16 = 1;
/// SET_FLOW_TABLE_ROOT takes the root away (`op_mod`).
const DISCONNECT: u16 = 1;
/// `modify_flow_table_in.modify_field_select`: the table for frames without an entry.
const MISS_TABLE: u32 = 1;
/// Bytes of a counter's packets and octets in the output of QUERY_FLOW_COUNTER.
const STATISTICS: usize = query_flow_counter_out::flow_statistics.offset;

/// Only tables of received frames exist.
fn check_kind(field: &str, number: u32) -> Outcome {
    match FlowTableType(number as u8) {
        FlowTableType::NIC_RX => Ok(()),
        kind => Err(Refusal::param(field, format!("{kind} is not supported"))),
    }
}

impl Device {
    /// A property of tables of received frames.
    fn flow_property(&self, field: Field) -> u32 {
        let block = self.caps.query(CapType::FLOW_TABLE, true).unwrap_or_default();
        field.get32(flow_table_nic_cap::flow_table_properties_nic_receive.of(block))
    }

    fn flow_table(&self, field: &str, id: u32) -> Result<&FlowTable, Refusal> {
        self.objects.nic.steering.table(id).ok_or_else(|| Refusal::missing(field, id))
    }

    /// The table for frames without an entry, by a `flow_table_context`: of a higher level than `level`.
    fn miss_table(&self, context: &[u8], level: u32) -> Result<Option<u32>, Refusal> {
        match TableMissAction(flow_table_context::table_miss_action.get32(context) as u8) {
            TableMissAction::DEF => Ok(None),
            TableMissAction::FWD => {
                let id = flow_table_context::table_miss_id.get32(context);
                self.check_level("flow_table_context.table_miss_id", id, level)?;
                Ok(Some(id))
            }
            other => Err(Refusal::param("flow_table_context.table_miss_action", format!("{other}"))),
        }
    }

    /// A table leads to tables of higher levels alone.
    fn check_level(&self, field: &str, id: u32, level: u32) -> Outcome {
        let next = self.flow_table(field, id)?.level;
        if next > level {
            return Ok(());
        }
        Err(Refusal::param(field, format!("table {id:#x} of level {next} behind level {level}")))
    }

    pub(in crate::cmd) fn create_flow_table(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        check_kind("create_flow_table_in.table_type", create_flow_table_in::table_type.get32(input))?;
        let context = create_flow_table_in::flow_table_context.of(input);
        for (field, name) in [
            (flow_table_context::reformat_en, "flow_table_context.reformat_en"),
            (flow_table_context::decap_en, "flow_table_context.decap_en"),
            (flow_table_context::sw_owner, "flow_table_context.sw_owner"),
            (flow_table_context::termination_table, "flow_table_context.termination_table"),
        ] {
            if field.is_set(context) {
                return Err(Refusal::param(name, "the capability is off"));
            }
        }
        let (level, log_size) =
            (flow_table_context::level.get32(context), flow_table_context::log_size.get32(context));
        for (name, value, most) in [
            ("flow_table_context.level", level, self.flow_property(props::max_ft_level)),
            ("flow_table_context.log_size", log_size, self.flow_property(props::log_max_ft_size)),
        ] {
            if value > most {
                return Err(Refusal::param(name, format!("{value}, at most {most}")));
            }
        }
        let mut table = FlowTable::new(level, log_size, context.to_vec());
        table.miss = self.miss_table(context, level)?;
        let memory = table.memory();
        self.hold(memory)?;
        let Some(id) = self.objects.nic.steering.add_table(table) else {
            self.budget.release(memory);
            return Err(Refusal::full("flow tables"));
        };
        create_flow_table_out::table_id.set(output, id);
        Ok(())
    }

    pub(in crate::cmd) fn modify_flow_table(&mut self, input: &[u8]) -> Outcome {
        let (field, id) = ("modify_flow_table_in.table_id", modify_flow_table_in::table_id.get32(input));
        let select = modify_flow_table_in::modify_field_select.get32(input);
        if select & !MISS_TABLE != 0 {
            return Err(Refusal::param("modify_flow_table_in.modify_field_select", format!("{select:#x}")));
        }
        let context = modify_flow_table_in::flow_table_context.of(input);
        let miss = self.miss_table(context, self.flow_table(field, id)?.level)?;
        if let Some(table) = self.objects.nic.steering.table_mut(id)
            && select & MISS_TABLE != 0
        {
            table.miss = miss;
            for field in [flow_table_context::table_miss_action, flow_table_context::table_miss_id] {
                field.set(&mut table.context, field.get(context));
            }
        }
        Ok(())
    }

    pub(in crate::cmd) fn destroy_flow_table(&mut self, input: &[u8]) -> Outcome {
        let (field, id) = ("destroy_flow_table_in.table_id", destroy_flow_table_in::table_id.get32(input));
        if self.flow_table(field, id)?.groups() != 0 {
            return Err(Refusal::busy(field, "it has flow groups"));
        }
        self.meter.charge(self.objects.nic.steering.entries() as u64);
        if let Some(user) = self.objects.nic.steering.user_of_table(id) {
            return Err(Refusal::busy(field, user));
        }
        if let Some(table) = self.objects.nic.steering.remove_table(id) {
            self.budget.release(table.memory());
        }
        Ok(())
    }

    pub(in crate::cmd) fn query_flow_table(&self, input: &[u8], output: &mut [u8]) -> Outcome {
        let id = query_flow_table_in::table_id.get32(input);
        let table = self.flow_table("query_flow_table_in.table_id", id)?;
        query_flow_table_out::flow_table_context.of_mut(output).copy_from_slice(&table.context);
        Ok(())
    }

    pub(in crate::cmd) fn set_flow_table_root(&mut self, op_mod: u16, input: &[u8]) -> Outcome {
        check_kind("set_flow_table_root_in.table_type", set_flow_table_root_in::table_type.get32(input))?;
        let root = match op_mod {
            0 => {
                let id = set_flow_table_root_in::table_id.get32(input);
                self.flow_table("set_flow_table_root_in.table_id", id)?;
                Some(id)
            }
            DISCONNECT => None,
            other => return Err(Refusal::op_mod(other)),
        };
        self.objects.nic.steering.set_root(root);
        Ok(())
    }

    pub(in crate::cmd) fn create_flow_group(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let (field, id) = ("create_flow_group_in.table_id", create_flow_group_in::table_id.get32(input));
        let range = (
            create_flow_group_in::start_flow_index.get32(input),
            create_flow_group_in::end_flow_index.get32(input),
        );
        let table = self.flow_table(field, id)?;
        let log_size = table.log_size;
        if range.0 > range.1 || range.1 >> log_size != 0 {
            let text = format!("{} to {} of a table of 2^{log_size}", range.0, range.1);
            return Err(Refusal::param("create_flow_group_in.end_flow_index", text));
        }
        if self.objects.nic.steering.overlaps(id, range) {
            return Err(Refusal::param("create_flow_group_in.start_flow_index", "in another group"));
        }
        let enabled = create_flow_group_in::match_criteria_enable.get32(input);
        let criteria = create_flow_group_in::match_criteria.of(input);
        let mask = self.mask(enabled, criteria)?;
        let group = Group::new(id, range, mask, (enabled as u8, criteria.to_vec()));
        let memory = group.memory();
        self.hold(memory)?;
        let Some(number) = self.objects.nic.steering.add_group(group) else {
            self.budget.release(memory);
            return Err(Refusal::full("flow groups"));
        };
        create_flow_group_out::group_id.set(output, number);
        Ok(())
    }

    /// Returns the mask of a group. Only fields of the outer headers are supported.
    fn mask(&self, enabled: u32, criteria: &[u8]) -> Result<Match, Refusal> {
        let outer = fte_match_param::outer_headers;
        let others = criteria.get(outer.offset + outer.len..).unwrap_or_default();
        if enabled & !OUTER != 0 && others.iter().any(|byte| *byte != 0) {
            let text = format!("{enabled:#x}: other fields than those of outer headers");
            return Err(Refusal::param("create_flow_group_in.match_criteria_enable", text));
        }
        Ok(if enabled & OUTER != 0 { Match::of(outer.of(criteria)) } else { Match::NONE })
    }

    pub(in crate::cmd) fn destroy_flow_group(&mut self, input: &[u8]) -> Outcome {
        let (field, id) = ("destroy_flow_group_in.group_id", destroy_flow_group_in::group_id.get32(input));
        match self.objects.nic.steering.remove_group(id) {
            Ok(Some(group)) => {
                self.budget.release(group.memory());
                Ok(())
            }
            Ok(None) => Err(Refusal::missing(field, id)),
            Err(entries) => Err(Refusal::busy(field, format!("it has {entries} entries"))),
        }
    }

    pub(in crate::cmd) fn query_flow_group(&self, input: &[u8], output: &mut [u8]) -> Outcome {
        let id = query_flow_group_in::group_id.get32(input);
        let group = self.objects.nic.steering.group(id);
        let group = group.ok_or_else(|| Refusal::missing("query_flow_group_in.group_id", id))?;
        query_flow_group_out::start_flow_index.set(output, group.range.0);
        query_flow_group_out::end_flow_index.set(output, group.range.1);
        query_flow_group_out::match_criteria_enable.set(output, group.criteria.0);
        query_flow_group_out::match_criteria.of_mut(output).copy_from_slice(&group.criteria.1);
        Ok(())
    }

    pub(in crate::cmd) fn set_fte(&mut self, op_mod: u16, input: &[u8]) -> Outcome {
        let (field, id) = ("set_fte_in.table_id", set_fte_in::table_id.get32(input));
        check_kind("set_fte_in.table_type", set_fte_in::table_type.get32(input))?;
        if set_fte_in::ignore_flow_level.is_set(input) {
            return Err(Refusal::param("set_fte_in.ignore_flow_level", "the capability is off"));
        }
        let index = set_fte_in::flow_index.get32(input);
        let table = self.flow_table(field, id)?;
        let level = table.level;
        let mut entry = self.parse_entry(id, (index, level), input)?;
        match (op_mod, table.entry(index)) {
            (0, None) => {}
            (0, Some(_)) => return Err(Refusal::busy("set_fte_in.flow_index", format!("{index} is in use"))),
            (MODIFY, Some(before)) => {
                let mask = set_fte_in::modify_enable_mask.get32(input);
                entry = merged(before, entry, FteFields::from_bits_truncate(mask as u8));
            }
            (MODIFY, None) => return Err(Refusal::missing("set_fte_in.flow_index", index)),
            (other, _) => return Err(Refusal::op_mod(other)),
        }
        self.hold(entry.memory())?;
        if let Some(before) = self.objects.nic.steering.set_entry(id, index, entry) {
            self.budget.release(before.memory());
        }
        Ok(())
    }

    fn parse_entry(&self, table: u32, (index, level): (u32, u32), input: &[u8]) -> Result<Entry, Refusal> {
        let context = set_fte_in::flow_context.of(input);
        let id = flow_context::group_id.get32(context);
        let group = self.objects.nic.steering.group(id).filter(|group| group.table == table);
        let group = group.ok_or_else(|| Refusal::missing("flow_context.group_id", id))?;
        if index < group.range.0 || index > group.range.1 {
            let text = format!("{index} is not in group {id:#x}, {} to {}", group.range.0, group.range.1);
            return Err(Refusal::param("set_fte_in.flow_index", text));
        }
        let bits = flow_context::action.get32(context);
        let known = FlowAction::ALLOW | FlowAction::DROP | FlowAction::FWD_DEST | FlowAction::COUNT;
        let action = FlowAction::from_bits(bits as u16).filter(|action| known.contains(*action));
        let ends = FlowAction::DROP | FlowAction::FWD_DEST | FlowAction::ALLOW;
        let Some(action) = action.filter(|action| action.intersects(ends)) else {
            return Err(Refusal::param("flow_context.action", format!("{bits:#x}")));
        };
        if flow_context::extended_destination.is_set(context) {
            return Err(Refusal::param("flow_context.extended_destination", "the capability is off"));
        }
        let count = flow_context::destination_list_size.get32(context);
        let counters = flow_context::flow_counter_list_size.get32(context);
        let most = 1 << self.flow_property(props::log_max_destination);
        let given = LISTS.count(input) as u64;
        if count > most || counters > 1 || u64::from(count) + u64::from(counters) > given {
            let text = format!("{count} destinations and {counters} counters, {given} in the input");
            return Err(Refusal::param("flow_context.destination_list_size", text));
        }
        let entry = |at: u32| input.get(LISTS.offset + 8 * at as usize..).unwrap_or_default();
        let destinations = (0..count).map(|at| self.parse_destination(level, entry(at)));
        let destinations = destinations.collect::<Result<Vec<_>, _>>()?;
        if action.contains(FlowAction::FWD_DEST) == destinations.is_empty() {
            let text = format!("{count}, of an entry with action {bits:#x}");
            return Err(Refusal::param("flow_context.destination_list_size", text));
        }
        let counters =
            (count..count + counters).map(|at| flow_counter_list::flow_counter_id.get32(entry(at)));
        let counters: Vec<u32> = counters.collect();
        if let Some(id) = counters.iter().find(|id| !self.objects.nic.steering.has_counter(**id)) {
            return Err(Refusal::missing("flow_counter_list.flow_counter_id", *id));
        }
        let value = fte_match_param::outer_headers.of(flow_context::match_value.of(context));
        Ok(Entry {
            group: id,
            value: Match::of(value).under(&group.mask),
            action,
            flow_tag: flow_context::flow_tag.get32(context),
            destinations,
            counters,
            context: input.get(set_fte_in::flow_context.offset..).unwrap_or_default().to_vec(),
        })
    }

    fn parse_destination(&self, level: u32, bytes: &[u8]) -> Result<Destination, Refusal> {
        let (field, id) =
            ("dest_format_struct.destination_id", dest_format_struct::destination_id.get32(bytes));
        match FlowDestination(dest_format_struct::destination_type.get32(bytes) as u8) {
            FlowDestination::FLOW_TABLE => {
                self.check_level(field, id, level)?;
                Ok(Destination::Table(id))
            }
            FlowDestination::TIR if self.objects.nic.tirs.contains(id) => Ok(Destination::Tir(id)),
            FlowDestination::TIR => Err(Refusal::missing(field, id)),
            other => Err(Refusal::param(
                "dest_format_struct.destination_type",
                format!("{other} is not supported"),
            )),
        }
    }

    pub(in crate::cmd) fn query_fte(&self, input: &[u8], output: &mut Vec<u8>) -> Outcome {
        let (id, index) = (query_fte_in::table_id.get32(input), query_fte_in::flow_index.get32(input));
        let table = self.flow_table("query_fte_in.table_id", id)?;
        let entry = table.entry(index).ok_or_else(|| Refusal::missing("query_fte_in.flow_index", index))?;
        output.truncate(query_fte_out::flow_context.offset);
        output.extend_from_slice(&entry.context);
        Ok(())
    }

    pub(in crate::cmd) fn delete_fte(&mut self, input: &[u8]) -> Outcome {
        let (id, index) = (delete_fte_in::table_id.get32(input), delete_fte_in::flow_index.get32(input));
        self.flow_table("delete_fte_in.table_id", id)?;
        let entry = self.objects.nic.steering.remove_entry(id, index);
        let entry = entry.ok_or_else(|| Refusal::missing("delete_fte_in.flow_index", index))?;
        self.budget.release(entry.memory());
        Ok(())
    }

    pub(in crate::cmd) fn alloc_flow_counter(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        if alloc_flow_counter_in::flow_counter_bulk.is_set(input) {
            return Err(Refusal::param("alloc_flow_counter_in.flow_counter_bulk", "the capability is off"));
        }
        let id = self.objects.nic.steering.add_counter().ok_or_else(|| Refusal::full("flow counters"))?;
        alloc_flow_counter_out::flow_counter_id.set(output, id);
        Ok(())
    }

    pub(in crate::cmd) fn dealloc_flow_counter(&mut self, input: &[u8]) -> Outcome {
        let field = "dealloc_flow_counter_in.flow_counter_id";
        let id = dealloc_flow_counter_in::flow_counter_id.get32(input);
        self.meter.charge(self.objects.nic.steering.entries() as u64);
        if let Some(table) = self.objects.nic.steering.user_of_counter(id) {
            return Err(Refusal::busy(field, format!("an entry of flow table {table:#x} counts there")));
        }
        if self.objects.nic.steering.remove_counter(id) { Ok(()) } else { Err(Refusal::missing(field, id)) }
    }

    pub(in crate::cmd) fn query_flow_counter(&mut self, input: &[u8], output: &mut Vec<u8>) -> Outcome {
        let id = query_flow_counter_in::flow_counter_id.get32(input);
        let several = query_flow_counter_in::num_of_counters.get32(input);
        if several > 1 {
            return Err(Refusal::param(
                "query_flow_counter_in.num_of_counters",
                format!("{several}, at most 1"),
            ));
        }
        let Some(counter) = self.objects.nic.steering.counter_mut(id) else {
            return Err(Refusal::missing("query_flow_counter_in.flow_counter_id", id));
        };
        output.truncate(STATISTICS);
        output.extend([counter.packets, counter.octets].iter().flat_map(|count| count.to_be_bytes()));
        if query_flow_counter_in::clear.is_set(input) {
            *counter = Default::default();
        }
        Ok(())
    }
}

/// An entry with what `which` names of `new`, and the rest of `before`. Its group and value stay.
fn merged(before: &Entry, new: Entry, which: FteFields) -> Entry {
    let mut entry = Entry { context: new.context, ..before.clone() };
    if which.contains(FteFields::ACTION) {
        entry.action = new.action;
    }
    if which.contains(FteFields::FLOW_TAG) {
        entry.flow_tag = new.flow_tag;
    }
    if which.contains(FteFields::DESTINATION_LIST) {
        entry.destinations = new.destinations;
    }
    if which.contains(FteFields::FLOW_COUNTERS) {
        entry.counters = new.counters;
    }
    entry
}
