//! Effects of a client's messages on its device.
//!
//! Register writes are queued for the model; register reads come from the register file. All other
//! messages wait until the model has processed the writes before them, so that the client's order
//! is preserved.

use crate::guest::interrupts::Vectors;
use crate::guest::mapping::{Sources, file_system};
use crate::guest::memory::GuestMap;
use crate::guest::range::Range;

use crate::guest::registers::{self, BAR0, CONFIG, REGIONS};
use crate::wire::channel::{Channel, Message};
use crate::wire::protocol::{
    DmaMap, DmaUnmap, Fields, Header, MAX_DESCRIPTORS, MAX_TRANSFER, RegionAccess, SetIrqs, command,
};
use hca_model::world::NodePort;
use hca_model::{GuestMemory, Hca, Interrupts, pci};
use rustix::io::Errno;
use std::fmt;

/// Interrupt types of a PCI device: INTx, MSI, MSI-X, error, request.
const INTERRUPTS: u32 = 5;
/// MSI-X.
const MSIX: u32 = 2;
/// Longest VERSION message, in bytes. Clients send far less.
const LONGEST_VERSION: usize = 4096;
/// The device is a PCI device that can be reset.
const DEVICE_FLAGS: u32 = 0b11;
/// A region that can be read and written.
const READ_WRITE: u32 = 0b11;
/// Interrupt signalled by an event descriptor. Without NORESIZE (8), the client adds vectors one by
/// one and never removes all to add one.
const EVENTFD: u32 = 1;

/// Memory and interrupts that a device's client provided.
#[derive(Debug)]
pub struct Guest {
    pub memory: GuestMap,
    pub vectors: Vectors,
}

impl NodePort for Guest {
    fn parts(&mut self) -> (&dyn GuestMemory, &mut dyn Interrupts) {
        (&self.memory, &mut self.vectors)
    }

    /// An access to private memory waits for the client, which must not delay the peer.
    fn takes_copies(&self) -> bool {
        !self.memory.is_private()
    }
}

/// Remark about a client, for the user.
#[derive(Debug, PartialEq, Eq)]
pub enum Remark {
    /// RAM was announced without a file.
    NotShared { address: u64 },
    /// A map request was refused.
    Refused { address: u64, size: u64, why: &'static str },
    /// A map request was refused, because page faults on its file system (`f_type`) have no time
    /// limit.
    FileSystem { address: u64, size: u64, system: u32 },
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotShared { address } => write!(
                f,
                "guest memory at {address:#x} is not shared, which makes DMA slow: give QEMU \
                 -object memory-backend-memfd,share=on"
            ),
            Self::Refused { address, size, why } => {
                write!(f, "{size:#x} bytes of guest memory at {address:#x} refused: {why}")
            }
            Self::FileSystem { address, size, system } => write!(
                f,
                "{size:#x} bytes of guest memory at {address:#x} refused: a page fault on file system type {system:#x} \
                 can stop all HCAs; give QEMU -object memory-backend-memfd,share=on, or --file-io to trust every client"
            ),
        }
    }
}

/// Returns whether a message must wait for the register writes before it.
pub fn waits_for_writes(header: &Header, payload: &[u8]) -> bool {
    match header.command {
        command::REGION_READ | command::REGION_WRITE => {
            RegionAccess::parse(payload).is_some_and(|access| access.region == CONFIG)
        }
        command::REGION_WRITE_MULTI => false,
        _ => true,
    }
}

/// A device and its client, during the processing of one message.
pub struct Device<'a> {
    pub hca: &'a mut Hca,
    pub guest: &'a mut Guest,
    /// True after VERSION was negotiated.
    pub agreed: &'a mut bool,
    /// Permits files of any file system, and access by system calls.
    pub file_io: bool,
    /// Reports a remark to the user.
    pub remark: &'a mut dyn FnMut(Remark),
}

impl Device<'_> {
    /// Carries out a message and replies.
    pub fn handle(&mut self, channel: &mut Channel, mut message: Message) {
        let header = message.header;
        if header.is_reply() {
            // Reply to a command of ours that has timed out.
            return;
        }
        let agreed = *self.agreed || header.command == command::VERSION;
        let done = match header.command {
            _ if !agreed => Err(Errno::PROTO),
            command::VERSION => self.version(channel, &message),
            command::DMA_MAP => self.dma_map(channel, &mut message),
            command::DMA_UNMAP => self.dma_unmap(channel, &message),
            command::DEVICE_GET_INFO => device_info(channel, &message),
            command::DEVICE_GET_REGION_INFO => region_info(channel, &message, self.hca.registers().len()),
            command::DEVICE_GET_IRQ_INFO => self.irq_info(channel, &message),
            command::DEVICE_SET_IRQS => self.set_irqs(channel, &mut message),
            command::REGION_READ | command::REGION_WRITE => self.region_access(channel, &message),
            command::REGION_WRITE_MULTI => registers::write_multi(channel, &message, self.hca.registers()),
            command::DEVICE_RESET => {
                self.hca.machine_reset();
                channel.reply(&header, &[]);
                Ok(())
            }
            // Its payload was consumed with it, so that the stream stays aligned.
            _ => Err(Errno::OPNOTSUPP),
        };
        if let Err(error) = done {
            channel.refuse(&header, error);
        }
    }

    fn version(&mut self, channel: &mut Channel, message: &Message) -> Result<(), Errno> {
        let payload = channel.payload(message);
        if payload.len() > LONGEST_VERSION {
            return Err(Errno::INVAL);
        }
        let mut fields = Fields(payload);
        let (Some(major), Some(_minor)) = (fields.u16(), fields.u16()) else { return Err(Errno::INVAL) };
        if major != 0 {
            return Err(Errno::PROTONOSUPPORT);
        }
        // The capabilities are JSON with a terminating zero byte. They may be absent.
        let json = fields.0.split(|byte| *byte == 0).next().unwrap_or_default();
        let wanted: serde_json::Value = match json {
            [] => serde_json::Value::Null,
            json => serde_json::from_slice(json).map_err(|_| Errno::INVAL)?,
        };
        let transfer = wanted.pointer("/capabilities/max_data_xfer_size").and_then(serde_json::Value::as_u64);
        let transfer = transfer.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(MAX_TRANSFER);
        self.guest.memory.max_transfer = transfer.clamp(8, MAX_TRANSFER);
        *self.agreed = true;
        let answer = serde_json::json!({ "capabilities": {
            "max_msg_fds": MAX_DESCRIPTORS,
            "max_data_xfer_size": MAX_TRANSFER,
            "write_multiple": true,
        }});
        channel.reply(&message.header, &[&[0; 4], answer.to_string().as_bytes(), &[0]]);
        Ok(())
    }

    fn dma_map(&mut self, channel: &mut Channel, message: &mut Message) -> Result<(), Errno> {
        let map = DmaMap::parse(channel.payload(message)).ok_or(Errno::INVAL)?;
        let DmaMap { flags, offset, address, size } = map;
        let writable = flags & DmaMap::WRITE != 0;
        let mut descriptors = message.descriptors.drain(..);
        let range = match (descriptors.next(), descriptors.next()) {
            (_, Some(_)) => return Err(Errno::INVAL),
            (Some(_), None) if flags & DmaMap::FILE_IO != 0 && !self.file_io => {
                let why = "files that cannot be mapped are used only with --file-io";
                (self.remark)(Remark::Refused { address, size, why });
                return Err(Errno::PERM);
            }
            (Some(file), None) if flags & DmaMap::FILE_IO != 0 => {
                self.guest.memory.file(file, offset, size, writable)?
            }
            (Some(file), None) => {
                let sources = if self.file_io { Sources::Any } else { Sources::Memory };
                let range = self.guest.memory.mapped(&file, offset, size, writable, sources);
                range.inspect_err(|error| {
                    let why = match *error {
                        Errno::MEDIUMTYPE => {
                            let system = file_system(&file).unwrap_or_default();
                            return (self.remark)(Remark::FileSystem { address, size, system });
                        }
                        Errno::OVERFLOW => "its file is shorter",
                        Errno::NOSPC => "too many files",
                        _ => "its file cannot be mapped",
                    };
                    (self.remark)(Remark::Refused { address, size, why });
                })?
            }
            (None, None) => {
                // ROMs have no file; neither has RAM that is not shared.
                if writable {
                    (self.remark)(Remark::NotShared { address });
                }
                Range::client(size, writable)
            }
        };
        self.guest.memory.map(address, range).inspect_err(|error| {
            let why = match *error {
                Errno::NOSPC => "too many ranges",
                Errno::NOMEM => "more than --memory-limit",
                _ => return,
            };
            (self.remark)(Remark::Refused { address, size, why });
        })?;
        channel.reply(&message.header, &[]);
        Ok(())
    }

    fn dma_unmap(&mut self, channel: &mut Channel, message: &Message) -> Result<(), Errno> {
        let payload = channel.payload(message);
        let unmap = DmaUnmap::parse(payload).ok_or(Errno::INVAL)?;
        if unmap.is_all() {
            self.guest.memory.unmap(0, u64::MAX)?;
        } else {
            self.guest.memory.unmap(unmap.address, unmap.size)?;
        }
        let front = payload.get(..DmaUnmap::LEN).unwrap_or(payload).to_vec();
        channel.reply(&message.header, &[&front]);
        Ok(())
    }

    fn irq_info(&mut self, channel: &mut Channel, message: &Message) -> Result<(), Errno> {
        let mut fields = Fields(channel.payload(message));
        let (_argsz, _flags) = (fields.u32(), fields.u32());
        let index = fields.u32().filter(|index| *index < INTERRUPTS).ok_or(Errno::INVAL)?;
        let (flags, count) = match index {
            MSIX => (EVENTFD, self.guest.vectors.len() as u32),
            _ => (0, 0),
        };
        reply_words(channel, &message.header, &[16, flags, index, count]);
        Ok(())
    }

    fn set_irqs(&mut self, channel: &mut Channel, message: &mut Message) -> Result<(), Errno> {
        let set = SetIrqs::parse(channel.payload(message)).ok_or(Errno::INVAL)?;
        let vectors = self.guest.vectors.len();
        let in_range = |start: u32, count: u32| {
            start.checked_add(count).is_some_and(|end| usize::try_from(end).is_ok_and(|end| end <= vectors))
        };
        // The client handles masks; no other interrupts exist.
        if set.index < INTERRUPTS && (set.index != MSIX || set.flags & SetIrqs::ACTION_TRIGGER == 0) {
        } else if set.index != MSIX || !in_range(set.start, set.count) {
            return Err(Errno::INVAL);
        } else if set.flags & SetIrqs::DATA_NONE != 0 && set.count == 0 {
            self.guest.vectors.disconnect();
        } else if set.flags & SetIrqs::DATA_EVENTFD != 0 {
            if message.descriptors.len() > set.count as usize {
                return Err(Errno::INVAL);
            }
            // Vectors without a descriptor are disconnected.
            let mut events: Vec<_> = message.descriptors.drain(..).map(Some).collect();
            events.resize_with(set.count as usize, || None);
            self.guest.vectors.connect(set.start as usize, events)?;
        }
        channel.reply(&message.header, &[]);
        Ok(())
    }

    /// Carries out an access to a region. Only configuration space needs the device.
    fn region_access(&mut self, channel: &mut Channel, message: &Message) -> Result<(), Errno> {
        let payload = channel.payload(message);
        let access = RegionAccess::parse(payload).ok_or(Errno::INVAL)?;
        if access.region != CONFIG {
            return registers::carry_out(channel, message, Some(access), self.hca.registers());
        }
        if message.header.command == command::REGION_READ {
            registers::read(channel, message, &access, |offset, data| self.hca.config_read(offset, data))
        } else {
            registers::write(channel, message, &access, |offset, data| self.hca.config_write(offset, data))
        }
    }
}

fn device_info(channel: &mut Channel, message: &Message) -> Result<(), Errno> {
    if channel.payload(message).len() < 16 {
        return Err(Errno::INVAL);
    }
    reply_words(channel, &message.header, &[16, DEVICE_FLAGS, REGIONS, INTERRUPTS]);
    Ok(())
}

/// Replies for BAR0 and configuration space. Nothing is mapped into the client, because a mapped
/// area would turn all trapped writes of the BAR into round trips.
fn region_info(channel: &mut Channel, message: &Message, bar0: usize) -> Result<(), Errno> {
    let mut fields = Fields(channel.payload(message));
    let (_argsz, _flags) = (fields.u32(), fields.u32());
    let index = fields.u32().filter(|index| *index < REGIONS).ok_or(Errno::INVAL)?;
    let size = match index {
        BAR0 => bar0 as u64,
        CONFIG => pci::CONFIG_SIZE as u64,
        _ => 0,
    };
    let flags = if size > 0 { READ_WRITE } else { 0 };
    reply_words(channel, &message.header, &[32, flags, index, 0, size as u32, (size >> 32) as u32, 0, 0]);
    Ok(())
}

fn reply_words(channel: &mut Channel, header: &Header, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    channel.reply(header, &[&bytes]);
}
