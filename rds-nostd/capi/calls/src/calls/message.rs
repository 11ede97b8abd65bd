//! Messages.

use super::socket::read_address;
use super::{Called, on, put_address};
use crate::abi::{HEADER_LEN, Header};
use crate::control::{SendArgs, write_control};
use crate::failure::{Answer, Failure};
use crate::memory::{Elements, bytes, elements, gather, lent, room, scatter, store};
use crate::node::{Node, Sockets, State};
use crate::wait::until;
use core::ffi::c_void;
use core::net::SocketAddr;
use core::ptr;
use rds_nostd::cmsg::RdsIovec;
use rds_nostd::wire::MAX_MESSAGE_LEN;
use rds_nostd::{Arrival, Control, Lend, Msg, MsgFlags, Profile, RdmaFlags, RdsError};

/// The flag "do not wait", and the result flag "control messages were cut", which the systems
/// number differently.
fn numbers(profile: Profile) -> (u32, i32) {
    match profile {
        Profile::Linux => (0x40, 8),
        Profile::Solaris => (0x80, 0x10),
    }
}

/// Converts a call's flags to the protocol's.
fn flags_of(profile: Profile, flags: i32) -> MsgFlags {
    let (dont_wait, _) = numbers(profile);
    let flags = flags.cast_unsigned();
    let mut known = MsgFlags::from_bits_retain(flags & !dont_wait);
    known.set(MsgFlags::DONTWAIT, flags & dont_wait != 0);
    known
}

/// Converts the flags of `sendmsg`. Refuses MORE like unsupported flags.
fn flags_to_send(profile: Profile, flags: i32) -> Answer<MsgFlags> {
    let flags = flags_of(profile, flags);
    if flags.contains(MsgFlags::MORE) { Err(RdsError::NotSupported.into()) } else { Ok(flags) }
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

/// A message to send. Its parts are the program's memory.
struct Outgoing<'a> {
    to: Option<SocketAddr>,
    parts: Elements<'a>,
    args: SendArgs,
    flags: i32,
}

/// Sends a message of parts.
///
/// # Safety
/// The parts, and the memory in control messages, belong to the program.
unsafe fn send<N: Node>(fd: i32, node: &N, profile: Profile, out: &Outgoing<'_>) -> Answer<isize> {
    let flags = flags_to_send(profile, out.flags)?;
    let cookie = until(node, fd, flags.contains(MsgFlags::DONTWAIT), |inner, handle| {
        inner.usable()?;
        let State { adapter, rds, whole, iovs, .. } = inner;
        // SAFETY: this function's contract.
        let (payload, control) = unsafe { (gather(out.parts, whole)?, out.args.control(iovs)?) };
        let control = (!control.is_empty()).then_some(&control);
        Ok(rds.sendmsg(adapter, handle, Msg { to: out.to.as_ref(), payload, control, flags })?)
    })?;
    if let Some(cookie) = cookie {
        // SAFETY: `cookie_at` is 0 or 8 bytes of the program, by the contract of the caller.
        unsafe { store(out.args.cookie_at(), cookie.0) }?;
    }
    Ok(out.parts.total() as isize)
}

/// Encodes the single buffer of a call as an array of one element.
fn one_part(buffer: *const c_void, len: usize) -> [u8; RdsIovec::LEN] {
    RdsIovec { addr: buffer.expose_provenance() as u64, bytes: len as u64 }.encode()
}

/// `sendmsg(2)`, of a `struct msghdr` as the socket's system lays it out.
pub unsafe fn rds_sendmsg<N: Node>(fd: i32, message: *const c_void, flags: i32) -> Called {
    on::<N>(fd, |node, profile| {
        // SAFETY: the caller's.
        unsafe {
            let (header, _) = header(profile, message)?;
            // As on Linux, no name has no length, whatever the header says.
            let to = match (header.name, header.name_len) {
                (0, _) | (_, 0) => None,
                (name, len) => Some(read_address(profile, name, len)?),
            };
            let parts = elements(header.iov, header.iov_len)?;
            let args = SendArgs::parse(profile, bytes(header.control, header.control_len)?)?;
            send(fd, node, profile, &Outgoing { to, parts, args, flags })
        }
    })
}

/// Returns the destination that a call names, or `None`.
///
/// # Safety
/// `address` is null or `len` bytes.
unsafe fn destination(profile: Profile, address: *const c_void, len: u32) -> Answer<Option<SocketAddr>> {
    if address.is_null() || len == 0 {
        return Ok(None);
    }
    // SAFETY: this function's contract.
    unsafe { read_address(profile, address.expose_provenance() as u64, len) }.map(Some)
}

/// `sendto(2)`.
pub unsafe fn rds_sendto<N: Node>(
    fd: i32,
    buffer: *const c_void,
    len: usize,
    flags: i32,
    address: *const c_void,
    address_len: u32,
) -> Called {
    on::<N>(fd, |node, profile| {
        // SAFETY: the caller's.
        unsafe {
            let to = destination(profile, address, address_len)?;
            let part = one_part(buffer, len);
            let args = SendArgs::parse(profile, &[])?;
            send(fd, node, profile, &Outgoing { to, parts: Elements::of(&part), args, flags })
        }
    })
}

/// `send(2)`.
pub unsafe fn rds_send<N: Node>(fd: i32, buffer: *const c_void, len: usize, flags: i32) -> Called {
    // SAFETY: the caller's.
    unsafe { rds_sendto::<N>(fd, buffer, len, flags, ptr::null(), 0) }
}

/// Sends a message without a copy. The program must not change the buffer before the notification.
pub unsafe fn rds_lend<N: Node>(
    fd: i32,
    buffer: *const c_void,
    len: usize,
    flags: i32,
    address: *const c_void,
    address_len: u32,
    token: u64,
) -> Called {
    on::<N>(fd, |node, profile| {
        // SAFETY: the caller's.
        let to = unsafe { destination(profile, address, address_len) }?;
        let lies = RdsIovec { addr: buffer.expose_provenance() as u64, bytes: len as u64 };
        let flags = flags_to_send(profile, flags)?;
        until(node, fd, flags.contains(MsgFlags::DONTWAIT), |inner, handle| {
            inner.usable()?;
            // SAFETY: the program keeps the buffer until the notification, or until it closes the
            // socket.
            let payload = [unsafe { lent(&lies) }?];
            let lend = Lend { payload: &payload, flags: RdmaFlags::NOTIFY_ME, user_token: token };
            let control = Control { lend: Some(lend), ..Control::default() };
            let message = Msg { to: to.as_ref(), payload: &[], control: Some(&control), flags };
            Ok(inner.rds.sendmsg(inner.adapter, handle, message)?)
        })?;
        Ok(len as isize)
    })
}

/// An arrival, and the length of its control messages.
struct Incoming {
    arrival: Arrival,
    control_len: usize,
    is_control_cut: bool,
}

/// Receives into the parts of a buffer.
///
/// # Safety
/// The parts are the program's memory.
unsafe fn receive<N: Node>(
    fd: i32,
    node: &N,
    profile: Profile,
    (parts, control): (Elements<'_>, &mut [u8]),
    flags: MsgFlags,
) -> Answer<Incoming> {
    until(node, fd, flags.contains(MsgFlags::DONTWAIT), |inner, handle| {
        let State { adapter, rds, whole, sockets, .. } = inner;
        let only = parts.only();
        let buffer = match &only {
            // SAFETY: this function's contract.
            Some(part) => unsafe { room(part.addr, part.bytes) }?,
            None => {
                // Check first, because the message would be lost after `recvmsg`.
                parts.check()?;
                // No message is longer than `MAX_MESSAGE_LEN`. A smaller `whole` cannot take a long
                // message, which must not be cut.
                let total = usize::try_from(parts.total()).unwrap_or(usize::MAX).min(MAX_MESSAGE_LEN);
                whole.get_mut(..total).ok_or(RdsError::MessageSize)?
            }
        };
        // C programs always receive copies.
        let flags = flags.difference(MsgFlags::ZEROCOPY);
        let latency = rds.rxpath_latency(adapter, handle)?;
        let arrival = match rds.recvmsg(adapter, handle, buffer, flags) {
            Err(RdsError::Again) => {
                sockets.get(fd).ok_or(RdsError::BadSocket)?.is_empty();
                return Err(RdsError::Again.into());
            }
            other => other?,
        };
        if let (Arrival::Message(message), None) = (&arrival, only) {
            // SAFETY: this function's contract.
            unsafe { scatter(parts, buffer.get(..message.len).unwrap_or_default()) }?;
        }
        let more = || rds.take_notification(handle).ok().flatten();
        let (control_len, is_control_cut) = write_control(profile, control, (&arrival, latency), more);
        Ok(Incoming { arrival, control_len, is_control_cut })
    })
}

/// `recvmsg(2)`, of a `struct msghdr` as the socket's system lays it out.
pub unsafe fn rds_recvmsg<N: Node>(fd: i32, message: *mut c_void, flags: i32) -> Called {
    on::<N>(fd, |node, profile| {
        let flags = flags_of(profile, flags);
        // SAFETY: the caller's.
        unsafe {
            let (mut header, mut raw) = header(profile, message)?;
            let parts = elements(header.iov, header.iov_len)?;
            let control = room(header.control, header.control_len)?;
            let incoming = receive(fd, node, profile, (parts, control), flags)?;
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
pub unsafe fn rds_recvfrom<N: Node>(
    fd: i32,
    buffer: *mut c_void,
    len: usize,
    flags: i32,
    address: *mut c_void,
    address_len: *mut u32,
) -> Called {
    on::<N>(fd, |node, profile| {
        let flags = flags_of(profile, flags);
        let part = one_part(buffer, len);
        // SAFETY: the caller's.
        unsafe {
            let incoming = receive(fd, node, profile, (Elements::of(&part), &mut []), flags)?;
            if !address_len.is_null() {
                let written = match &incoming.arrival {
                    Arrival::Message(from) if !address.is_null() => {
                        put_address(profile, &from.from, address.cast(), address_len.read())?
                    }
                    _ => 0,
                };
                address_len.write(written);
            }
            Ok(incoming.arrival.value(flags) as isize)
        }
    })
}

/// `recv(2)`.
pub unsafe fn rds_recv<N: Node>(fd: i32, buffer: *mut c_void, len: usize, flags: i32) -> Called {
    // SAFETY: the caller's.
    unsafe { rds_recvfrom::<N>(fd, buffer, len, flags, ptr::null_mut(), ptr::null_mut()) }
}
