//! Memory that was registered before operations used it: those do not register it again.

use crate::ids::MemoryId;
use crate::ids::SocketHandle;

/// Names memory that a socket registered ([`Rds::register_memory`](crate::Rds::register_memory)). One that was given back names nothing,
/// even when its entry is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryHandle {
    slot: u16,
    generation: u32,
}

impl MemoryHandle {
    /// Its place in the table.
    pub(crate) const fn id(self) -> MemoryId {
        MemoryId::new(self.slot as usize)
    }
}

/// The table entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// The LMR; 0 if the entry is free.
    pub(crate) lmr_bits: u64,
    pub(crate) owner: SocketHandle,
    pub(crate) lmr_context: u32,
    /// The zone that it is registered in, and whether that is a peer's own.
    pub(crate) zone: u64,
    pub(crate) is_peers: bool,
    /// It is not the adapter's.
    pub(crate) is_foreign: bool,
    /// Where it is: of this machine, and as work requests name it; bytes.
    pub(crate) va: usize,
    pub(crate) address: u64,
    pub(crate) len: usize,
    /// Pieces of operations that are not over, and windows on it.
    pub(crate) users: u32,
    pub(crate) generation: u32,
}

impl Memory {
    pub(crate) const EMPTY: Self = Self {
        lmr_bits: 0,
        owner: SocketHandle { slot: 0, generation: 0 },
        lmr_context: 0,
        zone: 0,
        is_peers: false,
        is_foreign: false,
        va: 0,
        address: 0,
        len: 0,
        users: 0,
        generation: 0,
    };

    fn is_there(&self) -> bool {
        self.lmr_bits != 0
    }

    /// Where in it so many bytes are, if they are.
    fn offset_of(&self, va: usize, len: usize) -> Option<usize> {
        let offset = va.checked_sub(self.va)?;
        (offset.checked_add(len)? <= self.len).then_some(offset)
    }
}

/// Part of registered memory, as a work request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) memory: MemoryId,
    pub(crate) lmr_context: u32,
    pub(crate) address: u64,
}

/// Why memory is not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// It is not the socket's.
    NotThere,
    /// Operations use it, or part of it is offered.
    InUse,
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

    /// Puts it into a free entry, of which there is one.
    pub(crate) fn insert(&mut self, memory: Memory) -> Option<MemoryHandle> {
        let (slot, entry) = self.0.iter_mut().enumerate().find(|(_, entry)| !entry.is_there())?;
        let generation = entry.generation.wrapping_add(1);
        *entry = Memory { generation, ..memory };
        Some(MemoryHandle { slot: slot as u16, generation })
    }

    /// Puts back what was taken out under this handle.
    pub(crate) fn put_back(&mut self, handle: MemoryHandle, memory: Memory) {
        if let Some(entry) = self.0.get_mut(usize::from(handle.slot)) {
            *entry = Memory { generation: handle.generation, ..memory };
        }
    }

    /// Takes memory of a socket out of the table.
    pub(crate) fn take(&mut self, owner: SocketHandle, handle: MemoryHandle) -> Result<Memory, Kept> {
        let entry = self.0.get_mut(usize::from(handle.slot)).ok_or(Kept::NotThere)?;
        if !entry.is_there() || entry.generation != handle.generation || entry.owner != owner {
            return Err(Kept::NotThere);
        }
        if entry.users > 0 {
            return Err(Kept::InUse);
        }
        let generation = entry.generation;
        Ok(core::mem::replace(entry, Memory { generation, ..Memory::EMPTY }))
    }

    /// Takes any of a socket's, or of all, whoever uses it.
    pub(crate) fn take_any(&mut self, owner: Option<SocketHandle>) -> Option<(MemoryHandle, Memory)> {
        let is_meant = |entry: &Memory| entry.is_there() && owner.is_none_or(|owner| entry.owner == owner);
        let (slot, entry) = self.0.iter_mut().enumerate().find(|(_, entry)| is_meant(entry))?;
        let generation = entry.generation;
        let memory = core::mem::replace(entry, Memory { generation, ..Memory::EMPTY });
        Some((MemoryHandle { slot: slot as u16, generation }, memory))
    }

    /// Where a socket's bytes are registered in a zone. They are in use until [`leave`](Self::leave).
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

    /// Whether something is registered in a peer's own zone.
    pub(crate) fn any_in(&self, zone: u64) -> bool {
        zone != 0 && self.0.iter().any(|entry| entry.is_there() && entry.is_peers && entry.zone == zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_inside_is_found_and_held() {
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
        assert_eq!(memories.take(OWNER, handle).err(), Some(Kept::InUse));
        memories.leave(part.memory);
        assert_eq!(memories.take(OTHER, handle).err(), Some(Kept::NotThere));
        assert_eq!(memories.take(OWNER, handle).map(|memory| memory.lmr_bits), Ok(9));
        assert_eq!(memories.take(OWNER, handle).err(), Some(Kept::NotThere));
        assert_ne!(memories.insert(memory), Some(handle), "another name");
    }
}
