//! Whole packets, put together and taken apart: what the data path does in places, done once more in one place to check it.
//!
//! Order: LRH, \[GRH\], BTH, \[XRCETH\], RETH | AETH | AtomicETH | DETH, \[AtomicAckETH\], \[ImmDt\], \[IETH\], payload,
//! padding to a multiple of 4, ICRC, VCRC (IBA volume 1, section 6.2 and chapter 9).

use ib_types::Gid;
use proptest::prelude::*;

use super::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, GRH_NEXT_HEADER_IBA, Grh, ICRC_LEN, Ieth, ImmDt, LNH_BTH,
    LNH_GRH, Lrh, Opcode, Operation, Reth, Shape, Transport, VCRC_LEN, WireError, XrcEth, icrc,
    icrc_is_right, vcrc,
};

/// The longest payload: the largest MTU.
pub const MAX_PAYLOAD_LEN: usize = 4096;

/// The extended headers that follow a BTH. Which are present is decided by the opcode alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ExtHeaders {
    /// XRC packets that are requests.
    pub xrceth: Option<XrcEth>,
    /// WRITE first/only, READ request.
    pub reth: Option<Reth>,
    /// Acknowledge, READ response first/last/only.
    pub aeth: Option<Aeth>,
    /// Atomic requests.
    pub atomic: Option<AtomicEth>,
    /// Atomic acknowledge.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Datagrams.
    pub deth: Option<Deth>,
    /// Operations with immediate data.
    pub imm: Option<ImmDt>,
    /// SEND with invalidate.
    pub ieth: Option<Ieth>,
}

fn take<'a, T>(
    rest: &mut &'a [u8],
    len: usize,
    parse: impl FnOnce(&'a [u8]) -> Result<T, WireError>,
) -> Result<Option<T>, WireError> {
    let (header, tail) = rest.split_at_checked(len).ok_or(WireError::Truncated)?;
    *rest = tail;
    parse(header).map(Some)
}

/// Copies a fixed-size header to the front of `out`, and gives its length.
fn put<const N: usize>(header: [u8; N], out: Option<&mut [u8]>) -> Result<usize, WireError> {
    *out.and_then(|out| out.first_chunk_mut::<N>()).ok_or(WireError::Truncated)? = header;
    Ok(N)
}

/// Which headers an opcode brings.
fn wants(opcode: Opcode) -> Result<Option<(Transport, Operation)>, WireError> {
    match opcode.operation() {
        Some(op) => Ok(Some((opcode.transport(), op))),
        None if opcode == Opcode::CNP => Ok(None),
        None => Err(WireError::UnknownOpcode(opcode.0)),
    }
}

impl ExtHeaders {
    /// Parses the headers that `opcode` brings, and gives what follows them.
    pub fn parse(opcode: Opcode, bytes: &[u8]) -> Result<(ExtHeaders, &[u8]), WireError> {
        let mut ext = ExtHeaders::default();
        let mut rest = bytes;
        let Some((transport, op)) = wants(opcode)? else { return Ok((ext, rest)) };
        if transport == Transport::Xrc && !op.is_response() {
            ext.xrceth = take(&mut rest, XrcEth::LEN, XrcEth::parse)?;
        }
        if transport == Transport::Ud {
            ext.deth = take(&mut rest, Deth::LEN, Deth::parse)?;
        }
        if op.has_reth() {
            ext.reth = take(&mut rest, Reth::LEN, Reth::parse)?;
        }
        if op.is_atomic() {
            ext.atomic = take(&mut rest, AtomicEth::LEN, AtomicEth::parse)?;
        }
        if op.has_aeth() {
            ext.aeth = take(&mut rest, Aeth::LEN, Aeth::parse)?;
        }
        if op == Operation::AtomicAcknowledge {
            ext.atomic_ack = take(&mut rest, AtomicAckEth::LEN, AtomicAckEth::parse)?;
        }
        if op.has_imm() {
            ext.imm = take(&mut rest, ImmDt::LEN, ImmDt::parse)?;
        }
        if op.has_ieth() {
            ext.ieth = take(&mut rest, Ieth::LEN, Ieth::parse)?;
        }
        Ok((ext, rest))
    }

    /// Bytes of the headers present.
    pub fn len(&self) -> usize {
        let mut len = 0;
        len += self.xrceth.map_or(0, |_| XrcEth::LEN);
        len += self.deth.map_or(0, |_| Deth::LEN);
        len += self.reth.map_or(0, |_| Reth::LEN);
        len += self.atomic.map_or(0, |_| AtomicEth::LEN);
        len += self.aeth.map_or(0, |_| Aeth::LEN);
        len += self.atomic_ack.map_or(0, |_| AtomicAckEth::LEN);
        len += self.imm.map_or(0, |_| ImmDt::LEN);
        len += self.ieth.map_or(0, |_| Ieth::LEN);
        len
    }

    /// Whether none is present.
    pub fn is_empty(&self) -> bool {
        *self == ExtHeaders::default()
    }

    /// Whether exactly the headers that `opcode` brings are present.
    pub fn fits(&self, opcode: Opcode) -> bool {
        let Ok(wants) = wants(opcode) else { return false };
        let Some((transport, op)) = wants else { return self.is_empty() };
        self.xrceth.is_some() == (transport == Transport::Xrc && !op.is_response())
            && self.deth.is_some() == (transport == Transport::Ud)
            && self.reth.is_some() == op.has_reth()
            && self.atomic.is_some() == op.is_atomic()
            && self.aeth.is_some() == op.has_aeth()
            && self.atomic_ack.is_some() == (op == Operation::AtomicAcknowledge)
            && self.imm.is_some() == op.has_imm()
            && self.ieth.is_some() == op.has_ieth()
    }

    /// Writes the headers present to the front of `out`, and gives their length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut at = 0;
        macro_rules! put {
            ($($field:ident),*) => {$(
                if let Some(header) = &self.$field {
                    at += put(header.to_bytes(), out.get_mut(at..))?;
                }
            )*};
        }
        put!(xrceth, deth, reth, atomic, aeth, atomic_ack, imm, ieth);
        Ok(at)
    }
}

/// A parsed link packet. Lengths are checked; the CRCs only by [`Parsed::check_icrc`] and [`Parsed::check_vcrc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// Local route header.
    pub lrh: Lrh,
    /// Global route header, when present.
    pub grh: Option<Grh>,
    /// Base transport header.
    pub bth: Bth,
    /// Extended headers.
    pub ext: ExtHeaders,
    /// Payload without padding.
    pub payload: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> Parsed<'a> {
    /// Takes a packet apart; `bytes` is exactly one packet, from the LRH to the ICRC, with or without the VCRC.
    pub fn parse(bytes: &'a [u8]) -> Result<Parsed<'a>, WireError> {
        let lrh = Lrh::parse(bytes)?;
        let len = usize::from(lrh.length_words) * 4;
        if bytes.len() < len {
            return Err(WireError::Truncated);
        }
        if bytes.len() != len && bytes.len() != len + VCRC_LEN {
            return Err(WireError::Malformed);
        }
        let body_end = len.checked_sub(ICRC_LEN).ok_or(WireError::Malformed)?;
        let body = bytes.get(Lrh::LEN..body_end).ok_or(WireError::Malformed)?;
        let (grh, body) = match lrh.link_next_header {
            LNH_BTH => (None, body),
            LNH_GRH => {
                let grh = Grh::parse(body)?;
                let body = body.get(Grh::LEN..).ok_or(WireError::Truncated)?;
                let wrong_len = usize::from(grh.payload_len) != body.len() + ICRC_LEN;
                if grh.next_header != GRH_NEXT_HEADER_IBA || wrong_len {
                    return Err(WireError::Malformed);
                }
                (Some(grh), body)
            }
            _ => return Err(WireError::Malformed),
        };
        let bth = Bth::parse(body)?;
        let body = body.get(Bth::LEN..).ok_or(WireError::Truncated)?;
        let (ext, body) = ExtHeaders::parse(bth.opcode, body)?;
        let payload_len = body.len().checked_sub(usize::from(bth.pad_count)).ok_or(WireError::Malformed)?;
        let payload = body.get(..payload_len).ok_or(WireError::Malformed)?;
        Ok(Parsed { lrh, grh, bth, ext, payload, bytes })
    }

    /// Whether the ICRC on the wire is that of the packet.
    pub fn check_icrc(&self) -> bool {
        icrc_is_right(&self.bytes[..self.icrc_end()])
    }

    /// Whether there is a VCRC, and it is that of the packet.
    pub fn check_vcrc(&self) -> bool {
        let (body, crc) = self.bytes.split_at_checked(self.icrc_end()).unwrap_or_default();
        crc == vcrc(body).to_le_bytes()
    }

    fn icrc_end(&self) -> usize {
        usize::from(self.lrh.length_words) * 4
    }

    /// The GRH's 40 bytes as they came, which a UD receive buffer begins with.
    pub fn grh_bytes(&self) -> Option<&'a [u8; Grh::LEN]> {
        self.grh?;
        self.bytes.get(Lrh::LEN..)?.first_chunk()
    }
}

/// Everything of a packet except payload, lengths, pad count, next-header fields and CRCs, which are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketBuilder {
    /// Virtual lane, service level and LIDs; length and next header are filled in.
    pub lrh: Lrh,
    /// Global route header; payload length and next header are filled in.
    pub grh: Option<Grh>,
    /// Base transport header; the pad count is filled in.
    pub bth: Bth,
    /// Extended headers; they must be those that the opcode brings.
    pub ext: ExtHeaders,
}

impl PacketBuilder {
    /// Bytes before the payload.
    pub fn headers_len(&self) -> usize {
        Lrh::LEN + self.grh.map_or(0, |_| Grh::LEN) + Bth::LEN + self.ext.len()
    }

    /// Bytes of the whole packet, LRH to VCRC.
    pub fn packet_len(&self, payload_len: usize) -> usize {
        self.headers_len() + payload_len.next_multiple_of(4) + ICRC_LEN + VCRC_LEN
    }

    /// Writes the headers, with every length final. The payload goes to the index given back; then call
    /// [`PacketBuilder::finish`].
    ///
    /// Extended headers other than the opcode's, or a payload above [`MAX_PAYLOAD_LEN`], are [`WireError::Malformed`].
    pub fn emit_headers(&self, out: &mut [u8], payload_len: usize) -> Result<usize, WireError> {
        if payload_len > MAX_PAYLOAD_LEN || !self.ext.fits(self.bth.opcode) {
            return Err(WireError::Malformed);
        }
        let icrc_end = self.packet_len(payload_len) - VCRC_LEN;
        let mut lrh = self.lrh;
        lrh.link_next_header = if self.grh.is_some() { LNH_GRH } else { LNH_BTH };
        // At most MAX_PACKET_LEN / 4: fits.
        lrh.length_words = (icrc_end / 4) as u16;
        let mut at = put(lrh.to_bytes(), Some(&mut *out))?;
        if let Some(mut grh) = self.grh {
            grh.next_header = GRH_NEXT_HEADER_IBA;
            grh.payload_len = (icrc_end - Lrh::LEN - Grh::LEN) as u16;
            at += put(grh.to_bytes(), out.get_mut(at..))?;
        }
        let mut bth = self.bth;
        bth.pad_count = (payload_len.next_multiple_of(4) - payload_len) as u8;
        at += put(bth.to_bytes(), out.get_mut(at..))?;
        at += self.ext.emit(out.get_mut(at..).ok_or(WireError::Truncated)?)?;
        Ok(at)
    }

    /// After headers and payload are in `out`: writes padding and both CRCs, and gives the packet's length.
    pub fn finish(out: &mut [u8], payload_at: usize, payload_len: usize) -> Result<usize, WireError> {
        let icrc_end = PacketBuilder::finish_without_vcrc(out, payload_at, payload_len)?;
        let (body, rest) = out.split_at_mut_checked(icrc_end).ok_or(WireError::Truncated)?;
        *rest.first_chunk_mut().ok_or(WireError::Truncated)? = vcrc(body).to_le_bytes();
        Ok(icrc_end + VCRC_LEN)
    }

    /// As [`PacketBuilder::finish`], but ends with the ICRC, as a fabric without link errors carries packets.
    pub fn finish_without_vcrc(
        out: &mut [u8],
        payload_at: usize,
        payload_len: usize,
    ) -> Result<usize, WireError> {
        let payload_end = payload_at.checked_add(payload_len).ok_or(WireError::Truncated)?;
        let pad_end = payload_end.checked_next_multiple_of(4).ok_or(WireError::Truncated)?;
        out.get_mut(payload_end..pad_end).ok_or(WireError::Truncated)?.fill(0);
        let (body, rest) = out.split_at_mut_checked(pad_end).ok_or(WireError::Truncated)?;
        *rest.first_chunk_mut().ok_or(WireError::Truncated)? = icrc(body).ok_or(WireError::Malformed)?;
        Ok(pad_end + ICRC_LEN)
    }

    /// Writes a whole packet, and gives its length.
    pub fn emit(&self, out: &mut [u8], payload: &[u8]) -> Result<usize, WireError> {
        let at = self.emit_headers(out, payload.len())?;
        let room = out.get_mut(at..).and_then(|o| o.get_mut(..payload.len())).ok_or(WireError::Truncated)?;
        room.copy_from_slice(payload);
        PacketBuilder::finish(out, at, payload.len())
    }
}

/// Bytes of a hex string; white space is skipped.
pub(super) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).expect("hex digit") as u8)
        .collect();
    assert!(digits.len().is_multiple_of(2), "odd number of hex digits");
    digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
}

fn builder(opcode: u8, global: bool) -> PacketBuilder {
    let opcode = Opcode(opcode);
    let mut ext = ExtHeaders::default();
    if let Ok(Some((transport, op))) = wants(opcode) {
        ext.xrceth = (transport == Transport::Xrc && !op.is_response()).then_some(XrcEth { srqn: 0x55 });
        ext.deth = (transport == Transport::Ud).then_some(Deth { qkey: 0x8001_0000, src_qpn: 1 });
        ext.reth = op.has_reth().then_some(Reth { va: 0x1000, rkey: 7, dma_len: 99 });
        ext.atomic = op.is_atomic().then_some(AtomicEth { va: 8, rkey: 9, swap_or_add: 10, compare: 11 });
        ext.aeth =
            op.has_aeth().then_some(Aeth { syndrome: super::AethSyndrome::Ack { credits: 31 }, msn: 4 });
        ext.atomic_ack =
            (op == Operation::AtomicAcknowledge).then_some(AtomicAckEth { original: 0x1122_3344_5566_7788 });
        ext.imm = op.has_imm().then_some(ImmDt(0xcafe_f00d));
        ext.ieth = op.has_ieth().then_some(Ieth { rkey: 77 });
    }
    PacketBuilder {
        lrh: Lrh { vl: 0, sl: 3, dlid: 5, slid: 6, ..Lrh::default() },
        grh: global.then_some(Grh {
            hop_limit: 64,
            sgid: Gid::new(Gid::DEFAULT_PREFIX, 1),
            dgid: Gid::new(Gid::DEFAULT_PREFIX, 2),
            ..Grh::default()
        }),
        bth: Bth::new(opcode, 0xffff, 0x42, 0x99),
        ext,
    }
}

#[test]
fn rdma_write_only_literal() {
    let mut out = [0u8; 128];
    let len = builder(0x0a, false).emit(&mut out, &[0xa1, 0xa2, 0xa3]).unwrap();
    // LRH(8) BTH(12) RETH(16) payload(3) pad(1) ICRC(4) = 44 bytes = 11 words, then VCRC.
    let expected = hex("0032 0005 000b 0006
        0a 50 ffff 00000042 00000099
        0000000000001000 00000007 00000063
        a1a2a3 00");
    assert_eq!(len, 46);
    assert_eq!(out[..40], expected);
    let packet = Parsed::parse(&out[..len]).unwrap();
    assert_eq!(packet.payload, [0xa1, 0xa2, 0xa3]);
    let bare = Parsed::parse(&out[..len - 2]).unwrap();
    assert!(bare.payload == packet.payload && bare.check_icrc() && !bare.check_vcrc());
    assert!(packet.check_icrc() && packet.check_vcrc());
}

#[test]
fn every_defined_opcode_round_trips_local_and_global() {
    let mut seen = 0;
    for opcode in 0..=255u8 {
        if wants(Opcode(opcode)).is_err() {
            assert_eq!(
                builder(opcode, false).emit(&mut [0; 256], &[]),
                Err(WireError::Malformed),
                "{opcode:#x}"
            );
            continue;
        }
        seen += 1;
        for global in [false, true] {
            for payload_len in [0usize, 1, 2, 3, 4, 61] {
                let payload: Vec<u8> = (0..payload_len).map(|i| (i * 7) as u8 ^ opcode).collect();
                let b = builder(opcode, global);
                let mut out = [0xeeu8; 256];
                let len = b.emit(&mut out, &payload).unwrap();
                assert_eq!(len, b.packet_len(payload_len));
                let p = Parsed::parse(&out[..len]).unwrap();
                assert_eq!(p.ext, b.ext);
                assert_eq!(p.payload, payload);
                assert_eq!(p.grh.is_some(), global);
                assert_eq!(p.grh_bytes().is_some(), global);
                assert!(p.check_icrc() && p.check_vcrc());
            }
        }
    }
    assert_eq!(seen, 61);
}

#[test]
fn wrong_packets_are_errors() {
    let mut out = [0u8; 128];
    let len = builder(0x04, true).emit(&mut out, &[1; 8]).unwrap();
    assert_eq!(Parsed::parse(&out[..len - 3]), Err(WireError::Truncated));
    assert_eq!(Parsed::parse(&out[..len - 1]), Err(WireError::Malformed));
    assert_eq!(Parsed::parse(&out[..len + 1]), Err(WireError::Malformed));
    let mut bad = out;
    bad[13] ^= 1; // GRH payload length
    assert_eq!(Parsed::parse(&bad[..len]), Err(WireError::Malformed));
    let mut bad = out;
    bad[48] = 0x1f; // undefined opcode
    assert_eq!(Parsed::parse(&bad[..len]), Err(WireError::UnknownOpcode(0x1f)));
    let mut bad = out;
    bad[61] ^= 0x10; // payload
    assert!(!Parsed::parse(&bad[..len]).unwrap().check_icrc());
    assert!(!Parsed::parse(&bad[..len]).unwrap().check_vcrc());
    let small = builder(0x04, true).emit(&mut [0; 40], &[1; 8]);
    assert_eq!(small, Err(WireError::Truncated));
}

proptest! {
    #[test]
    fn any_bytes_are_a_packet_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..160), fix: bool) {
        if fix && bytes.len() >= 10 {
            // Right lengths let the fuzz reach the deeper headers.
            let words = ((bytes.len() - 2) / 4) as u16;
            bytes.truncate(usize::from(words) * 4 + 2);
            bytes[0] &= 0xf0;
            bytes[4] = (words >> 8) as u8;
            bytes[5] = words as u8;
        }
        if let Ok(p) = Parsed::parse(&bytes) {
            let _ = p.check_icrc();
            let _ = p.check_vcrc();
            prop_assert!(p.payload.len() <= bytes.len());
        }
    }

    /// A good packet with a few bytes spoilt, so that the way through the headers is long.
    #[test]
    fn spoilt_packets_are_packets_or_errors(
        opcode in prop::sample::select(&[0x64u8, 0x04, 0x0a, 0x0c, 0x10, 0x11, 0x12, 0x13, 0x65, 0xac][..]),
        global: bool,
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        spoilt in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in 0usize..8,
    ) {
        let mut out = [0; 512];
        let len = builder(opcode, global).emit(&mut out, &payload).unwrap() - cut;
        for (index, value) in spoilt {
            out[index.index(len)] = value;
        }
        if let Ok(p) = Parsed::parse(&out[..len]) {
            prop_assert!(p.payload.len() <= len);
            let text = format!("{p:?}");
            prop_assert!(!text.is_empty());
        }
        if let Some(shape) = Shape::of(&out[..len]) {
            prop_assert!(shape.content(&out[..len]).len() <= len);
        }
    }
}
