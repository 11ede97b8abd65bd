//! What a program holds pointers to: addresses and private data of requests, endpoints and IAs. It stays where it is as long as the
//! object lives.

use crate::handles::RawHandle;
use crate::layout::Pointer;
use dat_nostd::{IaAddress, MAX_PRIVATE_DATA_ANY};
use std::collections::HashMap;

/// A `struct sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub(crate) struct SocketAddress([u8; 32]);

impl SocketAddress {
    pub(crate) fn new(address: IaAddress) -> Self {
        let mut bytes = [0; 32];
        let family = match address {
            IaAddress::V4(address) => {
                bytes[4..8].copy_from_slice(&address.octets());
                libc::AF_INET
            }
            IaAddress::V6(address) => {
                bytes[8..24].copy_from_slice(&address.octets());
                libc::AF_INET6
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Self(bytes)
    }
}

/// What lies beside one object.
struct Aside {
    local: SocketAddress,
    remote: SocketAddress,
    private_data: [u8; MAX_PRIVATE_DATA_ANY],
}

/// What lies beside all of them.
#[derive(Default)]
pub(crate) struct Asides(HashMap<RawHandle, Box<Aside>>);

impl Asides {
    fn of(&mut self, handle: RawHandle) -> &mut Aside {
        const NOWHERE: SocketAddress = SocketAddress([0; 32]);
        self.0.entry(handle).or_insert_with(|| {
            Box::new(Aside { local: NOWHERE, remote: NOWHERE, private_data: [0; MAX_PRIVATE_DATA_ANY] })
        })
    }

    /// An object's addresses, local and remote, where a program can read them.
    pub(crate) fn addresses(
        &mut self,
        handle: RawHandle,
        local: IaAddress,
        remote: IaAddress,
    ) -> (Pointer, Pointer) {
        let aside = self.of(handle);
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
        if data.is_empty() {
            return std::ptr::null_mut();
        }
        let place = &mut self.of(handle).private_data;
        let len = data.len().min(place.len());
        if place[..len] != data[..len] {
            place[..len].copy_from_slice(&data[..len]);
        }
        place.as_mut_ptr().cast()
    }

    /// The object is gone.
    pub(crate) fn forget(&mut self, handle: RawHandle) {
        self.0.remove(&handle);
    }

    /// Forgets what is gone.
    pub(crate) fn retain(&mut self, is_alive: impl Fn(RawHandle) -> bool) {
        self.0.retain(|handle, _| is_alive(*handle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn an_address_as_c_has_it() {
        let v4 = SocketAddress::new(Ipv4Addr::new(10, 1, 2, 3).into()).0;
        assert_eq!((u16::from_ne_bytes([v4[0], v4[1]]), &v4[2..9]), (2, &[0, 0, 10, 1, 2, 3, 0][..]));
        let v6 = SocketAddress::new(Ipv6Addr::LOCALHOST.into()).0;
        assert_eq!((u16::from_ne_bytes([v6[0], v6[1]]), v6[23]), (10, 1));
    }

    #[test]
    fn pointers_stay() {
        let mut asides = Asides::default();
        let any = IaAddress::V4(Ipv4Addr::UNSPECIFIED);
        let before = asides.addresses(7, any, any);
        let data = asides.private_data(7, b"hello");
        for handle in 8..2000 {
            let _ = asides.addresses(handle, any, any);
        }
        assert_eq!(asides.addresses(7, any, Ipv4Addr::LOCALHOST.into()), before);
        assert_eq!(asides.private_data(7, b"again"), data);
        asides.retain(|handle| handle == 7);
        asides.forget(7);
        assert!(asides.0.is_empty() && asides.private_data(7, b"").is_null());
    }
}
