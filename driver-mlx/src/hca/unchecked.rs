//! The ways to lead the device to memory that the driver does not own. All of them are `unsafe`, because the device then writes where
//! neither the driver nor the compiler looks.

use super::objects::region::{Origin, Registration};
use super::pending::Pending;
use super::{Hca, MemoryRegion};
use crate::cmd::{Tail, Ticket, User};
use crate::config::{Access, Base};
use crate::control;
use crate::dma::{DmaMemory, DmaSlice};
use crate::error::Error;
use crate::platform::Platform;
use crate::types::{LKey, Pd};

impl<P: Platform> Hca<'_, P> {
    /// The reserved key: local access to all of memory by device address, for QPs made with
    /// [`QpConfig::reserved_lkey`](crate::QpConfig::reserved_lkey).
    pub fn reserved_lkey(&self) -> LKey {
        self.objects.reserved_lkey()
    }

    /// Issues a firmware command: `input` as the manual lays it out, `out_len` bytes of output wanted. For commands that this
    /// driver has no method for; [`Hca::poll_command`] fetches the answer.
    ///
    /// ```compile_fail,E0133
    /// fn raw<P: driver_mlx::Platform>(hca: &mut driver_mlx::Hca<'_, P>) {
    ///     let _ = hca.submit(&[0; 16], 16);
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoCommandSlot`] if all slots are busy, [`Error::InvalidArgument`] for an input or output that is too long,
    /// [`Error::Fatal`].
    ///
    /// # Safety
    /// What the command makes the device do must be sound: it leads the device to no memory (addresses of pages, queues and keys) other
    /// than what is mapped and free for the device's use as long as it may access it, and it neither destroys nor changes an object that
    /// the driver made.
    pub unsafe fn submit(&mut self, input: &[u8], out_len: usize) -> Result<Ticket, Error> {
        self.firmware.issue(&mut self.memory, input, Tail::NONE, out_len, User::Waiter)
    }

    /// Makes a memory key for `len` bytes at `va` that are not of the region. [`Platform::map`]
    /// makes them visible to the device until [`Hca::deregister`], for writing if `access` has any
    /// right to write.
    ///
    /// ```compile_fail,E0133
    /// use driver_mlx::{Access, Base, Hca, Pd, Platform};
    ///
    /// fn own<P: Platform>(hca: &mut Hca<'_, P>, pd: Pd, memory: &mut [u8]) {
    ///     let _ = hca.register_foreign(pd, memory.as_mut_ptr(), memory.len(), Access::LOCAL_WRITE, Base::Virtual);
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Map`] as the platform answers; as [`Hca::register`].
    ///
    /// # Safety
    /// Until this key and all keys made from it ([`Hca::register_again`]) are deregistered: `va` to `va + len` is mapped, stays where it
    /// is, and belongs to the device too. No Rust reference covers bytes that the device may write (with local write, or remote write or
    /// atomic access); none that is mutable covers bytes that it may read. Access from this side is volatile or atomic.
    pub unsafe fn register_foreign(
        &mut self,
        pd: Pd,
        va: *mut u8,
        len: usize,
        access: Access,
        base: Base,
    ) -> Result<MemoryRegion, Error> {
        if len == 0 {
            return Err(Error::InvalidArgument("len"));
        }
        let pending = self.begin_mapped(pd, (va, len), access, base, User::Waiter)?;
        self.finish(pending)
    }

    /// As [`Hca::register_foreign`], without waiting for firmware: [`Hca::poll_pending`] returns the
    /// region.
    ///
    /// # Errors
    /// As [`Hca::register_foreign`]; [`Error::NoCommandSlot`] while as many commands are pending as
    /// may be.
    ///
    /// # Safety
    /// As [`Hca::register_foreign`], from this call on, and until a recovery if the pending command
    /// is dropped.
    pub unsafe fn begin_register_foreign(
        &mut self,
        pd: Pd,
        va: *mut u8,
        len: usize,
        access: Access,
        base: Base,
    ) -> Result<Pending<Registration>, Error> {
        if len == 0 {
            return Err(Error::InvalidArgument("len"));
        }
        self.begin_mapped(pd, (va, len), access, base, User::Poller)
    }

    /// Maps foreign memory and begins its key. The contract of [`Hca::register_foreign`] covers it.
    pub(super) fn begin_mapped(
        &mut self,
        pd: Pd,
        (va, len): (*mut u8, usize),
        access: Access,
        base: Base,
        user: User,
    ) -> Result<Pending<Registration>, Error> {
        // IOMMUs pin writable memory for writing, which fails for memory that this process may only
        // read.
        let device_address = control::map(self.firmware.platform(), va.addr(), len, access.writes())?;
        // SAFETY: the caller of `register_foreign` promised that the memory is mapped; the driver itself never accesses it.
        let memory = unsafe { DmaMemory::from_raw(va, device_address, len) };
        self.begin_key(pd, memory, Origin::Foreign(memory), access, base, user)
            .inspect_err(|_| control::unmap(self.firmware.platform(), device_address, len))
    }

    /// `len` bytes at `address` (as the key counts) of the memory that a key leads to, for this processor. Neither can end meanwhile.
    ///
    /// ```compile_fail,E0133
    /// fn of<P: driver_mlx::Platform>(hca: &driver_mlx::Hca<'_, P>, region: &driver_mlx::MemoryRegion) {
    ///     let _ = hca.memory_of(region, 0, 8);
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] unless all of them are the key's; [`Error::NotAllocated`] for a key of before a recovery.
    ///
    /// # Safety
    /// As long as the slice is used no other thread accesses these bytes, whoever has their buffer. They are not written unless the key has
    /// local write, and no key is made for them.
    pub unsafe fn memory_of<'r>(
        &'r self,
        region: &'r MemoryRegion,
        address: u64,
        len: u64,
    ) -> Result<DmaSlice<'r>, Error> {
        if !self.is_current(region) {
            return Err(Error::NotAllocated);
        }
        let memory = region.range(address, len)?;
        Ok(DmaSlice::of_region(memory, region.is_foreign()))
    }

    /// Makes a memory key for all of memory, by device address.
    ///
    /// ```compile_fail,E0133
    /// fn all<P: driver_mlx::Platform>(hca: &mut driver_mlx::Hca<'_, P>, pd: driver_mlx::Pd) {
    ///     let _ = hca.register_all(pd, driver_mlx::Access::LOCAL_WRITE);
    /// }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    ///
    /// # Safety
    /// Whoever knows the key (this side's work requests; with remote access, any peer of a connection of this protection domain) can read
    /// and, with the rights for it, write all memory that the device reaches, the driver's rings and firmware's pages included. All of
    /// them must stay within memory for which [`Hca::register_foreign`]'s contract holds.
    pub unsafe fn register_all(&mut self, pd: Pd, access: Access) -> Result<MemoryRegion, Error> {
        let pending = self.begin_mkey(pd, access, (0, u64::MAX), None, Origin::All, User::Waiter)?;
        self.finish(pending)
    }
}
