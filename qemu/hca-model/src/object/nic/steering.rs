//! Flow tables: from a frame's headers to the TIRs that receive it (PRM, "Flow Steering").
//!
//! A group gives the entries in a range of a table one mask, so the entry of a frame is found by one look-up for each
//! group up to the first that has one. A table leads only to tables of a higher level, and a frame ends after
//! [`MAX_VISITS`] tables, or after [`MAX_STEPS`] of work.

use crate::object::table::Table;
use mlx5_prm::steering::fte_match_set_lyr_2_4;
use mlx5_prm::value::FlowAction;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Flow tables of a device.
pub(crate) const MAX_TABLES: u32 = 1 << 10;
/// Flow groups of a device.
pub(crate) const MAX_GROUPS: u32 = 1 << 16;
/// Flow counters of a device.
pub(crate) const MAX_COUNTERS: u32 = 1 << 16;
/// Tables that one frame is looked up in at most.
const MAX_VISITS: u32 = 256;
/// Steps of work for one frame after which no further table follows.
const MAX_STEPS: u64 = 1 << 16;
/// Steps of a look-up in a group: mask, hash and compare 64 bytes.
const LOOK_UP: u64 = 4;
/// TIRs that receive one frame at most.
const MAX_RECEIVERS: usize = 256;

/// Match fields of a frame, laid out as `fte_match_set_lyr_2_4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Match([u8; fte_match_set_lyr_2_4::SIZE]);

impl Match {
    /// No field.
    pub(crate) const NONE: Self = Self([0; fte_match_set_lyr_2_4::SIZE]);

    /// The fields in `bytes`, a `fte_match_set_lyr_2_4`.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(bytes.first_chunk().copied().unwrap_or([0; fte_match_set_lyr_2_4::SIZE]))
    }

    /// The bytes of `fte_match_set_lyr_2_4`.
    #[cfg(test)]
    pub(crate) const fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bits that `mask` selects.
    pub(crate) fn under(&self, mask: &Self) -> Self {
        let mut masked = *self;
        masked.0.iter_mut().zip(&mask.0).for_each(|(byte, mask)| *byte &= mask);
        masked
    }
}

/// Where an entry sends frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Table(u32),
    Tir(u32),
}

/// An entry of a flow table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) group: u32,
    pub(crate) value: Match,
    pub(crate) action: FlowAction,
    pub(crate) flow_tag: u32,
    pub(crate) destinations: Vec<Destination>,
    pub(crate) counters: Vec<u32>,
    /// The context with its lists, for queries.
    pub(crate) context: Vec<u8>,
}

impl Entry {
    /// Host memory that it takes.
    pub(crate) fn memory(&self) -> u64 {
        // Twice the value: it is a key of the group's index, too.
        (size_of::<Self>() + 2 * size_of::<Match>() + self.context.len()) as u64
            + (size_of::<Destination>() * self.destinations.len() + 4 * self.counters.len()) as u64
    }
}

/// A group of entries with the same mask.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) table: u32,
    /// First and last index of its entries.
    pub(crate) range: (u32, u32),
    pub(crate) mask: Match,
    /// Entries by value.
    entries: HashMap<Match, BTreeSet<u32>>,
    /// `match_criteria_enable` and `match_criteria`, for queries.
    pub(crate) criteria: (u8, Vec<u8>),
}

impl Group {
    /// A group without entries.
    pub(crate) fn new(table: u32, range: (u32, u32), mask: Match, criteria: (u8, Vec<u8>)) -> Self {
        Self { table, range, mask, entries: HashMap::new(), criteria }
    }

    /// Host memory that it takes without its entries.
    pub(crate) fn memory(&self) -> u64 {
        (size_of::<Self>() + self.criteria.1.len()) as u64
    }
}

/// A flow table.
#[derive(Clone, Debug)]
pub(crate) struct FlowTable {
    pub(crate) level: u32,
    /// log2 of entries.
    pub(crate) log_size: u32,
    /// The table for frames without an entry.
    pub(crate) miss: Option<u32>,
    /// Groups by their first index, so that an overlap is found without a look at all of them.
    groups: BTreeMap<u32, u32>,
    entries: BTreeMap<u32, Entry>,
    /// The context, for queries.
    pub(crate) context: Vec<u8>,
}

impl FlowTable {
    /// A table without groups.
    pub(crate) fn new(level: u32, log_size: u32, context: Vec<u8>) -> Self {
        Self { level, log_size, miss: None, groups: BTreeMap::new(), entries: BTreeMap::new(), context }
    }

    /// Host memory that it takes without groups and entries.
    pub(crate) fn memory(&self) -> u64 {
        (size_of::<Self>() + self.context.len()) as u64
    }

    /// The entry at `index`.
    pub(crate) fn entry(&self, index: u32) -> Option<&Entry> {
        self.entries.get(&index)
    }

    /// Number of groups.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }
}

/// Packets and bytes that an entry's counter has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowCounter {
    pub(crate) packets: u64,
    pub(crate) octets: u64,
}

/// Result of looking a frame up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    /// TIRs that receive it, each with the flow tag of its entry.
    pub(crate) tirs: Vec<(u32, u32)>,
    /// Steps of work.
    pub(crate) steps: u64,
}

/// All flow tables, their groups and counters.
#[derive(Debug)]
pub(crate) struct Steering {
    tables: Table<FlowTable>,
    groups: Table<Group>,
    counters: Table<FlowCounter>,
    /// The table at which the look-up of received frames begins.
    root: Option<u32>,
}

impl Steering {
    /// No tables.
    pub(crate) const fn new() -> Self {
        Self {
            tables: Table::new(1, MAX_TABLES),
            groups: Table::new(1, MAX_GROUPS),
            counters: Table::new(1, MAX_COUNTERS),
            root: None,
        }
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        self.tables.clear();
        self.groups.clear();
        self.counters.clear();
        self.root = None;
    }

    /// Number of tables.
    pub(crate) const fn tables(&self) -> usize {
        self.tables.len()
    }

    /// Number of counters.
    pub(crate) const fn counters(&self) -> usize {
        self.counters.len()
    }

    /// The table `id`.
    pub(crate) fn table(&self, id: u32) -> Option<&FlowTable> {
        self.tables.get(id)
    }

    /// The table `id`, to change it.
    pub(crate) fn table_mut(&mut self, id: u32) -> Option<&mut FlowTable> {
        self.tables.get_mut(id)
    }

    /// The group `id`.
    pub(crate) fn group(&self, id: u32) -> Option<&Group> {
        self.groups.get(id)
    }

    /// The counter `id`, to read or clear it.
    pub(crate) fn counter_mut(&mut self, id: u32) -> Option<&mut FlowCounter> {
        self.counters.get_mut(id)
    }

    /// Returns whether an entry may name the counter `id`.
    pub(crate) fn has_counter(&self, id: u32) -> bool {
        self.counters.contains(id)
    }

    /// Adds a counter. Returns its number.
    pub(crate) fn add_counter(&mut self) -> Option<u32> {
        self.counters.insert(|_| FlowCounter::default())
    }

    /// Removes a counter. Returns false if there is none.
    pub(crate) fn remove_counter(&mut self, id: u32) -> bool {
        self.counters.remove(id).is_some()
    }

    /// Adds a table. Returns its number.
    pub(crate) fn add_table(&mut self, table: FlowTable) -> Option<u32> {
        self.tables.insert(|_| table)
    }

    /// Removes a table without groups. A root that goes leaves none.
    pub(crate) fn remove_table(&mut self, id: u32) -> Option<Box<FlowTable>> {
        if self.root == Some(id) {
            self.root = None;
        }
        self.tables.remove(id)
    }

    /// Sets the root of received frames.
    pub(crate) const fn set_root(&mut self, root: Option<u32>) {
        self.root = root;
    }

    /// Adds a group. Returns its number.
    pub(crate) fn add_group(&mut self, group: Group) -> Option<u32> {
        let (table, first) = (group.table, group.range.0);
        let id = self.groups.insert(|_| group)?;
        self.tables.get_mut(table)?.groups.insert(first, id);
        Some(id)
    }

    /// Returns whether a group of `table` has one of the indices `first` to `last`.
    pub(crate) fn overlaps(&self, table: u32, (first, last): (u32, u32)) -> bool {
        // Ranges of a table's groups are apart: of those that begin before the end, the last ends last.
        let before = self.tables.get(table).and_then(|table| table.groups.range(..=last).next_back());
        before.and_then(|(_, id)| self.groups.get(*id)).is_some_and(|group| group.range.1 >= first)
    }

    /// Removes a group without entries. `Err` if it has some.
    pub(crate) fn remove_group(&mut self, id: u32) -> Result<Option<Box<Group>>, usize> {
        let Some(group) = self.groups.get(id) else { return Ok(None) };
        if !group.entries.is_empty() {
            return Err(group.entries.values().map(BTreeSet::len).sum());
        }
        if let Some(table) = self.tables.get_mut(group.table) {
            table.groups.remove(&group.range.0);
        }
        Ok(self.groups.remove(id))
    }

    /// Puts an entry at `index` of its group's table, in place of the one there. Returns that one.
    pub(crate) fn set_entry(&mut self, table: u32, index: u32, entry: Entry) -> Option<Entry> {
        let before = self.remove_entry(table, index);
        if let Some(group) = self.groups.get_mut(entry.group) {
            group.entries.entry(entry.value).or_default().insert(index);
        }
        self.tables.get_mut(table)?.entries.insert(index, entry);
        before
    }

    /// Removes the entry at `index`.
    pub(crate) fn remove_entry(&mut self, table: u32, index: u32) -> Option<Entry> {
        let entry = self.tables.get_mut(table)?.entries.remove(&index)?;
        if let Some(group) = self.groups.get_mut(entry.group)
            && let Some(indices) = group.entries.get_mut(&entry.value)
        {
            indices.remove(&index);
            if indices.is_empty() {
                group.entries.remove(&entry.value);
            }
        }
        Some(entry)
    }

    /// Returns the table that leads to another, in words.
    pub(crate) fn user_of_table(&self, id: u32) -> Option<String> {
        let leads = |table: &FlowTable| {
            let named = |entry: &Entry| entry.destinations.contains(&Destination::Table(id));
            table.miss == Some(id) || table.entries.values().any(named)
        };
        let user = self.tables.iter().find(|(_, table)| leads(table));
        user.map(|(from, _)| format!("table {from:#x} leads there"))
    }

    /// The table with an entry that leads to a TIR.
    pub(crate) fn user_of_tir(&self, tirn: u32) -> Option<u32> {
        let named = |entry: &Entry| entry.destinations.contains(&Destination::Tir(tirn));
        let user = self.tables.iter().find(|(_, table)| table.entries.values().any(named));
        user.map(|(id, _)| id)
    }

    /// The table with an entry that names a counter.
    pub(crate) fn user_of_counter(&self, id: u32) -> Option<u32> {
        let named = |entry: &Entry| entry.counters.contains(&id);
        let user = self.tables.iter().find(|(_, table)| table.entries.values().any(named));
        user.map(|(id, _)| id)
    }

    /// Entries of all tables.
    pub(crate) fn entries(&self) -> usize {
        self.tables.iter().map(|(_, table)| table.entries.len()).sum()
    }

    /// Looks a received frame of `len` bytes up, from the root on, and counts it.
    pub(crate) fn receive(&mut self, frame: &Match, len: usize) -> Flow {
        let mut flow = Flow::default();
        let mut next: Vec<u32> = self.root.into_iter().collect();
        let mut visits = 0;
        while let Some(id) = next.pop() {
            visits += 1;
            let goes_on = visits <= MAX_VISITS && flow.steps < MAX_STEPS;
            let Some(table) = self.tables.get(id).filter(|_| goes_on) else { break };
            flow.steps += 1;
            // In order of their ranges: the first entry found has the lowest index.
            let found = table.groups.values().find_map(|group| {
                flow.steps += LOOK_UP;
                let group = self.groups.get(*group)?;
                group.entries.get(&frame.under(&group.mask))?.first().copied()
            });
            let Some(entry) = found.and_then(|index| table.entries.get(&index)) else {
                next.extend(table.miss);
                continue;
            };
            for counter in &entry.counters {
                if let Some(counter) = self.counters.get_mut(*counter) {
                    counter.packets += 1;
                    counter.octets += len as u64;
                }
            }
            if entry.action.contains(FlowAction::DROP) {
                continue;
            }
            flow.steps += entry.destinations.len() as u64;
            for destination in &entry.destinations {
                match destination {
                    Destination::Table(id) => next.push(*id),
                    Destination::Tir(tirn) if flow.tirs.len() < MAX_RECEIVERS => {
                        flow.tirs.push((*tirn, entry.flow_tag));
                    }
                    Destination::Tir(_) => {}
                }
            }
        }
        flow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(dmac: [u8; 6]) -> Match {
        let mut bytes = [0; fte_match_set_lyr_2_4::SIZE];
        bytes[8..14].copy_from_slice(&dmac);
        Match::of(&bytes)
    }

    fn forward(group: u32, value: Match, destinations: &[Destination]) -> Entry {
        Entry {
            group,
            value,
            action: FlowAction::FWD_DEST,
            flow_tag: 0,
            destinations: destinations.to_vec(),
            counters: Vec::new(),
            context: Vec::new(),
        }
    }

    /// A table with a group for each mask, eight entries each.
    fn table(steering: &mut Steering, level: u32, masks: &[Match]) -> (u32, Vec<u32>) {
        let table = FlowTable::new(level, 8, Vec::new());
        let id = steering.add_table(table).expect("room");
        let group = |(first, mask): (u32, &Match)| {
            let range = (8 * first, 8 * first + 7);
            assert!(!steering.overlaps(id, range));
            steering.add_group(Group::new(id, range, *mask, (1, Vec::new()))).expect("room")
        };
        let groups = (0..).zip(masks).map(group).collect();
        (id, groups)
    }

    const ALL: [u8; 6] = [0xff; 6];
    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];

    #[test]
    fn lowest_index_wins() {
        let mut steering = Steering::new();
        let (id, groups) = table(&mut steering, 0, &[fields(ALL), fields([1, 0, 0, 0, 0, 0]), Match::NONE]);
        steering.set_root(Some(id));
        steering.set_entry(id, 17, forward(groups[2], Match::NONE, &[Destination::Tir(3)]));
        steering.set_entry(id, 9, forward(groups[1], fields([1, 0, 0, 0, 0, 0]), &[Destination::Tir(2)]));
        steering.set_entry(id, 3, forward(groups[0], fields(OWN), &[Destination::Tir(1)]));
        let tirs = |steering: &mut Steering, dmac| steering.receive(&fields(dmac), 60).tirs;
        assert_eq!(tirs(&mut steering, OWN), [(1, 0)]);
        assert_eq!(tirs(&mut steering, ALL), [(2, 0)]);
        assert_eq!(tirs(&mut steering, [2, 0, 0, 0, 0, 9]), [(3, 0)]);
        // Two entries of one value: the second waits until the first is gone.
        steering.set_entry(id, 1, forward(groups[0], fields(OWN), &[Destination::Tir(4)]));
        assert_eq!(tirs(&mut steering, OWN), [(4, 0)]);
        steering.remove_entry(id, 1).expect("there");
        assert_eq!(tirs(&mut steering, OWN), [(1, 0)]);
        assert_eq!(steering.remove_group(groups[0]).err(), Some(1));
        steering.remove_entry(id, 3).expect("there");
        assert!(matches!(steering.remove_group(groups[0]), Ok(Some(_))));
        assert_eq!(tirs(&mut steering, OWN), [(3, 0)]);
    }

    #[test]
    fn frame_follows_tables_and_misses() {
        let mut steering = Steering::new();
        let (first, groups) = table(&mut steering, 0, &[Match::NONE]);
        let (second, _) = table(&mut steering, 1, &[]);
        let (third, last) = table(&mut steering, 2, &[Match::NONE]);
        let counter = steering.add_counter().expect("room");
        let entry = forward(groups[0], Match::NONE, &[Destination::Table(second), Destination::Tir(9)]);
        steering.set_entry(first, 0, Entry { counters: vec![counter], ..entry });
        steering.table_mut(second).expect("there").miss = Some(third);
        let entry = forward(last[0], Match::NONE, &[Destination::Tir(7)]);
        steering.set_entry(third, 5, Entry { flow_tag: 0x123, ..entry });
        assert_eq!(steering.receive(&fields(OWN), 60).tirs, [], "no root");
        steering.set_root(Some(first));
        let mut tirs = steering.receive(&fields(OWN), 60).tirs;
        tirs.sort_unstable();
        assert_eq!(tirs, [(7, 0x123), (9, 0)]);
        assert_eq!(steering.counter_mut(counter).copied(), Some(FlowCounter { packets: 1, octets: 60 }));
        let drop = Entry { action: FlowAction::DROP, ..forward(last[0], Match::NONE, &[]) };
        steering.set_entry(third, 5, drop);
        assert_eq!(steering.receive(&fields(OWN), 60).tirs, [(9, 0)]);
        assert_eq!(steering.user_of_table(third).as_deref(), Some("table 0x2 leads there"));
        assert_eq!((steering.user_of_tir(9), steering.user_of_tir(7)), (Some(first), None));
    }

    /// Each table leads to the next one twice.
    #[test]
    fn work_of_a_frame_is_bounded() {
        let mut steering = Steering::new();
        let tables: Vec<_> = (0..64).map(|level| table(&mut steering, level, &[Match::NONE])).collect();
        for pair in tables.windows(2) {
            let next = Destination::Table(pair[1].0);
            steering.set_entry(pair[0].0, 0, forward(pair[0].1[0], Match::NONE, &[next, next]));
        }
        steering.set_root(Some(tables[0].0));
        let steps = steering.receive(&fields(OWN), 60).steps;
        assert!(steps <= u64::from(MAX_VISITS) * (1 + LOOK_UP + 2), "{steps}");
    }

    #[test]
    fn groups_of_a_frame_s_tables_are_bounded() {
        const GROUPS: usize = 1 << 12;
        let mut steering = Steering::new();
        let (last, _) = table(&mut steering, 1, &[Match::NONE; GROUPS]);
        let (first, groups) = table(&mut steering, 0, &[Match::NONE]);
        steering.set_entry(first, 0, forward(groups[0], Match::NONE, &[Destination::Table(last); 64]));
        steering.set_root(Some(first));
        let steps = steering.receive(&fields(OWN), 60).steps;
        let table = 1 + LOOK_UP * GROUPS as u64;
        assert!(steps >= MAX_STEPS && steps <= MAX_STEPS + table, "{steps}");
    }
}
