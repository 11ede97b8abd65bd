//! The functions of `<rds/rds.h>`. Each returns its value, or the `errno` of the program's system.
//!
//! # Safety
//! Pointers are null, or point to memory of the type that the header declares. The call may read or
//! write that memory as the header says, and no other thread accesses it meanwhile. The same holds
//! for memory that structures name. Descriptors may be any numbers.
#![allow(clippy::missing_safety_doc, clippy::missing_errors_doc)] // The module says it.

mod ioctl;
mod message;
mod options;
mod socket;

pub use ioctl::*;
pub use message::*;
pub use options::*;
pub use socket::*;

use crate::failure::{Answer, Failure};
use crate::node::Node;
use core::net::SocketAddr;
use rds_nostd::cmsg::{SOCKADDR_LEN, encode_address};
use rds_nostd::{Profile, RdsError};

/// Value of a call, or its `errno`.
pub type Called = Result<isize, i32>;

/// Makes a call on a socket, with the socket's node and profile.
fn on<N: Node>(fd: i32, call: impl FnOnce(&'static N, Profile) -> Answer<isize>) -> Called {
    let found = || {
        let node = N::of(fd)?;
        let profile = N::state(&mut node.lock()?).socket(fd).ok()?.profile;
        Some((node, profile))
    };
    let (node, profile) = found().ok_or(RdsError::BadSocket.errno_for(Profile::Linux))?;
    call(node, profile).map_err(|failure| failure.errno(profile))
}

/// Takes the node's lock.
fn lock<N: Node>(node: &N) -> Answer<N::Guard<'_>> {
    Ok(node.lock().ok_or(RdsError::BadSocket)?)
}

/// A socket address in C's layout, and its length.
type Encoded = ([u8; SOCKADDR_LEN], usize);

fn encoded(profile: Profile, address: &SocketAddr) -> Result<Encoded, RdsError> {
    encode_address(profile, address).ok_or(RdsError::AddressFamily)
}

/// Writes an address to the program's memory, cut to `room` bytes. Returns its full length.
///
/// # Safety
/// `to` is null, or `room` bytes are at `to`.
unsafe fn put_address(profile: Profile, address: &SocketAddr, to: *mut u8, room: u32) -> Answer<u32> {
    // SAFETY: this function's contract.
    unsafe { put_encoded(encoded(profile, address)?, to, room) }
}

/// Writes an encoded address.
///
/// # Safety
/// As for [`put_address`].
unsafe fn put_encoded((bytes, len): Encoded, to: *mut u8, room: u32) -> Answer<u32> {
    if room > 0 && to.is_null() {
        return Err(Failure::Fault);
    }
    // SAFETY: this function's contract.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), len.min(room as usize)) };
    Ok(len as u32)
}
