//! Send work requests as the caller states them, and the address vector of datagrams.

use crate::types::{Path, QKey, QpNumber, RKey, Rate};
use bitflags::bitflags;
use core::fmt;
use mlx5_prm::datapath::{EXTENDED_UD_AV, FmCeSe, SendOpcode};

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum SendOp {
    /// Nothing, but completes in order.
    Nop,
    /// Fills a receive of the peer.
    Send,
    /// Fills a receive of the peer and hands over a number.
    SendImm(u32),
    /// Fills a receive of the peer and invalidates one of its keys.
    SendInval(RKey),
    /// Writes the peer's memory.
    Write {
        /// Where, as the peer's key counts.
        raddr: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// Writes the peer's memory, then takes a receive of the peer to hand over a number.
    WriteImm {
        /// Where, as the peer's key counts.
        raddr: u64,
        /// The peer's key.
        rkey: RKey,
        /// The number.
        imm: u32,
    },
    /// Reads the peer's memory into the local SGEs.
    Read {
        /// From where, as the peer's key counts.
        raddr: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// Replaces 8 bytes of the peer's memory if they are as expected (RC). The bytes as they were arrive in the one local SGE, of 8
    /// bytes, as a number in the processor's byte order.
    CompareSwap {
        /// Where, as the peer's key counts: a multiple of 8.
        raddr: u64,
        /// The peer's key.
        rkey: RKey,
        /// What is expected.
        compare: u64,
        /// What takes its place.
        swap: u64,
    },
    /// Adds to 8 bytes of the peer's memory (RC). The bytes as they were arrive in the one local SGE, of 8 bytes, as a number in the
    /// processor's byte order.
    FetchAdd {
        /// Where, as the peer's key counts: a multiple of 8.
        raddr: u64,
        /// The peer's key.
        rkey: RKey,
        /// What is added, without carry out of the 8 bytes.
        add: u64,
    },
}

/// Bytes that an atomic operation works on.
pub const ATOMIC_BYTES: u32 = 8;

impl SendOp {
    /// Whether the peer responds with data.
    #[inline]
    pub(crate) fn brings_data(self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether only reliable services have it.
    #[inline]
    pub(crate) fn is_reliable(self) -> bool {
        self.brings_data() || matches!(self, Self::SendInval(_))
    }

    /// The operands of an atomic operation: what is swapped in or added, and what is compared.
    #[inline]
    pub(crate) fn operands(self) -> Option<(u64, u64)> {
        match self {
            Self::CompareSwap { compare, swap, .. } => Some((swap, compare)),
            Self::FetchAdd { add, .. } => Some((add, 0)),
            _ => None,
        }
    }

    /// Opcode, immediate dword, remote address segment.
    #[inline]
    pub(crate) fn parts(self) -> (SendOpcode, u32, Option<(u64, RKey)>) {
        match self {
            Self::Nop => (SendOpcode::NOP, 0, None),
            Self::Send => (SendOpcode::SEND, 0, None),
            Self::SendImm(imm) => (SendOpcode::SEND_IMM, imm, None),
            Self::SendInval(rkey) => (SendOpcode::SEND_INVAL, rkey.get(), None),
            Self::Write { raddr, rkey } => (SendOpcode::RDMA_WRITE, 0, Some((raddr, rkey))),
            Self::WriteImm { raddr, rkey, imm } => (SendOpcode::RDMA_WRITE_IMM, imm, Some((raddr, rkey))),
            Self::Read { raddr, rkey } => (SendOpcode::RDMA_READ, 0, Some((raddr, rkey))),
            Self::CompareSwap { raddr, rkey, .. } => (SendOpcode::ATOMIC_CS, 0, Some((raddr, rkey))),
            Self::FetchAdd { raddr, rkey, .. } => (SendOpcode::ATOMIC_FA, 0, Some((raddr, rkey))),
        }
    }
}

bitflags! {
    /// How a send work request is carried out.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u8 {
        /// The peer's receive completion asks for an event.
        const SOLICITED = FmCeSe::SOLICITED.bits();
        /// A completion comes also on success. Without it, slots are freed by a later completion of the same queue.
        const SIGNALED = FmCeSe::CQ_UPDATE.bits();
        /// Starts only after all earlier RDMA reads of this queue.
        const FENCE = FmCeSe::FENCE.bits();
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for SendFlags {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "SendFlags({=u8:#x})", self.bits());
    }
}

/// Why a work request was not posted. The queue is as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PostError {
    /// The queue is full until completions are retired.
    Full,
    /// More SGEs than the queue was made for; an atomic operation without exactly one.
    TooManySges,
    /// More inline bytes than the queue was made for, an SGE of 2^31 bytes or more, or one of an atomic operation that is not
    /// [`ATOMIC_BYTES`] long.
    TooLong,
    /// The queue pair has another service type, or was not made for it.
    WrongService,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the queue is full",
            Self::TooManySges => "too many pieces of memory",
            Self::TooLong => "too many bytes",
            Self::WrongService => "not possible with this service type",
        })
    }
}

impl core::error::Error for PostError {}

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
        let Path::InfiniBand { dlid, sl, src_path_bits, static_rate, grh } = *path;
        let rate = stat_rate(static_rate, rate_supported);
        let mut words = [
            u64::from(q_key.get()) << 32,
            u64::from(EXTENDED_UD_AV | qpn.get()) << 32
                | u64::from(rate) << 28
                | u64::from(sl.get()) << 24
                | u64::from(src_path_bits & 0x7f) << 16
                | u64::from(dlid.get()),
            0,
            0,
            0,
            0,
        ];
        if let Some(grh) = grh {
            words[3] = u64::from(grh.traffic_class) << 40
                | u64::from(grh.hop_limit) << 32
                | 1 << 30
                | u64::from(grh.source_gid_index) << 20
                | u64::from(grh.flow_label & 0xf_ffff);
            words[4] = grh.dgid.prefix();
            words[5] = grh.dgid.interface_id();
        }
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
    use crate::types::{Gid, Grh, Lid, ServiceLevel};
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
        let mut bytes = [0; 48];
        for (quad, word) in bytes.chunks_exact_mut(8).zip(vector.words) {
            quad.copy_from_slice(&word.to_be_bytes());
        }
        assert_eq!(av::LAYOUT.reserved_bits_set(&bytes), None);
        assert_eq!(av::qkey.get32(&bytes), 0x8001_0000);
        assert!(av::ext.is_set(&bytes) && av::grh.is_set(&bytes));
        assert_eq!(av::dqp_dct.get32(&bytes), 0x55_6677);
        assert_eq!((av::sl.get32(&bytes), av::mlid.get32(&bytes), av::rlid.get32(&bytes)), (7, 0x15, 0x1234));
        assert_eq!((av::tclass.get32(&bytes), av::hop_limit.get32(&bytes)), (0x5a, 64));
        assert_eq!((av::src_addr_index.get32(&bytes), av::flow_label.get32(&bytes)), (3, 0xabcde));
        assert_eq!(av::rgid.of(&bytes), dgid.0);
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
