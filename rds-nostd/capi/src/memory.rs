//! Memory of the program's, by the numbers that its structures have of it.

use driver_mlx::DmaSlice;
use rds_nostd::RdsError;
use rds_nostd::cmsg::RdsIovec;
use std::ptr;

/// More elements than any call takes (`UIO_MAXIOV`).
const MAX_ELEMENTS: u64 = 1024;
/// More bytes than any call reads or writes.
const MAX_BYTES: u64 = 1 << 30;

/// A range of the program's memory, which may be read and written: `len` bytes at `at`. None without bytes; null with any is refused.
///
/// # Safety
/// The memory is the program's, mapped, and nobody else uses it while the result is used.
unsafe fn bytes_mut<'a>(at: u64, len: u64) -> Result<&'a mut [u8], RdsError> {
    match len {
        0 => Ok(&mut []),
        1..=MAX_BYTES if at != 0 => {
            // SAFETY: this function's contract.
            Ok(unsafe {
                std::slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(at as usize), len as usize)
            })
        }
        _ => Err(RdsError::InvalidArgument),
    }
}

/// The same, to be read.
///
/// # Safety
/// The memory is the program's, mapped, and nobody changes it while the result is used.
pub(crate) unsafe fn bytes<'a>(at: u64, len: u64) -> Result<&'a [u8], RdsError> {
    match len {
        0 => Ok(&[]),
        1..=MAX_BYTES if at != 0 => {
            // SAFETY: this function's contract.
            Ok(unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(at as usize), len as usize) })
        }
        _ => Err(RdsError::InvalidArgument),
    }
}

/// The same, to be filled.
///
/// # Safety
/// The memory is the program's, mapped, and nobody else uses it while the result is used.
pub(crate) unsafe fn room<'a>(at: u64, len: u64) -> Result<&'a mut [u8], RdsError> {
    // SAFETY: this function's contract.
    unsafe { bytes_mut(at, len) }
}

/// Writes a number where the program wants it; nowhere to 0.
///
/// # Safety
/// `at` is 0 or 8 bytes of the program's.
pub(crate) unsafe fn store(at: u64, value: u64) -> Result<(), RdsError> {
    if at != 0 {
        // SAFETY: this function's contract.
        unsafe { bytes_mut(at, 8) }?.copy_from_slice(&value.to_ne_bytes());
    }
    Ok(())
}

/// An array of `struct iovec`, or of `struct rds_iovec`, which has the same members.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn elements(at: u64, count: u64) -> Result<Vec<RdsIovec>, RdsError> {
    if count > MAX_ELEMENTS {
        return Err(RdsError::MessageSize);
    }
    // SAFETY: this function's contract.
    let bytes = unsafe { bytes(at, count * RdsIovec::LEN as u64) }?;
    bytes.chunks_exact(RdsIovec::LEN).map(|element| Ok(RdsIovec::decode(element)?)).collect()
}

/// A message's bytes, one part after the other: where they are if they are in one place, else a copy.
///
/// # Safety
/// As [`bytes`], of each part.
pub(crate) unsafe fn gather<'a>(parts: &[RdsIovec], copy: &'a mut Vec<u8>) -> Result<&'a [u8], RdsError> {
    if let [part] = parts {
        // SAFETY: this function's contract.
        return unsafe { bytes(part.addr, part.bytes) };
    }
    for part in parts {
        // SAFETY: this function's contract.
        let part = unsafe { bytes(part.addr, part.bytes) }?;
        if copy.len() + part.len() > MAX_BYTES as usize {
            return Err(RdsError::MessageSize);
        }
        copy.extend_from_slice(part);
    }
    Ok(copy)
}

/// Spreads what was received over the parts.
///
/// # Safety
/// As [`room`], of each part.
pub(crate) unsafe fn scatter(parts: &[RdsIovec], mut from: &[u8]) -> Result<(), RdsError> {
    for part in parts {
        // SAFETY: this function's contract.
        let to = unsafe { room(part.addr, part.bytes) }?;
        let (now, later) = from.split_at(to.len().min(from.len()));
        to[..now.len()].copy_from_slice(now);
        from = later;
    }
    Ok(())
}

/// Memory that peers, or the HCA for an operation, may reach.
///
/// # Safety
/// The memory is the program's, and stays where it is as long as it is registered: until its cookie is released, or the operation has ended.
pub(crate) unsafe fn lent(element: &RdsIovec) -> Result<DmaSlice<'static>, RdsError> {
    let end = element.addr.checked_add(element.bytes);
    if element.addr == 0 || end.is_none() {
        return Err(RdsError::InvalidArgument);
    }
    let at = ptr::with_exposed_provenance_mut(element.addr as usize);
    // SAFETY: this function's contract; it is no memory of Rust's.
    Ok(unsafe { DmaSlice::foreign(at, element.bytes as usize) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(bytes: &mut [u8]) -> RdsIovec {
        RdsIovec { addr: bytes.as_mut_ptr().expose_provenance() as u64, bytes: bytes.len() as u64 }
    }

    #[test]
    fn parts_make_a_message_and_take_one() {
        let (mut first, mut second) = (*b"one ", *b"message");
        let parts = [part(&mut first), RdsIovec { addr: 0, bytes: 0 }, part(&mut second)];
        let mut copy = Vec::new();
        // SAFETY: memory of this function's, used here alone.
        unsafe {
            assert_eq!(gather(&parts, &mut copy), Ok(&b"one message"[..]));
            assert_eq!(gather(&parts[..1], &mut Vec::new()), Ok(&b"one "[..]));
            scatter(&parts, b"another").unwrap();
            assert_eq!((&first, &second), (b"anot", b"hersage"));
            assert!(bytes(0, 1).is_err() && bytes(0, 0).is_ok() && bytes(1, u64::MAX).is_err());
            assert!(elements(1, MAX_ELEMENTS + 1).is_err());
            assert!(lent(&RdsIovec { addr: u64::MAX, bytes: 2 }).is_err());
            assert!(store(0, 7).is_ok());
        }
    }
}
