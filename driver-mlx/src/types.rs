//! Numbers of objects and addresses as distinct types, so that a QP number cannot be taken for a CQ number.

use core::fmt;

macro_rules! number {
    ($( $(#[$doc:meta])* $name:ident ($repr:ty, $bits:literal); )+) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        pub struct $name($repr);

        impl $name {
            #[doc = concat!("The low ", stringify!($bits), " bits of `value`.")]
            #[must_use]
            #[inline]
            pub const fn new(value: $repr) -> Self {
                Self(value & (<$repr>::MAX >> (<$repr>::BITS - $bits)))
            }

            /// The number.
            #[must_use]
            #[inline]
            pub const fn get(self) -> $repr {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    )+ };
}

number! {
    /// Number of a queue pair, 24 bits.
    QpNumber(u32, 24);
    /// Number of a completion queue, 24 bits.
    CqNumber(u32, 24);
    /// Number of a shared receive queue, 24 bits.
    SrqNumber(u32, 24);
    /// Number of an event queue, 8 bits.
    EqNumber(u8, 8);
    /// Number of a protection domain, 24 bits.
    Pd(u32, 24);
    /// Number of a UAR page: its distance from the start of BAR0 in pages of 4 KiB, 24 bits.
    UarPage(u32, 24);
    /// Key by which a work request names local memory.
    LKey(u32, 32);
    /// Key by which a peer names this side's memory, or this side the peer's.
    RKey(u32, 32);
    /// Identifier of a set of Q counters, 8 bits; 0 stands for none.
    CounterSet(u8, 8);
    /// InfiniBand local identifier.
    Lid(u16, 16);
    /// Partition key; bit 15 set for a full member.
    PKey(u16, 16);
    /// Key that a datagram must carry to be accepted by a UD QP.
    QKey(u32, 32);
    /// Packet sequence number, 24 bits, in circular arithmetic.
    Psn(u32, 24);
}

impl QpNumber {
    /// The number by which peers address the general services QP.
    pub const GSI: Self = Self(1);
}

impl PKey {
    /// The default partition, full membership.
    pub const DEFAULT: Self = Self(0xffff);
}

impl QKey {
    /// The well-known key of QP1 (IBTA 1.3, 3.5.3).
    pub const GSI: Self = Self(0x8001_0000);
}

impl Psn {
    /// `count` packets later.
    #[must_use]
    pub const fn add(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// How many packets `self` is after `other`: -2^23 to 2^23 - 1.
    #[must_use]
    pub const fn distance_from(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
}

/// InfiniBand global identifier, in wire order.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The prefix of a subnet without a manager's choice: fe80::/64.
    pub const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;

    /// A GID from its two halves.
    #[must_use]
    pub const fn new(prefix: u64, guid: u64) -> Self {
        Self((((prefix as u128) << 64) | guid as u128).to_be_bytes())
    }

    /// The subnet prefix.
    #[must_use]
    pub const fn prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// Whether it names a multicast group (IBTA 1.3, 4.1.1).
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] == 0xff
    }

    /// The port GUID.
    #[must_use]
    pub const fn guid(self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&core::net::Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// Path MTU: payload bytes of a full packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// From InfiniBand's code; `None` for a code that is no MTU.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }

    /// InfiniBand's code, which the device uses as well.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Payload bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// From a number of bytes; `None` if that is no MTU.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::B256),
            512 => Some(Self::B512),
            1024 => Some(Self::B1024),
            2048 => Some(Self::B2048),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }
}

/// One piece of a work request's local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Sge {
    /// Address as the memory key counts: virtual or zero-based; a device address under the reserved key.
    pub address: u64,
    /// Bytes, below 2^31.
    pub length: u32,
    /// Key of the memory.
    pub lkey: LKey,
}

/// The part of an address that global routing needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Grh {
    /// The destination's GID.
    pub dgid: Gid,
    /// Index of the source GID in this port's table.
    pub source_gid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// How to reach a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Path {
    /// By InfiniBand's local identifiers, with a global header if it leaves the subnet.
    InfiniBand {
        /// Destination.
        dlid: Lid,
        /// Service level, 0 to 15.
        sl: u8,
        /// Low bits of the source LID (LMC), 7 bits.
        src_path_bits: u8,
        /// Injection rate in InfiniBand's code (IBTA 1.3, table 207), 0 for the port's own.
        static_rate: u8,
        /// Global routing header, if one is to be sent.
        grh: Option<Grh>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_arithmetic_is_circular() {
        assert_eq!(Psn::new(0xff_ffff).add(2), Psn::new(1));
        assert_eq!(Psn::new(1).distance_from(Psn::new(0xff_ffff)), 2);
        assert_eq!(Psn::new(0xff_ffff).distance_from(Psn::new(1)), -2);
        assert_eq!(Psn::new(0x80_0000).distance_from(Psn::new(0)), -0x80_0000);
    }

    #[test]
    fn numbers_keep_their_width() {
        assert_eq!(QpNumber::new(0xff12_3456).get(), 0x12_3456);
        assert_eq!(Gid::new(Gid::DEFAULT_PREFIX, 0x506b_4b03_00a0_0001).guid(), 0x506b_4b03_00a0_0001);
        assert_eq!(Mtu::from_code(5).map(Mtu::bytes), Some(4096));
    }
}
