//! What C's pointers point to. A null pointer is INVALID_PARAMETER where something is needed; nothing is assumed of alignment.

use crate::layout::{AF_INET, AF_INET6};
use core::net::{Ipv4Addr, Ipv6Addr};
use dat_nostd::{DatResult, DatReturn, IaAddress, LmrTriplet, ReturnType, Subtype};

/// INVALID_PARAMETER.
pub const fn bad(argument: Subtype) -> DatReturn {
    DatReturn::error(ReturnType::InvalidParameter, argument)
}

/// INVALID_PARAMETER for a null pointer.
#[inline]
pub fn need<T>(pointer: *const T, argument: Subtype) -> DatResult<()> {
    if pointer.is_null() { Err(bad(argument)) } else { Ok(()) }
}

/// Writes where a program wants it; nothing to a null pointer.
///
/// # Safety
/// `to` is null or memory that may be written.
#[inline]
pub unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: this function's contract; alignment is not assumed.
        unsafe { to.write_unaligned(value) };
    }
}

/// Reads what a program gives.
///
/// # Safety
/// `from` is null or memory that may be read, in which every value of its bytes is one of `T`.
#[inline]
pub unsafe fn get<T: Copy>(from: *const T, argument: Subtype) -> DatResult<T> {
    need(from, argument)?;
    // SAFETY: this function's contract; alignment is not assumed.
    Ok(unsafe { from.read_unaligned() })
}

/// A counted array of segments; without segments the pointer means nothing.
///
/// # Safety
/// `from` is null or `count` segments that may be read and do not change while the result is used.
pub unsafe fn segments<'a>(
    from: *const LmrTriplet,
    count: i64,
    argument: Subtype,
) -> DatResult<&'a [LmrTriplet]> {
    match count {
        0 => Ok(&[]),
        // Longer than any queue takes: it is refused without a look at it.
        1..=0xff_ffff if !from.is_null() && from.is_aligned() => {
            // SAFETY: this function's contract; the pointer was checked above.
            Ok(unsafe { core::slice::from_raw_parts(from, count as usize) })
        }
        _ => Err(bad(argument)),
    }
}

/// What a pointer leads to, if it is aligned and not null.
///
/// # Safety
/// `from` is null or memory that may be read and does not change while the result is used, in which every value of its bytes is one of
/// `T`.
#[inline]
pub unsafe fn aligned<'a, T>(from: *const T) -> Option<&'a T> {
    if !from.is_aligned() {
        return None;
    }
    // SAFETY: this function's contract, and it is aligned.
    unsafe { from.as_ref() }
}

/// Private data; `size` is argument `of_size`, the pointer the one behind it.
///
/// # Safety
/// `from` is null or `size` bytes that may be read and do not change while the result is used.
pub unsafe fn private_data<'a>(
    from: *const u8,
    size: i32,
    of_size: Subtype,
    of_data: Subtype,
) -> DatResult<&'a [u8]> {
    match usize::try_from(size) {
        Err(_) => Err(bad(of_size)),
        Ok(0) => Ok(&[]),
        // More than any message carries.
        Ok(4096..) => Err(bad(of_size)),
        Ok(_) if from.is_null() => Err(bad(of_data)),
        // SAFETY: this function's contract; the pointer is not null.
        Ok(size) => Ok(unsafe { core::slice::from_raw_parts(from, size) }),
    }
}

/// A name: at most 255 bytes and a zero.
///
/// # Safety
/// `from` is null or bytes that may be read up to the first zero, or 256, and do not change while the result is used.
pub unsafe fn name<'a>(from: *const u8) -> DatResult<&'a str> {
    need(from, Subtype::InvalidArg1)?;
    // SAFETY: no zero has come before, so the byte is the program's.
    let len = (0..256).find(|place| unsafe { from.add(*place).read() } == 0);
    let len = len.ok_or(bad(Subtype::InvalidArg1))?;
    // SAFETY: bytes of the program's, all of which were read.
    let bytes = unsafe { core::slice::from_raw_parts(from, len) };
    core::str::from_utf8(bytes).map_err(|_| bad(Subtype::InvalidArg1))
}

/// `DAT_IA_ADDRESS_PTR`: a `struct sockaddr_in` or `sockaddr_in6`, of which only the family's bytes are read.
///
/// # Safety
/// `from` is null or an address of its family.
pub unsafe fn address(from: *const u8, argument: Subtype) -> DatResult<IaAddress> {
    need(from, argument)?;
    // SAFETY: this function's contract: every address begins with its family.
    let family = u16::from_ne_bytes(unsafe { from.cast::<[u8; 2]>().read() });
    match family {
        AF_INET => {
            // SAFETY: an IPv4 address has its four bytes at 4.
            let bytes = unsafe { from.add(4).cast::<[u8; 4]>().read() };
            Ok(IaAddress::V4(Ipv4Addr::from(bytes)))
        }
        AF_INET6 => {
            // SAFETY: an IPv6 address has its sixteen bytes at 8.
            let bytes = unsafe { from.add(8).cast::<[u8; 16]>().read() };
            Ok(IaAddress::V6(Ipv6Addr::from(bytes)))
        }
        _ => Err(DatReturn::error(ReturnType::InvalidAddress, Subtype::InvalidAddressUnsupported)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

    #[test]
    fn what_null_means() {
        // SAFETY: null is allowed everywhere; the others are arrays of this function's.
        unsafe {
            put(ptr::null_mut::<u64>(), 1);
            assert_eq!(get(ptr::null::<u64>(), Subtype::InvalidArg2), Err(bad(Subtype::InvalidArg2)));
            assert_eq!(segments(ptr::null(), 0, Subtype::InvalidArg2), Ok(&[][..]));
            assert!(segments(ptr::null(), 1, Subtype::InvalidArg2).is_err());
            assert!(segments([LmrTriplet::default()].as_ptr(), -1, Subtype::InvalidArg2).is_err());
            assert_eq!(
                segments([LmrTriplet::default()].as_ptr(), 1, Subtype::InvalidArg2).map(<[_]>::len),
                Ok(1)
            );
            let private = |data, size| private_data(data, size, Subtype::InvalidArg5, Subtype::InvalidArg6);
            assert_eq!(private(ptr::null(), 0), Ok(&[][..]));
            assert_eq!(private(ptr::null(), 1), Err(bad(Subtype::InvalidArg6)));
            assert_eq!(private([0].as_ptr(), -1), Err(bad(Subtype::InvalidArg5)));
            assert!(name(ptr::null()).is_err());
            assert!(name([b'a'; 256].as_ptr()).is_err());
            assert_eq!(name(c"ib0".as_ptr().cast()), Ok("ib0"));
        }
    }

    #[test]
    fn addresses_by_their_families() {
        let mut v4 = [0_u8; 16];
        v4[..2].copy_from_slice(&AF_INET.to_ne_bytes());
        v4[4..8].copy_from_slice(&[10, 0, 0, 1]);
        let mut v6 = [0_u8; 28];
        v6[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
        v6[23] = 1;
        // SAFETY: whole addresses.
        unsafe {
            assert_eq!(address(v4.as_ptr(), Subtype::InvalidArg2), Ok(Ipv4Addr::new(10, 0, 0, 1).into()));
            assert_eq!(address(v6.as_ptr(), Subtype::InvalidArg2), Ok(Ipv6Addr::LOCALHOST.into()));
            assert!(address([0; 16].as_ptr(), Subtype::InvalidArg2).is_err());
        }
    }
}
