//! `struct ifreq`, as `SIOCGIFCONF`, `SIOCGIFADDR`, `SIOCGIFFLAGS` and `SIOCGIFMTU` fill it from an
//! [`Interface`]. Sources: Linux `include/uapi/linux/if.h`; illumos `net/if.h`.

use core::net::SocketAddr;

use crate::cmsg::address::encode_address;
use crate::cmsg::fields::put;
use crate::interface::{Interface, InterfaceFlags};
use crate::profile::Profile;

/// Bytes of a name in a `struct ifreq`, with its terminating zero.
const NAME_LEN: usize = 16;
/// Bytes of the longer `struct ifreq`, Linux's.
pub const IFREQ_LEN: usize = 40;
/// Linux's number of this flag.
const LINUX_MULTICAST: u16 = 0x1000;

/// Field of a `struct ifreq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceField {
    /// `ifr_addr`, of IPv4.
    Address,
    /// `ifr_flags`.
    Flags,
    /// `ifr_mtu`, bytes; an alias of `ifr_metric` in rds(3SOCKET).
    Mtu,
}

impl Profile {
    /// Returns the bytes of a `struct ifreq`, with 64 bits.
    #[must_use]
    pub const fn ifreq_len(self) -> usize {
        self.select(IFREQ_LEN, 32)
    }
}

/// Returns an interface's name on the profile's system.
fn name<'a>(profile: Profile, interface: &Interface<'a>) -> &'a str {
    match profile {
        Profile::Linux if interface.flags.contains(InterfaceFlags::LOOPBACK) => "lo",
        _ => interface.name,
    }
}

/// Returns the interface that a `struct ifreq` names, or `None`.
#[must_use]
pub fn named_interface<'i>(
    profile: Profile,
    interfaces: &'i [Interface<'i>],
    ifreq: &[u8],
) -> Option<&'i Interface<'i>> {
    let field = ifreq.get(..NAME_LEN)?;
    let wanted = field.split(|byte| *byte == 0).next()?;
    interfaces.iter().find(|interface| name(profile, interface).as_bytes() == wanted)
}

/// Encodes a `struct ifreq` of the profile's [length](Profile::ifreq_len). Returns `None` if the
/// interface's address is not IPv4.
#[must_use]
pub fn encode_ifreq(
    profile: Profile,
    interface: &Interface<'_>,
    field: InterfaceField,
) -> Option<[u8; IFREQ_LEN]> {
    let mut bytes = [0; IFREQ_LEN];
    for (to, from) in bytes.iter_mut().zip(name(profile, interface).bytes()).take(NAME_LEN - 1) {
        *to = from;
    }
    match field {
        InterfaceField::Address => {
            let address = SocketAddr::new(interface.address, 0);
            let (encoded, _) = encode_address(profile, &address).filter(|_| address.is_ipv4())?;
            put(&mut bytes, NAME_LEN, *encoded.first_chunk::<16>()?);
        }
        InterfaceField::Flags => {
            let mut flags = interface.flags.bits() as u16;
            let multicast = InterfaceFlags::MULTICAST.bits() as u16;
            if profile == Profile::Linux && flags & multicast != 0 {
                flags = flags & !multicast | LINUX_MULTICAST;
            }
            put(&mut bytes, NAME_LEN, flags.to_ne_bytes());
        }
        InterfaceField::Mtu => put(&mut bytes, NAME_LEN, interface.mtu),
    }
    Some(bytes)
}
