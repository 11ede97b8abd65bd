//! A device's guest: memory and interrupts.

use std::any::Any;
use std::cell::RefCell;

use crate::seams::{DmaFault, GuestMemory, Interrupts, copy_in_parts};
use crate::world::NodePort;

/// Guest memory. What lies beyond its end does not answer.
pub(super) struct Ram {
    bytes: RefCell<Vec<u8>>,
}

impl Ram {
    fn span(&self, address: u64, len: usize) -> Result<usize, DmaFault> {
        let fault = DmaFault { address, len };
        let start = usize::try_from(address).map_err(|_| fault)?;
        let end = start.checked_add(len).ok_or(fault)?;
        if end > self.bytes.borrow().len() { Err(fault) } else { Ok(start) }
    }
}

impl GuestMemory for Ram {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let at = self.span(address, buf.len())?;
        buf.copy_from_slice(&self.bytes.borrow()[at..at + buf.len()]);
        Ok(())
    }
    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        let at = self.span(address, data.len())?;
        self.bytes.borrow_mut()[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn copy(&self, from: u64, target: &dyn GuestMemory, to: u64, len: usize) -> Result<(), DmaFault> {
        let Some(target) = (target as &dyn Any).downcast_ref::<Self>() else {
            return copy_in_parts(self, from, target, to, len);
        };
        let (from, to) = (self.span(from, len)?, target.span(to, len)?);
        target.bytes.borrow_mut()[to..to + len].copy_from_slice(&self.bytes.borrow()[from..from + len]);
        Ok(())
    }
    fn load32(&self, address: u64) -> Result<u32, DmaFault> {
        let mut b = [0; 4];
        self.read(address, &mut b)?;
        Ok(u32::from_be_bytes(b))
    }
    fn load64(&self, address: u64) -> Result<u64, DmaFault> {
        let mut b = [0; 8];
        self.read(address, &mut b)?;
        Ok(u64::from_be_bytes(b))
    }
    fn store32(&self, address: u64, value: u32) -> Result<(), DmaFault> {
        self.write(address, &value.to_be_bytes())
    }
    fn store64(&self, address: u64, value: u64) -> Result<(), DmaFault> {
        self.write(address, &value.to_be_bytes())
    }
}

pub(super) struct Raised(Vec<u16>);
impl Interrupts for Raised {
    fn raise(&mut self, vector: u16) {
        self.0.push(vector);
    }
}

/// A device's guest.
pub(super) struct Guest {
    pub(super) ram: Ram,
    pub(super) raised: Raised,
    next: u64,
    /// Number, ring, consumer index and log2 of entries of each CQ.
    pub(super) cqs: Vec<(u32, u64, u32, u32)>,
    /// Ring and consumer index of the EQ.
    pub(super) eq: (u64, u32),
    /// True if peers must send packets.
    pub(super) private: bool,
    /// True if requests of peers panic.
    pub(super) panics: bool,
}

impl NodePort for Guest {
    fn parts(&mut self) -> (&dyn GuestMemory, &mut dyn Interrupts) {
        (&self.ram, &mut self.raised)
    }

    fn contain<T>(&mut self, work: impl FnOnce(&dyn GuestMemory, &mut dyn Interrupts) -> T) -> Option<T> {
        let panics = self.panics;
        let work = || {
            assert!(!panics, "planted");
            let (memory, interrupts) = self.parts();
            work(memory, interrupts)
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok()
    }

    fn takes_copies(&self) -> bool {
        !self.private
    }
}

impl Guest {
    pub(super) fn new(ram: usize) -> Self {
        Self {
            ram: Ram { bytes: RefCell::new(vec![0; ram]) },
            raised: Raised(Vec::new()),
            next: 0x1000,
            cqs: Vec::new(),
            private: false,
            panics: false,
            eq: (0, 0),
        }
    }

    /// A piece of memory, zeroed, aligned to 4 KiB.
    pub(super) fn alloc(&mut self, len: usize) -> u64 {
        let at = self.next;
        self.next += (len as u64).next_multiple_of(0x1000);
        assert!(self.next as usize <= self.ram.bytes.borrow().len(), "guest memory is full");
        at
    }

    pub(super) fn write(&self, at: u64, data: &[u8]) {
        self.ram.write(at, data).unwrap();
    }

    pub(super) fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.ram.read(at, &mut data).unwrap();
        data
    }
}
