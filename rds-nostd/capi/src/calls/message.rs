//! Messages.

use super::socket::read_address;
use super::{on, put_address};
use crate::abi::{HEADER_LEN, Header};
use crate::control::{Asked, told};
use crate::failure::{Answer, Failure};
use crate::memory::{bytes, elements, gather, room, scatter, store};
use crate::node::Inner;
use crate::wait::until;
use rds_nostd::cmsg::RdsIovec;
use rds_nostd::{Arrival, Msg, MsgFlags, Profile, RdsError};
use std::ffi::c_void;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr;

/// The longest message there is, bytes.
const LONGEST: usize = 1 << 20;

/// Flags of calls that the systems number differently: do not wait, and (told) control messages were cut.
fn numbers(profile: Profile) -> (u32, i32) {
    match profile {
        Profile::Linux => (0x40, 8),
        Profile::Solaris => (0x80, 0x10),
    }
}

/// Flags as the protocol has them.
fn flags_of(profile: Profile, flags: i32) -> MsgFlags {
    let (dont_wait, _) = numbers(profile);
    let flags = flags.cast_unsigned();
    let mut known = MsgFlags::from_bits_retain(flags & !dont_wait);
    known.set(MsgFlags::DONTWAIT, flags & dont_wait != 0);
    known
}

/// Reads a `struct msghdr`.
///
/// # Safety
/// `from` is null or a header of the profile's layout.
unsafe fn header(profile: Profile, from: *const c_void) -> Answer<(Header, [u8; HEADER_LEN])> {
    if from.is_null() {
        return Err(Failure::Fault);
    }
    let mut raw = [0; HEADER_LEN];
    // SAFETY: this function's contract.
    unsafe { raw.as_mut_ptr().copy_from_nonoverlapping(from.cast(), Header::len(profile)) };
    Ok((Header::decode(profile, &raw), raw))
}

/// What is sent.
struct Outgoing<'a> {
    to: Option<SocketAddr>,
    payload: &'a [u8],
    asked: Asked,
    flags: i32,
}

fn send(fd: RawFd, node: &'static crate::node::Node, profile: Profile, out: &Outgoing<'_>) -> Answer<isize> {
    let flags = flags_of(profile, out.flags);
    let control = out.asked.control();
    let control = (!control.is_empty()).then_some(&control);
    let cookie = until(node, fd, flags.contains(MsgFlags::DONTWAIT), |inner, handle| {
        let message = Msg { to: out.to, payload: out.payload, control, flags };
        Ok(inner.rds.sendmsg(&mut inner.adapter, handle, message)?)
    })?;
    if let Some(cookie) = cookie {
        // SAFETY: the program's, by the contract of the call that was made.
        unsafe { store(out.asked.cookie_at(), cookie.0) }?;
    }
    Ok(out.payload.len() as isize)
}

/// `sendmsg(2)`, of a `struct msghdr` as the socket's system lays it out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_sendmsg(fd: i32, message: *const c_void, flags: i32) -> isize {
    on(fd, |node, profile| {
        // SAFETY: the caller's.
        unsafe {
            let (header, _) = header(profile, message)?;
            let to = match header.name_len {
                0 => None,
                len => Some(read_address(profile, header.name, len)?),
            };
            let mut copy = Vec::new();
            let payload = gather(&elements(header.iov, header.iov_len)?, &mut copy)?;
            let asked = Asked::parse(profile, bytes(header.control, header.control_len)?)?;
            send(fd, node, profile, &Outgoing { to, payload, asked, flags })
        }
    })
}

/// `sendto(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_sendto(
    fd: i32,
    buffer: *const c_void,
    len: usize,
    flags: i32,
    address: *const c_void,
    address_len: u32,
) -> isize {
    on(fd, |node, profile| {
        // SAFETY: the caller's.
        unsafe {
            let to = match address.is_null() || address_len == 0 {
                true => None,
                false => Some(read_address(profile, address.expose_provenance() as u64, address_len)?),
            };
            let payload = bytes(buffer.expose_provenance() as u64, len as u64)?;
            let asked = Asked::parse(profile, &[])?;
            send(fd, node, profile, &Outgoing { to, payload, asked, flags })
        }
    })
}

/// `send(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_send(fd: i32, buffer: *const c_void, len: usize, flags: i32) -> isize {
    // SAFETY: the caller's.
    unsafe { rds_sendto(fd, buffer, len, flags, ptr::null(), 0) }
}

/// What was received, and what goes with it in the program's buffer.
struct Incoming {
    arrival: Arrival,
    control_len: usize,
    is_control_cut: bool,
}

/// Receives into the parts of a buffer.
///
/// # Safety
/// The parts are the program's memory.
unsafe fn receive(
    fd: RawFd,
    node: &'static crate::node::Node,
    profile: Profile,
    (parts, control): (&[RdsIovec], &mut [u8]),
    flags: MsgFlags,
) -> Answer<Incoming> {
    let total: u64 = parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes));
    let mut copy = Vec::new();
    let buffer = match parts {
        // SAFETY: this function's contract.
        [part] => unsafe { room(part.addr, part.bytes) }?,
        _ => {
            copy.resize(usize::try_from(total).map_or(LONGEST, |total| total.min(LONGEST)), 0);
            &mut copy[..]
        }
    };
    let incoming = until(node, fd, flags.contains(MsgFlags::DONTWAIT), |inner, handle| {
        let Inner { adapter, rds, .. } = inner;
        let arrival = match rds.recvmsg(adapter, handle, buffer, flags) {
            Err(RdsError::Again) => {
                inner.socket(fd)?.is_empty();
                return Err(RdsError::Again.into());
            }
            other => other?,
        };
        let more = || rds.take_notification(handle).ok().flatten();
        let (control_len, is_control_cut) = told(profile, control, &arrival, more);
        Ok(Incoming { arrival, control_len, is_control_cut })
    })?;
    if let (Arrival::Message(message), false) = (&incoming.arrival, copy.is_empty()) {
        // SAFETY: this function's contract.
        unsafe { scatter(parts, &copy[..message.len]) }?;
    }
    Ok(incoming)
}

/// `recvmsg(2)`, of a `struct msghdr` as the socket's system lays it out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_recvmsg(fd: i32, message: *mut c_void, flags: i32) -> isize {
    on(fd, |node, profile| {
        let flags = flags_of(profile, flags);
        // SAFETY: the caller's.
        unsafe {
            let (mut header, mut raw) = header(profile, message)?;
            let parts = elements(header.iov, header.iov_len)?;
            let control = room(header.control, header.control_len)?;
            let incoming = receive(fd, node, profile, (&parts, control), flags)?;
            header.name_len = match &incoming.arrival {
                Arrival::Message(from) if header.name != 0 => {
                    let to = ptr::with_exposed_provenance_mut(header.name as usize);
                    put_address(profile, &from.from, to, header.name_len)?
                }
                _ => 0,
            };
            header.control_len = incoming.control_len as u64;
            let (_, control_cut) = numbers(profile);
            header.flags = incoming.arrival.flags().bits().cast_signed();
            if incoming.is_control_cut {
                header.flags |= control_cut;
            }
            header.encode_results(profile, &mut raw);
            message.cast::<u8>().copy_from_nonoverlapping(raw.as_ptr(), Header::len(profile));
            Ok(incoming.arrival.value(flags) as isize)
        }
    })
}

/// `recvfrom(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_recvfrom(
    fd: i32,
    buffer: *mut c_void,
    len: usize,
    flags: i32,
    address: *mut c_void,
    address_len: *mut u32,
) -> isize {
    on(fd, |node, profile| {
        let flags = flags_of(profile, flags);
        let part = RdsIovec { addr: buffer.expose_provenance() as u64, bytes: len as u64 };
        // SAFETY: the caller's.
        unsafe {
            let incoming = receive(fd, node, profile, (&[part], &mut []), flags)?;
            if !address_len.is_null() {
                let told = match &incoming.arrival {
                    Arrival::Message(from) if !address.is_null() => {
                        put_address(profile, &from.from, address.cast(), address_len.read())?
                    }
                    _ => 0,
                };
                address_len.write(told);
            }
            Ok(incoming.arrival.value(flags) as isize)
        }
    })
}

/// `recv(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_recv(fd: i32, buffer: *mut c_void, len: usize, flags: i32) -> isize {
    // SAFETY: the caller's.
    unsafe { rds_recvfrom(fd, buffer, len, flags, ptr::null_mut(), ptr::null_mut()) }
}
