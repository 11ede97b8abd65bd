//! Local memory of operations: lists of SGEs in a shared table.

use crate::ids::{MemoryId, PieceId};
use crate::rdma::memories::Part;

/// Maximum number of local segments of an operation, the maximum of rds-stress.
pub const MAX_PIECES: usize = 512;
/// SGEs of a transfer: the number that fits in 128 bytes of a send queue.
pub(crate) const GATHER: usize = 6;

/// An SGE of local memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// The LMR that was created for the operation; 0 if there is none to free.
    pub(crate) lmr_bits: u64,
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) lmr_context: u32,
    /// The registered memory that contains it.
    pub(crate) memory: Option<MemoryId>,
    next: Option<PieceId>,
}

impl Piece {
    pub(crate) const EMPTY: Self =
        Self { lmr_bits: 0, address: 0, len: 0, lmr_context: 0, memory: None, next: None };

    pub(crate) const fn new(lmr_bits: u64, lmr_context: u32, address: u64, len: u32) -> Self {
        Self { lmr_bits, address, len, lmr_context, memory: None, next: None }
    }

    pub(crate) const fn of(part: Part, len: u32) -> Self {
        Self { memory: Some(part.memory), ..Self::new(0, part.lmr_context, part.address, len) }
    }
}

/// The SGEs of an operation, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceList {
    first: Option<PieceId>,
    last: Option<PieceId>,
    /// First SGE that was not posted yet.
    unposted: Option<PieceId>,
}

impl PieceList {
    pub(crate) const EMPTY: Self = Self { first: None, last: None, unposted: None };

    /// Returns whether every SGE was posted.
    pub(crate) const fn is_posted(&self) -> bool {
        self.unposted.is_none()
    }
}

/// The SGEs of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gathered {
    pub(crate) pieces: [Piece; GATHER],
    pub(crate) count: usize,
}

impl Gathered {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().take(self.count)
    }

    /// Returns the sum of all lengths.
    pub(crate) fn len(&self) -> u64 {
        self.iter().map(|piece| u64::from(piece.len)).sum()
    }
}

/// All SGEs of a node.
pub(crate) struct Pieces<'s> {
    entries: &'s mut [Piece],
    /// Entries beyond this were never used. Freed entries are in a list.
    used: usize,
    given_back: Option<PieceId>,
    in_use: usize,
}

impl<'s> Pieces<'s> {
    pub(crate) fn new(entries: &'s mut [Piece]) -> Self {
        let count = entries.len().min(PieceId::MOST);
        let (entries, _) = entries.split_at_mut(count);
        entries.fill(Piece::EMPTY);
        Self { entries, used: 0, given_back: None, in_use: 0 }
    }

    /// Returns the number of entries.
    pub(crate) const fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of free entries.
    pub(crate) const fn room(&self) -> usize {
        self.entries.len() - self.in_use
    }

    fn get(&self, id: PieceId) -> Option<&Piece> {
        self.entries.get(id.index())
    }

    /// Appends an SGE to a list. Returns false if the table is full.
    pub(crate) fn push(&mut self, list: &mut PieceList, piece: Piece) -> bool {
        let id = match self.given_back {
            Some(id) => {
                self.given_back = self.get(id).and_then(|free| free.next);
                id
            }
            None if self.used < self.entries.len() => {
                self.used += 1;
                PieceId::new(self.used - 1)
            }
            None => return false,
        };
        self.in_use += 1;
        if let Some(entry) = self.entries.get_mut(id.index()) {
            *entry = Piece { next: None, ..piece };
        }
        match list.last.replace(id).and_then(|last| self.entries.get_mut(last.index())) {
            Some(last) => last.next = Some(id),
            None => (list.first, list.unposted) = (Some(id), Some(id)),
        }
        true
    }

    /// Returns the parts of a list that contain `len` bytes from `offset` on, or `None` if they
    /// exceed the SGEs of a work request with a header.
    pub(crate) fn range(
        &self,
        list: &PieceList,
        offset: u64,
        len: u64,
    ) -> Option<([Piece; GATHER - 1], usize)> {
        let (mut parts, mut count) = ([Piece::EMPTY; GATHER - 1], 0);
        let (mut skip, mut left) = (offset, len);
        for piece in self.iter(list) {
            let all = u64::from(piece.len);
            if left == 0 {
                break;
            }
            if skip >= all {
                skip -= all;
                continue;
            }
            let part = left.min(all - skip);
            *parts.get_mut(count)? = Piece { address: piece.address + skip, len: part as u32, ..*piece };
            (count, skip, left) = (count + 1, 0, left - part);
        }
        Some((parts, count))
    }

    /// Returns the first SGE of a list.
    pub(crate) fn first(&self, list: &PieceList) -> Option<&Piece> {
        self.get(list.first?)
    }

    /// Returns the SGEs of a list.
    pub(crate) fn iter(&self, list: &PieceList) -> impl Iterator<Item = &Piece> {
        let mut next = list.first;
        core::iter::from_fn(move || {
            let piece = self.get(next?)?;
            next = piece.next;
            Some(piece)
        })
    }

    /// Removes the first SGE of a list.
    pub(crate) fn pop(&mut self, list: &mut PieceList) -> Option<Piece> {
        let id = list.first?;
        let free = self.given_back.replace(id);
        let entry = self.entries.get_mut(id.index())?;
        let piece = core::mem::replace(entry, Piece { next: free, ..Piece::EMPTY });
        self.in_use -= 1;
        list.first = piece.next;
        if list.first.is_none() {
            *list = PieceList::EMPTY;
        }
        Some(piece)
    }

    /// Returns the next transfer of a list, and the rest of the list.
    fn walk(&self, list: &PieceList) -> (Gathered, Option<PieceId>) {
        let mut gathered = Gathered { pieces: [Piece::EMPTY; GATHER], count: 0 };
        let mut next = list.unposted;
        for place in &mut gathered.pieces {
            let Some(piece) = next.and_then(|id| self.get(id)) else { break };
            *place = *piece;
            gathered.count += 1;
            next = piece.next;
        }
        (gathered, next)
    }

    pub(crate) fn gather(&self, list: &PieceList) -> Gathered {
        self.walk(list).0
    }

    /// Returns whether the next transfer of a list is its last.
    pub(crate) fn is_last(&self, list: &PieceList) -> bool {
        self.walk(list).1.is_none()
    }

    /// Advances past the transfer of [`gather`](Self::gather). Returns its bytes.
    pub(crate) fn posted(&self, list: &mut PieceList) -> u64 {
        let (gathered, next) = self.walk(list);
        list.unposted = next;
        gathered.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order_and_give_back_what_they_took() {
        let mut entries = [Piece::EMPTY; 20];
        let mut pieces = Pieces::new(&mut entries);
        for _ in 0..3 {
            let mut lists = [PieceList::EMPTY; 2];
            for number in 0..20 {
                assert!(
                    pieces.push(&mut lists[number % 2], Piece::new(0, 0, number as u64, 1 + number as u32))
                );
            }
            let mut beyond = PieceList::EMPTY;
            assert!(!pieces.push(&mut beyond, Piece::EMPTY) && beyond.first.is_none() && pieces.room() == 0);
            let [_, mut odd] = lists;
            let (first, bytes) = (pieces.gather(&odd), pieces.posted(&mut odd));
            assert_eq!(
                first.iter().map(|piece| piece.address).collect::<std::vec::Vec<_>>(),
                [1, 3, 5, 7, 9, 11]
            );
            assert_eq!((first.len(), bytes), (42, 42));
            assert!(pieces.is_last(&odd) && !odd.is_posted());
            assert_eq!(pieces.posted(&mut odd), 14 + 16 + 18 + 20);
            assert!(odd.is_posted() && pieces.gather(&odd).count == 0);
            for mut list in [lists[0], odd] {
                let mut count = 0;
                while pieces.pop(&mut list).is_some() {
                    count += 1;
                }
                assert!(count == 10 && list.first.is_none());
            }
            assert_eq!(pieces.room(), 20);
        }
    }
}
