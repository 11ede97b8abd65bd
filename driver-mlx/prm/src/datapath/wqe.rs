//! Segments of send and receive work queue entries.

use bitflags::bitflags;

crate::layout! {
    /// Control segment, the first of every send WQE.
    wqe_ctrl_seg (16) {
        0x0: opmod [31:24], wqe_index [23:8], opcode [7:0];
        0x4: qpn [31:8], ds [5:0];
        0x8: signature [31:24], dci_stream_channel_id [23:8], fm [7:5], ce [3:2], se [1];
        0xc: imm [31:0];
    }
    /// Remote address segment: RDMA write, read and atomics.
    wqe_raddr_seg (16) {
        0x0: raddr (quad);
        0x8: rkey [31:0];
    }
    /// Atomic segment.
    wqe_atomic_seg (16) {
        0x0: swap_add (quad);
        0x8: compare (quad);
    }
    /// Masked atomic segment.
    wqe_masked_atomic_seg (32) {
        0x00: swap_add (quad);
        0x08: compare (quad);
        0x10: swap_add_mask (quad);
        0x18: compare_mask (quad);
    }
    /// XRC segment.
    wqe_xrc_seg (16) {
        0x0: xrc_srqn [23:0];
    }
    /// Address vector: the datagram segment of UD, QP0 and QP1.
    av (48) {
        0x00: qkey [31:0];
        0x08: ext [31], dqp_dct [23:0];
        0x0c: stat_rate [31:28], sl [27:24], fl [23], mlid [22:16], rlid [15:0];
        0x14: rmac (bytes 6);
        0x18: tclass [15:8], hop_limit [7:0];
        0x1c: grh [30], src_addr_index [27:20], flow_label [19:0];
        0x20: rgid (bytes 16);
    }
    /// Ethernet segment: checksums, segmentation, and the frame's first bytes or a VLAN tag to insert. `inline_hdr_sz` is
    /// [`ETH_INSERT_VLAN`] or [`ETH_INSERT_SVLAN`] where `vlan_tci` is inserted.
    wqe_eth_seg (16) {
        0x0: swp_outer_l4_offset [31:24], swp_outer_l3_offset [23:16], swp_inner_l4_offset [15:8], swp_inner_l3_offset [7:0];
        0x4: cs_flags [31:24], swp_flags [23:16], mss [15:0];
        0x8: flow_table_metadata [31:0];
        0xc: inline_hdr_sz [31:16], vlan_tci [15:0];
    }
    /// Data pointer segment, of send and receive WQEs.
    wqe_data_seg (16) {
        0x0: byte_count [30:0];
        0x4: lkey [31:0];
        0x8: addr (quad);
    }
    /// Header of an inline data segment; the bytes follow, padded to 16.
    wqe_inline_seg (4) {
        0x0: inline [31], byte_count [30:0];
    }
    /// UMR control segment.
    wqe_umr_ctrl_seg (48) {
        0x00: flags [31:24];
        0x04: xlt_octowords [31:16], xlt_offset [15:0];
        0x08: mkey_mask (quad);
        0x10: xlt_offset_47_16 [31:0];
    }
    /// First segment of a WQE in a shared receive queue.
    wqe_srq_next_seg (16) {
        0x0: next_wqe_index [15:0];
        0x4: signature [31:24];
    }
    /// KLM entry of an indirect memory key.
    klm (16) {
        0x0: bcount [31:0];
        0x4: key [31:0];
        0x8: va (quad);
    }
    /// KSM entry: a KLM of fixed size.
    ksm (16) {
        0x4: key [31:0];
        0x8: va (quad);
    }
}

crate::code::codes! {
    /// Opcode of a send WQE (`wqe_ctrl_seg.opcode`), repeated in its CQE (`cqe64.s_wqe_opcode`).
    SendOpcode(u8) {
        NOP = 0x00 "no operation";
        SEND_INVAL = 0x01 "send with invalidate";
        RDMA_WRITE = 0x08 "RDMA write";
        RDMA_WRITE_IMM = 0x09 "RDMA write with immediate";
        SEND = 0x0a "send";
        SEND_IMM = 0x0b "send with immediate";
        LSO = 0x0e "large send offload";
        RDMA_READ = 0x10 "RDMA read";
        ATOMIC_CS = 0x11 "compare and swap";
        ATOMIC_FA = 0x12 "fetch and add";
        ATOMIC_MASKED_CS = 0x14 "masked compare and swap";
        ATOMIC_MASKED_FA = 0x15 "masked fetch and add";
        BIND_MW = 0x18 "bind memory window";
        FAST_REG = 0x19 "fast registration";
        LOCAL_INVAL = 0x1b "local invalidate";
        CONFIG_CMD = 0x1f "configuration command";
        SET_PSV = 0x20 "set PSV";
        GET_PSV = 0x21 "get PSV";
        CHECK_PSV = 0x22 "check PSV";
        DUMP = 0x23 "dump";
        UMR = 0x25 "user-mode memory registration";
        RGET_PSV = 0x26 "RGET_PSV";
        RCHECK_PSV = 0x27 "RCHECK_PSV";
        ENHANCED_MPSW = 0x29 "enhanced multi-packet send";
        ACCESS_ASO = 0x2d "access to an advanced steering object";
        MMO = 0x2f "memory-to-memory operation";
    }
}

bitflags! {
    /// `wqe_eth_seg.cs_flags`: checksums that the device computes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct EthChecksums: u8 {
        /// Header of the inner IPv4 packet.
        const L3_INNER = 1 << 4;
        /// TCP or UDP of the inner packet.
        const L4_INNER = 1 << 5;
        /// IPv4 header.
        const L3 = 1 << 6;
        /// TCP or UDP.
        const L4 = 1 << 7;
    }

    /// The byte `fm_ce_se` of a control segment. Fence and CE are small numbers in place, so
    /// compare them under their masks: `FENCE_MASK`, `CE_MASK`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FmCeSe: u8 {
        /// Solicited event.
        const SOLICITED = 1 << 1;
        /// CQE on success too; without it only on error.
        const CQ_UPDATE = 2 << 2;
        /// CQE and EQE.
        const CQ_UPDATE_AND_EQE = 3 << 2;
        /// Wait for earlier local operations (UMR, invalidate).
        const INITIATOR_SMALL_FENCE = 1 << 5;
        /// Wait for all earlier RDMA reads and atomics.
        const FENCE = 2 << 5;
        /// Strong ordering.
        const STRONG_ORDERING = 3 << 5;
        /// Small fence and fence.
        const SMALL_AND_FENCE = 4 << 5;
        /// All bits of CE.
        const CE_MASK = 3 << 2;
        /// All bits of the fence mode.
        const FENCE_MASK = 7 << 5;
    }

    /// `wqe_umr_ctrl_seg.flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct UmrFlags: u8 {
        /// The mkey's QP number must be this QP's.
        const CHECK_QPN = 1 << 3;
        /// `xlt_offset` holds.
        const TRANSLATION_OFFSET_EN = 1 << 4;
        /// Fail unless the mkey is free (Linux: `MLX5_UMR_CHECK_NOT_FREE`).
        const FAIL_IF_NOT_FREE = 1 << 5;
        /// Fail if the mkey is free (Linux: `MLX5_UMR_CHECK_FREE`).
        const FAIL_IF_FREE = 1 << 6;
        /// The translations follow in the WQE.
        const INLINE = 1 << 7;
    }

    /// `wqe_umr_ctrl_seg.mkey_mask`: which fields of the memory key change.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct MkeyMask: u64 {
        /// `len`.
        const LEN = 1 << 0;
        /// `log_page_size`.
        const PAGE_SIZE = 1 << 1;
        /// `start_addr`.
        const START_ADDR = 1 << 6;
        /// `pd`.
        const PD = 1 << 7;
        /// `en_rinval`.
        const EN_RINVAL = 1 << 8;
        /// Signature error reporting.
        const EN_SIGERR = 1 << 9;
        /// `bsf_en`.
        const BSF_EN = 1 << 12;
        /// `mkey_7_0`.
        const KEY = 1 << 13;
        /// `qpn`.
        const QPN = 1 << 14;
        /// `lr`.
        const LR = 1 << 17;
        /// `lw`.
        const LW = 1 << 18;
        /// `rr`.
        const RR = 1 << 19;
        /// `rw`.
        const RW = 1 << 20;
        /// `a`.
        const A = 1 << 21;
        /// `small_fence_on_rdma_read_response`.
        const SMALL_FENCE = 1 << 23;
        /// `relaxed_ordering_write`.
        const RELAXED_ORDERING_WRITE = 1 << 25;
        /// `free`.
        const FREE = 1 << 29;
        /// `relaxed_ordering_read`.
        const RELAXED_ORDERING_READ = 1 << 47;
    }
}

/// Bytes that `ds` counts in.
pub const DS_SIZE: usize = 16;
/// Bytes of a send WQE basic block, the unit of the send queue's counters.
pub const WQEBB_SIZE: usize = 64;
/// `ds` units of a basic block.
pub const WQEBB_DS: usize = WQEBB_SIZE / DS_SIZE;
/// Largest `ds`.
pub const MAX_DS: u32 = 63;

/// Byte offset of the dword with opmod, WQE index and opcode.
pub const CTRL_OPMOD_IDX_OPCODE: usize = 0x0;
/// Byte offset of the dword with QP number and size.
pub const CTRL_QPN_DS: usize = 0x4;
/// Byte offset of [`FmCeSe`].
pub const CTRL_FM_CE_SE: usize = 0xb;
/// Byte offset of immediate, rkey to invalidate, or UMR mkey.
pub const CTRL_IMM: usize = 0xc;
/// Byte offset of the remote address.
pub const RADDR_RADDR: usize = 0x0;
/// Byte offset of the rkey.
pub const RADDR_RKEY: usize = 0x8;
/// Byte offset of the byte count.
pub const DATA_BYTE_COUNT: usize = 0x0;
/// Byte offset of the lkey.
pub const DATA_LKEY: usize = 0x4;
/// Byte offset of the address.
pub const DATA_ADDR: usize = 0x8;
/// The lkey that ends a receive WQE's scatter list early (Linux: `MLX5_INVALID_LKEY`).
pub const DATA_LKEY_TERMINATOR: u32 = 0x100;
/// The bit that makes a data segment's first dword an inline header.
pub const INLINE_SEG: u32 = 1 << 31;
/// Byte offset of the Q_Key.
pub const AV_QKEY: usize = 0x00;
/// Byte offset of the destination QP number with [`EXTENDED_UD_AV`].
pub const AV_DQP_DCT: usize = 0x08;
/// The bit that announces the full 48-byte address vector.
pub const EXTENDED_UD_AV: u32 = 1 << 31;
/// Byte offset of the byte with static rate (high nibble) and service level.
pub const AV_STAT_RATE_SL: usize = 0x0c;
/// `wqe_eth_seg.inline_hdr_sz`: inserts a VLAN tag.
pub const ETH_INSERT_VLAN: u16 = 0x8000;
/// `wqe_eth_seg.inline_hdr_sz`: inserts a service VLAN tag (802.1ad).
pub const ETH_INSERT_SVLAN: u16 = 0x8001;
/// Byte offset of the inline header in an Ethernet segment.
pub const ETH_INLINE_OFFSET: usize = 0xe;
/// Byte offset of the destination LID, or the UDP source port of RoCE v2.
pub const AV_RLID: usize = 0x0e;
/// Byte offset of the destination MAC.
pub const AV_RMAC: usize = 0x14;
/// Byte offset of the traffic class.
pub const AV_TCLASS: usize = 0x1a;
/// Byte offset of the hop limit.
pub const AV_HOP_LIMIT: usize = 0x1b;
/// Byte offset of the dword with GRH flag (bit 30), source GID index and flow label.
pub const AV_GRH_GID_FL: usize = 0x1c;
/// Byte offset of the destination GID.
pub const AV_RGID: usize = 0x20;

/// First dword of a control segment, in CPU order. `wqe_index` is the producer counter in basic
/// blocks, cut to 16 bits.
#[must_use]
#[inline]
pub const fn ctrl_opmod_idx_opcode(opmod: u8, wqe_index: u16, opcode: SendOpcode) -> u32 {
    (opmod as u32) << 24 | (wqe_index as u32) << 8 | opcode.0 as u32
}

/// Second dword of a control segment, in CPU order. `ds` is the whole WQE in units of 16 bytes, 1
/// to [`MAX_DS`].
#[must_use]
#[inline]
pub const fn ctrl_qpn_ds(qpn: u32, ds: u32) -> u32 {
    qpn << 8 | (ds & MAX_DS)
}

/// Signature of a WQE over all its bytes, in which the signature byte itself counts as zero.
#[must_use]
pub fn signature(wqe: &[u8]) -> u8 {
    let own = wqe.get(wqe_ctrl_seg::signature.bit_offset as usize / 8).copied().unwrap_or(0);
    !(crate::cmd::xor(wqe) ^ own)
}

const _: () = {
    const fn at(field: crate::Field, offset: usize) -> bool {
        field.bit_offset as usize == offset * 8
    }
    assert!(at(wqe_ctrl_seg::opmod, CTRL_OPMOD_IDX_OPCODE));
    assert!(at(wqe_ctrl_seg::qpn, CTRL_QPN_DS));
    assert!(wqe_ctrl_seg::ds.max() == MAX_DS as u64);
    assert!(at(wqe_ctrl_seg::fm, CTRL_FM_CE_SE));
    assert!(wqe_ctrl_seg::se.bit_offset as usize == CTRL_FM_CE_SE * 8 + 6);
    assert!(at(wqe_ctrl_seg::imm, CTRL_IMM));
    assert!(at(wqe_raddr_seg::raddr, RADDR_RADDR) && at(wqe_raddr_seg::rkey, RADDR_RKEY));
    assert!(wqe_data_seg::byte_count.bit_offset as usize == DATA_BYTE_COUNT * 8 + 1);
    assert!(at(wqe_data_seg::lkey, DATA_LKEY) && at(wqe_data_seg::addr, DATA_ADDR));
    assert!(at(av::qkey, AV_QKEY) && at(av::ext, AV_DQP_DCT) && at(av::stat_rate, AV_STAT_RATE_SL));
    assert!(at(av::rlid, AV_RLID) && av::rmac.offset == AV_RMAC && at(av::tclass, AV_TCLASS));
    assert!(at(av::hop_limit, AV_HOP_LIMIT) && av::rgid.offset == AV_RGID);
    assert!(av::grh.bit_offset as usize == AV_GRH_GID_FL * 8 + 1);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_dwords_agree_with_the_layout() {
        let mut seg = [0u8; wqe_ctrl_seg::SIZE];
        seg[..4].copy_from_slice(&ctrl_opmod_idx_opcode(0, 0xfedc, SendOpcode::RDMA_WRITE_IMM).to_be_bytes());
        seg[4..8].copy_from_slice(&ctrl_qpn_ds(0x12_3456, 5).to_be_bytes());
        seg[CTRL_FM_CE_SE] = (FmCeSe::FENCE | FmCeSe::CQ_UPDATE | FmCeSe::SOLICITED).bits();
        assert_eq!(seg[..12], [0x00, 0xfe, 0xdc, 0x09, 0x12, 0x34, 0x56, 0x05, 0, 0, 0, 0x4a]);
        assert_eq!(wqe_ctrl_seg::wqe_index.get(&seg), 0xfedc);
        assert_eq!(wqe_ctrl_seg::qpn.get(&seg), 0x12_3456);
        assert_eq!(wqe_ctrl_seg::ds.get(&seg), 5);
        assert_eq!(
            (wqe_ctrl_seg::fm.get(&seg), wqe_ctrl_seg::ce.get(&seg), wqe_ctrl_seg::se.get(&seg)),
            (2, 2, 1)
        );
        assert_eq!(wqe_ctrl_seg::LAYOUT.reserved_bits_set(&seg), None);
        seg[CTRL_FM_CE_SE] |= 0x10;
        assert_eq!(wqe_ctrl_seg::LAYOUT.reserved_bits_set(&seg), Some((8, 0x10)));
    }

    #[test]
    fn a_signed_wqe_sums_to_all_ones() {
        let mut wqe = [0u8; 32];
        for (at, byte) in wqe.iter_mut().enumerate() {
            *byte = (at * 13 + 5) as u8;
        }
        wqe[8] = signature(&wqe);
        assert_eq!(crate::cmd::xor(&wqe), 0xff);
        assert_eq!(signature(&wqe), wqe[8]);
    }
}
