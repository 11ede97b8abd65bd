//! Error codes of firmware and hardware: command status, delivery status, completion syndromes,
//! health.

crate::code::codes! {
    /// Status of a command, the first byte of its output. Meaningful only after
    /// [`DeliveryStatus::OK`].
    CmdStatus(u8) {
        OK = 0x00 "ok";
        INTERNAL_ERR = 0x01 "internal error";
        BAD_OP = 0x02 "bad operation: unsupported opcode or op_mod";
        BAD_PARAM = 0x03 "bad parameter";
        BAD_SYS_STATE = 0x04 "bad system state";
        BAD_RES = 0x05 "bad resource: no such number";
        RES_BUSY = 0x06 "resource busy";
        LIM_ERR = 0x08 "limits exceeded";
        BAD_RES_STATE = 0x09 "bad resource state";
        IX_ERR = 0x0a "index error";
        NO_RES = 0x0f "no resources";
        BAD_QP_STATE = 0x10 "bad QP state";
        BAD_PKT = 0x30 "bad management packet";
        BAD_SIZE_OUTS_CQES = 0x40 "bad size: too many outstanding CQEs";
        BAD_INP_LEN = 0x50 "bad input length";
        BAD_OUTP_LEN = 0x51 "bad output length";
    }

    /// Delivery status of a command queue entry: whether firmware could take the command at all.
    DeliveryStatus(u8) {
        OK = 0x00 "ok";
        SIGNATURE_ERR = 0x01 "signature error";
        TOKEN_ERR = 0x02 "token error";
        BAD_BLOCK_NUMBER = 0x03 "bad block number";
        BAD_OUTPUT_POINTER = 0x04 "bad output pointer: not aligned";
        BAD_INPUT_POINTER = 0x05 "bad input pointer: not aligned";
        INTERNAL_ERR = 0x06 "firmware internal error";
        BAD_INPUT_LEN = 0x07 "bad input length";
        BAD_OUTPUT_LEN = 0x08 "bad output length";
        RESERVED_NOT_ZERO = 0x09 "reserved bits not clear";
        BAD_COMMAND_TYPE = 0x10 "bad command type";
    }

    /// Syndrome of an error completion (`err_cqe.syndrome`).
    CqeSyndrome(u8) {
        LOCAL_LENGTH_ERR = 0x01 "local length error";
        LOCAL_QP_OP_ERR = 0x02 "local QP operation error";
        LOCAL_PROT_ERR = 0x04 "local protection error";
        WR_FLUSH_ERR = 0x05 "work request flushed";
        MW_BIND_ERR = 0x06 "memory window bind error";
        BAD_RESP_ERR = 0x10 "bad response";
        LOCAL_ACCESS_ERR = 0x11 "local access error";
        REMOTE_INVAL_REQ_ERR = 0x12 "remote invalid request";
        REMOTE_ACCESS_ERR = 0x13 "remote access error";
        REMOTE_OP_ERR = 0x14 "remote operation error";
        TRANSPORT_RETRY_EXC_ERR = 0x15 "transport retry count exceeded";
        RNR_RETRY_EXC_ERR = 0x16 "RNR retry count exceeded";
        REMOTE_ABORTED_ERR = 0x22 "remote aborted";
    }

    /// Syndrome in the health buffer (`health_buffer.synd`); zero is healthy.
    HealthSyndrome(u8) {
        HEALTHY = 0x00 "healthy";
        FW_INTERNAL_ERR = 0x01 "firmware internal error";
        DEAD_IRISC = 0x07 "irisc not responding";
        HW_FATAL_ERR = 0x08 "unrecoverable hardware error";
        FW_CRC_ERR = 0x09 "firmware CRC error";
        ICM_FETCH_PCI_ERR = 0x0a "ICM fetch PCI error";
        ICM_PAGE_ERR = 0x0b "ICM page error";
        ASYNCHRONOUS_EQ_BUF_OVERRUN = 0x0c "asynchronous EQ buffer overrun";
        EQ_IN_ERR = 0x0d "EQ error";
        EQ_INV = 0x0e "invalid EQ referenced";
        FFSER_ERR = 0x0f "FFSER error";
        HIGH_TEMP_ERR = 0x10 "high temperature";
    }

    /// Syndrome of a CQ error event (`cq_error.syndrome`).
    CqErrorSyndrome(u8) {
        CQ_OVERRUN = 0x01 "CQ overrun";
        CQ_ACCESS_VIOLATION = 0x02 "CQ access violation";
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn unknown_values_are_kept_and_printed() {
        assert_eq!(format!("{}", CmdStatus(0x10)), "bad QP state (0x10)");
        assert_eq!(
            format!("{:?} {:?}", CmdStatus::BAD_RES, CmdStatus(0x77)),
            "CmdStatus::BAD_RES CmdStatus(0x77)"
        );
        assert_eq!(CqeSyndrome(0x99).name(), None);
    }
}
