//! What a program holds pointers to: addresses and private data of requests, endpoints and IAs. It stays where it is as long as the
//! object lives.

use crate::by_slot::BySlot;
use crate::handles::RawHandle;
use crate::layout::{AF_INET, AF_INET6, Pointer};
use core::ptr;
use dat_nostd::{Handle, HandleType, IaAddress, MAX_PRIVATE_DATA_ANY};

/// A `struct sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct SocketAddress([u8; 32]);

impl SocketAddress {
    pub(crate) const NOWHERE: Self = Self([0; 32]);

    /// The same as C has it.
    #[must_use]
    pub fn new(address: IaAddress) -> Self {
        let mut bytes = [0; 32];
        let family = match address {
            IaAddress::V4(address) => {
                bytes[4..8].copy_from_slice(&address.octets());
                AF_INET
            }
            IaAddress::V6(address) => {
                bytes[8..24].copy_from_slice(&address.octets());
                AF_INET6
            }
        };
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        Self(bytes)
    }
}

/// What lies beside one object.
#[derive(Clone, Copy)]
pub(crate) struct Aside {
    local: SocketAddress,
    remote: SocketAddress,
    private_data: [u8; MAX_PRIVATE_DATA_ANY],
}

impl Aside {
    pub(crate) const EMPTY: Self = Self {
        local: SocketAddress::NOWHERE,
        remote: SocketAddress::NOWHERE,
        private_data: [0; MAX_PRIVATE_DATA_ANY],
    };
}

/// What lies beside all of them.
pub(crate) struct Asides<'s> {
    pub(crate) eps: BySlot<'s, Aside>,
    pub(crate) crs: BySlot<'s, Aside>,
}

impl Asides<'_> {
    fn of(&mut self, handle: RawHandle) -> Option<&mut Aside> {
        match Handle::from_bits(handle).kind()? {
            HandleType::Ep => self.eps.get_or(handle, Aside::EMPTY),
            HandleType::Cr => self.crs.get_or(handle, Aside::EMPTY),
            _ => None,
        }
    }

    /// An object's addresses, local and remote, where a program can read them.
    pub(crate) fn addresses(
        &mut self,
        handle: RawHandle,
        local: IaAddress,
        remote: IaAddress,
    ) -> (Pointer, Pointer) {
        let Some(aside) = self.of(handle) else { return (ptr::null_mut(), ptr::null_mut()) };
        let pointer = |place: &mut SocketAddress, address| {
            let address = SocketAddress::new(address);
            // Somebody may be reading it.
            if *place != address {
                *place = address;
            }
            (&raw mut *place).cast()
        };
        (pointer(&mut aside.local, local), pointer(&mut aside.remote, remote))
    }

    /// An object's private data, where a program can read it.
    pub(crate) fn private_data(&mut self, handle: RawHandle, data: &[u8]) -> Pointer {
        let Some(aside) = self.of(handle).filter(|_| !data.is_empty()) else { return ptr::null_mut() };
        let place = &mut aside.private_data;
        let len = data.len().min(place.len());
        if place[..len] != data[..len] {
            place[..len].copy_from_slice(&data[..len]);
        }
        place.as_mut_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn an_address_as_c_has_it() {
        let v4 = SocketAddress::new(Ipv4Addr::new(10, 1, 2, 3).into()).0;
        assert_eq!((u16::from_ne_bytes([v4[0], v4[1]]), &v4[2..9]), (2, &[0, 0, 10, 1, 2, 3, 0][..]));
        let v6 = SocketAddress::new(Ipv6Addr::LOCALHOST.into()).0;
        assert_eq!((u16::from_ne_bytes([v6[0], v6[1]]), v6[23]), (10, 1));
    }

    #[test]
    fn pointers_stay() {
        const EP: RawHandle = 0x0200_0000_0001_0000;
        let (mut eps, mut crs) = ([(0, Aside::EMPTY); 4], [(0, Aside::EMPTY); 1]);
        let mut asides = Asides { eps: BySlot(&mut eps), crs: BySlot(&mut crs) };
        let any = IaAddress::V4(Ipv4Addr::UNSPECIFIED);
        let before = asides.addresses(EP, any, any);
        let data = asides.private_data(EP, b"hello");
        for other in EP + 1..EP + 4 {
            let _ = asides.addresses(other, any, any);
        }
        assert_eq!(asides.addresses(EP, any, Ipv4Addr::LOCALHOST.into()), before);
        assert_eq!(asides.private_data(EP, b"again"), data);
        assert!(asides.private_data(EP, b"").is_null() && asides.private_data(EP + 4, b"x").is_null());
        // A request's, at the same slot, is another's.
        assert_ne!(asides.private_data(EP - (1 << 56), b"hello"), data);
    }
}
