//! The vfio-user side of one emulated HCA: turns the client's messages into calls to the model thread.
//!
//! A register write is queued and returns; a register read comes from the register file; everything else
//! waits for the model thread's answer, so that, for one, an unmap replies only when no access can follow.

use super::memory::Range;
use super::model::{Caller, Request};
use hca_model::BarPort;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, ServerBackend, ServerRegion};

/// The region of BAR0.
const BAR0_REGION: u32 = 0;
/// Size of PCI Express configuration space.
const CONFIG_SIZE: u64 = 4096;

/// Register writes that may wait before the socket is left unread for a moment: the client's own queue has no
/// limit, so this only bounds the memory used here.
const BACKLOG_HIGH: usize = 1 << 16;
/// How long a socket is left unread at most. The client gives a read up after 5 s.
const BACKLOG_WAIT: Duration = Duration::from_secs(1);

/// The regions of an HCA: BAR0 and configuration space. Nothing is mapped into the client: one mapped area would
/// turn all trapped writes of the BAR into round trips.
pub fn regions() -> Vec<ServerRegion> {
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| {
            let size = match index {
                BAR0_REGION => hca_model::bar::BAR0_SIZE as u64,
                VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_SIZE,
                _ => 0,
            };
            let flags = if size > 0 { VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE } else { 0 };
            let argsz = size_of::<vfio_region_info>() as u32;
            let region_info = vfio_region_info { argsz, flags, index, cap_offset: 0, size, offset: 0 };
            ServerRegion { region_info, sparse_areas: Vec::new(), mmap_fd: None }
        })
        .collect()
}

/// The interrupts of an HCA: MSI-X alone. Without NORESIZE the client adds vectors one by one and never takes
/// all away to add one.
pub fn interrupts(vectors: u16) -> Vec<IrqInfo> {
    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| {
            let msix = index == VFIO_PCI_MSIX_IRQ_INDEX;
            IrqInfo {
                index,
                flags: if msix { VFIO_IRQ_INFO_EVENTFD } else { 0 },
                count: if msix { vectors.into() } else { 0 },
            }
        })
        .collect()
}

/// What one connection's messages act on.
pub struct Device {
    caller: Caller,
    bar: Arc<BarPort>,
    vectors: u32,
    /// The client was told once that its memory is out of reach.
    warned: bool,
}

impl Device {
    /// The device behind `caller`, its registers at `bar`.
    pub fn new(caller: Caller, bar: Arc<BarPort>, vectors: u16) -> Self {
        Self { caller, bar, vectors: vectors.into(), warned: false }
    }

    fn wait_for_backlog(&self) {
        if self.bar.backlog() < BACKLOG_HIGH {
            return;
        }
        let deadline = Instant::now() + BACKLOG_WAIT;
        while self.bar.backlog() > BACKLOG_HIGH / 2 && Instant::now() < deadline {
            self.caller.wake();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl ServerBackend for Device {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match region {
            BAR0_REGION => self.bar.read(usize::try_from(offset).unwrap_or(usize::MAX), data),
            VFIO_PCI_CONFIG_REGION_INDEX => {
                let answer = self.caller.call(Request::ConfigRead { offset, len: data.len() })?;
                data.fill(0);
                for (to, from) in data.iter_mut().zip(answer) {
                    *to = from;
                }
            }
            _ => data.fill(0xff),
        }
        Ok(())
    }

    /// Never fails: the crate would answer a posted write with an error, which the client does not expect.
    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match region {
            BAR0_REGION => {
                if let Ok(offset) = usize::try_from(offset) {
                    self.wait_for_backlog();
                    self.bar.write(offset, data);
                    self.caller.wake();
                }
            }
            VFIO_PCI_CONFIG_REGION_INDEX => {
                let written = self.caller.call(Request::ConfigWrite { offset, data: data.to_vec() });
                if let Err(error) = written {
                    eprintln!("hca {}: configuration write lost: {error}", self.caller.node());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        let writable = flags.contains(DmaMapFlags::WRITE);
        let range = Range::new(file, offset, size, writable)?;
        // ROMs come without a file; so does RAM that is not shared, and then DMA can never work.
        if !range.is_accessible() && writable && !self.warned {
            self.warned = true;
            eprintln!(
                "hca {}: guest memory at {address:#x} is not shared: give QEMU -object memory-backend-memfd,share=on",
                self.caller.node()
            );
        }
        self.caller.call(Request::Map { address, range }).map(drop)
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        let (address, size) =
            if flags.contains(DmaUnmapFlags::UNMAP_ALL) { (0, u64::MAX) } else { (address, size) };
        self.caller.call(Request::Unmap { address, size }).map(drop)
    }

    fn reset(&mut self) -> io::Result<()> {
        self.caller.call(Request::Reset).map(drop)
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        files: Vec<File>,
    ) -> io::Result<()> {
        if index != VFIO_PCI_MSIX_IRQ_INDEX || flags & VFIO_IRQ_SET_ACTION_TRIGGER == 0 {
            // Masks belong to the client; other interrupts do not exist.
            return Ok(());
        }
        let end = start.checked_add(count).filter(|&end| end <= self.vectors);
        if end.is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if flags & VFIO_IRQ_SET_DATA_NONE != 0 && count == 0 {
            return self.caller.call(Request::DisconnectVectors).map(drop);
        }
        if flags & VFIO_IRQ_SET_DATA_EVENTFD == 0 {
            return Ok(());
        }
        // A vector without a descriptor is one that nobody listens to.
        let mut events: Vec<Option<File>> = files.into_iter().map(Some).collect();
        events.resize_with(usize::try_from(count).unwrap_or(0), || None);
        self.caller.call(Request::ConnectVectors { start, events }).map(drop)
    }
}
