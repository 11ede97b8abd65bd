//! Requests: `ioctl(2)`.

use super::{Called, lock, on};
use crate::failure::{Answer, Failure};
use crate::memory::{bytes, room};
use crate::node::{Node, State};
use crate::socket::Descriptor;
use core::ffi::{c_ulong, c_void};
use rds_nostd::cmsg::{IFREQ_LEN, InterfaceField, encode_ifreq, named_interface};
use rds_nostd::{Profile, RdsError};

/// Bytes of a `struct ifconf`, in either system with 64 bits: an int, and at 8 a pointer.
const IFCONF_LEN: u64 = 16;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// `SIOCRDSSETTOS` and `SIOCRDSGETTOS`, a byte.
    SetService,
    GetService,
    /// `FIONBIO`, an int.
    NonBlocking,
    /// `FIONREAD`, an int: bytes of the next message.
    Readable,
    /// `TIOCOUTQ`, an int: bytes that the peers have not acknowledged.
    Unacknowledged,
    /// `SIOCGIFNUM`, an int.
    Interfaces,
    /// `SIOCGIFCONF`, a `struct ifconf`. A short buffer cuts the list (`cut`), or fails the call.
    List {
        cut: bool,
    },
    /// `SIOCGIFADDR`, `SIOCGIFFLAGS`, `SIOCGIFMTU`: a `struct ifreq`.
    Interface(InterfaceField),
}

impl Request {
    /// Decodes a request's number, of which 32 bits count. Returns `None` for unsupported numbers.
    fn of(profile: Profile, number: c_ulong) -> Option<Self> {
        const SET_SERVICE: u32 = 0x89e0;
        const GET_SERVICE: u32 = 0x89e1;
        Some(match (profile, number as u32) {
            (_, SET_SERVICE) => Self::SetService,
            (_, GET_SERVICE) => Self::GetService,
            (Profile::Linux, 0x5421) | (Profile::Solaris, 0x8004_667e) => Self::NonBlocking,
            (Profile::Linux, 0x541b) | (Profile::Solaris, 0x4004_667f) => Self::Readable,
            (Profile::Linux, 0x5411) | (Profile::Solaris, 0x7473) => Self::Unacknowledged,
            (Profile::Solaris, 0x4004_6957) => Self::Interfaces,
            (Profile::Linux, 0x8912) | (Profile::Solaris, 0xc008_6914) => Self::List { cut: true },
            (Profile::Solaris, 0xc008_695c) => Self::List { cut: false },
            (Profile::Linux, 0x8913) | (Profile::Solaris, 0xc020_6911) => {
                Self::Interface(InterfaceField::Flags)
            }
            (Profile::Linux, 0x8915) | (Profile::Solaris, 0xc020_690d) => {
                Self::Interface(InterfaceField::Address)
            }
            (Profile::Linux, 0x8921) | (Profile::Solaris, 0xc020_6916) => {
                Self::Interface(InterfaceField::Mtu)
            }
            _ => return None,
        })
    }
}

/// `ioctl(2)`: types of service, `FIONBIO`, `FIONREAD`, `TIOCOUTQ`, and the interfaces.
pub unsafe fn rds_ioctl<N: Node>(fd: i32, request: c_ulong, argument: *mut c_void) -> Called {
    on::<N>(fd, |node, profile| {
        let request = Request::of(profile, request).ok_or(RdsError::NoTypeOfService)?;
        if argument.is_null() {
            return Err(Failure::Fault);
        }
        let at = argument.expose_provenance() as u64;
        let mut guard = lock(node)?;
        let inner = &mut N::state(&mut guard);
        let handle = inner.socket(fd)?.handle;
        let number = match request {
            Request::SetService => {
                inner.usable()?;
                // SAFETY: the caller's: a byte.
                let service = unsafe { argument.cast::<u8>().read() };
                inner.rds.set_type_of_service(handle, service)?;
                return Ok(0);
            }
            Request::GetService => {
                let service = inner.rds.type_of_service(handle)?;
                // SAFETY: the caller's: a byte.
                unsafe { argument.cast::<u8>().write(service) };
                return Ok(0);
            }
            Request::NonBlocking => {
                // SAFETY: the caller's: an int.
                let on = unsafe { argument.cast::<i32>().read_unaligned() } != 0;
                inner.socket(fd)?.descriptor.set_nonblocking(on);
                return Ok(0);
            }
            Request::List { cut } => {
                // SAFETY: the caller's: a `struct ifconf`, and the buffer that it names.
                unsafe { fill_ifconf(inner, profile, at, cut) }?;
                return Ok(0);
            }
            Request::Interface(field) => {
                // SAFETY: the caller's: a `struct ifreq`.
                unsafe { fill_ifreq(inner, profile, at, field) }?;
                return Ok(0);
            }
            Request::Readable => inner.rds.next_message_len(handle)?,
            Request::Unacknowledged => inner.rds.unacknowledged_bytes(handle)?,
            Request::Interfaces => inner.rds.interfaces(inner.adapter).len(),
        };
        // SAFETY: the caller's: an int.
        unsafe { argument.cast::<i32>().write_unaligned(i32::try_from(number).unwrap_or(i32::MAX)) };
        Ok(0)
    })
}

/// Fills the buffer of a `struct ifconf` with the interfaces that have addresses. On Linux a null
/// buffer returns the length of the list.
///
/// # Safety
/// `at` is the address of a `struct ifconf` of the program, and its buffer is the program's.
unsafe fn fill_ifconf<N: Node>(inner: &State<'_, N>, profile: Profile, at: u64, cut: bool) -> Answer<()> {
    // SAFETY: this function's contract.
    let conf: [u8; IFCONF_LEN as usize] =
        unsafe { bytes(at, IFCONF_LEN) }?.try_into().map_err(|_| RdsError::InvalidArgument)?;
    let (len, buffer) = conf.split_at(8);
    let len = i32::from_ne_bytes(*len.first_chunk().ok_or(RdsError::InvalidArgument)?);
    let buffer = u64::from_ne_bytes(*buffer.first_chunk().ok_or(RdsError::InvalidArgument)?);
    // Linux treats a negative length as 0.
    let len = if profile == Profile::Linux { len.max(0) } else { len };
    let len = u64::try_from(len).map_err(|_| RdsError::InvalidArgument)?;
    let interfaces = inner.rds.interfaces(inner.adapter);
    let all = interfaces
        .iter()
        .filter_map(|interface| encode_ifreq(profile, interface, InterfaceField::Address))
        .map(|entry| (entry, profile.ifreq_len()));
    let mut filled = 0;
    if buffer == 0 && profile == Profile::Linux {
        filled = all.map(|(_, len)| len).sum();
    } else {
        // SAFETY: this function's contract.
        let buffer = unsafe { room(buffer, len) }?;
        for (entry, len) in all {
            match buffer.get_mut(filled..filled + len) {
                Some(place) => place.copy_from_slice(entry.get(..len).unwrap_or_default()),
                None if cut => break,
                None => return Err(RdsError::InvalidArgument.into()),
            }
            filled += len;
        }
    }
    // The program may have named the structure itself as its buffer. The buffer's borrow has ended
    // here.
    // SAFETY: this function's contract.
    let place = unsafe { room(at, size_of::<i32>() as u64) }?;
    place.copy_from_slice(&(filled as i32).to_ne_bytes());
    Ok(())
}

/// Fills a `struct ifreq`, whose name selects the interface.
///
/// # Safety
/// `at` is the address of a `struct ifreq` of the program.
unsafe fn fill_ifreq<N: Node>(
    inner: &State<'_, N>,
    profile: Profile,
    at: u64,
    field: InterfaceField,
) -> Answer<()> {
    let len = profile.ifreq_len();
    let interfaces = inner.rds.interfaces(inner.adapter);
    // SAFETY: this function's contract.
    let request = unsafe { bytes(at, len as u64) }?;
    let found = named_interface(profile, &interfaces, request).ok_or(RdsError::NoInterface)?;
    let reply: [u8; IFREQ_LEN] = encode_ifreq(profile, found, field).ok_or(RdsError::AddressNotAvailable)?;
    // SAFETY: this function's contract. `request` is not used again.
    let place = unsafe { room(at, len as u64) }?;
    place.copy_from_slice(reply.get(..len).unwrap_or_default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_each_systems() {
        let flags = Some(Request::Interface(InterfaceField::Flags));
        assert_eq!(Request::of(Profile::Linux, 0x8913), flags);
        assert_eq!(Request::of(Profile::Solaris, 0xc020_6911), flags);
        assert_eq!(Request::of(Profile::Solaris, 0x8913), None);
        // Sign-extended, as a program's `int` passes it.
        assert_eq!(Request::of(Profile::Solaris, 0xc020_6911_u32 as i32 as c_ulong), flags);
        assert_eq!(Request::of(Profile::Linux, 0x89e1), Some(Request::GetService));
        assert_eq!(Request::of(Profile::Linux, 0x8914), None);
    }
}
