//! Registered memory of sockets, which operations use without another registration.

use crate::error::RdsError;
use crate::ids::{MemoryId, SocketHandle};

/// Handle of memory that a socket registered
/// ([`Rds::register_memory`](crate::Rds::register_memory)). A stale handle stays invalid when its
/// entry is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryHandle {
    slot: u16,
    generation: u32,
}

impl MemoryHandle {
    /// Returns its index in the table.
    pub(crate) const fn id(self) -> MemoryId {
        MemoryId::new(self.slot as usize)
    }
}

with_empty! {
    /// Table entry of registered memory.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Memory {
        /// The LMR; 0 if the entry is free.
        pub(crate) lmr_bits: u64 = 0,
        pub(crate) owner: SocketHandle = SocketHandle { slot: 0, generation: 0 },
        pub(crate) lmr_context: u32 = 0,
        /// Protection zone of the registration, and whether the zone belongs to a single peer.
        pub(crate) zone: u64 = 0,
        pub(crate) is_peers: bool = false,
        /// True for memory outside of the adapter's DMA region.
        pub(crate) is_foreign: bool = false,
        /// Address on this machine, address in work requests, and length in bytes.
        pub(crate) va: usize = 0,
        pub(crate) address: u64 = 0,
        pub(crate) len: usize = 0,
        /// Number of SGEs of outstanding operations, and of windows.
        pub(crate) users: u32 = 0,
        pub(crate) generation: u32 = 0,
    }
}

impl Memory {
    fn is_there(&self) -> bool {
        self.lmr_bits != 0
    }

    /// Returns the offset of a range, if it is within this memory.
    fn offset_of(&self, va: usize, len: usize) -> Option<usize> {
        let offset = va.checked_sub(self.va)?;
        (offset.checked_add(len)? <= self.len).then_some(offset)
    }
}

/// Part of registered memory, with its address in work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) memory: MemoryId,
    pub(crate) lmr_context: u32,
    pub(crate) address: u64,
}

/// All memory that sockets registered.
pub(crate) struct Memories<'s>(&'s mut [Memory]);

impl<'s> Memories<'s> {
    pub(crate) fn new(entries: &'s mut [Memory]) -> Self {
        let count = entries.len().min(MemoryId::MOST);
        let (entries, _) = entries.split_at_mut(count);
        entries.fill(Memory::EMPTY);
        Self(entries)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.0.iter().any(|memory| !memory.is_there())
    }

    pub(crate) fn get(&self, id: MemoryId) -> Option<&Memory> {
        self.0.get(id.index()).filter(|entry| entry.is_there())
    }

    /// Inserts memory into a free entry.
    pub(crate) fn insert(&mut self, memory: Memory) -> Option<MemoryHandle> {
        let (slot, entry) = self.0.iter_mut().enumerate().find(|(_, entry)| !entry.is_there())?;
        let generation = entry.generation.wrapping_add(1);
        *entry = Memory { generation, ..memory };
        Some(MemoryHandle { slot: slot as u16, generation })
    }

    /// Restores an entry that was removed, with its handle.
    pub(crate) fn put_back(&mut self, handle: MemoryHandle, memory: Memory) {
        if let Some(entry) = self.0.get_mut(usize::from(handle.slot)) {
            *entry = Memory { generation: handle.generation, ..memory };
        }
    }

    /// Removes a socket's memory from the table.
    ///
    /// # Errors
    /// [`RdsError::InvalidArgument`]: the socket does not own such memory. [`RdsError::Again`]:
    /// operations use it, or a part of it is offered.
    pub(crate) fn take(&mut self, owner: SocketHandle, handle: MemoryHandle) -> Result<Memory, RdsError> {
        let entry = self.0.get_mut(usize::from(handle.slot));
        let is_it = |entry: &&mut Memory| {
            entry.is_there() && entry.generation == handle.generation && entry.owner == owner
        };
        let entry = entry.filter(is_it).ok_or(RdsError::InvalidArgument)?;
        if entry.users > 0 {
            return Err(RdsError::Again);
        }
        let generation = entry.generation;
        Ok(core::mem::replace(entry, Memory { generation, ..Memory::EMPTY }))
    }

    /// Removes any entry of a socket, or of all sockets, even if it is in use.
    pub(crate) fn take_any(&mut self, owner: Option<SocketHandle>) -> Option<(MemoryHandle, Memory)> {
        let is_meant = |entry: &Memory| entry.is_there() && owner.is_none_or(|owner| entry.owner == owner);
        let (slot, entry) = self.0.iter_mut().enumerate().find(|(_, entry)| is_meant(entry))?;
        let generation = entry.generation;
        let memory = core::mem::replace(entry, Memory { generation, ..Memory::EMPTY });
        Some((MemoryHandle { slot: slot as u16, generation }, memory))
    }

    /// Finds the registration of a socket's bytes in a zone, and marks it as used until
    /// [`leave`](Self::leave).
    pub(crate) fn enter(&mut self, owner: SocketHandle, zone: u64, va: usize, len: usize) -> Option<Part> {
        let known = self.0.iter_mut().enumerate();
        let mut theirs =
            known.filter(|(_, entry)| entry.is_there() && entry.owner == owner && entry.zone == zone);
        let (slot, entry, offset) = theirs.find_map(|(slot, entry)| {
            let offset = entry.offset_of(va, len)?;
            Some((slot, entry, offset))
        })?;
        entry.users += 1;
        let address = entry.address + offset as u64;
        Some(Part { memory: MemoryId::new(slot), lmr_context: entry.lmr_context, address })
    }

    pub(crate) fn leave(&mut self, id: MemoryId) {
        if let Some(entry) = self.0.get_mut(id.index()) {
            entry.users = entry.users.saturating_sub(1);
        }
    }

    /// Returns whether memory is registered in this zone of a single peer.
    pub(crate) fn any_in(&self, zone: u64) -> bool {
        zone != 0 && self.0.iter().any(|entry| entry.is_there() && entry.is_peers && entry.zone == zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_inside_is_found_and_in_use() {
        const OWNER: SocketHandle = SocketHandle { slot: 3, generation: 1 };
        const OTHER: SocketHandle = SocketHandle { slot: 4, generation: 1 };
        let mut entries = [Memory::EMPTY; 2];
        let mut memories = Memories::new(&mut entries);
        let memory = Memory {
            lmr_bits: 9,
            owner: OWNER,
            zone: 5,
            va: 1000,
            address: 70_000,
            len: 100,
            ..Memory::EMPTY
        };
        let handle = memories.insert(memory).expect("room");
        for (owner, zone, va, len) in
            [(OTHER, 5, 1000, 1), (OWNER, 6, 1000, 1), (OWNER, 5, 999, 1), (OWNER, 5, 1001, 100)]
        {
            assert_eq!(memories.enter(owner, zone, va, len), None);
        }
        assert_eq!(memories.enter(OWNER, 5, usize::MAX, usize::MAX), None);
        let part = memories.enter(OWNER, 5, 1001, 99).expect("inside");
        assert_eq!(part.address, 70_001);
        assert_eq!(memories.take(OWNER, handle).err(), Some(RdsError::Again));
        memories.leave(part.memory);
        assert_eq!(memories.take(OTHER, handle).err(), Some(RdsError::InvalidArgument));
        assert_eq!(memories.take(OWNER, handle).map(|memory| memory.lmr_bits), Ok(9));
        assert_eq!(memories.take(OWNER, handle).err(), Some(RdsError::InvalidArgument));
        assert_ne!(memories.insert(memory), Some(handle), "another name");
    }
}
