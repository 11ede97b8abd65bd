//! The device: its regions, its interrupts, and memory that the server may reach.

use super::client::{BAR0, CONFIG, Client};
use super::wire::{Command, Payload, u32_at, u64_at};
use crate::bar::{LinuxBar, Registers};
use crate::error::{Error, Result};
use crate::interrupts::Interrupts;
use crate::iova::Iovas;
use crate::memory::{self, Memory, Shared};
use crate::options::Options;
use crate::pci::{self, ConfigSpace};
use driver_mlx::{DmaRegion, MapError};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The device may read memory.
const READ: u32 = 1;
/// The device may write memory.
const WRITE: u32 = 2;
/// The descriptor is read and written, because it cannot be mapped.
const FILE_IO: u32 = 1 << 3;
/// The index of MSI-X among interrupts.
const MSIX: u32 = 2;
/// Interrupts are event descriptors, and are raised by the device.
const EVENTFD_TRIGGER: u32 = 1 << 2 | 1 << 5;

/// An HCA behind a socket.
#[derive(Debug)]
pub(crate) struct Device {
    client: &'static Client,
    /// The connection once more, to wait for its end.
    stream: Option<UnixStream>,
    iovas: Mutex<Iovas>,
    /// This process's memory, for memory that is not in a file of ours.
    process: OnceLock<Option<File>>,
}

impl ConfigSpace for Client {
    fn get<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        self.read(CONFIG, offset)
    }

    fn put<const N: usize>(&self, offset: u64, value: [u8; N]) -> Result<()> {
        self.write(CONFIG, offset, &value)
    }
}

/// Connects to the server at `path`, resets the HCA and gives it a DMA region.
pub(crate) fn open(
    path: &Path,
    options: &Options,
    memory: &mut Memory,
) -> Result<(LinuxBar, Interrupts, Device, DmaRegion)> {
    let client = Client::connect(path)?;
    let info = client.request(Command::DeviceInfo, &Payload::default().u32(16).u32(0).u32(0).u32(0), &[])?;
    let regions = u32_at(&info, 8).unwrap_or(0);
    if regions <= CONFIG {
        return Err(Error::Unusable(format!("{regions} regions: no PCI device")));
    }
    let bar_len = region_len(&client, BAR0)?;
    let bar_len = usize::try_from(bar_len).ok().filter(|len| *len >= 4096);
    let bar_len = bar_len.ok_or_else(|| Error::Unusable("BAR0 is missing".into()))?;
    let irqs = client.request(Command::IrqInfo, &Payload::default().u32(16).u32(0).u32(MSIX).u32(0), &[])?;
    let vectors = u32_at(&irqs, 12).unwrap_or(0).min(options.vectors.into());
    if vectors == 0 {
        return Err(Error::Unusable("it has no MSI-X vectors".into()));
    }
    pci::identity(&client)?;
    reset(&client)?;
    // Handles to registers are copied and may outlive everything else.
    let client = memory.lend(client.with_bar(bar_len));
    let stream = client.duplicate();
    let device = Device {
        client,
        stream,
        iovas: Mutex::new(Iovas::new([0..=(1 << 48) - 1])),
        process: OnceLock::new(),
    };
    let shared = Shared::file(options.dma_bytes)?;
    let file = shared.file.as_ref().map(AsFd::as_fd);
    let at = device.map_file(shared.address(), shared.len() as u64, file, 0, READ | WRITE)?;
    let interrupts = Interrupts::new(vectors as usize)?;
    device.connect(&interrupts)?;
    pci::enable(client)?;
    let bar = LinuxBar(Registers::Socket(client));
    Ok((bar, interrupts, device, shared.into_region(at, memory)?))
}

/// A reset of the function: everything is as at power-on.
fn reset(client: &Client) -> Result<()> {
    client.request(Command::Reset, &Payload::default(), &[]).map(drop)
}

fn region_len(client: &Client, region: u32) -> Result<u64> {
    let payload = Payload::default().u32(32).u32(0).u32(region).u32(0).u64(0).u64(0);
    let info = client.request(Command::RegionInfo, &payload, &[])?;
    u64_at(&info, 16).ok_or_else(|| Error::Protocol {
        command: "DEVICE_GET_REGION_INFO",
        what: format!("{} bytes instead of 32", info.len()),
    })
}

impl Device {
    /// Its configuration space.
    pub(crate) fn config(&self) -> &Client {
        self.client
    }

    /// Returns whether the server has exited, or does not respond.
    pub(crate) fn is_gone(&self) -> bool {
        self.client.is_gone()
    }

    /// The same, for what outlives the connection.
    pub(crate) fn gone(&self) -> Arc<AtomicBool> {
        self.client.gone()
    }

    /// Resets the function.
    pub(crate) fn reset(&self) -> Result<()> {
        reset(self.client)
    }

    /// Lets its interrupts come to these descriptors.
    pub(crate) fn connect(&self, interrupts: &Interrupts) -> Result<()> {
        for (vector, descriptor) in interrupts.descriptors().enumerate() {
            let payload = Payload::default().u32(20).u32(EVENTFD_TRIGGER).u32(MSIX).u32(vector as u32).u32(1);
            self.client.request(Command::SetIrqs, &payload, &[descriptor])?;
        }
        Ok(())
    }

    /// The socket, to wait for its end.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(AsFd::as_fd)
    }

    /// Descriptors that keep the connection open.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let stream = self.stream.as_ref().map(AsRawFd::as_raw_fd);
        stream.into_iter().chain([self.client.descriptor()]).collect()
    }

    /// Returns a second descriptor of the socket.
    pub(crate) fn duplicate(&self) -> Option<UnixStream> {
        self.stream.as_ref().and_then(|stream| stream.try_clone().ok())
    }

    /// Ends the device's DMA, and the connection.
    pub(crate) fn stop(&self) {
        let _ = pci::stop_dma(self.client);
        self.client.close();
    }

    fn iovas(&self) -> MutexGuard<'_, Iovas> {
        self.iovas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the server reach `len` bytes at `offset` of a file, which are this process's at `va`;
    /// gives their device address.
    fn map_file(
        &self,
        va: u64,
        len: u64,
        file: Option<BorrowedFd<'_>>,
        offset: u64,
        flags: u32,
    ) -> Result<u64> {
        let no_room = Error::Options("no device addresses are left");
        let at = self.iovas().take(va, len).ok_or(no_room)?;
        let payload = Payload::default().u32(32).u32(flags).u64(offset).u64(at).u64(len);
        let files: Vec<_> = file.into_iter().collect();
        self.client.request(Command::DmaMap, &payload, &files).inspect_err(|_| {
            self.iovas().give_back(at);
        })?;
        Ok(at)
    }

    /// Makes whole pages of this process visible to the device.
    pub(crate) fn map(&self, start: u64, len: u64, writable: bool) -> std::result::Result<u64, MapError> {
        if !memory::is_mapped(start as usize, len as usize) {
            return Err(MapError::BadAddress);
        }
        // The server writes through a file of the kernel's that ignores protection. An IOMMU does
        // not, so neither does this.
        if writable && !memory::is_writable(start, len) {
            return Err(MapError::BadAddress);
        }
        let open = || File::options().read(true).write(true).open("/proc/self/mem").ok();
        let process = self.process.get_or_init(open).as_ref().ok_or(MapError::Unsupported)?;
        // Where the pages are in the file is their address.
        let rights = if writable { READ | WRITE } else { READ };
        let mapped = self.map_file(start, len, Some(process.as_fd()), start, rights | FILE_IO);
        mapped.map_err(|error| match error {
            Error::Options(_) => MapError::NoSpace,
            _ => MapError::Unsupported,
        })
    }

    /// Ends what [`Device::map`] began.
    pub(crate) fn unmap(&self, at: u64) {
        let Some(len) = self.iovas().len_of(at) else { return };
        let payload = Payload::default().u32(24).u32(0).u64(at).u64(len);
        // A server that is gone has forgotten it.
        let _ = self.client.request(Command::DmaUnmap, &payload, &[]);
        self.iovas().give_back(at);
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{HEADER, Header};
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;
    use std::thread;

    #[repr(align(4096))]
    struct Page(#[allow(dead_code, reason = "it is only mapped")] [u8; 4096]);

    /// Agrees to everything; returns the flags of the maps that it was sent.
    fn serve(mut stream: UnixStream) -> Vec<u32> {
        let (mut flags, mut header) = (Vec::new(), [0; HEADER]);
        while stream.read_exact(&mut header).is_ok() {
            let mut payload = vec![0; Header::from_bytes(&header).payload().unwrap()];
            stream.read_exact(&mut payload).unwrap();
            if header[2..4] == (Command::DmaMap as u16).to_le_bytes() {
                flags.push(u32_at(&payload, 4).unwrap());
            }
            // A reply of 20 bytes; those after the header are version 0 of the protocol.
            header[4..12].copy_from_slice(&[20, 0, 0, 0, 1, 0, 0, 0]);
            stream.write_all(&[&header[..], &[0; 4]].concat()).unwrap();
        }
        flags
    }

    #[test]
    fn the_device_writes_only_where_it_may() {
        let path = std::env::temp_dir().join(format!("platform-linux-rights-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || serve(listener.accept().unwrap().0));
        let client = Box::leak(Box::new(Client::connect(&path).unwrap()));
        std::fs::remove_file(&path).unwrap();
        let iovas = Mutex::new(Iovas::new([0..=(1 << 48) - 1]));
        let device = Device { client, stream: None, iovas, process: OnceLock::new() };
        let page = Box::new(Page([0; 4096]));
        for writable in [true, false] {
            device.map(&raw const *page as u64, 4096, writable).unwrap();
        }
        device.stop();
        drop(device);
        assert_eq!(server.join().unwrap(), [READ | WRITE | FILE_IO, READ | FILE_IO]);
    }
}
