//! The functions of `<rds/rds.h>`. What fails is -1, and `errno` says why, as the system of the socket's program numbers it.
//!
//! # Safety
//! Every pointer is null or to memory of the type that the header says, which the call may read or write as it says; of no other thread's
//! meanwhile. So is what the structures lead to. Descriptors may be any numbers.
#![allow(clippy::missing_safety_doc)] // The module says it.

mod message;
mod options;
mod poll;
mod socket;

pub use message::*;
pub use options::*;
pub use poll::*;
pub use socket::*;

use crate::failure::{Answer, Failure};
use crate::node::{self, Node};
use rds_nostd::cmsg::encode_address;
use rds_nostd::{Profile, RdsError};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A call's value, or -1 and `errno`. A mistake of this library's is `EIO`, and not the end of the program.
fn answer(profile: Profile, call: impl FnOnce() -> Answer<isize>) -> isize {
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure.errno(profile),
        Err(_) => libc::EIO,
    };
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// The same of a call on a socket, with the node and whose program it is.
fn on(fd: RawFd, call: impl FnOnce(&'static Node, Profile) -> Answer<isize>) -> isize {
    let none = || answer(Profile::Linux, || Err(RdsError::BadSocket.into()));
    let Some(node) = node::get() else { return none() };
    let profile = match node.lock().socket(fd) {
        Ok(socket) => socket.profile,
        Err(_) => return none(),
    };
    answer(profile, || call(node, profile))
}

/// Writes an address where the program wants it: what fits. The length that there is of it.
///
/// # Safety
/// `to` is null or `room` bytes.
unsafe fn put_address(profile: Profile, address: &SocketAddr, to: *mut u8, room: u32) -> Answer<u32> {
    let (bytes, len) = encode_address(profile, address).ok_or(RdsError::AddressFamily)?;
    if room > 0 && to.is_null() {
        return Err(Failure::Fault);
    }
    // SAFETY: this function's contract.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), len.min(room as usize)) };
    Ok(len as u32)
}
