//! Paths to peers, and the two forms in which the device reads them: the address path of a connected
//! QP (`ads`) and the address vector of a datagram (PRM, "Queue Pair Context" and "Address Vector").

use crate::error::Error;
use crate::types::{Gid, Lid, MacAddress, QKey, QpNumber, Rate, ServiceLevel};
use ib_types::roce_source_port;
use mlx5_prm::contexts::ads;
use mlx5_prm::datapath::EXTENDED_UD_AV;

/// The part of an address that global routing needs. RoCE v2 sends it as an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Grh {
    /// The destination's GID; on RoCE its IP address.
    pub dgid: Gid,
    /// Index of the source GID in this port's table. On RoCE the entry also decides MAC address and
    /// VLAN of the source.
    pub source_gid_index: u8,
    /// Flow label, 20 bits. RoCE v2 derives the UDP source port from it, or from the QP numbers if
    /// it is 0.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class; on RoCE v2 DSCP and ECN.
    pub traffic_class: u8,
}

/// A route to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Path {
    /// By InfiniBand's local identifiers, with a global header if it leaves the subnet.
    InfiniBand {
        /// Destination.
        dlid: Lid,
        /// Service level.
        sl: ServiceLevel,
        /// Low bits of the source LID (LMC), 7 bits.
        src_path_bits: u8,
        /// Injection rate as a code of [`Rate`], 0 for the port's own. A device that cannot limit
        /// to it takes the next slower rate that it can, or the port's own if there is none.
        static_rate: u8,
        /// Global routing header, if one is to be sent.
        grh: Option<Grh>,
    },
    /// By Ethernet and IP (RoCE v2), from an address of [`Hca::add_roce_address`](crate::Hca::add_roce_address).
    Roce {
        /// MAC address of the next hop.
        dmac: MacAddress,
        /// Priority in the VLAN tag, 3 bits. Without a VLAN frames have no tag.
        priority: u8,
        /// Addresses, traffic class, hop limit.
        grh: Grh,
    },
    /// Back into the device (`ads.fl`), without address or link: reliable connections of a QP with
    /// one of the same HCA, where [`Capabilities::force_loopback`](crate::Capabilities) says so.
    Loopback,
}

/// Ends of a path that are QPs: their numbers vary the UDP source port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    local: QpNumber,
    remote: QpNumber,
}

impl Ends {
    pub(crate) const fn new(local: QpNumber, remote: QpNumber) -> Self {
        Self { local, remote }
    }
}

impl Path {
    /// Writes the address path of a connected QP. `rates` is `stat_rate_support`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] names a field that is out of range.
    pub(crate) fn write_ads(&self, to: &mut [u8], ends: Ends, rates: u16) -> Result<(), Error> {
        match *self {
            Self::InfiniBand { dlid, sl, src_path_bits, static_rate, grh } => {
                if src_path_bits > 0x7f {
                    return Err(Error::InvalidArgument("src_path_bits"));
                }
                ads::rlid.set(to, dlid.get());
                ads::mlid.set(to, src_path_bits);
                ads::sl.set(to, sl.get());
                ads::stat_rate.set(to, stat_rate(static_rate, rates));
                ads::grh.set(to, grh.is_some());
                grh.map_or(Ok(()), |grh| grh.write_ads(to))
            }
            Self::Roce { dmac, priority, grh } => {
                if priority > 7 {
                    return Err(Error::InvalidArgument("priority"));
                }
                let (high, low) = dmac.halves();
                ads::rmac_47_32.set(to, high);
                ads::rmac_31_0.set(to, low);
                ads::eth_prio.set(to, priority);
                ads::dscp.set(to, grh.traffic_class >> 2);
                ads::udp_sport.set(to, roce_source_port(grh.flow_label, ends.local, ends.remote));
                grh.write_ads(to)
            }
            Self::Loopback => {
                ads::fl.set(to, true);
                Ok(())
            }
        }
    }

    /// Writes the route of an address vector into its quadwords, in processor order. Quadword 0 and
    /// the upper half of quadword 1 are the destination QP's.
    fn write_av(&self, words: &mut [u64; 6], rates: u16) {
        match *self {
            Self::InfiniBand { dlid, sl, src_path_bits, static_rate, grh } => {
                words[1] |= u64::from(stat_rate(static_rate, rates)) << 28
                    | u64::from(sl.get()) << 24
                    | u64::from(src_path_bits & 0x7f) << 16
                    | u64::from(dlid.get());
                if let Some(grh) = grh {
                    grh.write_av(words);
                }
            }
            Self::Roce { dmac, priority, grh } => {
                // Linux spreads only datagrams with a flow label (drivers/infiniband/hw/mlx5/ah.c).
                let port = roce_source_port(grh.flow_label, QpNumber::default(), QpNumber::default());
                words[1] |= u64::from(priority & 7) << 25 | u64::from(port);
                let (high, low) = dmac.halves();
                let mac = u64::from(high) << 32 | u64::from(low);
                words[2] = mac >> 16;
                grh.write_av(words);
                words[3] |= mac << 48 | ECT0 << 40;
            }
            // For reliable connections only: firmware has no datagrams that loop.
            Self::Loopback => words[1] |= 1 << 23,
        }
    }
}

/// `tclass` of datagrams on RoCE: the transport is capable of ECN (RFC 3168 5), as Linux sends them.
const ECT0: u64 = 2;

impl Grh {
    fn write_ads(&self, to: &mut [u8]) -> Result<(), Error> {
        if self.flow_label > 0xf_ffff {
            return Err(Error::InvalidArgument("flow_label"));
        }
        ads::src_addr_index.set(to, self.source_gid_index);
        ads::hop_limit.set(to, self.hop_limit);
        ads::tclass.set(to, self.traffic_class);
        ads::flow_label.set(to, self.flow_label);
        ads::rgid_rip.of_mut(to).iter_mut().zip(self.dgid.0).for_each(|(to, from)| *to = from);
        Ok(())
    }

    fn write_av(&self, words: &mut [u64; 6]) {
        words[3] = u64::from(self.traffic_class) << 40
            | u64::from(self.hop_limit) << 32
            | 1 << 30
            | u64::from(self.source_gid_index) << 20
            | u64::from(self.flow_label & 0xf_ffff);
        words[4] = self.dgid.prefix();
        words[5] = self.dgid.interface_id();
    }
}

/// Where a datagram goes, in the form the device reads: made once, used for every send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct AddressVector {
    words: [u64; 6],
}

impl AddressVector {
    /// The vector for QP `qpn` with key `q_key` at the end of `path`. `rate_supported` is
    /// [`Capabilities::stat_rate_support`](crate::Capabilities).
    #[must_use]
    pub fn new(path: &Path, qpn: QpNumber, q_key: QKey, rate_supported: u16) -> Self {
        let destination = u64::from(EXTENDED_UD_AV | qpn.get()) << 32;
        let mut words = [u64::from(q_key.get()) << 32, destination, 0, 0, 0, 0];
        path.write_av(&mut words, rate_supported);
        Self { words }
    }

    /// The segment's quadwords, in processor order.
    #[inline]
    pub(crate) fn words(&self) -> &[u64; 6] {
        &self.words
    }
}

/// Rates that the device can limit to, from the fastest, and its codes for them. Linux,
/// drivers/infiniband/hw/mlx5/qp.c, ib_to_mlx5_rate_map; codes above 15 do not fit the field.
const STATIC_RATES: [(Rate, u8); 15] = [
    (Rate::new(21), 6),
    (Rate::new(17), 4),
    (Rate::new(10), 15),
    (Rate::new(16), 3),
    (Rate::new(9), 14),
    (Rate::new(8), 13),
    (Rate::new(12), 1),
    (Rate::new(20), 5),
    (Rate::new(7), 12),
    (Rate::new(4), 9),
    (Rate::new(15), 2),
    (Rate::new(6), 11),
    (Rate::new(3), 8),
    (Rate::new(5), 10),
    (Rate::new(2), 7),
];

/// Returns the device's code of InfiniBand rate `rate`, or of the next slower rate that is
/// supported. Returns 0, the port's own rate, if there is none, and for rates faster than the
/// device can limit to.
pub(crate) fn stat_rate(rate: u8, supported: u16) -> u8 {
    let Some(asked) = Rate::new(rate).megabits() else { return 0 };
    let [(fastest, _), ..] = STATIC_RATES;
    if fastest.megabits() < Some(asked) {
        return 0;
    }
    let usable = |(rate, code): &(Rate, u8)| rate.megabits() <= Some(asked) && supported >> code & 1 != 0;
    STATIC_RATES.iter().find(|rate| usable(rate)).map_or(0, |&(_, code)| code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlx5_prm::datapath::av;

    #[test]
    fn address_vector_agrees_with_the_layout() {
        let dgid = Gid::new(Gid::DEFAULT_PREFIX, 0x0123_4567_89ab_cdef);
        let grh = Grh { dgid, source_gid_index: 3, flow_label: 0xabcde, hop_limit: 64, traffic_class: 0x5a };
        let path = Path::InfiniBand {
            dlid: Lid::new(0x1234),
            sl: ServiceLevel::new(7),
            src_path_bits: 0x15,
            static_rate: 0,
            grh: Some(grh),
        };
        let vector = AddressVector::new(&path, QpNumber::new(0x55_6677), QKey::GSI, 1);
        let bytes = bytes_of(&vector);
        assert_eq!(av::LAYOUT.reserved_bits_set(&bytes), None);
        assert_eq!(av::qkey.get32(&bytes), 0x8001_0000);
        assert!(av::ext.is_set(&bytes) && av::grh.is_set(&bytes));
        assert_eq!(av::dqp_dct.get32(&bytes), 0x55_6677);
        assert_eq!((av::sl.get32(&bytes), av::mlid.get32(&bytes), av::rlid.get32(&bytes)), (7, 0x15, 0x1234));
        assert_eq!((av::tclass.get32(&bytes), av::hop_limit.get32(&bytes)), (0x5a, 64));
        assert_eq!((av::src_addr_index.get32(&bytes), av::flow_label.get32(&bytes)), (3, 0xabcde));
        assert_eq!(av::rgid.of(&bytes), dgid.0);
    }

    fn bytes_of(vector: &AddressVector) -> [u8; 48] {
        let mut bytes = [0; 48];
        for (quad, word) in bytes.chunks_exact_mut(8).zip(vector.words) {
            quad.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    const ROCE: Path = Path::Roce {
        dmac: MacAddress([2, 0x11, 0x22, 0x33, 0x44, 0x55]),
        priority: 5,
        grh: Grh {
            dgid: Gid::new(0, 0xffff_0a00_0002),
            source_gid_index: 4,
            flow_label: 0x12345,
            hop_limit: 64,
            traffic_class: 0x68,
        },
    };

    #[test]
    fn address_vector_of_roce_has_mac_port_and_ect() {
        let bytes = bytes_of(&AddressVector::new(&ROCE, QpNumber::new(0x77), QKey::GSI, 0));
        assert_eq!(av::LAYOUT.reserved_bits_set(&bytes), None);
        assert_eq!(av::rmac.of(&bytes), [2, 0x11, 0x22, 0x33, 0x44, 0x55]);
        // rate and twice the priority share a byte.
        assert_eq!((av::stat_rate.get32(&bytes), av::sl.get32(&bytes)), (0, 10));
        assert_eq!((av::rlid.get32(&bytes), av::mlid.get32(&bytes)), (0xe341, 0));
        assert_eq!((av::tclass.get32(&bytes), av::hop_limit.get32(&bytes)), (0x6a, 64));
        assert_eq!((av::src_addr_index.get32(&bytes), av::grh.is_set(&bytes)), (4, true));
        // Without a flow label datagrams leave from the lowest port.
        let Path::Roce { dmac, priority, grh } = ROCE else { unreachable!() };
        let path = Path::Roce { dmac, priority, grh: Grh { flow_label: 0, ..grh } };
        let bytes = bytes_of(&AddressVector::new(&path, QpNumber::new(0x77), QKey::GSI, 0));
        assert_eq!(av::rlid.get32(&bytes), 0xc000);
    }

    fn ads_of(path: &Path) -> Result<[u8; ads::SIZE], Error> {
        let mut bytes = [0; ads::SIZE];
        let ends = Ends { local: QpNumber::new(0x11), remote: QpNumber::new(0x12) };
        path.write_ads(&mut bytes, ends, 0xffff).map(|()| bytes)
    }

    #[test]
    fn address_path_of_roce_leaves_infiniband_s_fields_zero() {
        let bytes = ads_of(&ROCE).expect("in range");
        assert_eq!(ads::LAYOUT.reserved_bits_set(&bytes), None);
        assert_eq!((ads::rmac_47_32.get32(&bytes), ads::rmac_31_0.get32(&bytes)), (0x0211, 0x2233_4455));
        assert_eq!((ads::udp_sport.get32(&bytes), ads::dscp.get32(&bytes)), (0xe341, 0x1a));
        assert_eq!((ads::eth_prio.get32(&bytes), ads::src_addr_index.get32(&bytes)), (5, 4));
        for field in [ads::fl, ads::grh, ads::rlid, ads::mlid, ads::sl, ads::f_dscp, ads::f_ecn, ads::ecn] {
            assert_eq!(field.get32(&bytes), 0);
        }
        let Path::Roce { dmac, grh, .. } = ROCE else { unreachable!() };
        assert_eq!(ads_of(&Path::Roce { dmac, priority: 8, grh }), Err(Error::InvalidArgument("priority")));
        let grh = Grh { flow_label: 1 << 20, ..grh };
        let path = Path::Roce { dmac, priority: 0, grh };
        assert_eq!(ads_of(&path), Err(Error::InvalidArgument("flow_label")));
    }

    #[test]
    fn address_path_of_loopback_is_one_bit() {
        let bytes = ads_of(&Path::Loopback).expect("in range");
        assert!(ads::fl.is_set(&bytes) && bytes.iter().map(|byte| byte.count_ones()).sum::<u32>() == 1);
    }

    #[test]
    fn rates_fall_back_to_what_is_supported() {
        assert_eq!(stat_rate(0, 0xffff), 0);
        assert_eq!(stat_rate(7, 1 << 7 | 1 << 12), 12);
        assert_eq!(stat_rate(6, 1 << 7 | 1 << 12), 7);
        assert_eq!(stat_rate(6, 1), 0);
        assert_eq!(stat_rate(255, 1 << 15), 0, "no rate");
        assert_eq!(stat_rate(17, 1 << 15), 15, "120 Gb/s of 200");
        assert_eq!(stat_rate(23, 0xffff), 0, "800 Gb/s is more than any limit");
        // Slower is a matter of speed: code 5 is 5 Gb/s, code 4 is 30.
        assert_eq!(stat_rate(5, 1 << 9 | 1 << 8 | 1 << 7), 7);
        assert_eq!(stat_rate(4, 1 << 10 | 1 << 8), 8);
    }

    #[test]
    fn rates_have_the_device_s_own_codes() {
        let codes = [(12, 1), (15, 2), (16, 3), (17, 4), (20, 5), (21, 6)];
        for (rate, code) in (2..=10).map(|rate| (rate, rate + 5)).chain(codes) {
            assert_eq!(stat_rate(rate, 0xffff), code, "rate {rate}");
            assert_eq!(stat_rate(rate, 1 << code), code, "rate {rate} alone");
        }
        assert!(STATIC_RATES.is_sorted_by(|a, b| a.0.megabits() > b.0.megabits()));
    }
}
