//! Guest memory for the DMA of an emulated HCA: the ranges that the client announced.
//!
//! A range is a mapped file, a file accessed by read and write, or memory that the client accesses
//! on request. No pointer leaves this directory or outlives an access. Therefore an unmapped range
//! is inaccessible as soon as [`GuestMap::unmap`] has returned.

use super::files::Files;
use super::mapping::{Mapping, Sources};
use super::range::{Backing, Held, Range, all_read, all_written};
use super::ranges::Ranges;
use crate::wire::channel::{Channel, Closed};
use crate::wire::protocol::{MAX_TRANSFER, command};
use hca_model::{BarPort, DmaFault, GuestMemory, copy_in_parts};
use rustix::io::Errno;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vm_memory::{Bytes, VolatileSlice};

/// Time limit of all waits for the client in one poll of a device. Longer than a busy machine leaves a runnable process waiting.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// Ranges that a client may announce. Equal to the limit of Linux's VFIO (`dma_entry_limit` of
/// `vfio_iommu_type1`). With an IOMMU, a 256 MiB machine with a passed-through device has a range
/// for each page.
const RANGES: usize = 65535;

/// Reason why the device cannot continue with this memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A file was truncated, or the file system has no free page.
    Lost,
    /// The client does not reply.
    Unanswered,
}

/// An access of a device to guest memory.
#[derive(Clone, Debug)]
pub enum Access {
    Read { address: u64, len: usize },
    Write { address: u64, data: Vec<u8> },
    Load32 { address: u64 },
    Load64 { address: u64 },
    Store32 { address: u64, value: u32 },
    Store64 { address: u64, value: u64 },
}

impl Access {
    /// Returns the fault of this access.
    pub fn fault(&self) -> DmaFault {
        let (address, len) = match self {
            Self::Read { address, len } => (*address, *len),
            Self::Write { address, data } => (*address, data.len()),
            Self::Load32 { address } | Self::Store32 { address, .. } => (*address, 4),
            Self::Load64 { address } | Self::Store64 { address, .. } => (*address, 8),
        };
        DmaFault { address, len }
    }
}

/// Commands to the client for one access, which is repeated until all of them have replies.
#[derive(Debug, Default)]
struct Exchange {
    /// Payloads of the replies so far; `None` for a refusal.
    replies: Vec<Option<Vec<u8>>>,
    /// Replies used by the current attempt.
    used: usize,
    /// Id of the command without a reply.
    sent: Option<u16>,
    /// True while an attempt runs. No other access may request memory from the client.
    running: bool,
    /// True if the rest of the poll's accesses must fail.
    abandoned: bool,
}

/// All ranges of one guest, ordered by device address, and the connection to the client that
/// announced them.
#[derive(Debug)]
pub struct GuestMap {
    ranges: Ranges<Range>,
    /// Mapped files of the client.
    files: Files,
    /// Counter of open files: each [`Held`] and this field hold a reference.
    descriptors: Rc<()>,
    limit: usize,
    /// Bytes of mapped ranges, and their limit.
    mapped: (u64, u64),
    /// Connection to the client.
    pub channel: RefCell<Option<Channel>>,
    /// Limit of the client for a message, in bytes.
    pub max_transfer: usize,
    /// Registers of the device, which are served while it waits for the client.
    pub registers: Option<Arc<BarPort>>,
    trouble: Cell<Option<Trouble>>,
    /// True if the client must be asked for writable memory.
    private: bool,
    exchange: RefCell<Exchange>,
}

impl GuestMap {
    /// Creates an empty map, for at most `limit` mappings and `limit` descriptors.
    pub fn new(limit: usize) -> Self {
        Self {
            ranges: Ranges::new(RANGES),
            files: Files::new(limit),
            descriptors: Rc::new(()),
            limit,
            mapped: (0, u64::MAX),
            channel: RefCell::new(None),
            max_transfer: MAX_TRANSFER,
            registers: None,
            trouble: Cell::new(None),
            private: false,
            exchange: RefCell::default(),
        }
    }

    /// Limits the sum of mapped ranges, in bytes.
    pub fn set_memory_limit(&mut self, bytes: u64) {
        self.mapped.1 = bytes;
    }

    /// Returns a mapped range of `size` bytes of `file` from `offset` on.
    ///
    /// # Errors
    /// As [`Mapping::new`]; `ENOSPC`: there are too many mappings.
    pub fn mapped(
        &mut self,
        file: &OwnedFd,
        offset: u64,
        size: u64,
        writable: bool,
        sources: Sources,
    ) -> Result<Range, Errno> {
        let (mapping, at) = self.files.map(file, offset, size, writable, sources)?;
        Ok(Range { size, writable, backing: Backing::Mapped(mapping, at) })
    }

    /// Returns a range of `size` bytes of `file` from `offset` on, accessed by system calls.
    ///
    /// # Errors
    /// - `EOVERFLOW`: it exceeds the largest offset.
    /// - `ENOSPC`: there are too many descriptors.
    pub fn file(&mut self, file: OwnedFd, offset: u64, size: u64, writable: bool) -> Result<Range, Errno> {
        offset.checked_add(size).ok_or(Errno::OVERFLOW)?;
        if Rc::strong_count(&self.descriptors) > self.limit {
            return Err(Errno::NOSPC);
        }
        let held = Held { file, _counted: Rc::clone(&self.descriptors) };
        Ok(Range { size, writable, backing: Backing::File(held, offset) })
    }

    /// Adds a range at the device address `address`.
    ///
    /// # Errors
    /// As [`Ranges::insert`]; `ENOMEM`: the mapped ranges would exceed the memory limit.
    pub fn map(&mut self, address: u64, range: Range) -> Result<(), Errno> {
        let private = range.writable && matches!(range.backing, Backing::Client);
        let mapped = self.mapped.0.saturating_add(range.mapped_bytes());
        if mapped > self.mapped.1 {
            return Err(Errno::NOMEM);
        }
        self.ranges.insert(address, range.size, range)?;
        self.mapped.0 = mapped;
        self.private |= private;
        Ok(())
    }

    /// Removes every range within the given one.
    ///
    /// # Errors
    /// `EINVAL`: the given range cuts an existing one, and nothing is removed. VFIO type 1 version
    /// 2 has the same rule.
    pub fn unmap(&mut self, address: u64, size: u64) -> Result<(), Errno> {
        let removed = self.ranges.remove(address, size)?;
        self.mapped.0 -= removed.iter().map(Range::mapped_bytes).sum::<u64>();
        Ok(())
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.mapped.0 = 0;
        self.trouble.set(None);
        self.private = false;
    }

    /// Returns whether accesses may have to wait for the client, so that they need
    /// [`attempt`](Self::attempt). ROMs have no file either, but devices do not access them.
    pub fn is_private(&self) -> bool {
        self.private
    }

    /// Makes an access. Returns `None` if the client must reply first: repeat the same access then.
    pub fn attempt(&self, access: &Access) -> Option<Result<Vec<u8>, DmaFault>> {
        {
            let mut exchange = self.exchange.borrow_mut();
            (exchange.used, exchange.running) = (0, true);
        }
        let outcome = match access {
            Access::Read { address, len } => {
                let mut bytes = vec![0; *len];
                self.read(*address, &mut bytes).map(|()| bytes)
            }
            Access::Write { address, data } => self.write(*address, data).map(|()| Vec::new()),
            Access::Load32 { address } => self.load32(*address).map(|value| value.to_be_bytes().to_vec()),
            Access::Load64 { address } => self.load64(*address).map(|value| value.to_be_bytes().to_vec()),
            Access::Store32 { address, value } => self.store32(*address, *value).map(|()| Vec::new()),
            Access::Store64 { address, value } => self.store64(*address, *value).map(|()| Vec::new()),
        };
        let mut exchange = self.exchange.borrow_mut();
        exchange.running = false;
        if exchange.sent.is_some() {
            return None;
        }
        exchange.replies.clear();
        Some(outcome)
    }

    /// Fails the access that waits for the client, and all further ones until
    /// [`end_poll`](Self::end_poll).
    pub fn abandon(&self) {
        *self.exchange.borrow_mut() = Exchange { abandoned: true, ..Exchange::default() };
    }

    /// Ends the poll whose accesses were attempted.
    pub fn end_poll(&self) {
        *self.exchange.borrow_mut() = Exchange::default();
    }

    /// Returns and clears the trouble since the last call.
    pub fn take_trouble(&self) -> Option<Trouble> {
        self.trouble.take()
    }

    /// Returns the range that contains `address`, the offset in it, and the number of bytes after
    /// this offset.
    fn find(&self, address: u64, write: bool) -> Option<(&Range, u64, u64)> {
        self.ranges.find(address).filter(|(range, _, _)| range.writable || !write)
    }

    /// Calls `each` for every segment of `len` bytes from `address` on, with its range, its offset
    /// in the range, and its offset in the transfer.
    fn pieces(
        &self,
        address: u64,
        len: usize,
        write: bool,
        mut each: impl FnMut(&Range, u64, std::ops::Range<usize>) -> bool,
    ) -> Result<(), DmaFault> {
        let fault = DmaFault { address, len };
        let wide = len as u64;
        if let Some((range, offset, rest)) = self.find(address, write)
            && rest >= wide
        {
            return if each(range, offset, 0..len) { Ok(()) } else { Err(fault) };
        }
        // A transfer across several ranges is checked completely first, so that a fault has no
        // partial effect.
        for act in [false, true] {
            let mut done = 0;
            while done < wide {
                let at = address.checked_add(done).ok_or(fault)?;
                let (range, offset, rest) = self.find(at, write).ok_or(fault)?;
                let piece = rest.min(wide - done);
                let part = done as usize..(done + piece) as usize;
                if act && !each(range, offset, part) {
                    return Err(fault);
                }
                done += piece;
            }
        }
        Ok(())
    }

    /// Calls `access` with mapped bytes. Records trouble if the mapping is lost.
    fn volatile(&self, mapping: &Mapping, access: impl FnOnce(VolatileSlice<'_>) -> bool) -> bool {
        mapping.with(access).unwrap_or_else(|_| {
            self.note_loss(mapping);
            false
        })
    }

    /// Records trouble if the mapping is lost.
    fn note_loss(&self, mapping: &Mapping) {
        if mapping.is_lost() {
            self.trouble.set(Some(Trouble::Lost));
        }
    }

    /// Requests a read or write of its memory from the client, or uses the reply from an earlier
    /// attempt. Returns false without a reply.
    fn ask(&self, command: u16, payload: &[&[u8]], each: impl FnOnce(&[u8]) -> bool) -> bool {
        let exchange = &mut *self.exchange.borrow_mut();
        // An attempt ends at its first command without a reply.
        let waits = exchange.used > exchange.replies.len();
        if !exchange.running || exchange.abandoned || waits || self.trouble.get().is_some() {
            return false;
        }
        if exchange.used == exchange.replies.len() {
            let Ok(mut channel) = self.channel.try_borrow_mut() else { return false };
            let Some(channel) = channel.as_mut() else { return false };
            let id = *exchange.sent.get_or_insert_with(|| channel.send(command, payload));
            match channel.take_reply(id, command) {
                Ok(Some(reply)) => {
                    exchange.replies.push(reply);
                    exchange.sent = None;
                }
                Ok(None) => {
                    exchange.used += 1;
                    return false;
                }
                Err(Closed) => {
                    exchange.sent = None;
                    self.trouble.set(Some(Trouble::Unanswered));
                    return false;
                }
            }
        }
        let reply = exchange.replies.get(exchange.used);
        exchange.used += 1;
        reply.is_some_and(|reply| reply.as_deref().is_some_and(each))
    }

    fn read_client(&self, address: u64, buf: &mut [u8]) -> bool {
        let mut at = address;
        buf.chunks_mut(self.max_transfer).all(|chunk| {
            let count = chunk.len() as u64;
            let read = self.ask(command::DMA_READ, &[&at.to_le_bytes(), &count.to_le_bytes()], |payload| {
                match payload.get(16..).filter(|data| data.len() == chunk.len()) {
                    Some(data) => chunk.copy_from_slice(data),
                    None => return false,
                }
                true
            });
            at += count;
            read
        })
    }

    fn write_client(&self, address: u64, data: &[u8]) -> bool {
        let mut at = address;
        data.chunks(self.max_transfer).all(|chunk| {
            let count = chunk.len() as u64;
            let payload = [&at.to_le_bytes()[..], &count.to_le_bytes(), chunk];
            let written = self.ask(command::DMA_WRITE, &payload, |_| true);
            at += count;
            written
        })
    }

    /// Reads without look-up: `address` corresponds to `offset` in `range`.
    fn read_range(&self, range: &Range, address: u64, offset: u64, buf: &mut [u8]) -> bool {
        match &range.backing {
            Backing::Mapped(mapping, begin) => self.volatile(mapping, |slice| {
                slice.read_slice(buf, usize::try_from(begin + offset).unwrap_or(usize::MAX)).is_ok()
            }),
            Backing::File(held, begin) => all_read(&held.file, begin + offset, buf),
            Backing::Client => self.read_client(address, buf),
        }
    }

    fn write_range(&self, range: &Range, address: u64, offset: u64, data: &[u8]) -> bool {
        match &range.backing {
            Backing::Mapped(mapping, begin) => self.volatile(mapping, |slice| {
                slice.write_slice(data, usize::try_from(begin + offset).unwrap_or(usize::MAX)).is_ok()
            }),
            Backing::File(held, begin) => all_written(&held.file, begin + offset, data),
            Backing::Client => self.write_client(address, data),
        }
    }

    /// Loads `N` aligned bytes. `atomic` loads them from mapped memory.
    fn load<const N: usize>(
        &self,
        address: u64,
        atomic: impl FnOnce(VolatileSlice<'_>, usize) -> Option<[u8; N]>,
    ) -> Result<[u8; N], DmaFault> {
        let fault = DmaFault { address, len: N };
        let (range, offset) = self.place(address, N, false)?;
        let mut bytes = [0; N];
        let done = match &range.backing {
            Backing::Mapped(mapping, begin) => {
                let at = usize::try_from(begin + offset).unwrap_or(usize::MAX);
                self.volatile(mapping, |slice| atomic(slice, at).map(|read| bytes = read).is_some())
            }
            _ => self.read_range(range, address, offset, &mut bytes),
        };
        if done { Ok(bytes) } else { Err(fault) }
    }

    /// Stores `N` aligned bytes. `atomic` stores them to mapped memory.
    fn store<const N: usize>(
        &self,
        address: u64,
        bytes: [u8; N],
        atomic: impl FnOnce(VolatileSlice<'_>, usize) -> bool,
    ) -> Result<(), DmaFault> {
        let (range, offset) = self.place(address, N, true)?;
        let done = match &range.backing {
            Backing::Mapped(mapping, begin) => {
                let at = usize::try_from(begin + offset).unwrap_or(usize::MAX);
                self.volatile(mapping, |slice| atomic(slice, at))
            }
            _ => self.write_range(range, address, offset, &bytes),
        };
        if done { Ok(()) } else { Err(DmaFault { address, len: N }) }
    }

    /// Returns range and offset of an aligned access of `len` bytes.
    fn place(&self, address: u64, len: usize, write: bool) -> Result<(&Range, u64), DmaFault> {
        let fault = DmaFault { address, len };
        let (range, offset, rest) = self.find(address, write).ok_or(fault)?;
        let fits = rest >= len as u64 && address.is_multiple_of(len as u64);
        if fits { Ok((range, offset)) } else { Err(fault) }
    }
}

impl GuestMemory for GuestMap {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        self.pieces(address, buf.len(), false, |range, offset, part| {
            let at = address + part.start as u64;
            buf.get_mut(part).is_some_and(|part| self.read_range(range, at, offset, part))
        })
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.pieces(address, data.len(), true, |range, offset, part| {
            let at = address + part.start as u64;
            data.get(part).is_some_and(|part| self.write_range(range, at, offset, part))
        })
    }

    fn publish(&self, address: u64, entry: &[u8; 64]) -> Result<(), DmaFault> {
        let [.., a, b, c, d, e, f, g, h] = *entry;
        let last = [a, b, c, d, e, f, g, h];
        let (range, offset) = self.place(address, entry.len(), true)?;
        let Backing::Mapped(mapping, begin) = &range.backing else {
            self.write(address, &entry[..56])?;
            return self.store64(address + 56, u64::from_be_bytes(last));
        };
        let at = usize::try_from(begin + offset).unwrap_or(usize::MAX);
        let written = self.volatile(mapping, |slice| {
            slice.write_slice(&entry[..56], at).is_ok()
                && slice.store(u64::from_ne_bytes(last), at + 56, Ordering::Release).is_ok()
        });
        if written { Ok(()) } else { Err(DmaFault { address, len: entry.len() }) }
    }

    fn copy(&self, from: u64, target: &dyn GuestMemory, to: u64, len: usize) -> Result<(), DmaFault> {
        let Some(other) = (target as &dyn Any).downcast_ref::<Self>() else {
            return copy_in_parts(self, from, target, to, len);
        };
        let mut done = 0;
        while done < len as u64 {
            let (source, destination) = (from.wrapping_add(done), to.wrapping_add(done));
            let fault = |address| DmaFault { address, len };
            let (range, offset, rest) = self.find(source, false).ok_or(fault(source))?;
            let (far, far_offset, far_rest) = other.find(destination, true).ok_or(fault(destination))?;
            let part = rest.min(far_rest).min(len as u64 - done);
            match (&range.backing, &far.backing) {
                (Backing::Mapped(mapping, begin), Backing::Mapped(far, far_begin)) => {
                    let at = |begin: u64, offset| usize::try_from(begin + offset).unwrap_or(usize::MAX);
                    let copied =
                        mapping.copy(at(*begin, offset), far, at(*far_begin, far_offset), part as usize);
                    if copied != Ok(true) {
                        self.note_loss(mapping);
                        other.note_loss(far);
                        return Err(fault(source));
                    }
                }
                _ => copy_in_parts(self, source, target, destination, part as usize)?,
            }
            done += part;
        }
        Ok(())
    }

    fn load32(&self, address: u64) -> Result<u32, DmaFault> {
        self.load(address, |slice, at| slice.load(at, Ordering::Acquire).map(u32::to_ne_bytes).ok())
            .map(u32::from_be_bytes)
    }

    fn load64(&self, address: u64) -> Result<u64, DmaFault> {
        self.load(address, |slice, at| slice.load(at, Ordering::Acquire).map(u64::to_ne_bytes).ok())
            .map(u64::from_be_bytes)
    }

    fn store32(&self, address: u64, value: u32) -> Result<(), DmaFault> {
        self.store(address, value.to_be_bytes(), |slice, at| {
            slice.store(value.to_be(), at, Ordering::Release).is_ok()
        })
    }

    fn store64(&self, address: u64, value: u64) -> Result<(), DmaFault> {
        self.store(address, value.to_be_bytes(), |slice, at| {
            slice.store(value.to_be(), at, Ordering::Release).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, SeekFrom, Write};

    const PAGE: u64 = 4096;

    fn file(pages: u64) -> File {
        let descriptor = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let file = File::from(descriptor);
        file.set_len(pages * PAGE).expect("length");
        file
    }

    /// Maps pages of a file, starting at a given page.
    fn lend(map: &mut GuestMap, address: u64, (file, offset): (&File, u64), pages: u64, writable: bool) {
        let file = file.try_clone().expect("descriptor").into();
        let range = map.mapped(&file, offset, pages * PAGE, writable, Sources::Memory).expect("mapped");
        map.map(address, range).expect("map");
    }

    #[test]
    fn transfers_cross_adjacent_ranges_and_land_in_the_files() {
        let (mut low, mut high) = (file(1), file(2));
        let mut map = GuestMap::new(16);
        lend(&mut map, 0x10_0000, (&low, 0), 1, true);
        lend(&mut map, 0x10_1000, (&high, PAGE), 1, true);
        let data: Vec<u8> = (0..100).collect();
        map.write(0x10_1000 - 40, &data).expect("write");
        let mut seen = vec![0; 100];
        map.read(0x10_1000 - 40, &mut seen).expect("read");
        assert_eq!(seen, data);
        let mut ends = (vec![0; 40], vec![0; 60]);
        low.seek(SeekFrom::Start(PAGE - 40)).expect("seek");
        low.read_exact(&mut ends.0).expect("read");
        high.seek(SeekFrom::Start(PAGE)).expect("seek");
        high.read_exact(&mut ends.1).expect("read");
        assert_eq!([ends.0, ends.1].concat(), data);
    }

    #[test]
    fn entries_are_published_to_memory_of_each_kind() {
        let mut backing = file(2);
        let mut map = GuestMap::new(16);
        lend(&mut map, 0x4000, (&backing, 0), 1, true);
        let held = map.file(backing.try_clone().expect("descriptor").into(), PAGE, PAGE, true).expect("room");
        map.map(0x5000, held).expect("map");
        let entry: [u8; 64] = std::array::from_fn(|at| at as u8 + 1);
        for at in [0x4040, 0x5fc0] {
            map.publish(at, &entry).expect("inside");
            let mut seen = [0; 64];
            backing.seek(SeekFrom::Start(at - 0x4000)).expect("seek");
            backing.read_exact(&mut seen).expect("read");
            assert_eq!(seen, entry);
        }
        assert!(map.publish(0x6000, &entry).is_err());
    }

    #[test]
    fn copies_reach_another_map_across_ranges_of_both() {
        let (backing, far_backing) = (file(3), file(3));
        let (mut near, mut far) = (GuestMap::new(16), GuestMap::new(16));
        lend(&mut near, 0x10_0000, (&backing, 0), 2, true);
        lend(&mut far, 0x4000, (&far_backing, PAGE), 1, true);
        let held =
            far.file(far_backing.try_clone().expect("descriptor").into(), 0, PAGE, true).expect("room");
        far.map(0x5000, held).expect("map");
        lend(&mut far, 0x6000, (&far_backing, 2 * PAGE), 1, false);
        let data: Vec<u8> = (0..2 * PAGE).map(|at| (at % 251) as u8).collect();
        near.write(0x10_0000, &data).expect("write");
        near.copy(0x10_0010, &far, 0x4800, 0x1400).expect("inside");
        let mut seen = vec![0; 0x1400];
        far.read(0x4800, &mut seen).expect("read");
        assert!(seen == data[0x10..0x1410]);
        for (from, to) in [(0x10_1ff0, 0x4000), (0x10_0000, 0x5ff0), (0xf_fff0, 0x4000)] {
            assert!(near.copy(from, &far, to, 0x20).is_err(), "{from:#x} to {to:#x}");
        }
        assert_eq!((near.take_trouble(), far.take_trouble()), (None, None));
        far_backing.set_len(PAGE).expect("truncated");
        assert!(near.copy(0x10_0000, &far, 0x4000, 8).is_err());
        assert_eq!((near.take_trouble(), far.take_trouble()), (None, Some(Trouble::Lost)));
    }

    #[test]
    fn values_are_big_endian_in_memory_and_accesses_aligned() {
        let mut backing = file(1);
        backing.write_all(&[1, 2, 3, 4, 5, 6, 7, 8]).expect("write");
        let mut map = GuestMap::new(16);
        lend(&mut map, 0, (&backing, 0), 1, true);
        assert_eq!(map.load32(4), Ok(0x0506_0708));
        assert_eq!(map.load64(0), Ok(0x0102_0304_0506_0708));
        map.store64(8, 0x1122_3344_5566_7788).expect("store");
        map.store32(16, 0x99aa_bbcc).expect("store");
        let mut seen = [0; 12];
        map.read(8, &mut seen).expect("read");
        assert_eq!(seen, [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc]);
        assert_eq!(map.load64(4), Err(DmaFault { address: 4, len: 8 }));
        assert_eq!(map.load32(PAGE - 2), Err(DmaFault { address: PAGE - 2, len: 4 }));
    }

    #[test]
    fn read_only_and_absent_ranges_and_clients_that_left_fault_and_nothing_is_half_written() {
        let backing = file(3);
        let mut map = GuestMap::new(16);
        lend(&mut map, 0, (&backing, 0), 1, true);
        lend(&mut map, PAGE, (&backing, PAGE), 1, false);
        map.map(2 * PAGE, Range::client(PAGE, true)).expect("map");
        assert!(map.write(PAGE - 4, &[0xff; 8]).is_err(), "runs into the read-only range");
        assert_eq!(map.load32(PAGE - 4), Ok(0), "and changed nothing before it");
        assert!(map.read(PAGE, &mut [0; 16]).is_ok());
        assert!(map.store32(PAGE, 1).is_err());
        assert!(map.read(2 * PAGE, &mut [0; 1]).is_err());
        assert!(map.read(3 * PAGE, &mut [0; 1]).is_err());
        assert!(map.read(u64::MAX, &mut [0; 2]).is_err());
    }

    #[test]
    fn memory_may_come_page_by_page_from_one_mapping() {
        let backing = file(16);
        let descriptor = OwnedFd::from(backing.try_clone().expect("descriptor"));
        let mut map = GuestMap::new(1);
        // In descending order, because clients may use any order.
        for page in (0..16).rev() {
            let range = map.mapped(&descriptor, page * PAGE, PAGE, true, Sources::Memory).expect("mapped");
            map.map(0x10_0000 + page * PAGE, range).expect("map");
        }
        let data: Vec<u8> = (0..3 * PAGE).map(|at| (at % 251) as u8).collect();
        map.write(0x10_0000 + 5 * PAGE + 100, &data).expect("write");
        let mut seen = vec![0; data.len()];
        rustix::io::pread(&descriptor, &mut *seen, 5 * PAGE + 100).expect("read");
        assert!(seen == data);
        map.unmap(0x10_0000 + 6 * PAGE, PAGE).expect("whole");
        assert!(map.read(0x10_0000 + 6 * PAGE, &mut [0; 8]).is_err());
        assert!(map.read(0x10_0000 + 7 * PAGE, &mut [0; 8]).is_ok());
    }

    #[test]
    fn mapped_memory_has_a_limit() {
        let backing = file(4);
        let mut map = GuestMap::new(16);
        map.set_memory_limit(3 * PAGE);
        let add = |map: &mut GuestMap, page: u64, pages: u64| {
            let file = backing.try_clone().expect("descriptor").into();
            let range = map.mapped(&file, 0, pages * PAGE, true, Sources::Memory).expect("mapped");
            map.map(page * PAGE, range)
        };
        assert_eq!((add(&mut map, 0, 2), add(&mut map, 8, 2)), (Ok(()), Err(Errno::NOMEM)));
        assert_eq!(map.map(16 * PAGE, Range::client(1 << 40, true)), Ok(()), "not mapped here");
        assert_eq!((add(&mut map, 8, 1), add(&mut map, 12, 1)), (Ok(()), Err(Errno::NOMEM)));
        map.unmap(0, 2 * PAGE).expect("whole");
        assert_eq!((add(&mut map, 0, 2), add(&mut map, 12, 1)), (Ok(()), Err(Errno::NOMEM)));
        map.clear();
        assert_eq!(add(&mut map, 0, 3), Ok(()));
    }

    #[test]
    fn descriptors_are_counted() {
        let mut map = GuestMap::new(2);
        let add = |map: &mut GuestMap, address| {
            let range = map.file(file(1).into(), 0, PAGE, true)?;
            map.map(address, range)
        };
        assert_eq!([add(&mut map, 0), add(&mut map, PAGE)], [Ok(()); 2]);
        assert_eq!(add(&mut map, 2 * PAGE), Err(Errno::NOSPC));
        map.unmap(0, PAGE).expect("whole");
        assert_eq!(add(&mut map, 2 * PAGE), Ok(()));
        assert_eq!(map.file(file(1).into(), u64::MAX, PAGE, true).err(), Some(Errno::OVERFLOW));
    }

    #[test]
    fn a_file_that_is_not_mapped_holds_memory_too() {
        let mut backing = file(1);
        backing.write_all(&[9; 64]).expect("write");
        let mut map = GuestMap::new(4);
        let process = File::options().read(true).write(true).open("/proc/self/mem").expect("opens");
        let mut own = vec![3u8; 32];
        let place = own.as_mut_ptr() as u64;
        let base = place & !0xfff;
        let range = map.file(process.into(), base, PAGE, true).expect("room");
        map.map(0x5000, range).expect("map");
        let range = map.file(backing.into(), 0, PAGE, true).expect("room");
        map.map(0x4000, range).expect("map");
        let mut seen = [0; 8];
        let at = 0x5000 + (place - base);
        map.read(at, &mut seen).expect("read");
        assert_eq!(seen, [3; 8]);
        map.write(at, &[4; 32]).expect("write");
        assert_eq!(std::hint::black_box(&own), &[4; 32]);
        map.store64(0x4008, 0x0102_0304_0506_0708).expect("store");
        assert_eq!((map.load32(0x4008), map.load32(0x4010)), (Ok(0x0102_0304), Ok(0x0909_0909)));
    }

    #[test]
    fn memory_that_is_lost_is_trouble_once() {
        let backing = file(2);
        let mut map = GuestMap::new(4);
        lend(&mut map, 0, (&backing, 0), 2, true);
        assert_eq!((map.load32(0x1000), map.take_trouble()), (Ok(0), None));
        backing.set_len(PAGE).expect("truncated");
        assert!(map.load32(0x1000).is_err());
        assert_eq!((map.take_trouble(), map.take_trouble()), (Some(Trouble::Lost), None));
    }
}
