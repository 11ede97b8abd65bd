//! Local memory of operations: lists of SGEs in a shared table.

use crate::ids::{IovId, MemoryId};
use crate::rdma::memories::Part;

/// Maximum number of local segments of an operation, the maximum of rds-stress.
pub const MAX_IOVS: usize = 512;
/// SGEs of a transfer: the number that fits in 128 bytes of a send queue.
pub(crate) const GATHER: usize = 6;

with_empty! {
    /// An SGE of local memory.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Iov {
        /// The LMR that was created for the operation; 0 if there is none to free.
        pub(crate) lmr_bits: u64 = 0,
        pub(crate) address: u64 = 0,
        pub(crate) len: u32 = 0,
        pub(crate) lmr_context: u32 = 0,
        /// The registered memory that contains it.
        pub(crate) memory: Option<MemoryId> = None,
        next: Option<IovId> = None,
    }
}

impl Iov {
    pub(crate) const fn new(lmr_bits: u64, lmr_context: u32, address: u64, len: u32) -> Self {
        Self { lmr_bits, address, len, lmr_context, memory: None, next: None }
    }

    pub(crate) const fn of(part: Part, len: u32) -> Self {
        Self { memory: Some(part.memory), ..Self::new(0, part.lmr_context, part.address, len) }
    }
}

/// The SGEs of an operation, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IovList {
    first: Option<IovId>,
    last: Option<IovId>,
    /// First SGE that was not posted yet.
    unposted: Option<IovId>,
}

impl IovList {
    pub(crate) const EMPTY: Self = Self { first: None, last: None, unposted: None };

    /// Returns whether every SGE was posted.
    pub(crate) const fn is_posted(&self) -> bool {
        self.unposted.is_none()
    }
}

/// The SGEs of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gathered {
    pub(crate) iovs: [Iov; GATHER],
    pub(crate) count: usize,
}

impl Gathered {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Iov> {
        self.iovs.iter().take(self.count)
    }

    /// Returns the sum of all lengths.
    pub(crate) fn len(&self) -> u64 {
        self.iter().map(|iov| u64::from(iov.len)).sum()
    }
}

/// All SGEs of a node.
pub(crate) struct Iovs<'s> {
    entries: &'s mut [Iov],
    /// First of the list of free entries.
    free: Option<IovId>,
    in_use: usize,
}

impl<'s> Iovs<'s> {
    pub(crate) fn new(entries: &'s mut [Iov]) -> Self {
        let count = entries.len().min(IovId::MOST);
        let (entries, _) = entries.split_at_mut(count);
        for (index, entry) in entries.iter_mut().enumerate() {
            *entry = Iov { next: (index + 1 < count).then(|| IovId::new(index + 1)), ..Iov::EMPTY };
        }
        Self { entries, free: (count > 0).then(|| IovId::new(0)), in_use: 0 }
    }

    /// Returns the number of entries.
    pub(crate) const fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of free entries.
    pub(crate) const fn room(&self) -> usize {
        self.entries.len() - self.in_use
    }

    fn get(&self, id: IovId) -> Option<&Iov> {
        self.entries.get(id.index())
    }

    /// Appends an SGE to a list. Returns false if the table is full.
    pub(crate) fn push(&mut self, list: &mut IovList, iov: Iov) -> bool {
        let Some(id) = self.free else { return false };
        let Some(entry) = self.entries.get_mut(id.index()) else { return false };
        self.free = core::mem::replace(entry, Iov { next: None, ..iov }).next;
        self.in_use += 1;
        match list.last.replace(id).and_then(|last| self.entries.get_mut(last.index())) {
            Some(last) => last.next = Some(id),
            None => (list.first, list.unposted) = (Some(id), Some(id)),
        }
        true
    }

    /// Returns the parts of a list that contain `len` bytes from `offset` on, or `None` if they
    /// exceed the SGEs of a work request with a header.
    pub(crate) fn range(&self, list: &IovList, offset: u64, len: u64) -> Option<([Iov; GATHER - 1], usize)> {
        let (mut parts, mut count) = ([Iov::EMPTY; GATHER - 1], 0);
        let (mut skip, mut left) = (offset, len);
        for iov in self.iter(list) {
            let all = u64::from(iov.len);
            if left == 0 {
                break;
            }
            if skip >= all {
                skip -= all;
                continue;
            }
            let part = left.min(all - skip);
            *parts.get_mut(count)? = Iov { address: iov.address + skip, len: part as u32, ..*iov };
            (count, skip, left) = (count + 1, 0, left - part);
        }
        Some((parts, count))
    }

    /// Returns the SGEs of a list.
    pub(crate) fn iter(&self, list: &IovList) -> impl Iterator<Item = &Iov> {
        let mut next = list.first;
        core::iter::from_fn(move || {
            let iov = self.get(next?)?;
            next = iov.next;
            Some(iov)
        })
    }

    /// Removes the first SGE of a list.
    pub(crate) fn pop(&mut self, list: &mut IovList) -> Option<Iov> {
        let id = list.first?;
        let free = self.free.replace(id);
        let entry = self.entries.get_mut(id.index())?;
        let iov = core::mem::replace(entry, Iov { next: free, ..Iov::EMPTY });
        self.in_use -= 1;
        list.first = iov.next;
        if list.first.is_none() {
            *list = IovList::EMPTY;
        }
        Some(iov)
    }

    /// Returns the next transfer of a list, and the rest of the list.
    pub(crate) fn gather(&self, list: &IovList) -> (Gathered, Option<IovId>) {
        let mut gathered = Gathered { iovs: [Iov::EMPTY; GATHER], count: 0 };
        let mut next = list.unposted;
        for place in &mut gathered.iovs {
            let Some(iov) = next.and_then(|id| self.get(id)) else { break };
            *place = *iov;
            gathered.count += 1;
            next = iov.next;
        }
        (gathered, next)
    }

    /// Advances past the transfer of [`gather`](Self::gather). Returns its bytes.
    pub(crate) fn posted(&self, list: &mut IovList) -> u64 {
        let (gathered, next) = self.gather(list);
        list.unposted = next;
        gathered.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order_and_give_back_what_they_took() {
        let mut entries = [Iov::EMPTY; 20];
        let mut iovs = Iovs::new(&mut entries);
        for _ in 0..3 {
            let mut lists = [IovList::EMPTY; 2];
            for number in 0..20 {
                assert!(iovs.push(&mut lists[number % 2], Iov::new(0, 0, number as u64, 1 + number as u32)));
            }
            let mut beyond = IovList::EMPTY;
            assert!(!iovs.push(&mut beyond, Iov::EMPTY) && beyond.first.is_none() && iovs.room() == 0);
            let [_, mut odd] = lists;
            let (first, bytes) = (iovs.gather(&odd).0, iovs.posted(&mut odd));
            assert_eq!(
                first.iter().map(|iov| iov.address).collect::<std::vec::Vec<_>>(),
                [1, 3, 5, 7, 9, 11]
            );
            assert_eq!((first.len(), bytes), (42, 42));
            assert!(iovs.gather(&odd).1.is_none() && !odd.is_posted());
            assert_eq!(iovs.posted(&mut odd), 14 + 16 + 18 + 20);
            assert!(odd.is_posted() && iovs.gather(&odd).0.count == 0);
            for mut list in [lists[0], odd] {
                let mut count = 0;
                while iovs.pop(&mut list).is_some() {
                    count += 1;
                }
                assert!(count == 10 && list.first.is_none());
            }
            assert_eq!(iovs.room(), 20);
        }
    }
}
