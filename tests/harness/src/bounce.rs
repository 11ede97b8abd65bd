//! Memory that a device sees a copy of: what the node writes reaches the device by `sync_for_device` alone, and what the device writes
//! reaches the node by `sync_for_cpu` alone. So it is with bounce buffers, and with caches that nothing keeps coherent.

use crate::memory::Memory;
use driver_mlx::DmaSlice;
use hca_model::{DmaFault, GuestMemory};
use std::cell::RefCell;
use std::rc::Rc;

/// Device addresses of mapped memory: beyond every region.
const MAPPED: u64 = 0x8000_0000_0000;
/// Distance of two pieces of mapped memory.
const STRIDE: u64 = 1 << 32;

/// Memory of the node, and the device's copy of it.
struct Copy {
    va: usize,
    device: u64,
    bytes: Vec<u8>,
    /// The device may write here.
    writable: bool,
}

impl Copy {
    /// Where `len` bytes from `address` of the device on are in the copy.
    fn at(&self, address: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let offset = usize::try_from(address.checked_sub(self.device)?).ok()?;
        (offset.checked_add(len)? <= self.bytes.len()).then_some(offset..offset + len)
    }

    /// What of the node's `len` bytes at `va` is copied: those bytes of the node, and the device's.
    fn shared(&mut self, va: usize, len: usize) -> Option<(DmaSlice<'static>, &mut [u8])> {
        let from = va.max(self.va);
        let end = (va + len).min(self.va + self.bytes.len());
        let offset = from - self.va;
        let bytes =
            self.bytes.get_mut(offset..end.checked_sub(self.va)?).filter(|bytes| !bytes.is_empty())?;
        // SAFETY: a region's memory is never freed, and who mapped other memory promised that it stays until it is unmapped, without
        // references, and in this thread.
        let node = unsafe { DmaSlice::from_raw(std::ptr::with_exposed_provenance_mut(from), 0, bytes.len()) };
        Some((node, bytes))
    }
}

#[derive(Default)]
struct Inner {
    copies: Vec<Copy>,
    mapped: u64,
}

/// All copies of a node.
#[derive(Clone, Default)]
pub(crate) struct Bounce(Rc<RefCell<Inner>>);

impl Bounce {
    /// Maps memory that is not the region's. As with an IOMMU, the device writes there only if
    /// it is `writable`.
    pub(crate) fn map(&self, va: usize, len: usize, writable: bool) -> u64 {
        let mut inner = self.0.borrow_mut();
        let device = MAPPED + inner.mapped * STRIDE + va as u64 % 4096;
        inner.mapped += 1;
        inner.copies.push(Copy { va, device, bytes: vec![0; len], writable });
        device
    }

    pub(crate) fn unmap(&self, device: u64, len: usize) {
        let copies = &mut self.0.borrow_mut().copies;
        let at = copies.iter().position(|copy| copy.device == device && copy.bytes.len() == len);
        copies.remove(at.expect("mapped before, with this length"));
    }

    /// From now on the device sees a copy of this part of the region.
    pub(crate) fn shadow(&self, part: DmaSlice<'_>) {
        let mut bytes = vec![0; part.len()];
        part.read(0, &mut bytes).expect("all of it");
        let copy = Copy { va: part.va(), device: part.device_address(), bytes, writable: true };
        self.0.borrow_mut().copies.push(copy);
    }

    /// Whether the device sees all memory as the node does.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().copies.is_empty()
    }

    /// Virtual address and length of each mapping, and whether the device may write there.
    pub(crate) fn mapped(&self) -> Vec<(usize, usize, bool)> {
        let inner = self.0.borrow();
        let mapped = inner.copies.iter().filter(|copy| copy.device >= MAPPED);
        mapped.map(|copy| (copy.va, copy.bytes.len(), copy.writable)).collect()
    }

    pub(crate) fn sync_for_device(&self, va: usize, len: usize) {
        for copy in &mut self.0.borrow_mut().copies {
            if let Some((node, bytes)) = copy.shared(va, len) {
                node.read(0, bytes).expect("of one length");
            }
        }
    }

    pub(crate) fn sync_for_cpu(&self, va: usize, len: usize) {
        for copy in &mut self.0.borrow_mut().copies {
            if let Some((node, bytes)) = copy.shared(va, len) {
                node.write(0, bytes).expect("of one length");
            }
        }
    }
}

/// A node's memory as its device sees it.
pub(crate) struct DeviceSide {
    pub(crate) memory: Memory,
    pub(crate) bounce: Bounce,
}

impl DeviceSide {
    /// Calls `work` with the copy of these bytes, if the device sees one, and whether it may write
    /// there.
    fn copied<R>(&self, address: u64, len: usize, work: impl FnOnce(&mut [u8], bool) -> R) -> Option<R> {
        let copies = &mut self.bounce.0.borrow_mut().copies;
        copies
            .iter_mut()
            .find_map(|copy| copy.at(address, len).map(|at| (at, copy)))
            .map(|(at, copy)| work(&mut copy.bytes[at], copy.writable))
    }
}

impl GuestMemory for DeviceSide {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let copied = self.copied(address, buf.len(), |bytes, _| buf.copy_from_slice(bytes));
        if copied.is_some() { Ok(()) } else { self.memory.read(address, buf) }
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        let copied = self.copied(address, data.len(), |bytes, writable| {
            if !writable {
                return Err(DmaFault { address, len: data.len() });
            }
            bytes.copy_from_slice(data);
            Ok(())
        });
        copied.unwrap_or_else(|| self.memory.write(address, data))
    }

    // The device reads and writes words in rings and doorbell records, of which there are no copies.

    fn load32(&self, address: u64) -> Result<u32, DmaFault> {
        self.memory.load32(address)
    }

    fn load64(&self, address: u64) -> Result<u64, DmaFault> {
        self.memory.load64(address)
    }

    fn store32(&self, address: u64, value: u32) -> Result<(), DmaFault> {
        self.memory.store32(address, value)
    }

    fn store64(&self, address: u64, value: u64) -> Result<(), DmaFault> {
        self.memory.store64(address, value)
    }
}
