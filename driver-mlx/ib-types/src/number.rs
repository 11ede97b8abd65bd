//! Numbers of a fixed width.

/// Defines numbers as distinct types of so many bits, with `new` (the low bits of a value), `get`,
/// and hexadecimal formats.
///
/// The crate that invokes it has a `defmt` feature, which adds a `defmt::Format`.
#[macro_export]
macro_rules! number {
    ($( $(#[$doc:meta])* $name:ident ($repr:ty, $bits:literal); )+) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        #[repr(transparent)]
        pub struct $name($repr);

        impl $name {
            #[doc = concat!("The low ", stringify!($bits), " bits of `value`.")]
            #[inline]
            pub const fn new(value: $repr) -> Self {
                Self(value & (<$repr>::MAX >> (<$repr>::BITS - $bits)))
            }

            /// The number.
            #[inline]
            pub const fn get(self) -> $repr {
                self.0
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    )+ };
}

number! {
    /// Number of a queue pair, 24 bits.
    QpNumber(u32, 24);
    /// Packet sequence number, 24 bits, in circular arithmetic (IBTA 1.3, 9.7.2).
    Psn(u32, 24);
    /// Local identifier: the address of a port, or of a multicast group, within its subnet (IBTA
    /// 1.3, 4.1.3).
    Lid(u16, 16);
    /// Globally unique identifier of a node or port: an EUI-64.
    Guid(u64, 64);
    /// Partition key; bit 15 set for a full member (IBTA 1.3, 10.9).
    PKey(u16, 16);
    /// Key that a datagram must carry to be accepted by a UD QP (IBTA 1.3, 3.5.3).
    QKey(u32, 32);
    /// Code of a path's or a link's rate, 6 bits (IBTA 1.3, table 207, and later releases).
    Rate(u8, 6);
    /// Service level, 4 bits; the subnet maps it to virtual lanes (IBTA 1.3, 7.6.5).
    ServiceLevel(u8, 4);
    /// Number of a VLAN, 12 bits (IEEE 802.1Q 9.6).
    VlanId(u16, 12);
}

/// Returns the UDP source port of RoCE v2 packets from QP `local` to QP `remote`, 0xc000 to 0xffff.
/// Routers spread flows by it. The flow label decides, or the QP numbers if that is 0. Linux,
/// include/rdma/ib_verbs.h, rdma_get_udp_sport.
#[must_use]
pub const fn roce_source_port(flow_label: u32, local: QpNumber, remote: QpNumber) -> u16 {
    let label = if flow_label != 0 {
        flow_label
    } else {
        let mut mixed = local.get() as u64 * remote.get() as u64;
        mixed ^= mixed >> 20;
        mixed ^= mixed >> 40;
        mixed as u32 & 0xf_ffff
    };
    0xc000 | ((label & 0x3fff) ^ (label >> 14)) as u16 & 0x3fff
}

impl QpNumber {
    /// The subnet management interface.
    pub const SMI: Self = Self(0);
    /// The general services interface.
    pub const GSI: Self = Self(1);
    /// The destination of multicast datagrams.
    pub const MULTICAST: Self = Self(0xff_ffff);
}

impl Rate {
    /// Returns the speed in Mb/s, or `None` for a code without a meaning. FDR's 56.25 Gb/s counts
    /// as 56.
    #[must_use]
    pub const fn megabits(self) -> Option<u32> {
        Some(match self.0 {
            2 => 2_500,
            3 => 10_000,
            4 => 30_000,
            5 => 5_000,
            6 => 20_000,
            7 => 40_000,
            8 => 60_000,
            9 => 80_000,
            10 => 120_000,
            11 => 14_000,
            12 => 56_000,
            13 => 112_000,
            14 => 168_000,
            15 => 25_000,
            16 => 100_000,
            17 => 200_000,
            18 => 300_000,
            19 => 28_000,
            20 => 50_000,
            21 => 400_000,
            22 => 600_000,
            23 => 800_000,
            24 => 1_200_000,
            _ => return None,
        })
    }
}

impl PKey {
    /// The default partition, full membership.
    pub const DEFAULT: Self = Self(0xffff);

    /// The partition, without the member's kind: the low 15 bits.
    pub const fn partition(self) -> u16 {
        self.0 & 0x7fff
    }

    /// The full member's key of the same partition.
    pub const fn full_member(self) -> Self {
        Self(self.0 | 0x8000)
    }
}

impl QKey {
    /// The fixed key of QP1 (IBTA 1.3, 3.5.3).
    pub const GSI: Self = Self(0x8001_0000);
}

impl Lid {
    /// The first multicast LID.
    const FIRST_MULTICAST: u16 = 0xc000;
    /// Names the port at the other end of a link, whatever its LID (IBTA 1.3, 14.2.1).
    pub const PERMISSIVE: Self = Self(0xffff);

    /// Returns whether a single port can have it: neither 0, nor a multicast LID, nor the
    /// permissive LID.
    pub const fn is_unicast(self) -> bool {
        self.0 != 0 && self.0 < Self::FIRST_MULTICAST
    }

    /// Returns whether it names a multicast group.
    pub const fn is_multicast(self) -> bool {
        self.0 >= Self::FIRST_MULTICAST && self.0 != Self::PERMISSIVE.0
    }
}

impl Psn {
    const MASK: u32 = 0xff_ffff;

    /// `count` packets later.
    #[inline]
    pub const fn add(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// The one after.
    #[inline]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// The one before.
    #[inline]
    pub const fn previous(self) -> Self {
        self.add(Self::MASK)
    }

    /// Returns the number of packets from `earlier` to `self`: 0 to 2^24 - 1.
    #[inline]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }

    /// Returns the signed number of packets from `other` to `self`: -2^23 to 2^23 - 1.
    #[inline]
    pub const fn distance_from(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Returns whether this PSN precedes `other`, modulo 2^24: `other` is one of the 2^23 numbers
    /// after it.
    #[inline]
    pub const fn is_before(self, other: Self) -> bool {
        self.distance_from(other) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_width() {
        assert_eq!(QpNumber::new(0xff12_3456).get(), 0x12_3456);
        assert_eq!(ServiceLevel::new(0x1f).get(), 15);
        assert_eq!(Guid::new(u64::MAX).get(), u64::MAX);
        assert_eq!(std::format!("{:?} {}", Lid::new(0x2a), PKey::DEFAULT), "Lid(0x2a) 0xffff");
    }

    #[test]
    fn source_ports_are_linux_s() {
        let port = |label, a, b| roce_source_port(label, QpNumber::new(a), QpNumber::new(b));
        assert_eq!(port(0, 0x11, 0x12), 0xc132);
        assert_eq!(port(0, 0x118, 0xd3), 0xe6cb);
        assert_eq!(port(0, 0x12_3456, 0xa_bcde), 0xfd2f);
        assert_eq!(port(0x12345, 1, 2), 0xe341);
        assert_eq!(port(0, 0, 0), 0xc000);
    }

    #[test]
    fn members_of_both_kinds_are_of_one_partition() {
        assert_eq!(PKey::new(0x8001).partition(), PKey::new(1).partition());
        assert_eq!(PKey::new(1).full_member(), PKey::new(0x8001));
    }

    #[test]
    fn lids_are_of_one_kind() {
        let kinds = [0, 1, 0xbfff, 0xc000, 0xfffe, 0xffff].map(|lid| {
            let lid = Lid::new(lid);
            (lid.is_unicast(), lid.is_multicast())
        });
        let (neither, unicast, multicast) = ((false, false), (true, false), (false, true));
        assert_eq!(kinds, [neither, unicast, unicast, multicast, multicast, neither]);
    }

    #[test]
    fn psn_arithmetic_is_circular() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.add(2), Psn::new(1));
        assert_eq!((last.next(), Psn::new(0).previous()), (Psn::new(0), last));
        assert_eq!(Psn::new(1).distance_from(last), 2);
        assert_eq!(last.distance_from(Psn::new(1)), -2);
        assert_eq!(Psn::new(0x80_0000).distance_from(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(5).since(last), 6);
        assert!(last.is_before(Psn::new(0)) && !Psn::new(0).is_before(last));
        assert!(!Psn::new(9).is_before(Psn::new(9)));
        assert!(Psn::new(1).is_before(Psn::new(0x80_0000)));
        assert!(!Psn::new(0).is_before(Psn::new(0x80_0001)), "more than half the circle behind is ahead");
    }
}
