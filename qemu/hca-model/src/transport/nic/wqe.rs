//! Send WQEs of raw Ethernet (PRM, "Ethernet segment").

use super::Frames;
use crate::log::Subject;
use crate::meter::price;
use crate::object::nic::Sq;
use crate::transport::parser::{
    Bad, VENDOR_BAD_WQE, bad, cut_short, inline_len, take, take_inline, take_pointer,
};
use crate::transport::state::{Failure, MAX_WQE, Sge};
use mlx5_prm::datapath::{
    DBR_SEND, DS_SIZE, ETH_INLINE_OFFSET, ETH_INSERT_SVLAN, ETH_INSERT_VLAN, EthChecksums, SendOpcode,
    WQEBB_SIZE, wqe_ctrl_seg, wqe_eth_seg,
};

/// Bytes of the inline header that the Ethernet segment holds itself.
const INLINE_START: usize = 2;

/// A send WQE.
#[derive(Clone, Debug)]
pub(super) struct FrameWqe {
    pub(super) index: u16,
    /// Basic blocks.
    pub(super) blocks: u16,
    pub(super) opcode: SendOpcode,
    pub(super) signalled: bool,
    pub(super) checksums: EthChecksums,
    /// Payload of each segment, where the frame is segmented.
    pub(super) mss: u16,
    /// Tag to insert: EtherType and control information.
    pub(super) vlan: Option<(u16, u16)>,
    /// The frame's first bytes.
    pub(super) header: Vec<u8>,
    /// The rest of the frame.
    pub(super) payload: Vec<FramePiece>,
}

/// A part of a frame.
#[derive(Clone, Debug)]
pub(super) enum FramePiece {
    Inline(Vec<u8>),
    Memory(Sge),
}

impl FrameWqe {
    /// Bytes of the payload.
    pub(super) fn payload_len(&self) -> u64 {
        let len = |piece: &FramePiece| match piece {
            FramePiece::Inline(data) => data.len() as u64,
            FramePiece::Memory(sge) => u64::from(sge.len),
        };
        self.payload.iter().map(len).sum()
    }
}

/// What the next entry of a send queue is.
pub(super) enum Fetched {
    Nothing,
    Wqe(FrameWqe),
    /// A WQE that cannot be sent.
    Bad(FrameWqe, Failure),
    /// The record lies, or the ring cannot be read.
    Broken(&'static str, String),
}

impl Frames<'_, '_> {
    /// Logs what is wrong with the WQE at `index` of queue `number`. Returns the failure for its completion.
    pub(super) fn refuse_wqe(&mut self, number: u32, index: u16, Bad(field, text, syndrome): Bad) -> Failure {
        self.path.reports().refuse(
            Subject::WorkQueue { qpn: number },
            field,
            format!("WQE {index:#x}: {text}"),
        );
        Failure { syndrome, vendor: VENDOR_BAD_WQE }
    }

    /// Takes the next posted WQE.
    pub(super) fn fetch_frame(&mut self, sq: &mut Sq) -> Fetched {
        if std::mem::take(&mut sq.rung)
            && let Err(error) = sq.wq.refresh(self.path.guest(), DBR_SEND as u64)
        {
            return Fetched::Broken("qp_doorbell_record.send_counter", error.to_string());
        }
        if sq.wq.left() == 0 {
            return Fetched::Nothing;
        }
        self.path.meter().charge(price::WQE);
        let index = sq.wq.next;
        let mut wqe = FrameWqe {
            index,
            blocks: 1,
            opcode: SendOpcode::NOP,
            signalled: true,
            checksums: EthChecksums::empty(),
            mss: 0,
            vlan: None,
            header: Vec::new(),
            payload: Vec::new(),
        };
        let mut bytes = [0; MAX_WQE];
        let (head, _) = bytes.split_at_mut(DS_SIZE);
        if let Err(fault) = sq.wq.read(self.path.guest(), index, head) {
            return Fetched::Broken("create_sq_in.pas", fault.to_string());
        }
        let len = wqe_ctrl_seg::ds.get32(head) as usize * DS_SIZE;
        let blocks = len.div_ceil(WQEBB_SIZE);
        let parsed = if len == 0 || len > MAX_WQE || blocks > usize::from(sq.wq.left()) {
            let text = format!("{}, with {} basic blocks posted", len / DS_SIZE, sq.wq.left());
            Err(bad("wqe_ctrl_seg.ds", text))
        } else {
            wqe.blocks = blocks as u16;
            let bytes = bytes.get_mut(..len).unwrap_or_default();
            match sq.wq.read(self.path.guest(), index, bytes) {
                Ok(()) => parse(sq, bytes, &mut wqe),
                Err(fault) => return Fetched::Broken("create_sq_in.pas", fault.to_string()),
            }
        };
        sq.wq.next = index.wrapping_add(wqe.blocks);
        match parsed {
            Ok(()) => Fetched::Wqe(wqe),
            Err(bad) => {
                let failure = self.refuse_wqe(sq.sqn, index, bad);
                Fetched::Bad(wqe, failure)
            }
        }
    }
}

fn parse(sq: &Sq, bytes: &[u8], wqe: &mut FrameWqe) -> Result<(), Bad> {
    let mut rest = bytes;
    let ctrl: &[u8; DS_SIZE] = take(&mut rest)?;
    wqe.opcode = SendOpcode(wqe_ctrl_seg::opcode.get32(ctrl) as u8);
    wqe.signalled = wqe_ctrl_seg::ce.get32(ctrl) & 2 != 0;
    let sqn = wqe_ctrl_seg::qpn.get32(ctrl);
    if sqn != sq.sqn {
        return Err(bad("wqe_ctrl_seg.qpn", format!("{sqn:#x}")));
    }
    let counter = wqe_ctrl_seg::wqe_index.get32(ctrl) as u16;
    if counter != wqe.index {
        return Err(bad("wqe_ctrl_seg.wqe_index", format!("{counter:#x}")));
    }
    match wqe.opcode {
        SendOpcode::NOP => return Ok(()),
        SendOpcode::SEND | SendOpcode::LSO if sq.tisn.is_some() => {}
        other => return Err(bad("wqe_ctrl_seg.opcode", format!("{other} on an Ethernet queue"))),
    }
    let segment: &[u8; wqe_eth_seg::SIZE] = take(&mut rest)?;
    wqe.checksums = EthChecksums::from_bits_truncate(wqe_eth_seg::cs_flags.get32(segment) as u8);
    wqe.mss = wqe_eth_seg::mss.get32(segment) as u16;
    let (size, tci) =
        (wqe_eth_seg::inline_hdr_sz.get32(segment) as u16, wqe_eth_seg::vlan_tci.get32(segment));
    match size {
        ETH_INSERT_VLAN => wqe.vlan = Some((VLAN, tci as u16)),
        ETH_INSERT_SVLAN => wqe.vlan = Some((SERVICE_VLAN, tci as u16)),
        _ => {
            // The header runs on after the segment, and is padded.
            let len = usize::from(size);
            let behind = len.saturating_sub(INLINE_START).next_multiple_of(DS_SIZE);
            let all = segment.len() + behind;
            let from = bytes.get(DS_SIZE..DS_SIZE + all).unwrap_or_default();
            let header = from.get(ETH_INLINE_OFFSET..).and_then(|header| header.get(..len));
            let text = format!("{len} bytes do not fit the WQE");
            wqe.header.extend_from_slice(header.ok_or_else(|| bad("wqe_eth_seg.inline_hdr_sz", text))?);
            rest = rest.get(behind..).ok_or_else(cut_short)?;
        }
    }
    while !rest.is_empty() {
        wqe.payload.push(match inline_len(rest) {
            Some(len) => FramePiece::Inline(take_inline(&mut rest, len)?.to_vec()),
            None => FramePiece::Memory(take_pointer(&mut rest)?),
        });
    }
    Ok(())
}

use rdma_fabric::ethernet::frame::ether_type::{SERVICE_VLAN, VLAN};
