//! Memory of the region: buffers for consumers, and what the driver takes for itself.

use super::Hca;
use crate::buddy::{self, BLOCK};
use crate::dma::{DmaBuffer, DmaMemory};
use crate::error::{Error, Rejected};
use crate::platform::Platform;

/// Pages that firmware took in bring-up for each page kept for later. A ConnectX-4 with 12,868
/// pages requests hundreds at once.
const BOOT_PAGES_PER_RESERVED: u32 = 16;
/// `users` of a buffer that no memory key leads to.
const UNREGISTERED: u16 = 1;
/// `users` of memory whose object could not be destroyed.
const LOST: u16 = u16::MAX;

impl<P: Platform> Hca<'_, P> {
    /// Takes `len` bytes, zeroed, from the region. They begin at a multiple of `align` (a power of two) as the device counts,
    /// and of 4096 in any case; what is taken is rounded up to a power of two.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::InvalidArgument`] if `align` is no power of two or the region itself is less aligned.
    pub fn alloc(&mut self, len: usize, align: usize) -> Result<DmaBuffer, Error> {
        let memory = self.take_memory(len, align)?;
        memory.fill(0, memory.len(), 0)?;
        let users = self.block_of(memory).and_then(|block| self.users.get_mut(block));
        *users.ok_or(Error::NotAllocated)? = UNREGISTERED;
        Ok(DmaBuffer::new(memory))
    }

    /// Gives back what [`Hca::alloc`] gave.
    ///
    /// # Errors
    /// [`Error::InUse`] while a memory key leads to it, [`Error::NotAllocated`] for a buffer of another HCA; the buffer comes back.
    pub fn free(&mut self, buffer: DmaBuffer) -> Result<(), Rejected<DmaBuffer>> {
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

    /// One more memory key leads to `memory`, a range of a buffer.
    pub(super) fn pin(&mut self, memory: DmaMemory) -> Result<(), Error> {
        let users = self.users_of(memory).ok_or(Error::NotAllocated)?;
        *users = users.checked_add(1).filter(|&users| users < LOST).ok_or(Error::Limit {
            what: "memory keys of a buffer",
            asked: u64::from(LOST - UNREGISTERED),
            limit: u64::from(LOST - UNREGISTERED - 1),
        })?;
        Ok(())
    }

    /// A key that [`Hca::pin`] counted is gone.
    pub(super) fn unpin(&mut self, memory: DmaMemory) {
        if let Some(users) = self.users_of(memory)
            && *users > UNREGISTERED
        {
            *users -= 1;
        }
    }

    /// Takes memory for the driver itself, with the content left as it is.
    pub(super) fn take_memory(&mut self, len: usize, align: usize) -> Result<DmaMemory, Error> {
        if let Some(cause) = self.fatal {
            // What was given back since may still be written to by the device.
            return Err(Error::Fatal(cause));
        }
        if !align.is_power_of_two() {
            return Err(Error::InvalidArgument("align"));
        }
        if align > BLOCK && !self.region.device_address().is_multiple_of(align as u64) {
            return Err(Error::InvalidArgument("align"));
        }
        let out_of_memory = Error::OutOfMemory { bytes: len };
        let order = buddy::order_for(len.max(align)).ok_or(out_of_memory)?;
        // Firmware asks for more when objects are made, and what it does not get then stops them all.
        if self.buddy.free_blocks() < (1usize << order).saturating_add(self.firmware_reserve()) {
            return Err(out_of_memory);
        }
        let block = self.buddy.alloc(order).ok_or(out_of_memory)?;
        self.block_slice(block, len)
    }

    /// Pages that only firmware may take.
    fn firmware_reserve(&self) -> usize {
        match self.config.firmware_reserve {
            0 => 0,
            pages => pages.max(self.boot_pages / BOOT_PAGES_PER_RESERVED) as usize,
        }
    }

    /// Gives back what [`Hca::take_memory`] gave, when the device uses it no more.
    pub(super) fn release(&mut self, memory: DmaMemory) -> Result<(), Error> {
        let block = self.block_of(memory).ok_or(Error::NotAllocated)?;
        if self.buddy.free(block) { Ok(()) } else { Err(Error::NotAllocated) }
    }

    pub(super) fn block_slice(&self, block: usize, len: usize) -> Result<DmaMemory, Error> {
        self.region.slice(block * BLOCK, len).ok_or(Error::OutOfBounds)
    }

    /// The block that `memory` begins with, if it lies in the region.
    fn block_of(&self, memory: DmaMemory) -> Option<usize> {
        let offset = memory.va().checked_sub(self.region.va())?;
        (self.region.contains(&memory) && offset.is_multiple_of(BLOCK)).then_some(offset / BLOCK)
    }

    /// Memory of an object that could not be destroyed: the device may still use it.
    pub(super) fn leak(&mut self, memory: DmaMemory) {
        self.counters.leaked_bytes += memory.len() as u64;
    }

    /// Frees an object's memory, or keeps it taken if destroying the object did not succeed.
    pub(super) fn free_unless(&mut self, destroyed: &Result<(), Error>, memory: DmaMemory) {
        if destroyed.is_err() || self.release(memory).is_err() {
            self.lose(memory);
        }
    }

    /// Keeps memory taken until a recovery, because the device may still use it.
    pub(super) fn lose(&mut self, memory: DmaMemory) {
        self.leak(memory);
        if let Some(users) = self.block_of(memory).and_then(|block| self.users.get_mut(block)) {
            *users = LOST;
        }
    }

    /// The device was reset and knows of no memory any more: what firmware held and what objects left is free, and no memory key leads to
    /// a buffer.
    pub(super) fn forget_memory(&mut self) {
        for block in 0..self.users.len() {
            let given = self.buddy.take_back(block);
            let Some(users) = self.users.get_mut(block).filter(|users| given || **users > UNREGISTERED)
            else {
                continue;
            };
            let lost = *users == LOST;
            *users = if given || lost { 0 } else { UNREGISTERED };
            if lost && !given {
                self.buddy.free(block);
            }
        }
        self.firmware_pages = 0;
    }
}
