//! Ranges of guest memory and their backing.

use super::mapping::Mapping;
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Backing of a range.
#[derive(Debug)]
pub(super) enum Backing {
    /// A mapped file, from this offset of the mapping on.
    Mapped(Rc<Mapping>, u64),
    /// A file, from this offset on.
    File(Held, u64),
    /// Memory of the client.
    Client,
}

/// A counted open file.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) file: OwnedFd,
    pub(super) _counted: Rc<()>,
}

/// A range of guest memory.
#[derive(Debug)]
pub struct Range {
    pub(super) size: u64,
    pub(super) writable: bool,
    pub(super) backing: Backing,
}

impl Range {
    /// Returns the bytes of this range that are mapped here. Their pages are charged to this
    /// process when it is the first to touch them.
    pub(super) fn mapped_bytes(&self) -> u64 {
        if matches!(self.backing, Backing::Mapped(..)) { self.size } else { 0 }
    }

    /// Returns a range of `size` bytes that the client accesses on request.
    pub fn client(size: u64, writable: bool) -> Self {
        Self { size, writable, backing: Backing::Client }
    }
}

/// Reads all of `buf` from a file. Returns whether that succeeded.
pub(super) fn all_read(file: &OwnedFd, mut at: u64, mut buf: &mut [u8]) -> bool {
    while !buf.is_empty() {
        match pread(file, &mut *buf, at) {
            Ok(0) => return false,
            Ok(n) => {
                buf = buf.get_mut(n..).unwrap_or_default();
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Writes all of `data` to a file. Returns whether that succeeded.
pub(super) fn all_written(file: &OwnedFd, mut at: u64, mut data: &[u8]) -> bool {
    while !data.is_empty() {
        match pwrite(file, data, at) {
            Ok(0) => return false,
            Ok(n) => {
                data = data.get(n..).unwrap_or_default();
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}
