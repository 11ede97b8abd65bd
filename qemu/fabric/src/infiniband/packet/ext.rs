//! Extended transport headers (IBA volume 1, section 9.3) and the RNR timer table (table 45).

use super::{MASK_24, WireError, split};

/// RDMA extended transport header, 16 bytes: in WRITE first/only and READ request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Reth {
    /// Remote virtual address.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length of the whole message in bytes.
    pub dma_len: u32,
}

impl Reth {
    /// Encoded length in bytes.
    pub const LEN: usize = 16;

    /// Reads an RETH off the front of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Reth, WireError> {
        let (va, rest) = split::<8>(bytes)?;
        let (rkey, rest) = split::<4>(rest)?;
        let (dma_len, _) = split::<4>(rest)?;
        Ok(Reth {
            va: u64::from_be_bytes(*va),
            rkey: u32::from_be_bytes(*rkey),
            dma_len: u32::from_be_bytes(*dma_len),
        })
    }

    /// The wire bytes.
    pub fn to_bytes(&self) -> [u8; 16] {
        let mut b = [0; 16];
        b[0..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..16].copy_from_slice(&self.dma_len.to_be_bytes());
        b
    }
}

/// What an AETH's syndrome byte says (IBA volume 1, tables 43 to 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AethSyndrome {
    /// Acknowledged, with a credit count code (0x1f: no credit information).
    Ack {
        /// Credit count code, 5 bits.
        credits: u8,
    },
    /// Receiver not ready.
    RnrNak {
        /// Timer code, 5 bits; see [`rnr_timer_ns`].
        timer: u8,
    },
    /// NAK: PSN sequence error.
    PsnSequenceError,
    /// NAK: invalid request.
    InvalidRequest,
    /// NAK: remote access error.
    RemoteAccess,
    /// NAK: remote operational error.
    RemoteOperational,
    /// NAK: invalid RD request.
    InvalidRdRequest,
    /// A reserved value.
    Reserved(u8),
}

impl AethSyndrome {
    /// ACK credit code for "no credit information".
    pub const NO_CREDITS: u8 = 0x1f;

    /// Decodes the syndrome byte.
    pub const fn from_bits(bits: u8) -> AethSyndrome {
        match bits {
            0x00..=0x1f => AethSyndrome::Ack { credits: bits },
            0x20..=0x3f => AethSyndrome::RnrNak { timer: bits & 0x1f },
            0x60 => AethSyndrome::PsnSequenceError,
            0x61 => AethSyndrome::InvalidRequest,
            0x62 => AethSyndrome::RemoteAccess,
            0x63 => AethSyndrome::RemoteOperational,
            0x64 => AethSyndrome::InvalidRdRequest,
            other => AethSyndrome::Reserved(other),
        }
    }

    /// The syndrome byte.
    pub const fn bits(self) -> u8 {
        match self {
            AethSyndrome::Ack { credits } => credits & 0x1f,
            AethSyndrome::RnrNak { timer } => 0x20 | (timer & 0x1f),
            AethSyndrome::PsnSequenceError => 0x60,
            AethSyndrome::InvalidRequest => 0x61,
            AethSyndrome::RemoteAccess => 0x62,
            AethSyndrome::RemoteOperational => 0x63,
            AethSyndrome::InvalidRdRequest => 0x64,
            AethSyndrome::Reserved(bits) => bits,
        }
    }
}

/// Nanoseconds of an RNR NAK timer code (5 bits; the rest is ignored).
pub const fn rnr_timer_ns(code: u8) -> u64 {
    // Hundredths of a millisecond.
    const TABLE: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    TABLE[(code & 0x1f) as usize] as u64 * 10_000
}

/// ACK extended transport header, 4 bytes: in acknowledges and READ response first/last/only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Positive, negative, or not ready.
    pub syndrome: AethSyndrome,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

impl Aeth {
    /// Encoded length in bytes.
    pub const LEN: usize = 4;

    /// Reads an AETH off the front of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Aeth, WireError> {
        let (b, _) = split::<4>(bytes)?;
        Ok(Aeth { syndrome: AethSyndrome::from_bits(b[0]), msn: u32::from_be_bytes([0, b[1], b[2], b[3]]) })
    }

    /// The wire bytes.
    pub fn to_bytes(&self) -> [u8; 4] {
        let [_, m0, m1, m2] = self.msn.to_be_bytes();
        [self.syndrome.bits(), m0, m1, m2]
    }
}

/// Datagram extended transport header, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Source QP number, 24 bits.
    pub src_qpn: u32,
}

impl Deth {
    /// Encoded length in bytes.
    pub const LEN: usize = 8;

    /// Reads a DETH off the front of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Deth, WireError> {
        let (b, _) = split::<8>(bytes)?;
        Ok(Deth {
            qkey: u32::from_be_bytes([b[0], b[1], b[2], b[3]]),
            src_qpn: u32::from_be_bytes([0, b[5], b[6], b[7]]),
        })
    }

    /// The wire bytes.
    pub fn to_bytes(&self) -> [u8; 8] {
        let [k0, k1, k2, k3] = self.qkey.to_be_bytes();
        let [_, q0, q1, q2] = self.src_qpn.to_be_bytes();
        [k0, k1, k2, k3, 0, q0, q1, q2]
    }
}

/// Atomic extended transport header, 28 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AtomicEth {
    /// Remote virtual address, 8-byte aligned.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Swap operand, or the number to add.
    pub swap_or_add: u64,
    /// Compare operand.
    pub compare: u64,
}

impl AtomicEth {
    /// Encoded length in bytes.
    pub const LEN: usize = 28;

    /// Reads an AtomicETH off the front of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<AtomicEth, WireError> {
        let (va, rest) = split::<8>(bytes)?;
        let (rkey, rest) = split::<4>(rest)?;
        let (swap, rest) = split::<8>(rest)?;
        let (compare, _) = split::<8>(rest)?;
        Ok(AtomicEth {
            va: u64::from_be_bytes(*va),
            rkey: u32::from_be_bytes(*rkey),
            swap_or_add: u64::from_be_bytes(*swap),
            compare: u64::from_be_bytes(*compare),
        })
    }

    /// The wire bytes.
    pub fn to_bytes(&self) -> [u8; 28] {
        let mut b = [0; 28];
        b[0..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        b[20..28].copy_from_slice(&self.compare.to_be_bytes());
        b
    }
}

/// Atomic acknowledge extended transport header, 8 bytes, after the AETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AtomicAckEth {
    /// The remote memory's value before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Encoded length in bytes.
    pub const LEN: usize = 8;

    /// Reads an AtomicAckETH off the front of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<AtomicAckEth, WireError> {
        Ok(AtomicAckEth { original: u64::from_be_bytes(*split::<8>(bytes)?.0) })
    }

    /// The wire bytes.
    pub fn to_bytes(&self) -> [u8; 8] {
        self.original.to_be_bytes()
    }
}

/// Immediate data, 4 bytes, opaque; big-endian as the sender's WQE holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ImmDt(pub u32);

impl ImmDt {
    /// Encoded length in bytes.
    pub const LEN: usize = 4;

    /// Reads immediate data off the front of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<ImmDt, WireError> {
        Ok(ImmDt(u32::from_be_bytes(*split::<4>(bytes)?.0)))
    }

    /// The wire bytes.
    pub fn to_bytes(&self) -> [u8; 4] {
        self.0.to_be_bytes()
    }
}

/// Invalidate extended transport header, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ieth {
    /// The R_Key to invalidate.
    pub rkey: u32,
}

impl Ieth {
    /// Encoded length in bytes.
    pub const LEN: usize = 4;

    /// Reads an IETH off the front of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Ieth, WireError> {
        Ok(Ieth { rkey: u32::from_be_bytes(*split::<4>(bytes)?.0) })
    }

    /// The wire bytes.
    pub fn to_bytes(&self) -> [u8; 4] {
        self.rkey.to_be_bytes()
    }
}

/// XRC extended transport header, 4 bytes, directly after the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct XrcEth {
    /// Shared receive queue number, 24 bits.
    pub srqn: u32,
}

impl XrcEth {
    /// Encoded length in bytes.
    pub const LEN: usize = 4;

    /// Reads an XRCETH off the front of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<XrcEth, WireError> {
        Ok(XrcEth { srqn: u32::from_be_bytes(*split::<4>(bytes)?.0) & MASK_24 })
    }

    /// The wire bytes.
    pub fn to_bytes(&self) -> [u8; 4] {
        (self.srqn & MASK_24).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn literal_bytes() {
        let reth = Reth { va: 0x0102_0304_0506_0708, rkey: 0x1122_3344, dma_len: 0x0010_0001 };
        assert_eq!(reth.to_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44, 0x00, 0x10, 0x00, 0x01]);
        let aeth = Aeth { syndrome: AethSyndrome::RnrNak { timer: 12 }, msn: 0x0a0b0c };
        assert_eq!(aeth.to_bytes(), [0x2c, 0x0a, 0x0b, 0x0c]);
        let deth = Deth { qkey: 0x8001_0000, src_qpn: 1 };
        assert_eq!(deth.to_bytes(), [0x80, 0x01, 0, 0, 0, 0, 0, 1]);
        assert_eq!(XrcEth { srqn: 0x123456 }.to_bytes(), [0, 0x12, 0x34, 0x56]);
        assert_eq!(ImmDt(0xdead_beef).to_bytes(), [0xde, 0xad, 0xbe, 0xef]);
    }

    #[test]
    fn rnr_timers() {
        assert_eq!(rnr_timer_ns(0), 655_360_000);
        assert_eq!(rnr_timer_ns(1), 10_000);
        assert_eq!(rnr_timer_ns(12), 640_000);
        assert_eq!(rnr_timer_ns(31), 491_520_000);
    }

    #[test]
    fn every_syndrome_round_trips() {
        for bits in 0..=255u8 {
            assert_eq!(AethSyndrome::from_bits(bits).bits(), bits);
        }
    }

    proptest! {
        #[test]
        fn round_trips(va: u64, rkey: u32, dma_len: u32, swap: u64, compare: u64, n24 in 0u32..1 << 24, syn: u8) {
            let reth = Reth { va, rkey, dma_len };
            prop_assert_eq!(Reth::parse(&reth.to_bytes()), Ok(reth));
            let atomic = AtomicEth { va, rkey, swap_or_add: swap, compare };
            prop_assert_eq!(AtomicEth::parse(&atomic.to_bytes()), Ok(atomic));
            let aeth = Aeth { syndrome: AethSyndrome::from_bits(syn), msn: n24 };
            prop_assert_eq!(Aeth::parse(&aeth.to_bytes()), Ok(aeth));
            let deth = Deth { qkey: rkey, src_qpn: n24 };
            prop_assert_eq!(Deth::parse(&deth.to_bytes()), Ok(deth));
            let ack = AtomicAckEth { original: swap };
            prop_assert_eq!(AtomicAckEth::parse(&ack.to_bytes()), Ok(ack));
            prop_assert_eq!(Ieth::parse(&Ieth { rkey }.to_bytes()), Ok(Ieth { rkey }));
            prop_assert_eq!(ImmDt::parse(&ImmDt(rkey).to_bytes()), Ok(ImmDt(rkey)));
            prop_assert_eq!(XrcEth::parse(&XrcEth { srqn: n24 }.to_bytes()), Ok(XrcEth { srqn: n24 }));
        }
    }
}
