//! Accesses to regions that need no device: BAR0's registers, and regions without size.
//!
//! A write is queued for the model, and a read returns the register file; neither runs the model.
//! Therefore both are served even while the device waits for its client. The client's processor may
//! itself wait for such a read.

use crate::wire::channel::{Channel, Message};
use crate::wire::protocol::{Fields, MAX_TRANSFER, RegionAccess, command};
use hca_model::BarPort;
use rustix::io::Errno;

/// The regions of a PCI device in VFIO's numbering: six BARs, expansion ROM, configuration space,
/// VGA.
pub const REGIONS: u32 = 9;
/// Region number of BAR0.
pub const BAR0: u32 = 0;
/// Region number of configuration space.
pub const CONFIG: u32 = 7;

/// Limit of queued register writes before the socket is no longer read. The client's own queue has
/// no limit, so this only bounds the memory used here.
pub const BACKLOG: usize = 1 << 13;

/// Returns the access in a message, if its region needs no device.
pub fn access_of(command: u16, payload: &[u8]) -> Option<RegionAccess> {
    match command {
        command::REGION_READ | command::REGION_WRITE => {
            RegionAccess::parse(payload).filter(|access| access.region != CONFIG)
        }
        _ => None,
    }
}

/// Replies to a read of `access.count` bytes, which `fill` supplies.
///
/// # Errors
/// `EINVAL`: the count exceeds a message, or the region does not exist.
pub fn read(
    channel: &mut Channel,
    message: &Message,
    access: &RegionAccess,
    fill: impl FnOnce(usize, &mut [u8]),
) -> Result<(), Errno> {
    let count = usize::try_from(access.count).unwrap_or(usize::MAX);
    if count > MAX_TRANSFER || access.region >= REGIONS {
        return Err(Errno::INVAL);
    }
    let offset = usize::try_from(access.offset).unwrap_or(usize::MAX);
    let front = front(channel, message)?;
    let mut small = [0xff; 8];
    let mut large;
    let data = match small.get_mut(..count) {
        Some(data) => data,
        None => {
            large = vec![0xff; count];
            &mut large
        }
    };
    fill(offset, data);
    channel.reply(&message.header, &[&front, data]);
    Ok(())
}

/// Replies to a write, which `put` carries out.
///
/// # Errors
/// `EINVAL`: fewer bytes than announced, or the region does not exist.
pub fn write(
    channel: &mut Channel,
    message: &Message,
    access: &RegionAccess,
    put: impl FnOnce(usize, &[u8]),
) -> Result<(), Errno> {
    let data = channel.payload(message).get(RegionAccess::LEN..).unwrap_or_default();
    let data = data.get(..access.count as usize).ok_or(Errno::INVAL)?;
    if access.region >= REGIONS {
        return Err(Errno::INVAL);
    }
    put(usize::try_from(access.offset).unwrap_or(usize::MAX), data);
    if message.header.wants_reply() {
        let front = front(channel, message)?;
        channel.reply(&message.header, &[&front]);
    }
    Ok(())
}

/// Carries out several writes.
///
/// # Errors
/// `EINVAL`: the number or a length is wrong, or a write is to configuration space. Such a write
/// would have to wait for those before it, and no client sends one. Preceding writes are carried
/// out.
pub fn write_multi(channel: &mut Channel, message: &Message, registers: &BarPort) -> Result<(), Errno> {
    let mut fields = Fields(channel.payload(message));
    let count = fields.u64().ok_or(Errno::INVAL)?;
    let (writes, rest) = fields.0.as_chunks::<{ RegionAccess::MULTI_LEN }>();
    if !rest.is_empty() || writes.len() as u64 != count {
        return Err(Errno::INVAL);
    }
    for write in writes {
        let access = RegionAccess::parse(write).ok_or(Errno::INVAL)?;
        let data = write.get(RegionAccess::LEN..).unwrap_or_default();
        let data = data.get(..access.count as usize).ok_or(Errno::INVAL)?;
        match access.region {
            BAR0 => registers.write(usize::try_from(access.offset).unwrap_or(usize::MAX), data),
            CONFIG | REGIONS.. => return Err(Errno::INVAL),
            _ => {}
        }
    }
    channel.reply(&message.header, &[&count.to_le_bytes()]);
    Ok(())
}

fn front(channel: &Channel, message: &Message) -> Result<[u8; RegionAccess::LEN], Errno> {
    channel.payload(message).first_chunk().copied().ok_or(Errno::INVAL)
}

/// Carries out an access to a region that needs no device.
///
/// # Errors
/// As [`read`], [`write`] and [`write_multi`].
pub fn carry_out(
    channel: &mut Channel,
    message: &Message,
    access: Option<RegionAccess>,
    registers: &BarPort,
) -> Result<(), Errno> {
    match (message.header.command, access) {
        (command::REGION_READ, Some(access)) => read(channel, message, &access, |offset, data| {
            if access.region == BAR0 {
                registers.read(offset, data);
            }
        }),
        (command::REGION_WRITE, Some(access)) => write(channel, message, &access, |offset, data| {
            if access.region == BAR0 {
                registers.write(offset, data);
            }
        }),
        (command::REGION_WRITE_MULTI, _) => write_multi(channel, message, registers),
        _ => Err(Errno::INVAL),
    }
}

/// Messages served in one iteration while the device waits for its client.
const SERVED: usize = 16;

/// Carries out the next accesses, up to the first other message. Returns whether there may be more.
pub fn serve(channel: &mut Channel, registers: &BarPort) -> bool {
    for _ in 0..SERVED {
        if registers.backlog() >= BACKLOG {
            return false;
        }
        let Some((header, payload)) = channel.peek() else { return false };
        let access = access_of(header.command, payload);
        let ours = access.is_some() || header.command == command::REGION_WRITE_MULTI;
        if !ours || header.is_reply() {
            return false;
        }
        let Some(message) = channel.next() else { return false };
        if let Err(error) = carry_out(channel, &message, access, registers) {
            channel.refuse(&message.header, error);
        }
    }
    true
}
