//! The functions of `<rds/rds.h>`: their value, or the number that goes into `errno`, as the system of the socket's program numbers it.
//!
//! # Safety
//! Every pointer is null or to memory of the type that the header says, which the call may read or write as it says; of no other thread's
//! meanwhile. So is what the structures lead to. Descriptors may be any numbers.
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

/// A call's value, or the number of its error.
pub type Called = Result<isize, i32>;

/// A call on a socket, with the node and whose program it is.
fn on<N: Node>(fd: i32, call: impl FnOnce(&'static N, Profile) -> Answer<isize>) -> Called {
    let found = || {
        let node = N::of(fd)?;
        let profile = N::state(&mut node.lock()?).socket(fd).ok()?.profile;
        Some((node, profile))
    };
    let (node, profile) = found().ok_or(RdsError::BadSocket.errno_for(Profile::Linux))?;
    call(node, profile).map_err(|failure| failure.errno(profile))
}

/// The node's lock.
fn lock<N: Node>(node: &N) -> Answer<N::Guard<'_>> {
    Ok(node.lock().ok_or(RdsError::BadSocket)?)
}

/// A socket address as C has it, and how long it is.
type Encoded = ([u8; SOCKADDR_LEN], usize);

fn encoded(profile: Profile, address: &SocketAddr) -> Result<Encoded, RdsError> {
    encode_address(profile, address).ok_or(RdsError::AddressFamily)
}

/// Writes an address where the program wants it: what fits. The length that there is of it.
///
/// # Safety
/// `to` is null or `room` bytes.
unsafe fn put_address(profile: Profile, address: &SocketAddr, to: *mut u8, room: u32) -> Answer<u32> {
    // SAFETY: this function's contract.
    unsafe { put_encoded(encoded(profile, address)?, to, room) }
}

/// The same, of its bytes, so many of which count.
///
/// # Safety
/// As [`put_address`].
unsafe fn put_encoded((bytes, len): Encoded, to: *mut u8, room: u32) -> Answer<u32> {
    if room > 0 && to.is_null() {
        return Err(Failure::Fault);
    }
    // SAFETY: this function's contract.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), len.min(room as usize)) };
    Ok(len as u32)
}
