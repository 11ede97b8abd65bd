//! Checks of send WQEs (PRM, work requests and completions).
use mlx5_prm::datapath::{
    CTRL_IMM, DS_SIZE, SendOpcode, WQEBB_SIZE, av, wqe_atomic_seg, wqe_ctrl_seg, wqe_data_seg,
    wqe_inline_seg, wqe_raddr_seg, wqe_xrc_seg,
};
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::ServiceType;

use super::address::AddressVector;
use super::segments::{Reserved, Segment};
use super::state::{Fence, MAX_WQE, Mixed, Payload, Piece, Sge, Sges, Work, Wqe};
use crate::caps::LOG_MAX_COPY;
use crate::object::qp::{Qp, SendQueue};
use crate::port::Port;
use crate::profile::Strictness;
use crate::seams::{DmaFault, GuestMemory};

/// Longest RDMA READ WQE (PRM, work requests and completions).
const MAX_READ_WQE: usize = 512;

/// A bad WQE: the field at fault, what is wrong, and what the completion says.
pub(super) struct Bad(pub(super) &'static str, pub(super) String, pub(super) CqeSyndrome);

/// A vendor syndrome that hardware gives with a bad WQE, as seen in users' logs.
pub(super) const VENDOR_BAD_WQE: u8 = 0x68;

/// `opmod` of a memory-to-memory operation that is a plain copy.
const MMO_DMA: u32 = 1;

pub(super) fn bad(field: &'static str, text: impl Into<String>) -> Bad {
    Bad(field, text.into(), CqeSyndrome::LOCAL_QP_OP_ERR)
}

/// A WQE whose lengths are wrong.
pub(super) fn too_long(field: &'static str, text: String) -> Bad {
    Bad(field, text, CqeSyndrome::LOCAL_LENGTH_ERR)
}

/// Parser of send WQEs.
pub(super) struct Parser<'a> {
    port: &'a Port,
    reserved: &'a Reserved,
    strictness: Strictness,
}

impl<'a> Parser<'a> {
    /// Makes the view.
    #[inline(always)]
    pub(super) fn new(port: &'a Port, reserved: &'a Reserved, strictness: Strictness) -> Self {
        Self { port, reserved, strictness }
    }

    /// Returns whether everything is checked that software must obey.
    pub(super) fn is_strict(&self) -> bool {
        self.strictness == Strictness::Strict
    }

    /// Parses a WQE of several basic blocks, copied out of the ring round its end.
    #[cold]
    pub(super) fn parse_long(
        &self,
        memory: &dyn GuestMemory,
        qp: &Qp,
        sq: SendQueue,
        head: &[u8; WQEBB_SIZE],
        len: usize,
        wqe: &mut Wqe,
    ) -> Result<(), Bad> {
        let fault = |fault: DmaFault| bad("create_qp_in.pas", fault.to_string());
        let mut bytes = [0; MAX_WQE];
        let (front, rest) = bytes.split_at_mut(WQEBB_SIZE);
        front.copy_from_slice(head);
        let rest = rest.get_mut(..len.saturating_sub(WQEBB_SIZE)).unwrap_or_default();
        let next = wqe.index.wrapping_add(1);
        let straight = rest.len().min(sq.straight(next) as usize * WQEBB_SIZE);
        let (first, wrapped) = rest.split_at_mut(straight);
        qp.rings().read(memory, sq.block(next), first).map_err(fault)?;
        qp.rings().read(memory, sq.offset(0), wrapped).map_err(fault)?;
        self.parse(qp, bytes.get(..len).unwrap_or_default(), wqe)
    }

    /// Refuses a segment with reserved bits, where everything is checked.
    #[inline(always)]
    pub(super) fn reserved(&self, segment: Segment, bytes: &[u8]) -> Result<(), Bad> {
        if self.is_strict() && self.reserved.are_set(segment, bytes) {
            return Err(reserved_bits(segment, bytes));
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn parse(&self, qp: &Qp, bytes: &[u8], wqe: &mut Wqe) -> Result<(), Bad> {
        let mut rest = bytes;
        let ctrl: &[u8; DS_SIZE] = take(&mut rest)?;
        wqe.opcode = SendOpcode(wqe_ctrl_seg::opcode.get32(ctrl) as u8);
        self.reserved(Segment::Control, ctrl)?;
        if wqe_ctrl_seg::qpn.get32(ctrl) != qp.qpn() {
            return Err(bad("wqe_ctrl_seg.qpn", format!("{:#x}", wqe_ctrl_seg::qpn.get32(ctrl))));
        }
        let counter = wqe_ctrl_seg::wqe_index.get32(ctrl) as u16;
        if counter != wqe.index {
            return Err(bad("wqe_ctrl_seg.wqe_index", format!("{counter:#x}")));
        }
        let expected = if wqe.opcode == SendOpcode::MMO { MMO_DMA } else { 0 };
        let opmod = wqe_ctrl_seg::opmod.get32(ctrl);
        if opmod != expected {
            return Err(bad("wqe_ctrl_seg.opmod", format!("{opmod}, not {expected}")));
        }
        wqe.signalled = wqe_ctrl_seg::ce.get32(ctrl) & 2 != 0;
        wqe.solicited = wqe_ctrl_seg::se.is_set(ctrl);
        wqe.fence = match wqe_ctrl_seg::fm.get32(ctrl) {
            0 => Fence::None,
            1 => Fence::Local,
            2 => Fence::Reads,
            3 => Fence::Everything,
            4 => Fence::LocalAndReads,
            other => return Err(bad("wqe_ctrl_seg.fm", format!("{other}"))),
        };
        wqe.immediate =
            ctrl.get(CTRL_IMM..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_be_bytes(*b));
        let reliable = matches!(qp.service(), ServiceType::RC | ServiceType::XRC);
        let connected = reliable || qp.service() == ServiceType::UC;
        let sends = qp.service() != ServiceType::REG_UMR;
        wqe.work = match wqe.opcode {
            SendOpcode::NOP => Work::Nop,
            SendOpcode::SEND if sends => Work::Send,
            SendOpcode::SEND_IMM if sends => Work::SendImmediate,
            SendOpcode::SEND_INVAL if reliable => Work::SendInvalidate,
            SendOpcode::RDMA_WRITE if connected => Work::Write,
            SendOpcode::RDMA_WRITE_IMM if connected => Work::WriteImmediate,
            SendOpcode::RDMA_READ if reliable => Work::Read,
            SendOpcode::ATOMIC_CS if reliable => Work::CompareSwap,
            SendOpcode::ATOMIC_FA if reliable => Work::FetchAdd,
            SendOpcode::UMR if connected || !sends => Work::Umr,
            SendOpcode::MMO if qp.service() == ServiceType::RC => Work::Copy,
            other => {
                return Err(bad("wqe_ctrl_seg.opcode", format!("{other} on a QP of type {}", qp.service())));
            }
        };
        if wqe.work == Work::Nop {
            return Ok(());
        }
        if qp.service() == ServiceType::XRC {
            let segment: &[u8; wqe_xrc_seg::SIZE] = take(&mut rest)?;
            self.reserved(Segment::Xrc, segment)?;
            wqe.rare_mut().xrc_srqn = wqe_xrc_seg::xrc_srqn.get32(segment);
        }
        if wqe.work == Work::Umr {
            wqe.rare_mut().umr = Some(self.parse_umr(wqe.immediate, rest)?);
            return Ok(());
        }
        if wqe.work == Work::Copy {
            let ends = parse_copy(rest)?;
            wqe.len = u64::from(ends[0].len);
            let mut list = Sges::default();
            ends.into_iter().for_each(|end| list.push(end));
            wqe.payload = Payload::Gather(list);
            return Ok(());
        }
        if !connected {
            wqe.rare_mut().address = Some(self.parse_address(&mut rest)?);
        }
        if matches!(wqe.work, Work::Write | Work::WriteImmediate) || wqe.work.is_answered() {
            let raddr: &[u8; DS_SIZE] = take(&mut rest)?;
            self.reserved(Segment::RemoteAddress, raddr)?;
            wqe.raddr = wqe_raddr_seg::raddr.get(raddr);
            wqe.rkey = wqe_raddr_seg::rkey.get32(raddr);
        }
        if matches!(wqe.work, Work::CompareSwap | Work::FetchAdd) {
            let atomic: &[u8; DS_SIZE] = take(&mut rest)?;
            let rare = wqe.rare_mut();
            rare.swap_add = wqe_atomic_seg::swap_add.get(atomic);
            rare.compare = wqe_atomic_seg::compare.get(atomic);
        }
        self.parse_data(qp, bytes.len(), rest, wqe)
    }

    fn parse_address(&self, rest: &mut &[u8]) -> Result<AddressVector, Bad> {
        // The short form (`compact_address_vector`) ends before the fields of the GRH.
        let extended = rest.get(..COMPACT_AV).is_some_and(|head| av::ext.is_set(head));
        let whole: [u8; av::SIZE] = if extended {
            *take(rest)?
        } else {
            let mut whole = [0; av::SIZE];
            let given: &[u8; COMPACT_AV] = take(rest)?;
            whole.iter_mut().zip(given).for_each(|(byte, given)| *byte = *given);
            whole
        };
        let bytes = &whole[..];
        self.reserved(Segment::Address, bytes)?;
        Ok(AddressVector::parse(bytes))
    }

    #[inline(always)]
    fn parse_data(&self, qp: &Qp, wqe_len: usize, mut rest: &[u8], wqe: &mut Wqe) -> Result<(), Bad> {
        let whole = rest;
        let mut inline = Vec::new();
        while !rest.is_empty() {
            if let Some(len) = inline_len(rest) {
                let data = take_inline(&mut rest, len)?;
                if wqe.work.is_answered() {
                    return Err(bad("wqe_inline_seg.inline", "a read has no inline data"));
                }
                inline.extend_from_slice(data);
            } else if let Payload::Gather(list) = &mut wqe.payload {
                let sge = take_pointer(&mut rest)?;
                wqe.len += u64::from(sge.len);
                list.push(sge);
            }
        }
        if !inline.is_empty() {
            wqe.len += inline.len() as u64;
            wqe.payload =
                if wqe.sges().is_empty() { Payload::Inline(inline) } else { by_turns(inline, whole) };
        }
        let short = |field, text| Err(too_long(field, text));
        if wqe.work == Work::Read && wqe_len > MAX_READ_WQE {
            return short("wqe_ctrl_seg.ds", format!("a READ of {wqe_len} bytes of WQE"));
        }
        if matches!(wqe.work, Work::CompareSwap | Work::FetchAdd) && wqe.len != 8 {
            return short("wqe_data_seg.byte_count", format!("an atomic of {} bytes", wqe.len));
        }
        let limit = match qp.service() {
            ServiceType::RC | ServiceType::UC | ServiceType::XRC => qp.connection().longest_message(),
            _ => u64::from(self.port.mtu_bytes()),
        };
        if wqe.len > limit {
            return short("wqe_data_seg.byte_count", format!("{} bytes exceed {limit}", wqe.len));
        }
        Ok(())
    }
}

/// Bytes of data in the next data segment, if it has its data in it.
#[inline(always)]
pub(super) fn inline_len(rest: &[u8]) -> Option<usize> {
    let first = rest.first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
    let len = (first & !mlx5_prm::datapath::INLINE_SEG) as usize;
    (first & mlx5_prm::datapath::INLINE_SEG != 0).then_some(len)
}

#[inline(always)]
pub(super) fn take_inline<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], Bad> {
    let whole = (wqe_inline_seg::SIZE + len).next_multiple_of(DS_SIZE);
    let data = rest.get(wqe_inline_seg::SIZE..).and_then(|data| data.get(..len));
    let Some(data) = data.filter(|_| whole <= rest.len()) else {
        return Err(bad("wqe_inline_seg.byte_count", format!("{len} bytes do not fit the WQE")));
    };
    *rest = rest.get(whole..).unwrap_or_default();
    Ok(data)
}

#[inline(always)]
pub(super) fn take_pointer(rest: &mut &[u8]) -> Result<Sge, Bad> {
    let segment: &[u8; DS_SIZE] = take(rest)?;
    let count = wqe_data_seg::byte_count.get32(segment);
    // Zero stands for 2 GiB in a send WQE.
    let len = if count == 0 { 1 << 31 } else { count };
    let address = wqe_data_seg::addr.get(segment);
    Ok(Sge { address, len, lkey: wqe_data_seg::lkey.get32(segment) })
}

/// Inline data and data pointers by turns, as they are in `rest`; `inline` is all of the former.
#[cold]
fn by_turns(mut inline: Vec<u8>, mut rest: &[u8]) -> Payload {
    let mut pieces = Vec::new();
    let mut end = 0;
    while !rest.is_empty() {
        let piece = match inline_len(rest) {
            Some(len) => take_inline(&mut rest, len).map(|data| {
                let from = end;
                end += data.len() as u16;
                Piece::Inline(from..end)
            }),
            None => take_pointer(&mut rest).map(Piece::Memory),
        };
        // They were all taken before.
        let Ok(piece) = piece else { break };
        pieces.push(piece);
    }
    // Both grew by doubling.
    inline.shrink_to_fit();
    pieces.shrink_to_fit();
    Payload::Mixed(Box::new(Mixed { inline, pieces }))
}

/// Bytes of an address vector without the extension.
const COMPACT_AV: usize = 16;

/// Takes a segment of `N` bytes off a WQE.
#[inline(always)]
pub(super) fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], Bad> {
    let Some((head, tail)) = rest.split_first_chunk() else { return Err(cut_short()) };
    *rest = tail;
    Ok(head)
}

/// A WQE that ends inside a segment.
#[cold]
pub(super) fn cut_short() -> Bad {
    bad("wqe_ctrl_seg.ds", "the WQE ends inside a segment")
}

#[cold]
fn reserved_bits(segment: Segment, bytes: &[u8]) -> Bad {
    let (field, layout) = segment.layout();
    let (offset, bits) = layout.reserved_bits_set(bytes).unwrap_or_default();
    bad(field, format!("reserved bits {bits:#x} at {offset:#x}"))
}

/// What follows the control segment: metadata, of which a copy needs none, then source and destination.
fn parse_copy(mut rest: &[u8]) -> Result<[Sge; 2], Bad> {
    let _: &[u8; DS_SIZE] = take(&mut rest)?;
    let mut end = || {
        let segment: &[u8; DS_SIZE] = take(&mut rest)?;
        // Zero stands for 2 GiB in a send WQE.
        let len = match wqe_data_seg::byte_count.get32(segment) {
            0 => 1 << 31,
            len => len,
        };
        Ok(Sge { address: wqe_data_seg::addr.get(segment), len, lkey: wqe_data_seg::lkey.get32(segment) })
    };
    let (source, destination) = (end()?, end()?);
    if !rest.is_empty() {
        return Err(bad("wqe_ctrl_seg.ds", "a copy has one source and one destination"));
    }
    if source.len != destination.len {
        let text = format!("{} bytes to {} bytes", source.len, destination.len);
        return Err(too_long("wqe_data_seg.byte_count", text));
    }
    if source.len > 1 << LOG_MAX_COPY {
        let text = format!("a copy of {} bytes, at most {}", source.len, 1 << LOG_MAX_COPY);
        return Err(too_long("wqe_data_seg.byte_count", text));
    }
    Ok([source, destination])
}
