//! A buddy allocator over blocks of 4 KiB, with its map outside the memory it manages.
//!
//! The map is a binary tree in an array: node 1 is everything, the children of node `n` are `2n` and `2n + 1`, and the leaves
//! are the blocks. A node holds 1 + the order of the largest free run below it (0: none), so taking and giving back cost one
//! walk between root and leaf. A taken node holds 0 while what is below it stays as it was, which tells where a run begins
//! and how long it is: no length has to be trusted when it comes back.

/// Bytes of a block: the page that firmware counts in.
pub(crate) const BLOCK: usize = 4096;
/// Mark of a leaf that firmware holds.
const GIVEN: u8 = 0x80;

/// log2, rounded down; 0 of 0, which does not occur, but costs no check for it.
const fn log2(value: usize) -> u32 {
    usize::BITS - 1 - (value | 1).leading_zeros()
}

#[derive(Debug)]
pub(crate) struct Buddy<'s> {
    map: &'s mut [u8],
    /// Leaves, a power of two.
    leaves: usize,
    /// Leaves that are really there.
    blocks: usize,
    free: usize,
}

/// The order of the smallest run that holds `bytes` bytes; `None` if there is no such number.
pub(crate) fn order_for(bytes: usize) -> Option<u32> {
    bytes.max(1).div_ceil(BLOCK).checked_next_power_of_two().map(log2)
}

/// The order of the longest run of at most `blocks` blocks.
pub(crate) const fn order_within(blocks: usize) -> u32 {
    log2(blocks)
}

impl<'s> Buddy<'s> {
    /// All of `blocks` blocks free. `None` if `map` (two bytes a block, for a power of two of blocks) is too small.
    pub(crate) fn new(map: &'s mut [u8], blocks: usize) -> Option<Self> {
        let leaves = blocks.checked_next_power_of_two()?;
        let map = map.get_mut(..leaves.checked_mul(2)?)?;
        let mut buddy = Self { map, leaves, blocks, free: blocks };
        for block in 0..leaves {
            buddy.put(leaves + block, u8::from(block < blocks));
        }
        for node in (1..leaves).rev() {
            buddy.combine(node);
        }
        Some(buddy)
    }

    #[inline]
    fn at(&self, node: usize) -> u8 {
        self.map.get(node).map_or(0, |v| v & !GIVEN)
    }

    #[inline]
    fn put(&mut self, node: usize, value: u8) {
        if let Some(slot) = self.map.get_mut(node) {
            *slot = value;
        }
    }

    /// Order of a node: log2 of the leaves below it.
    fn order(&self, node: usize) -> u32 {
        log2(self.leaves) - log2(node)
    }

    fn combine(&mut self, node: usize) {
        let (left, right) = (self.at(2 * node), self.at(2 * node + 1));
        let whole = self.order(node) as u8;
        let value = if left == whole && right == whole { whole + 1 } else { left.max(right) };
        self.put(node, value);
    }

    fn combine_up(&mut self, mut node: usize) {
        while node > 1 {
            node /= 2;
            self.combine(node);
        }
    }

    /// Blocks that are free.
    pub(crate) fn free_blocks(&self) -> usize {
        self.free
    }

    /// Takes 2^`order` blocks and gives the first one's index, which is a multiple of that number.
    pub(crate) fn alloc(&mut self, order: u32) -> Option<usize> {
        if order > log2(self.leaves) || u32::from(self.at(1)) <= order {
            return None;
        }
        let mut node = 1;
        while self.order(node) > order {
            let left = 2 * node;
            node = if u32::from(self.at(left)) > order { left } else { left + 1 };
        }
        self.put(node, 0);
        self.combine_up(node);
        self.free -= 1 << order;
        Some((node << order) - self.leaves)
    }

    /// The taken run that `block` lies in: its node and its first block.
    fn around(&self, block: usize) -> Option<(usize, usize)> {
        if block >= self.blocks {
            return None;
        }
        let mut node = self.leaves + block;
        while self.at(node) != 0 {
            node /= 2;
            if node == 0 {
                return None;
            }
        }
        Some((node, (node << self.order(node)) - self.leaves))
    }

    /// The taken run that begins at `block`: its node.
    fn taken(&self, block: usize) -> Option<usize> {
        self.around(block).and_then(|(node, first)| (first == block).then_some(node))
    }

    /// First block and number of blocks of the run that `block` lies in; `None` if it is free, or firmware's.
    pub(crate) fn run_around(&self, block: usize) -> Option<(usize, usize)> {
        let (node, first) = self.around(block)?;
        (!self.is_given(first)).then(|| (first, 1 << self.order(node)))
    }

    /// Whether firmware holds the block.
    pub(crate) fn is_given(&self, block: usize) -> bool {
        block < self.blocks && self.map.get(self.leaves + block) == Some(&GIVEN)
    }

    /// Gives back the run that begins at `block`. `false` if there is no such run.
    pub(crate) fn free(&mut self, block: usize) -> bool {
        let Some(node) = self.taken(block).filter(|_| !self.is_given(block)) else { return false };
        self.release(node);
        true
    }

    fn release(&mut self, node: usize) {
        let order = self.order(node);
        self.put(node, order as u8 + 1);
        self.combine_up(node);
        self.free += 1 << order;
    }

    /// Turns the run taken from `block` on into single blocks that firmware holds.
    pub(crate) fn give(&mut self, block: usize) -> bool {
        let Some(top) = self.taken(block).filter(|_| !self.is_given(block)) else { return false };
        let order = self.order(top);
        for level in (0..=order).rev() {
            let first = top << (order - level);
            for node in first..first + (1 << (order - level)) {
                self.put(node, if level == 0 { GIVEN } else { 0 });
            }
        }
        true
    }

    /// Takes a single block back from firmware. `false` if firmware does not hold it.
    pub(crate) fn take_back(&mut self, block: usize) -> bool {
        if block >= self.blocks || !self.is_given(block) {
            return false;
        }
        self.release(self.leaves + block);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::rounds;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    #[derive(Clone, Debug)]
    enum Op {
        Alloc(u32),
        Free(usize),
        Give(usize),
        TakeBack(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0u32..6).prop_map(Op::Alloc),
            3 => (0usize..64).prop_map(Op::Free),
            1 => (0usize..64).prop_map(Op::Give),
            2 => (0usize..64).prop_map(Op::TakeBack),
        ]
    }

    /// What each block belongs to: 0 nobody, else the number of its run; negative for firmware.
    fn check(blocks: usize, ops: Vec<Op>) {
        let mut map = vec![0; 128];
        let mut buddy = Buddy::new(&mut map, blocks).expect("map is large enough");
        let mut owner = vec![0i32; blocks];
        let mut runs = 0;
        for op in ops {
            match op {
                Op::Alloc(order) => {
                    let size = 1 << order;
                    let possible =
                        (0..blocks / size).any(|n| owner[n * size..(n + 1) * size].iter().all(|&o| o == 0));
                    let got = buddy.alloc(order);
                    assert_eq!(got.is_some(), possible, "order {order} in {owner:?}");
                    if let Some(first) = got {
                        assert!(first.is_multiple_of(size));
                        runs += 1;
                        for o in &mut owner[first..first + size] {
                            assert_eq!(*o, 0);
                            *o = runs;
                        }
                    }
                }
                Op::Free(block) => {
                    let id = owner.get(block).copied().unwrap_or(0);
                    let first = id > 0 && (block == 0 || owner[block - 1] != id);
                    let len = owner.iter().filter(|&&o| o == id).count();
                    let start = owner.iter().position(|&o| o == id).unwrap_or(0);
                    let run = (id > 0).then_some((start, len));
                    assert_eq!(buddy.run_around(block), run);
                    assert_eq!(buddy.free(block), first);
                    if first {
                        owner.iter_mut().filter(|o| **o == id).for_each(|o| *o = 0);
                    }
                }
                Op::Give(block) => {
                    let id = owner.get(block).copied().unwrap_or(0);
                    let first = id > 0 && (block == 0 || owner[block - 1] != id);
                    assert_eq!(buddy.give(block), first);
                    if first {
                        owner.iter_mut().filter(|o| **o == id).for_each(|o| *o = -1);
                    }
                }
                Op::TakeBack(block) => {
                    let held = owner.get(block) == Some(&-1);
                    assert_eq!(buddy.take_back(block), held);
                    if held {
                        owner[block] = 0;
                    }
                }
            }
            assert_eq!(buddy.free_blocks(), owner.iter().filter(|&&o| o == 0).count());
        }
        let held = owner.iter().filter(|&&o| o == -1).count();
        assert_eq!((0..buddy.blocks).filter(|&block| buddy.take_back(block)).count(), held);
    }

    proptest! {
        #[test]
        fn agrees_with_a_list_of_owners(blocks in 1usize..=64, ops in prop::collection::vec(op(), 0..rounds(200))) {
            check(blocks, ops);
        }
    }

    #[test]
    fn too_small_a_map_is_refused() {
        let mut map = [0; 16];
        assert!(Buddy::new(&mut map, 9).is_none());
        assert!(Buddy::new(&mut map, 8).is_some());
        assert!(Buddy::new(&mut map, 0).is_some_and(|mut b| b.alloc(0).is_none()));
    }
}
