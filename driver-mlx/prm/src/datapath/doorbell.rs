//! Doorbell records in memory and doorbell registers in the UAR page.
//!
//! All functions give the value in CPU order; it is written big-endian.

crate::layout! {
    /// Doorbell record of a QP, SRQ or RMP.
    qp_doorbell_record (8) {
        0x0: receive_counter [15:0];
        0x4: send_counter [15:0];
    }
    /// Doorbell record of a CQ.
    cq_doorbell_record (8) {
        0x0: consumer_index [23:0];
        0x4: arm_sn [29:28], cmd [24], arm_index [23:0];
    }
    /// CQ doorbell register.
    cq_db (8) {
        0x0: arm_sn [29:28], cmd [24], consumer_index [23:0];
        0x4: cqn [23:0];
    }
    /// EQ doorbell register.
    eq_db (4) {
        0x0: eqn [31:24], consumer_index [23:0];
    }
}

/// Bytes of any doorbell record; it must be aligned to this at least.
pub const DBR_SIZE: usize = 8;
/// Byte offset of the receive counter (WQEs posted, 16 bits) in a QP's, SRQ's or RMP's record.
pub const DBR_RECEIVE: usize = 0;
/// Byte offset of the send counter (basic blocks posted, 16 bits) in a QP's record.
pub const DBR_SEND: usize = 4;
/// Byte offset of the consumer index (24 bits) in a CQ's record.
pub const CQ_DBR_CONSUMER: usize = 0;
/// Byte offset of the [`cq_arm_value`] in a CQ's record.
pub const CQ_DBR_ARM: usize = 4;
/// Arm word of a CQ whose driver never arms it.
pub const CQ_DBR_NEVER_ARMED: u32 = 2 << 28;

/// Event that a CQ is armed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CqArm {
    /// The next completion (`MLX5_CQ_DB_REQ_NOT`).
    Next,
    /// The next solicited completion, or one with error (`MLX5_CQ_DB_REQ_NOT_SOL`).
    Solicited,
}

/// Arm word of a CQ: sequence number (2 bits), command, consumer index (24 bits).
#[must_use]
#[inline]
pub const fn cq_arm_value(arm_sn: u32, arm: CqArm, consumer_index: u32) -> u32 {
    (arm_sn & 3) << 28 | (arm as u32) << 24 | (consumer_index & 0xff_ffff)
}

/// Value of the CQ doorbell register, which must be written after the record: the arm word, then
/// the CQ number.
#[must_use]
#[inline]
pub const fn cq_doorbell(arm_value: u32, cqn: u32) -> u64 {
    (arm_value as u64) << 32 | cqn as u64
}

/// Value of both EQ doorbell registers.
#[must_use]
#[inline]
pub const fn eq_doorbell(eqn: u8, consumer_index: u32) -> u32 {
    (eqn as u32) << 24 | (consumer_index & 0xff_ffff)
}

const _: () = {
    assert!(qp_doorbell_record::receive_counter.bit_offset as usize == DBR_RECEIVE * 8 + 16);
    assert!(qp_doorbell_record::send_counter.bit_offset as usize == DBR_SEND * 8 + 16);
    assert!(cq_doorbell_record::consumer_index.bit_offset as usize == CQ_DBR_CONSUMER * 8 + 8);
    assert!(cq_doorbell_record::arm_sn.bit_offset as usize == CQ_DBR_ARM * 8 + 2);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_agree_with_their_layouts() {
        let arm = cq_arm_value(7, CqArm::Solicited, 0xff12_3456);
        let value = cq_doorbell(arm, 0xabcdef).to_be_bytes();
        assert_eq!(value, [0x31, 0x12, 0x34, 0x56, 0x00, 0xab, 0xcd, 0xef]);
        assert_eq!(cq_db::arm_sn.get(&value), 3);
        assert_eq!(cq_db::cmd.get(&value), 1);
        assert_eq!(cq_db::consumer_index.get(&value), 0x12_3456);
        assert_eq!(cq_db::cqn.get(&value), 0xab_cdef);
        assert_eq!(cq_db::LAYOUT.reserved_bits_set(&value), None);
        let value = eq_doorbell(0x10, 0x0100_0007).to_be_bytes();
        assert_eq!((eq_db::eqn.get(&value), eq_db::consumer_index.get(&value)), (0x10, 7));
    }
}
