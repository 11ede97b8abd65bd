//! The DMA region: who has its blocks, and how many memory keys lead to a buffer.

mod record_pages;
mod records;

use crate::buddy::{self, BLOCK, Buddy};
use crate::dma::{DmaBuffer, DmaMemory, DmaRegion};
use crate::error::{Error, FatalCause, Rejected};
use crate::generation::Generation;
use crate::host::{Epoch, HostMemory, HostRegion};
use crate::ring::Slots;
use records::Records;

/// Pages that firmware took in bring-up for each page kept for later. A ConnectX-4 with 12,868
/// pages requests hundreds at once.
const BOOT_PAGES_PER_RESERVED: u32 = 16;
/// `users` of a buffer that no memory key leads to.
const UNREGISTERED: u16 = 1;
/// `users` of quarantined memory.
const QUARANTINED: u16 = u16::MAX;

/// Proof that the device had not failed: it may still write to memory that was released since a
/// failure, which must not be taken again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usable(());

impl Usable {
    /// # Errors
    /// [`Error::Fatal`] if the device has failed.
    pub(super) fn unless(fatal: Option<FatalCause>) -> Result<Self, Error> {
        fatal.map_or(Ok(Self(())), |cause| Err(Error::Fatal(cause)))
    }
}

/// The memory of one HCA: the region that the device shares, and the host region that it does not.
pub(super) struct Memory<'s> {
    region: DmaMemory,
    buddy: Buddy<'s>,
    /// For the first block of each buffer, 1 + the memory keys that lead to it. For each block that
    /// firmware has, its function. 0 for all other blocks.
    users: &'s mut [u16],
    host: HostMemory,
    records: Records,
    /// Blocks that only firmware may take.
    reserve: usize,
    /// Blocks that firmware has.
    given: u32,
    quarantined_bytes: u64,
}

impl<'s> Memory<'s> {
    /// All of `region` and `host`, free. `map` and `users` need an entry for each block.
    pub(super) fn new(
        region: DmaRegion,
        host: HostRegion,
        map: &'s mut [u8],
        users: &'s mut [u16],
    ) -> Result<Self, Error> {
        users.fill(0);
        let region = region.into_memory();
        let blocks = region.len() / BLOCK;
        let room = users.len().min(map.len() / 2);
        let buddy = Buddy::new(map, blocks)
            .filter(|_| blocks <= room)
            .ok_or(Error::StorageTooSmall { needed: blocks, available: room })?;
        let host = HostMemory::new(host).ok_or(Error::OutOfHostMemory { bytes: 0 })?;
        let records = Records::default();
        Ok(Self { region, buddy, users, host, records, reserve: 0, given: 0, quarantined_bytes: 0 })
    }

    /// The first generation of the HCA that has this region.
    pub(super) fn first_generation(&self) -> Generation {
        Generation::first(self.region.va())
    }

    /// Device addresses of the region.
    pub(super) fn device_range(&self) -> core::ops::Range<u64> {
        let start = self.region.device_address();
        start..start + self.region.len() as u64
    }

    /// Bytes that are free, in one piece or many.
    pub(super) fn free_bytes(&self) -> usize {
        self.buddy.free_blocks() * BLOCK
    }

    /// Bytes kept from use because the device may still access them.
    pub(super) fn quarantined_bytes(&self) -> u64 {
        self.quarantined_bytes
    }

    /// As [`Hca::alloc`](crate::Hca::alloc).
    pub(super) fn alloc(&mut self, usable: Usable, len: usize, align: usize) -> Result<DmaBuffer, Error> {
        let memory = self.take(usable, len, align)?;
        memory.fill(0, memory.len(), 0)?;
        let users = self.block_of(memory).and_then(|block| self.users.get_mut(block));
        *users.ok_or(Error::NotAllocated)? = UNREGISTERED;
        Ok(DmaBuffer::new(memory))
    }

    /// As [`Hca::free`](crate::Hca::free).
    pub(super) fn free(&mut self, buffer: DmaBuffer) -> Result<(), Rejected<DmaBuffer>> {
        let memory = buffer.memory();
        let users = self.block_of(memory).and_then(|block| self.users.get_mut(block));
        let error = match users {
            Some(users) if *users == UNREGISTERED => {
                *users = 0;
                match self.release(memory) {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                }
            }
            Some(users) if *users > UNREGISTERED => Error::InUse,
            _ => Error::NotAllocated,
        };
        Err(Rejected { error, value: buffer })
    }

    /// The count of the buffer that all of `memory` lies in.
    fn users_of(&mut self, memory: DmaMemory) -> Option<&mut u16> {
        let offset = memory.va().checked_sub(self.region.va()).filter(|_| self.region.contains(&memory))?;
        let (first, blocks) = self.buddy.run_around(offset / BLOCK)?;
        if offset + memory.len() > (first + blocks) * BLOCK {
            return None;
        }
        self.users.get_mut(first).filter(|users| **users >= UNREGISTERED)
    }

    /// Counts one more memory key that leads to `memory`, a range of a buffer.
    pub(super) fn pin(&mut self, memory: DmaMemory) -> Result<(), Error> {
        let users = self.users_of(memory).ok_or(Error::NotAllocated)?;
        *users = users.checked_add(1).filter(|&users| users < QUARANTINED).ok_or(Error::Limit {
            what: "memory keys of a buffer",
            asked: u64::from(QUARANTINED - UNREGISTERED),
            limit: u64::from(QUARANTINED - UNREGISTERED - 1),
        })?;
        Ok(())
    }

    /// Undoes [`Memory::pin`] for a key that is gone.
    pub(super) fn unpin(&mut self, memory: DmaMemory) {
        if let Some(users) = self.users_of(memory)
            && *users > UNREGISTERED
        {
            *users -= 1;
        }
    }

    /// Takes memory for the driver itself, with the content left as it is.
    pub(super) fn take(&mut self, _: Usable, len: usize, align: usize) -> Result<DmaMemory, Error> {
        if !align.is_power_of_two() {
            return Err(Error::InvalidArgument("align"));
        }
        if align > BLOCK && !self.region.device_address().is_multiple_of(align as u64) {
            return Err(Error::InvalidArgument("align"));
        }
        let out_of_memory = Error::OutOfMemory { bytes: len };
        let order = buddy::order_for(len.max(align)).ok_or(out_of_memory)?;
        // Firmware requests pages when objects are created. Without them all creation stops.
        if self.buddy.free_blocks() < (1usize << order).saturating_add(self.reserve) {
            return Err(out_of_memory);
        }
        let block = self.buddy.alloc(order).ok_or(out_of_memory)?;
        self.run(block, len)
    }

    /// As [`Memory::take`], zeroed.
    pub(super) fn take_zeroed(&mut self, usable: Usable, len: usize) -> Result<DmaMemory, Error> {
        let memory = self.take(usable, len, BLOCK)?;
        memory.fill(0, len, 0)?;
        Ok(memory)
    }

    /// Gives back what [`Memory::take`] gave, once the device no longer uses it.
    pub(super) fn release(&mut self, memory: DmaMemory) -> Result<(), Error> {
        let block = self.block_of(memory).ok_or(Error::NotAllocated)?;
        if self.buddy.free(block) { Ok(()) } else { Err(Error::NotAllocated) }
    }

    fn run(&self, block: usize, len: usize) -> Result<DmaMemory, Error> {
        self.region.slice(block * BLOCK, len).ok_or(Error::OutOfBounds)
    }

    /// The block that `memory` begins with, if it lies in the region.
    fn block_of(&self, memory: DmaMemory) -> Option<usize> {
        let offset = memory.va().checked_sub(self.region.va())?;
        (self.region.contains(&memory) && offset.is_multiple_of(BLOCK)).then_some(offset / BLOCK)
    }

    /// Counts memory that the device may use until a recovery.
    pub(super) fn count_quarantined(&mut self, memory: DmaMemory) {
        self.quarantined_bytes += memory.len() as u64;
    }

    /// Releases an object's memory, or quarantines it if the object may still exist.
    pub(super) fn release_unless(&mut self, destroyed: &Result<(), Error>, memory: DmaMemory) {
        if destroyed.is_err() || self.release(memory).is_err() {
            self.quarantine(memory);
        }
    }

    /// Keeps memory taken until a recovery, because the device may still use it.
    pub(super) fn quarantine(&mut self, memory: DmaMemory) {
        self.count_quarantined(memory);
        if let Some(users) = self.block_of(memory).and_then(|block| self.users.get_mut(block)) {
            *users = QUARANTINED;
        }
    }

    /// Frees what firmware had and what is quarantined, and counts no memory keys any more: the
    /// device was reset.
    pub(super) fn begin_generation(&mut self) -> Result<(), Error> {
        for block in 0..self.users.len() {
            let given = self.buddy.take_back(block);
            let Some(users) = self.users.get_mut(block).filter(|users| given || **users > UNREGISTERED)
            else {
                continue;
            };
            let quarantined = *users == QUARANTINED;
            *users = if given || quarantined { 0 } else { UNREGISTERED };
            if quarantined && !given {
                self.buddy.free(block);
            }
        }
        self.given = 0;
        self.release_quarantined_records()
    }

    /// Keeps pages for firmware: `pages`, or more if firmware took much in bring-up; none if
    /// `pages` is 0.
    pub(super) fn set_reserve(&mut self, pages: u32, boot_pages: u32) {
        self.reserve = if pages == 0 { 0 } else { pages.max(boot_pages / BOOT_PAGES_PER_RESERVED) as usize };
    }

    /// Pages that firmware has.
    pub(super) fn firmware_pages(&self) -> u32 {
        self.given
    }

    pub(super) fn free_pages(&self) -> u64 {
        self.buddy.free_blocks() as u64
    }

    /// Takes a run of at most `most` pages and `1 << log_limit`: the longest there is, shorter if the
    /// region is fragmented.
    pub(super) fn take_for_firmware(&mut self, most: usize, log_limit: u32) -> Option<DmaMemory> {
        let longest = buddy::order_within(most).min(log_limit);
        let taken = |order| Some((self.buddy.alloc(order)?, order));
        let (block, order) = (0..=longest).rev().find_map(taken)?;
        self.run(block, BLOCK << order).ok()
    }

    /// Gives a run to the function with this tag.
    pub(super) fn give(&mut self, run: DmaMemory, tag: u16) {
        let Some(block) = self.block_of(run) else { return };
        self.buddy.give(block);
        let pages = run.len() / BLOCK;
        self.users.iter_mut().skip(block).take(pages).for_each(|owner| *owner = tag);
        self.given += pages as u32;
    }

    /// Takes a page back from firmware. Returns false if firmware did not have it.
    pub(super) fn take_back(&mut self, device_address: u64) -> bool {
        let offset = device_address.wrapping_sub(self.region.device_address());
        let block = usize::try_from(offset / BLOCK as u64).unwrap_or(usize::MAX);
        device_address.is_multiple_of(BLOCK as u64) && self.take_block_back(block)
    }

    fn take_block_back(&mut self, block: usize) -> bool {
        let returned = self.buddy.take_back(block);
        if returned && let Some(owner) = self.users.get_mut(block) {
            *owner = 0;
            self.given = self.given.saturating_sub(1);
        }
        returned
    }

    /// Takes back all pages of a function that is gone, and returns their number.
    pub(super) fn take_back_all(&mut self, tag: u16) -> u32 {
        let mut returned = 0;
        for block in 0..self.users.len() {
            let its = self.users.get(block) == Some(&tag) && self.buddy.is_given(block);
            returned += u32::from(its && self.take_block_back(block));
        }
        returned
    }

    /// The tag of a function that has pages.
    pub(super) fn tag_of_some_page(&self) -> Option<u16> {
        let given = (0..self.users.len()).find(|&block| self.buddy.is_given(block))?;
        self.users.get(given).copied()
    }

    /// Takes slots for `count` requests, which the device does not see.
    pub(super) fn take_slots(&mut self, count: usize) -> Result<Slots, Error> {
        self.host.alloc(count).ok_or(Error::OutOfHostMemory { bytes: count * 16 })
    }

    /// Gives slots back.
    pub(super) fn release_slots(&mut self, slots: Slots) {
        self.host.free(slots);
    }

    /// The epoch of queues that are created now.
    pub(super) fn epoch(&self) -> Epoch {
        self.host.epoch()
    }

    /// Makes all queues created so far stale.
    pub(super) fn end_epoch(&mut self) {
        self.host.end_epoch();
    }
}
