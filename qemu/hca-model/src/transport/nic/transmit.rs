//! Making frames of send WQEs: checksums, VLAN tags, segmentation, padding.

use super::state::Own;
use super::wqe::{Fetched, FramePiece, FrameWqe};
use super::{Frames, NicTransport};
use crate::caps::ethernet::LOG_MAX_LSO;
use crate::log::Subject;
use crate::meter::price;
use crate::object::mkey::User;
use crate::object::nic::Sq;
use crate::port::{EthernetPort, NicVport};
use crate::transport::parser::{Bad, bad, too_long};
use crate::transport::state::FLUSH_TURN;
use ib_types::MacAddress;
use mlx5_prm::datapath::{DBR_SEND, EthChecksums, SendOpcode, WQEBB_SIZE, wqe_ctrl_seg};
use mlx5_prm::event::{EventQueueType, EventType};
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::WqState;
use rdma_fabric::ethernet::frame::{HEADER_LEN, Header, TAG_LEN, Version, write_checksums};

/// Segments of a WQE at most: they are sent in one step. 64 KiB have 1,366 at IPv4's least MSS.
const MAX_SEGMENTS: usize = 2_048;
/// Bytes of the two addresses, behind which a tag is inserted.
const ADDRESSES: usize = 12;
/// Offsets in TCP's header: sequence number, and flags.
const TCP_SEQUENCE: usize = 4;
const TCP_FLAGS: usize = 13;
/// FIN and PSH, which the last segment alone has, and CWR, which the first alone has.
const TCP_LAST: u8 = 0x01 | 0x08;
const TCP_FIRST: u8 = 0x80;
/// Bytes of UDP's header, and the offset of its length.
const UDP_HEADER: usize = 8;
const UDP_LENGTH: usize = 4;

impl Frames<'_, '_> {
    /// Sends what a queue has posted, at most `budget` WQEs. Returns whether there is more.
    pub(super) fn send_frames(&mut self, sq: &mut Sq, budget: &mut usize) -> bool {
        while *budget != 0 && !self.path.meter().is_spent() {
            if !self.path.output().has_credit() {
                return true;
            }
            *budget -= 1;
            let (wqe, sent) = match self.fetch_frame(sq) {
                Fetched::Nothing => return false,
                Fetched::Broken(field, text) => {
                    self.break_sq(sq, field, text);
                    return false;
                }
                Fetched::Bad(wqe, failure) => (wqe, Err(failure)),
                Fetched::Wqe(wqe) => {
                    let sent = self.send_frame(sq, &wqe);
                    let sent = sent.map_err(|bad| self.refuse_wqe(sq.sqn, wqe.index, bad));
                    (wqe, sent)
                }
            };
            match sent {
                Ok(()) if wqe.signalled => self.complete_frame(sq, wqe.index, wqe.opcode),
                Ok(()) => {}
                Err(failure) => {
                    self.fail_frame(sq, wqe.index, wqe.opcode, failure.syndrome);
                    sq.state = WqState::ERR;
                    // WQEs behind it are flushed.
                    return true;
                }
            }
        }
        sq.rung || sq.wq.left() != 0
    }

    /// A queue whose ring or record cannot be read stops without completions.
    fn break_sq(&mut self, sq: &mut Sq, field: &'static str, text: String) {
        self.path.reports().refuse(Subject::WorkQueue { qpn: sq.sqn }, field, text);
        sq.state = WqState::ERR;
        sq.wq.next = sq.wq.posted;
        let kind = EventQueueType::SQ;
        self.path.delivery().event(kind, sq.sqn, EventType::WQ_CATAS_ERROR);
    }

    /// Completes what is posted to a queue in ERR as flushed. Returns whether there is more.
    pub(super) fn flush_sq(&mut self, sq: &mut Sq, budget: &mut usize) -> bool {
        *budget = budget.saturating_sub(1);
        if std::mem::take(&mut sq.rung) && sq.wq.refresh(self.path.guest(), DBR_SEND as u64).is_err() {
            return false;
        }
        for _ in 0..FLUSH_TURN {
            if sq.wq.left() == 0 {
                return false;
            }
            self.path.meter().charge(price::WQE);
            let (index, mut head) = (sq.wq.next, [0; 16]);
            let readable = sq.wq.read(self.path.guest(), index, &mut head).is_ok();
            let blocks = (wqe_ctrl_seg::ds.get32(&head) as usize * 16).div_ceil(WQEBB_SIZE) as u16;
            sq.wq.next = index.wrapping_add(blocks.clamp(1, sq.wq.left()));
            if sq.flushes && readable {
                let opcode = SendOpcode(wqe_ctrl_seg::opcode.get32(&head) as u8);
                self.fail_frame(sq, index, opcode, CqeSyndrome::WR_FLUSH_ERR);
            }
        }
        true
    }

    fn send_frame(&mut self, sq: &Sq, wqe: &FrameWqe) -> Result<(), Bad> {
        if wqe.opcode == SendOpcode::NOP {
            return Ok(());
        }
        let segmented = wqe.opcode == SendOpcode::LSO;
        let longest = if segmented { 1 << LOG_MAX_LSO } else { u64::from(NicVport::MAX_FRAME) };
        let len = wqe.header.len() as u64 + wqe.payload_len();
        if len > longest || len < HEADER_LEN as u64 {
            return Err(too_long(
                "wqe_data_seg.byte_count",
                format!("a frame of {len} bytes, at most {longest}"),
            ));
        }
        let mut frame = self.path.output().take_buffer();
        frame.extend_from_slice(&wqe.header);
        frame.resize(len as usize, 0);
        let (_, mut rest) = frame.split_at_mut(wqe.header.len());
        let user = User { pd: sq.wq.pd, qpn: sq.sqn, reserved_lkey: sq.reserved_lkey };
        for piece in &wqe.payload {
            let len = match piece {
                FramePiece::Inline(data) => data.len(),
                FramePiece::Memory(sge) => sge.len as usize,
            };
            let (part, tail) = rest.split_at_mut(len);
            rest = tail;
            match piece {
                FramePiece::Inline(data) => part.copy_from_slice(data),
                FramePiece::Memory(sge) => {
                    let gathered = self.path.memory().gather(user, std::slice::from_ref(sge), 0, part);
                    gathered.map_err(|fault| {
                        let (field, text) = fault.describe("lkey");
                        Bad(field, text, CqeSyndrome::LOCAL_PROT_ERR)
                    })?;
                }
            }
        }
        if let Some((kind, tci)) = wqe.vlan {
            let [a, b] = kind.to_be_bytes();
            let [c, d] = tci.to_be_bytes();
            frame.splice(ADDRESSES..ADDRESSES, [a, b, c, d]);
        }
        if segmented {
            let tag = if wqe.vlan.is_some() { TAG_LEN } else { 0 };
            let sent = self.send_segments(sq.tisn, wqe, &frame, wqe.header.len() + tag);
            self.path.output().give_buffer(frame);
            return sent;
        }
        self.send(sq.tisn, frame, wqe.checksums);
        Ok(())
    }

    /// Sends `frame` in segments of at most `mss` bytes behind its first `header` bytes.
    fn send_segments(
        &mut self,
        tisn: Option<u32>,
        wqe: &FrameWqe,
        frame: &[u8],
        header: usize,
    ) -> Result<(), Bad> {
        let (head, payload) = frame.split_at_checked(header).unwrap_or((frame, &[]));
        // Lengths in the header are those of all segments together, or of the first.
        let layers = Layers::of(head)
            .ok_or_else(|| bad("wqe_ctrl_seg.opcode", "LSO of a frame without TCP or UDP"))?;
        let mss = usize::from(wqe.mss);
        if mss == 0 || header + mss > usize::from(NicVport::MAX_FRAME) {
            return Err(bad("wqe_eth_seg.mss", format!("{mss} bytes behind a header of {header}")));
        }
        let count = payload.len().div_ceil(mss);
        if count > MAX_SEGMENTS {
            let text = format!("{mss} bytes: {count} segments, at most {MAX_SEGMENTS}");
            return Err(bad("wqe_eth_seg.mss", text));
        }
        for (number, part) in payload.chunks(mss).enumerate() {
            let mut segment = self.path.output().take_buffer();
            segment.extend_from_slice(head);
            layers.adapt(&mut segment, part.len(), (number, count), number * mss);
            segment.extend_from_slice(part);
            self.path.meter().charge(price::PACKET);
            self.send(tisn, segment, wqe.checksums);
        }
        Ok(())
    }

    /// Puts a frame on the wire, and on its way back to the function where that is on.
    fn send(&mut self, tisn: Option<u32>, mut frame: Vec<u8>, checksums: EthChecksums) {
        write_checksums(
            &mut frame,
            checksums.contains(EthChecksums::L3),
            checksums.contains(EthChecksums::L4),
        );
        frame.resize(frame.len().max(EthernetPort::SHORTEST_FRAME), 0);
        self.path.meter().charge_bytes(frame.len() as u64);
        let returns = frame.first_chunk().is_some_and(|to| self.path.output().loops(MacAddress(*to)));
        if returns && self.transport.loopback.len() < NicTransport::LOOPBACK_LIMIT {
            self.transport.loopback.push_back(Own { tisn, bytes: frame.clone() });
        }
        self.path.output().send_frame(frame);
    }
}

/// Where the headers are that differ between segments.
#[derive(Clone, Copy, Debug)]
struct Layers {
    version: Version,
    ip: usize,
    transport: usize,
    is_tcp: bool,
}

impl Layers {
    /// Layers of `head`, a frame's headers. Their lengths need not agree with the frame's.
    fn of(head: &[u8]) -> Option<Self> {
        let start = Header::parse(head)?.start();
        let first = head.get(start)?;
        let (version, transport, protocol) = match first >> 4 {
            4 => (Version::V4, start + usize::from(first & 0xf) * 4, *head.get(start + 9)?),
            6 => (Version::V6, start + 40, *head.get(start + 6)?),
            _ => return None,
        };
        let is_tcp = match protocol {
            rdma_fabric::ethernet::frame::protocol::TCP => true,
            rdma_fabric::ethernet::frame::protocol::UDP => false,
            _ => return None,
        };
        let least = if is_tcp { 20 } else { UDP_HEADER };
        (transport >= start + 20 && transport + least <= head.len()).then_some(Self {
            version,
            ip: start,
            transport,
            is_tcp,
        })
    }

    /// Changes the headers of segment `number` of `count`, which has `len` bytes from `offset` on.
    fn adapt(&self, head: &mut [u8], len: usize, (number, count): (usize, usize), offset: usize) {
        let whole = head.len() + len;
        let mut put16 = |at: usize, value: u16| {
            if let Some(field) = head.get_mut(at..at + 2) {
                field.copy_from_slice(&value.to_be_bytes());
            }
        };
        match self.version {
            Version::V4 => put16(self.ip + 2, (whole - self.ip) as u16),
            Version::V6 => put16(self.ip + 4, (whole - self.ip - 40) as u16),
        }
        if !self.is_tcp {
            put16(self.transport + UDP_LENGTH, (whole - self.transport) as u16);
        }
        if self.version == Version::V4
            && let Some(field) = head.get_mut(self.ip + 4..).and_then(<[u8]>::first_chunk_mut::<2>)
        {
            // The identification counts on.
            *field = u16::from_be_bytes(*field).wrapping_add(number as u16).to_be_bytes();
        }
        if !self.is_tcp {
            return;
        }
        let sequence = head.get_mut(self.transport + TCP_SEQUENCE..).and_then(<[u8]>::first_chunk_mut::<4>);
        if let Some(field) = sequence {
            *field = u32::from_be_bytes(*field).wrapping_add(offset as u32).to_be_bytes();
        }
        if let Some(flags) = head.get_mut(self.transport + TCP_FLAGS) {
            if number + 1 != count {
                *flags &= !TCP_LAST;
            }
            if number != 0 {
                *flags &= !TCP_FIRST;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers of a TCP segment with CWR, PSH and FIN.
    fn head() -> Vec<u8> {
        let mut head = vec![0; 54];
        head[12..14].copy_from_slice(&[8, 0]);
        (head[14], head[23]) = (0x45, 6);
        head[18..20].copy_from_slice(&0xffffu16.to_be_bytes());
        head[38..42].copy_from_slice(&0xffff_fff0u32.to_be_bytes());
        (head[46], head[47]) = (0x50, 0x89);
        head
    }

    #[test]
    fn segments_have_their_own_headers() {
        let layers = Layers::of(&head()).expect("TCP");
        let segments = [(0, 1000), (1, 1000), (2, 24)].map(|(number, len)| {
            let mut segment = head();
            layers.adapt(&mut segment, len, (number, 3), number * 1000);
            segment
        });
        let field = |segment: &[u8], at: usize| u16::from_be_bytes([segment[at], segment[at + 1]]);
        assert_eq!(segments.each_ref().map(|s| field(s, 16)), [1040, 1040, 64]);
        assert_eq!(segments.each_ref().map(|s| field(s, 18)), [0xffff, 0, 1]);
        assert_eq!(segments.each_ref().map(|s| s[47]), [0x80, 0, 0x09]);
        let sequence = |s: &Vec<u8>| u32::from_be_bytes([s[38], s[39], s[40], s[41]]);
        assert_eq!(segments.each_ref().map(sequence), [0xffff_fff0, 984, 1984]);
    }

    #[test]
    fn lengths_of_ipv6_and_udp_follow() {
        let mut head = vec![0; 62];
        head[12..14].copy_from_slice(&[0x86, 0xdd]);
        (head[14], head[20]) = (0x60, 17);
        let layers = Layers::of(&head).expect("UDP");
        layers.adapt(&mut head, 500, (0, 1), 0);
        assert_eq!((&head[18..20], &head[58..60]), (&508u16.to_be_bytes()[..], &508u16.to_be_bytes()[..]));
        assert!(Layers::of(&head[..61]).is_none(), "cut off");
        head[20] = 1;
        assert!(Layers::of(&head).is_none(), "ICMP");
    }
}
