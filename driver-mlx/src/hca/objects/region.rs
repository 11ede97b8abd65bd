//! Protection domains and memory keys.

use crate::buddy::BLOCK;
use crate::cmd::{Tail, User, input};
use crate::config::{Access, Base};
use crate::control;
use crate::dma::{DmaMemory, DmaSlice};
use crate::error::{Error, Rejected};
use crate::generation::{Age, Generation, Object};
use crate::hca::Hca;
use crate::hca::pending::sealed::Finish;
use crate::hca::pending::{Operation, Pending};
use crate::platform::Platform;
use crate::types::{LKey, Pd, PdNumber, RKey};
use mlx5_prm::commands::*;
use mlx5_prm::contexts::mkc;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::AccessMode;

/// `mkc.qpn` of a key that every QP of its protection domain may use.
pub(super) const ANY_QPN: u32 = 0xff_ffff;
/// log2 of the largest page of a memory key (5 bits of `mkc.log_page_size`).
const LOG_LARGEST_PAGE: u32 = 31;

/// Memory that work requests may name: a memory key of one's own, given back with [`Hca::deregister`].
#[derive(Debug)]
#[must_use = "the key stays, and the buffer cannot be freed, until it is deregistered"]
pub struct MemoryRegion {
    /// The local and the remote key are the same number.
    key: RKey,
    address: u64,
    length: u64,
    generation: Generation,
    origin: Origin,
}

/// What a memory key leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hca) enum Origin {
    /// A range of a buffer.
    Buffer(DmaMemory),
    /// Memory that the platform mapped for it.
    Foreign(DmaMemory),
    /// All that the device reaches.
    All,
}

/// How a memory key stands, as the device has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MkeyState {
    /// The key, as it must be named now.
    pub rkey: RKey,
    /// Whether it leads nowhere: a memory window that is not bound.
    pub free: bool,
    /// Its protection domain.
    pub pd: PdNumber,
    /// What it allows.
    pub access: Access,
    /// First address as the key counts.
    pub address: u64,
    /// Bytes; `u64::MAX` stands for all of memory.
    pub length: u64,
}

/// How the pages of a key lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hca) struct Translation {
    log_page: u32,
    first: u64,
    count: usize,
}

/// Pages of a key above which they may reach beyond what is ours: a list that is longer takes thousands of mailboxes.
const MANY_PAGES: usize = 1 << 14;

/// The largest pages for `len` bytes at device address `device`, which the key calls `start`: an address and its device
/// address must agree modulo the page, and whole pages must lie between `low` and `high`. Where that makes many, the first and the
/// last may reach beyond: the device looks at the key's start and length too.
fn translate(device: u64, start: u64, len: u64, low: u64, high: u64) -> Option<Translation> {
    let agree = (device ^ start).trailing_zeros().min(LOG_LARGEST_PAGE);
    let pages = |log_page: u32| {
        let mask = (1u64 << log_page) - 1;
        let first = device & !mask;
        let end = device.checked_add(len)?.checked_add(mask)? & !mask;
        let count = usize::try_from((end - first) >> log_page).ok()?;
        Some((Translation { log_page, first, count }, end))
    };
    let inside = (12..=agree).rev().filter_map(pages).find_map(|(translation, end)| {
        let fits = translation.log_page == 12 || (translation.first >= low && end <= high);
        fits.then_some(translation)
    })?;
    let few = |translation: &Translation| translation.count <= MANY_PAGES;
    let beyond = || (12..=agree).filter_map(pages).map(|(translation, _)| translation).find(few);
    Some(if few(&inside) { inside } else { beyond().unwrap_or(inside) })
}

impl<P: Platform> Hca<'_, P> {
    /// A new protection domain.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn alloc_pd(&mut self) -> Result<Pd, Error> {
        let mut out = [0; alloc_pd_out::SIZE];
        self.exec(&input::<{ alloc_pd_in::SIZE }>(Opcode::ALLOC_PD, 0), &mut out)?;
        Ok(Pd::new(alloc_pd_out::pd.get32(&out), self.firmware.generation()))
    }

    /// Ends a protection domain. A domain from before a recovery is gone already.
    ///
    /// # Errors
    /// Any [`Error`] of a command: firmware refuses while something uses it.
    /// [`Error::NotAllocated`] for one of another HCA.
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), Error> {
        let mut free = input::<{ dealloc_pd_in::SIZE }>(Opcode::DEALLOC_PD, 0);
        dealloc_pd_in::pd.set(&mut free, pd.number().get());
        self.destroy(&pd, &free, &mut [0; dealloc_pd_out::SIZE])
    }

    /// Makes a memory key for a buffer or a range of one, or for [foreign memory](DmaSlice::foreign). The buffer cannot be freed until the
    /// key is given back.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::Map`] as the platform answers.
    /// [`Error::InvalidArgument`] for an empty range and for remote write or atomic access without
    /// local write. [`Error::NotAllocated`] for memory or a protection domain of another HCA;
    /// [`Error::Stale`] for either from before a recovery. [`Error::Limit`] for more than 65533
    /// keys of one buffer.
    pub fn register<'b>(
        &mut self,
        pd: Pd,
        memory: impl Into<DmaSlice<'b>>,
        access: Access,
        base: Base,
    ) -> Result<MemoryRegion, Error> {
        let pending = self.begin_slice(pd, memory.into(), access, base, User::Waiter)?;
        self.finish(pending)
    }

    /// As [`Hca::register`], without waiting for firmware: [`Hca::poll_pending`] returns the region.
    ///
    /// # Errors
    /// As [`Hca::register`]; [`Error::NoCommandSlot`] while as many commands are pending as may be.
    pub fn begin_register<'b>(
        &mut self,
        pd: Pd,
        memory: impl Into<DmaSlice<'b>>,
        access: Access,
        base: Base,
    ) -> Result<Pending<Registration>, Error> {
        self.begin_slice(pd, memory.into(), access, base, User::Poller)
    }

    fn begin_slice(
        &mut self,
        pd: Pd,
        slice: DmaSlice<'_>,
        access: Access,
        base: Base,
        user: User,
    ) -> Result<Pending<Registration>, Error> {
        let memory = slice.memory();
        if slice.is_foreign() && memory.len() > 0 {
            return self.begin_mapped(pd, (memory.as_ptr(), memory.len()), access, base, user);
        }
        self.begin_pinned(pd, memory, access, base, user)
    }

    /// Makes another key for the memory of a key.
    ///
    /// # Errors
    /// As [`Hca::register`]; [`Error::InvalidArgument`] for a key of all of memory.
    pub fn register_again(
        &mut self,
        pd: Pd,
        of: &MemoryRegion,
        access: Access,
        base: Base,
    ) -> Result<MemoryRegion, Error> {
        self.firmware.resolve(of)?;
        let pending = match of.origin {
            Origin::Buffer(memory) => self.begin_pinned(pd, memory, access, base, User::Waiter),
            Origin::Foreign(memory) => {
                self.begin_mapped(pd, (memory.as_ptr(), memory.len()), access, base, User::Waiter)
            }
            Origin::All => Err(Error::InvalidArgument("of")),
        };
        self.finish(pending?)
    }

    fn begin_pinned(
        &mut self,
        pd: Pd,
        memory: DmaMemory,
        access: Access,
        base: Base,
        user: User,
    ) -> Result<Pending<Registration>, Error> {
        if memory.len() == 0 {
            return Err(Error::InvalidArgument("memory"));
        }
        self.firmware.usable()?;
        self.memory.pin(memory)?;
        self.begin_key(pd, memory, Origin::Buffer(memory), access, base, user)
            .inspect_err(|_| self.memory.unpin(memory))
    }

    /// Begins a key for memory that is pinned or mapped.
    pub(in crate::hca) fn begin_key(
        &mut self,
        pd: Pd,
        memory: DmaMemory,
        origin: Origin,
        access: Access,
        base: Base,
        user: User,
    ) -> Result<Pending<Registration>, Error> {
        let device = memory.device_address();
        let start = match base {
            Base::Virtual => memory.va() as u64,
            Base::Zero => memory.va() as u64 % BLOCK as u64,
        };
        let length = memory.len() as u64;
        // Whole pages may reach as far as the memory that is known to be ours.
        let (low, high) = if matches!(origin, Origin::Buffer(..)) {
            let range = self.memory.device_range();
            (range.start, range.end)
        } else {
            let page = BLOCK as u64 - 1;
            (device & !page, device.saturating_add(length).saturating_add(page) & !page)
        };
        let translation =
            translate(device, start, length, low, high).ok_or(Error::InvalidArgument("memory"))?;
        self.begin_mkey(pd, access, (start, length), Some(translation), origin, user)
    }

    /// Ends a memory key.
    ///
    /// # Errors
    /// Any [`Error`] of a command (firmware refuses while a window is bound to it), [`Error::NotAllocated`] for a key of another HCA;
    /// [`Error::Fatal`] for foreign memory that a device which has failed may still write to. The key comes back, and what it leads to stays
    /// registered.
    pub fn deregister(&mut self, region: MemoryRegion) -> Result<(), Rejected<MemoryRegion>> {
        let pending = self.begin_end(region, User::Waiter)?;
        self.finish(pending)
    }

    /// As [`Hca::deregister`], without waiting for firmware: [`Hca::poll_pending`] returns the result.
    ///
    /// # Errors
    /// [`Error::NotAllocated`] for a key of another HCA; [`Error::NoCommandSlot`] while as many
    /// commands are pending as may be. The key comes back.
    pub fn begin_deregister(
        &mut self,
        region: MemoryRegion,
    ) -> Result<Pending<Deregistration>, Rejected<MemoryRegion>> {
        self.begin_end(region, User::Poller)
    }

    fn begin_end(
        &mut self,
        region: MemoryRegion,
        user: User,
    ) -> Result<Pending<Deregistration>, Rejected<MemoryRegion>> {
        let destroy = destroy_input(&region);
        match self.firmware.begin_destroy(&mut self.memory, &region, &destroy, destroy_mkey_out::SIZE, user) {
            Ok(ticket) => Ok(Pending::new(ticket, Deregistration(region))),
            Err(error) => Err(Rejected { error, value: region }),
        }
    }

    /// Makes what the processor wrote to `len` bytes at `address` (as the key counts) visible to the device:
    /// [`Platform::sync_for_device`].
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] unless all of them are the key's.
    pub fn sync_for_device(&self, region: &MemoryRegion, address: u64, len: u64) -> Result<(), Error> {
        control::sync_for_device(self.firmware.platform(), region.range(address, len)?);
        Ok(())
    }

    /// The same for memory of the region, or registered, whatever key leads to it.
    pub fn sync_slice_for_device(&self, slice: DmaSlice<'_>) {
        control::sync_for_device(self.firmware.platform(), slice.memory());
    }

    /// Makes what the device wrote to `len` bytes at `address` (as the key counts) visible to the processor:
    /// [`Platform::sync_for_cpu`].
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] unless all of them are the key's.
    pub fn sync_for_cpu(&self, region: &MemoryRegion, address: u64, len: u64) -> Result<(), Error> {
        control::sync_for_cpu(self.firmware.platform(), region.range(address, len)?);
        Ok(())
    }

    /// The same for memory of the region, or registered, whatever key leads to it.
    pub fn sync_slice_for_cpu(&self, slice: DmaSlice<'_>) {
        control::sync_for_cpu(self.firmware.platform(), slice.memory());
    }

    /// Whether the device still knows a key: it forgets all of them in a recovery.
    pub fn is_current(&self, region: &MemoryRegion) -> bool {
        region.made(self.firmware.generation()) == Age::Current
    }

    pub(super) fn destroy_mkey(&mut self, key: &impl Object<Number = RKey>) -> Result<(), Error> {
        self.destroy(key, &destroy_input(key), &mut [0; destroy_mkey_out::SIZE])
    }

    /// How a memory key (of a region or a window) stands, as the device has it.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn query_mkey(&mut self, rkey: RKey) -> Result<MkeyState, Error> {
        let mut query = input::<{ query_mkey_in::SIZE }>(Opcode::QUERY_MKEY, 0);
        query_mkey_in::mkey_index.set(&mut query, rkey.get() >> 8);
        let mut out = [0; query_mkey_out::SIZE];
        self.exec(&query, &mut out)?;
        let key = query_mkey_out::memory_key_mkey_entry.of(&out);
        let rights = [
            (mkc::lw, Access::LOCAL_WRITE),
            (mkc::rr, Access::REMOTE_READ),
            (mkc::rw, Access::REMOTE_WRITE),
            (mkc::a, Access::REMOTE_ATOMIC),
        ];
        Ok(MkeyState {
            rkey: RKey::new(rkey.get() & !0xff | mkc::mkey_7_0.get32(key)),
            free: mkc::free.is_set(key),
            pd: PdNumber::new(mkc::pd.get32(key)),
            access: rights
                .into_iter()
                .filter(|(field, _)| field.is_set(key))
                .map(|(_, right)| right)
                .collect(),
            address: mkc::start_addr.get(key),
            length: if mkc::length64.is_set(key) { u64::MAX } else { mkc::len.get(key) },
        })
    }

    /// Begins CREATE_MKEY for `length` bytes from `start` on.
    pub(in crate::hca) fn begin_mkey(
        &mut self,
        pd: Pd,
        access: Access,
        (start, length): (u64, u64),
        translation: Option<Translation>,
        origin: Origin,
        user: User,
    ) -> Result<Pending<Registration>, Error> {
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(writes) && !access.contains(Access::LOCAL_WRITE) {
            return Err(Error::InvalidArgument("access"));
        }
        let domain = self.firmware.resolve(&pd)?;
        let variant = self.objects.variants.take(self.firmware.now());
        let mut create = input::<{ create_mkey_in::SIZE }>(Opcode::CREATE_MKEY, 0);
        let key = create_mkey_in::memory_key_mkey_entry.of_mut(&mut create);
        mkc::lr.set(key, true);
        mkc::lw.set(key, access.contains(Access::LOCAL_WRITE));
        mkc::rr.set(key, access.contains(Access::REMOTE_READ));
        mkc::rw.set(key, access.contains(Access::REMOTE_WRITE));
        mkc::a.set(key, access.contains(Access::REMOTE_ATOMIC));
        mkc::qpn.set(key, ANY_QPN);
        mkc::mkey_7_0.set(key, variant);
        mkc::pd.set(key, domain.get());
        let Translation { log_page, first, count } = match translation {
            Some(translation) => {
                // Two translations to an octword, the list padded to whole ones.
                let octwords = translation.count.div_ceil(2) as u32;
                mkc::access_mode_1_0.set(key, AccessMode::MTT.0);
                mkc::start_addr.set(key, start);
                mkc::len.set(key, length);
                mkc::log_page_size.set(key, translation.log_page);
                mkc::translations_octword_size.set(key, octwords);
                create_mkey_in::translations_octword_actual_size.set(&mut create, octwords);
                translation
            }
            None => {
                mkc::access_mode_1_0.set(key, AccessMode::PA.0);
                mkc::length64.set(key, true);
                Translation { log_page: 12, first: 0, count: 0 }
            }
        };
        let entry = |index: usize| if index < count { first + ((index as u64) << log_page) } else { 0 };
        let tail = Tail { count: count.next_multiple_of(2), entry: &entry };
        let ticket = self.firmware.issue(&mut self.memory, &create, tail, create_mkey_out::SIZE, user)?;
        let generation = self.firmware.generation();
        Ok(Pending::new(Some(ticket), Registration { variant, start, length, generation, origin }))
    }
}

/// The input of DESTROY_MKEY.
fn destroy_input(key: &impl Object<Number = RKey>) -> [u8; destroy_mkey_in::SIZE] {
    let mut destroy = input(Opcode::DESTROY_MKEY, 0);
    destroy_mkey_in::mkey_index.set(&mut destroy, key.name().get() >> 8);
    destroy
}

/// CREATE_MKEY in flight.
#[derive(Debug)]
pub struct Registration {
    variant: u8,
    start: u64,
    length: u64,
    generation: Generation,
    origin: Origin,
}

impl<P: Platform> Operation<P> for Registration {}

impl<P: Platform> Finish<P> for Registration {
    type Output = Result<MemoryRegion, Error>;

    fn finish(self, hca: &mut Hca<'_, P>, answer: Result<&[u8], Error>) -> Self::Output {
        let Self { variant, start, length, generation, origin } = self;
        let current = generation == hca.firmware.generation();
        match answer {
            Ok(out) => {
                let key = RKey::new(create_mkey_out::mkey_index.get32(out) << 8 | u32::from(variant));
                Ok(MemoryRegion { key, address: start, length, generation, origin })
            }
            Err(_) if !current => {
                hca.release_key(origin, false);
                Err(Error::Stale)
            }
            Err(error) => {
                if error.not_created().is_ok() {
                    hca.release_key(origin, true);
                }
                Err(error)
            }
        }
    }
}

/// DESTROY_MKEY in flight.
#[derive(Debug)]
pub struct Deregistration(MemoryRegion);

impl<P: Platform> Operation<P> for Deregistration {}

impl<P: Platform> Finish<P> for Deregistration {
    type Output = Result<(), Rejected<MemoryRegion>>;

    fn finish(self, hca: &mut Hca<'_, P>, answer: Result<&[u8], Error>) -> Self::Output {
        let Self(region) = self;
        let current = hca.is_current(&region);
        let foreign = region.is_foreign();
        match answer {
            // The device may still write there, and the memory is not the driver's to keep.
            Err(error @ Error::Fatal(_)) if current && foreign && !hca.firmware.bus_master_off() => {
                return Err(Rejected { error, value: region });
            }
            Ok(_) | Err(Error::Fatal(_)) => {}
            Err(_) if !current => {}
            Err(error) => return Err(Rejected { error, value: region }),
        }
        hca.release_key(region.origin, current);
        Ok(())
    }
}

impl<P: Platform> Hca<'_, P> {
    /// Releases the memory of a key that is gone. A recovery has counted out the keys of buffers.
    fn release_key(&mut self, origin: Origin, current: bool) {
        match origin {
            Origin::Buffer(memory) if current => self.memory.unpin(memory),
            Origin::Foreign(memory) => {
                self.firmware.unmap(memory.device_address(), memory.len(), current);
            }
            Origin::Buffer(_) | Origin::All => {}
        }
    }
}

impl Object for MemoryRegion {
    type Number = RKey;

    fn made(&self, now: Generation) -> Age {
        self.generation.made(now)
    }

    fn name(&self) -> RKey {
        self.key
    }
}

impl MemoryRegion {
    /// Returns the key for this side's work requests.
    #[inline]
    pub const fn lkey(&self) -> LKey {
        LKey::new(self.key.get())
    }

    /// Returns the key for peers.
    #[inline]
    pub const fn rkey(&self) -> RKey {
        self.key
    }

    /// Returns the first address as the key counts.
    #[inline]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes; `u64::MAX` stands for all of memory.
    #[inline]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Returns whether the platform mapped the memory for it.
    pub(in crate::hca) fn is_foreign(&self) -> bool {
        matches!(self.origin, Origin::Foreign(_))
    }

    /// The `len` bytes that begin at `address` as the key counts.
    pub(in crate::hca) fn range(&self, address: u64, len: u64) -> Result<DmaMemory, Error> {
        let (Origin::Buffer(memory) | Origin::Foreign(memory)) = self.origin else {
            return Err(Error::OutOfBounds);
        };
        let offset = address.checked_sub(self.address).and_then(|offset| usize::try_from(offset).ok());
        let (offset, len) = offset.zip(usize::try_from(len).ok()).ok_or(Error::OutOfBounds)?;
        memory.slice(offset, len).ok_or(Error::OutOfBounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_pages_that_fit_are_chosen() {
        // A region of 64 MiB at 1 GiB.
        let (low, high) = (0x4000_0000, 0x4400_0000);
        let whole = translate(low, 0x7f00_0000_0000, 0x400_0000, low, high);
        assert_eq!(whole, Some(Translation { log_page: 26, first: low, count: 1 }));
        let middle = translate(low + 0x1800, 0x1800, 0x800, low, high);
        assert_eq!(middle, Some(Translation { log_page: 26, first: low, count: 1 }), "inside what is ours");
        // Agreement only modulo 64 KiB.
        let skewed = translate(low + 0x2_3000, 0x1_3000, 0x2_0000, low, high);
        assert_eq!(skewed, Some(Translation { log_page: 16, first: low + 0x2_0000, count: 3 }));
        // Foreign memory, whose neighbours are not ours.
        let foreign = translate(0x12_3456, 0x55_3456, 0x1000, 0x12_3000, 0x12_5000);
        assert_eq!(foreign, Some(Translation { log_page: 12, first: 0x12_3000, count: 2 }));
        // Much of it: 512 MiB that begin in the middle of everything.
        let (low, len) = (0x7f12_3456_7000, 512 << 20);
        let much = translate(low, low, len, low, low + len);
        let first = low & !0xffff;
        assert_eq!(much, Some(Translation { log_page: 16, first, count: 8193 }));
        assert_eq!(translate(0x12_3456, 0x55_3457, 1, 0, u64::MAX), None);
        assert_eq!(translate(u64::MAX - 5, u64::MAX - 5, 100, 0, u64::MAX), None);
    }
}
