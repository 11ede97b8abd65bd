//! Completion queue entries.

crate::layout! {
    /// Completion queue entry (the second half of a 128-byte one).
    cqe64 (64) {
        0x00: tls_outer_l3_tunneled [31:24], wqe_id [15:0];
        0x0c: rss_hash_result [31:0];
        0x10: rss_hash_type [31:24], ml_path [23:16];
        0x14: check_sum [31:16], slid [15:0];
        0x18: g [29:28], sl [27:24], rqpn [23:0];
        0x1c: hds_ip_ext [31:24], l4_l3_hdr_type [23:16], vlan_info [15:0];
        0x20: lro_num_seg [31:24], srqn [23:0];
        0x24: immediate [31:0];
        0x2c: byte_cnt [31:0];
        0x30: timestamp_h [31:0];
        0x34: timestamp_l [31:0];
        0x38: s_wqe_opcode [31:24], qpn [23:0];
        0x3c: wqe_counter [31:16], signature [15:8], opcode [7:4], format [3:2], se [1], owner [0];
    }
    /// Completion with error.
    err_cqe (64) {
        0x20: srqn [23:0];
        0x34: vendor_err_synd [15:8], syndrome [7:0];
        0x38: s_wqe_opcode [31:24], qpn [23:0];
        0x3c: wqe_counter [31:16], signature [15:8], opcode [7:4], format [3:2], se [1], owner [0];
    }
    /// Completion with a signature error of a data integrity operation.
    sig_err_cqe (64) {
        0x10: expected_trans_sig [31:0];
        0x14: actual_trans_sig [31:0];
        0x18: expected_reftag [31:0];
        0x1c: actual_reftag [31:0];
        0x20: syndrome [31:16];
        0x24: mkey [31:0];
        0x28: err_offset (quad);
        0x38: qpn [23:0];
        0x3c: signature [15:8], opcode [7:4], format [3:2], se [1], owner [0];
    }
}

crate::code::codes! {
    /// Opcode of a CQE (`cqe64.opcode`).
    CqeOpcode(u8) {
        REQ = 0x0 "requester";
        RESP_WR_IMM = 0x1 "responder: RDMA write with immediate";
        RESP_SEND = 0x2 "responder: send";
        RESP_SEND_IMM = 0x3 "responder: send with immediate";
        RESP_SEND_INV = 0x4 "responder: send with invalidate";
        RESIZE_CQ = 0x5 "CQ resized";
        SIG_ERR = 0xc "signature error";
        REQ_ERR = 0xd "requester error";
        RESP_ERR = 0xe "responder error";
        INVALID = 0xf "not written yet";
    }

    /// Where scattered data is (`cqe64.format`).
    CqeFormat(u8) {
        NO_INLINE_DATA = 0x0 "no inline data";
        INLINE_DATA32_SEG = 0x1 "up to 32 bytes in the entry itself";
        INLINE_DATA64_SEG = 0x2 "up to 64 bytes in the first half of a 128-byte entry";
        COMPRESSED = 0x3 "compressed";
    }

    /// GRH of a received datagram, if any (`cqe64.g`).
    GrhPresence(u8) {
        NONE = 0x0 "no GRH";
        IN_BUFFER = 0x1 "GRH in the receive buffer";
        IN_CQE = 0x2 "GRH in the CQE";
    }
}

/// Byte offset of the destination's path bits.
pub const CQE_ML_PATH: usize = 0x11;
/// Byte offset of the source LID, 16 bits.
pub const CQE_SLID: usize = 0x16;
/// Byte offset of the dword with GRH presence, service level and source QP number.
pub const CQE_FLAGS_RQPN: usize = 0x18;
/// Byte offset of the dword with SRQ number or user index.
pub const CQE_SRQN: usize = 0x20;
/// Byte offset of the immediate, the invalidated rkey, or the P_Key.
pub const CQE_IMMEDIATE: usize = 0x24;
/// Byte offset of the byte count.
pub const CQE_BYTE_CNT: usize = 0x2c;
/// Byte offset of the 64-bit time stamp, in ticks of the device's clock.
pub const CQE_TIMESTAMP: usize = 0x30;
/// Byte offset of the vendor's error syndrome.
pub const CQE_VENDOR_ERR_SYND: usize = 0x36;
/// Byte offset of the [`crate::status::CqeSyndrome`].
pub const CQE_SYNDROME: usize = 0x37;
/// Byte offset of the dword with send opcode and QP number.
pub const CQE_QPN: usize = 0x38;
/// Byte offset of the WQE counter, 16 bits: basic blocks in a send queue, WQEs in a receive queue.
pub const CQE_WQE_COUNTER: usize = 0x3c;
/// Byte offset of opcode, format, solicited event and owner.
pub const CQE_OP_OWN: usize = 0x3f;
/// `op_own` that every entry must hold before the CQ is created: invalid, and the owner bit that the first lap does not write.
pub const CQE_INIT_OP_OWN: u8 = 0xf1;

/// The opcode in `op_own`.
#[must_use]
#[inline]
pub const fn cqe_opcode(op_own: u8) -> CqeOpcode {
    CqeOpcode(op_own >> 4)
}

/// The format in `op_own`.
#[must_use]
#[inline]
pub const fn cqe_format(op_own: u8) -> CqeFormat {
    CqeFormat(op_own >> 2 & 3)
}

/// Returns whether the sender requested an event (solicited bit of `op_own`).
#[must_use]
#[inline]
pub const fn cqe_se(op_own: u8) -> bool {
    op_own & 2 != 0
}

/// The owner bit in `op_own`: it changes with each turn of the ring.
#[must_use]
#[inline]
pub const fn cqe_owner(op_own: u8) -> bool {
    op_own & 1 != 0
}

/// The byte `op_own` from its parts.
#[must_use]
pub const fn op_own(opcode: CqeOpcode, format: CqeFormat, se: bool, owner: bool) -> u8 {
    opcode.0 << 4 | (format.0 & 3) << 2 | (se as u8) << 1 | owner as u8
}

const _: () = {
    const fn at(field: crate::Field, offset: usize) -> bool {
        field.bit_offset as usize == offset * 8
    }
    assert!(at(cqe64::ml_path, CQE_ML_PATH) && at(cqe64::slid, CQE_SLID));
    assert!(cqe64::g.bit_offset as usize == CQE_FLAGS_RQPN * 8 + 2);
    assert!(at(cqe64::lro_num_seg, CQE_SRQN) && at(cqe64::immediate, CQE_IMMEDIATE));
    assert!(at(cqe64::byte_cnt, CQE_BYTE_CNT) && at(cqe64::timestamp_h, CQE_TIMESTAMP));
    assert!(at(err_cqe::vendor_err_synd, CQE_VENDOR_ERR_SYND) && at(err_cqe::syndrome, CQE_SYNDROME));
    assert!(at(cqe64::s_wqe_opcode, CQE_QPN) && at(cqe64::wqe_counter, CQE_WQE_COUNTER));
    assert!(at(cqe64::opcode, CQE_OP_OWN) && at(err_cqe::opcode, CQE_OP_OWN));
    assert!(cqe64::owner.bit_offset as usize == CQE_OP_OWN * 8 + 7);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_own_agrees_with_the_layout() {
        let mut cqe = [0u8; cqe64::SIZE];
        cqe[CQE_OP_OWN] = op_own(CqeOpcode::RESP_SEND_IMM, CqeFormat::INLINE_DATA32_SEG, true, true);
        assert_eq!(cqe[63], 0x37);
        assert_eq!(cqe64::opcode.get(&cqe), 3);
        assert_eq!(cqe64::format.get(&cqe), 1);
        assert!(cqe64::se.is_set(&cqe) && cqe64::owner.is_set(&cqe));
        assert_eq!(cqe_opcode(cqe[63]), CqeOpcode::RESP_SEND_IMM);
        assert_eq!(cqe_format(cqe[63]), CqeFormat::INLINE_DATA32_SEG);
        assert!(cqe_se(cqe[63]) && cqe_owner(cqe[63]));
        assert_eq!(cqe_opcode(CQE_INIT_OP_OWN), CqeOpcode::INVALID);
    }
}
