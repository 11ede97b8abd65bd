//! Memory of the program, by the addresses in its structures.

use crate::failure::{Answer, Failure};
use core::ptr;
use dat_nostd::DmaSlice;
use rds_nostd::RdsError;
use rds_nostd::cmsg::RdsIovec;

/// Upper bound of elements in any call (`UIO_MAXIOV`).
const MAX_ELEMENTS: u64 = 1024;
/// Upper bound of bytes that any call reads or writes.
const MAX_BYTES: u64 = 1 << 30;

/// Checks an address and a length.
///
/// # Errors
/// [`Failure::Fault`]: a null pointer to more than 0 bytes; [`RdsError::InvalidArgument`]: too long
/// for any call.
fn check(at: u64, len: u64) -> Answer<()> {
    match len {
        0 => Ok(()),
        1..=MAX_BYTES if at == 0 => Err(Failure::Fault),
        1..=MAX_BYTES => Ok(()),
        _ => Err(RdsError::InvalidArgument.into()),
    }
}

/// Returns the `len` bytes at `at`, to read and write. Refuses null unless `len` is 0.
///
/// # Safety
/// The memory belongs to the program and is mapped. No other thread accesses it while the result is
/// alive.
unsafe fn bytes_mut<'a>(at: u64, len: u64) -> Answer<&'a mut [u8]> {
    check(at, len)?;
    match len {
        0 => Ok(&mut []),
        _ => {
            // SAFETY: this function's contract.
            Ok(unsafe {
                core::slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(at as usize), len as usize)
            })
        }
    }
}

/// Returns the `len` bytes at `at`, to read.
///
/// # Safety
/// The memory belongs to the program and is mapped. No other thread writes it while the result is
/// alive.
pub(crate) unsafe fn bytes<'a>(at: u64, len: u64) -> Answer<&'a [u8]> {
    check(at, len)?;
    match len {
        0 => Ok(&[]),
        _ => {
            // SAFETY: this function's contract.
            Ok(unsafe {
                core::slice::from_raw_parts(ptr::with_exposed_provenance(at as usize), len as usize)
            })
        }
    }
}

/// Returns the `len` bytes at `at`, to write.
///
/// # Safety
/// As for [`bytes_mut`].
pub(crate) unsafe fn room<'a>(at: u64, len: u64) -> Answer<&'a mut [u8]> {
    // SAFETY: this function's contract.
    unsafe { bytes_mut(at, len) }
}

/// Writes a number to the program's memory. Does nothing if `at` is 0.
///
/// # Safety
/// `at` is 0, or the address of 8 bytes of the program.
pub(crate) unsafe fn store(at: u64, value: u64) -> Answer<()> {
    if at != 0 {
        // SAFETY: this function's contract.
        unsafe { bytes_mut(at, 8) }?.copy_from_slice(&value.to_ne_bytes());
    }
    Ok(())
}

/// An array of `struct iovec`, or of `struct rds_iovec`, which has the same members.
#[derive(Clone, Copy)]
pub(crate) struct Elements<'a>(&'a [u8]);

impl<'a> Elements<'a> {
    /// Wraps the bytes of an array.
    pub(crate) const fn of(array: &'a [u8]) -> Self {
        Self(array)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Answer<RdsIovec>> + 'a {
        self.0.chunks_exact(RdsIovec::LEN).map(|element| Ok(RdsIovec::decode(element)?))
    }

    /// Returns the only element, if there is exactly one.
    pub(crate) fn only(&self) -> Option<RdsIovec> {
        RdsIovec::decode(self.0).ok().filter(|_| self.0.len() == RdsIovec::LEN)
    }

    /// Returns the sum of all lengths.
    pub(crate) fn total(&self) -> u64 {
        self.iter().flatten().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// Checks that a message can be written to all parts.
    ///
    /// # Errors
    /// As [`room`], for each part.
    pub(crate) fn check(&self) -> Answer<()> {
        self.iter().try_for_each(|part| part.and_then(|part| check(part.addr, part.bytes)))
    }
}

/// Returns an array of `count` elements.
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn elements<'a>(at: u64, count: u64) -> Answer<Elements<'a>> {
    if count > MAX_ELEMENTS {
        return Err(RdsError::MessageSize.into());
    }
    // SAFETY: this function's contract.
    Ok(Elements(unsafe { bytes(at, count * RdsIovec::LEN as u64) }?))
}

/// Returns a message's bytes: in place if it has a single part, otherwise copied to `whole`.
///
/// # Safety
/// As for [`bytes`], for each part.
pub(crate) unsafe fn gather<'a>(parts: Elements<'_>, whole: &'a mut [u8]) -> Answer<&'a [u8]> {
    if let Some(part) = parts.only() {
        // SAFETY: this function's contract.
        return unsafe { bytes(part.addr, part.bytes) };
    }
    let mut len = 0;
    for part in parts.iter() {
        let part = part?;
        // SAFETY: this function's contract.
        let part = unsafe { bytes(part.addr, part.bytes) }?;
        let room = whole.get_mut(len..len + part.len()).ok_or(RdsError::MessageSize)?;
        room.copy_from_slice(part);
        len += part.len();
    }
    Ok(&whole[..len])
}

/// Copies a received message to the parts.
///
/// # Safety
/// As for [`room`], for each part.
pub(crate) unsafe fn scatter(parts: Elements<'_>, mut from: &[u8]) -> Answer<()> {
    for part in parts.iter() {
        let part = part?;
        // SAFETY: this function's contract.
        let to = unsafe { room(part.addr, part.bytes) }?;
        let (now, later) = from.split_at(to.len().min(from.len()));
        to[..now.len()].copy_from_slice(now);
        from = later;
    }
    Ok(())
}

/// Memory that the HCA accesses, for peers or for an operation.
///
/// # Safety
/// The memory belongs to the program. It stays mapped until its cookie is freed, or until the
/// operation completes.
pub(crate) unsafe fn lent(element: &RdsIovec) -> Answer<DmaSlice<'static>> {
    match (element.addr, element.bytes) {
        (0, 1..) => return Err(Failure::Fault),
        (0, 0) => return Err(RdsError::InvalidArgument.into()),
        (addr, bytes) if addr.checked_add(bytes).is_none() => return Err(RdsError::InvalidArgument.into()),
        _ => {}
    }
    let at = ptr::with_exposed_provenance_mut(element.addr as usize);
    // SAFETY: this function's contract. The memory is not Rust's.
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
        let array: std::vec::Vec<u8> = parts.iter().flat_map(|part| part.encode()).collect();
        let (all, one) = (Elements(&array), Elements(&array[..RdsIovec::LEN]));
        assert_eq!((all.total(), one.only(), all.only()), (11, Some(parts[0]), None));
        let mut whole = [0; 11];
        // SAFETY: local arrays that no other reference names.
        unsafe {
            assert_eq!(gather(all, &mut whole), Ok(&b"one message"[..]));
            assert_eq!(gather(all, &mut whole[..10]), Err(RdsError::MessageSize.into()));
            assert_eq!(gather(one, &mut []), Ok(&b"one "[..]));
            scatter(all, b"another").unwrap();
            assert_eq!((&first, &second), (b"anot", b"hersage"));
            assert_eq!((bytes(0, 1), bytes(0, 0)), (Err(Failure::Fault), Ok(&[][..])));
            assert_eq!(bytes(1, u64::MAX), Err(RdsError::InvalidArgument.into()));
            let null = RdsIovec { addr: 0, bytes: 1 };
            assert_eq!(lent(&null).err(), Some(Failure::Fault));
            let array = [parts[0].encode(), null.encode()].concat();
            assert_eq!((Elements(&array).check(), all.check()), (Err(Failure::Fault), Ok(())));
            assert!(elements(1, MAX_ELEMENTS + 1).is_err());
            assert!(lent(&RdsIovec { addr: u64::MAX, bytes: 2 }).is_err());
            assert!(store(0, 7).is_ok());
        }
    }
}
