//! BAR0: the initialization segment with its health buffer and timers, and the registers of a UAR
//! page.
//!
//! All registers are big-endian. The layouts describe single dwords. The `*_OFFSET` constants are
//! byte offsets from the start of BAR0, for code that reads one dword at a time.

crate::layout! {
    /// Health buffer (BAR0 + 0x200).
    health_buffer (64) {
        0x20: assert_existptr [31:0];
        0x24: assert_callra [31:0];
        0x2c: time [31:0];
        0x30: fw_version [31:0];
        0x34: hw_id [31:0];
        0x38: rfr [31], valid [27], severity [26:24];
        0x3c: irisc_index [31:24], synd [23:16], ext_synd [15:0];
    }
    /// Initialization segment (BAR0 + 0).
    initial_seg (16396) {
        0x00: fw_rev_minor [31:16], fw_rev_major [15:0];
        0x04: cmd_interface_rev [31:16], fw_rev_subminor [15:0];
        0x10: cmdq_phy_addr_63_32 [31:0];
        0x14: cmdq_phy_addr_31_12 [31:12], nic_interface [9:8], log_cmdq_size [7:4], log_cmdq_stride [3:0];
        0x18: command_doorbell_vector [31:0];
        0x1fc: initializing [31], nic_interface_supported [26:24], embedded_cpu [23];
        0x200: health_buffer (struct health_buffer);
        0x240: no_dram_nic_offset [31:0];
        0x100c: clear_int [0];
        0x1010: health_syndrome [31:24], health_counter [23:0];
    }
}

/// The only command interface revision that exists (`initial_seg.cmd_interface_rev`).
pub const CMD_INTERFACE_REV: u32 = 5;
/// Value of every register when the PCI link is dead or the function is gone.
pub const LINK_DEAD: u32 = u32::MAX;

/// `fw_rev_minor`, `fw_rev_major`.
pub const FW_REV_OFFSET: usize = 0x0000;
/// `cmd_interface_rev`, `fw_rev_subminor`.
pub const CMD_INTERFACE_REV_OFFSET: usize = 0x0004;
/// Command queue address, high dword: written first.
pub const CMDQ_ADDR_H_OFFSET: usize = 0x0010;
/// Command queue address, low dword, with `nic_interface`, `log_cmdq_size`, `log_cmdq_stride`:
/// firmware acts on this write.
pub const CMDQ_ADDR_L_SZ_OFFSET: usize = 0x0014;
/// Command doorbell vector: bit n starts entry n.
pub const CMD_DBELL_OFFSET: usize = 0x0018;
/// `initializing` and what the interface supports.
pub const INITIALIZING_OFFSET: usize = 0x01fc;
/// Health buffer.
pub const HEALTH_BUFFER_OFFSET: usize = 0x0200;
/// `health_buffer.fw_version`: reads [`LINK_DEAD`] when the device is gone.
pub const HEALTH_FW_VERSION_OFFSET: usize = 0x0230;
/// Dword of `health_buffer.rfr`, `valid` and `severity`.
pub const HEALTH_RFR_OFFSET: usize = 0x0238;
/// Dword of `health_buffer.synd` and `ext_synd`.
pub const HEALTH_SYND_OFFSET: usize = 0x023c;
/// Command execution time-out: a [`timeout_word`].
pub const CMD_EXEC_TO_OFFSET: usize = 0x0ff8;
/// Time-out of taking over the command queue address: a [`timeout_word`].
pub const CMD_Q_INIT_TO_OFFSET: usize = 0x0ffc;
/// Internal timer, high dword: read high, low, high again.
pub const INTERNAL_TIMER_H_OFFSET: usize = 0x1000;
/// Internal timer, low dword.
pub const INTERNAL_TIMER_L_OFFSET: usize = 0x1004;
/// `health_syndrome` and `health_counter`.
pub const HEALTH_COUNTER_OFFSET: usize = 0x1010;
/// Real-time clock, high dword.
pub const REAL_TIME_H_OFFSET: usize = 0x1040;
/// Real-time clock, low dword.
pub const REAL_TIME_L_OFFSET: usize = 0x1044;
/// IEEE 1588 clock, 64 bits.
pub const IEEE1588_CLK_OFFSET: usize = 0x2000;
/// IEEE 1588 clock type.
pub const IEEE1588_CLK_TYPE_OFFSET: usize = 0x2008;
/// Interrupt clear register of the legacy interrupt.
pub const CLR_INTX_OFFSET: usize = 0x200c;
/// Bytes that the initialization segment takes; UAR pages lie behind it.
pub const INIT_SEG_LEN: usize = initial_seg::SIZE;

/// `initializing` in the dword at [`INITIALIZING_OFFSET`].
pub const INITIALIZING: u32 = 1 << 31;
/// `fw_reset_supported` in the dword at [`INITIALIZING_OFFSET`].
pub const FW_RESET_SUPPORTED: u32 = 1 << 30;
/// Position of `nic_interface` in the dword at [`CMDQ_ADDR_L_SZ_OFFSET`].
pub const NIC_INTERFACE_SHIFT: u32 = 8;
/// Width of `nic_interface` in place: Linux's `mlx5_get_nic_state` takes three bits, which values
/// up to 7 need; the layout description names only the lower two.
pub const NIC_INTERFACE_MASK: u32 = 0x7 << NIC_INTERFACE_SHIFT;

/// Milliseconds in a time-out word of the initialization segment or of DTOR (multiplier in bits
/// 31:29, value in 19:0). Zero means that the default stays; `None` for a multiplier that does not
/// exist.
#[must_use]
pub const fn timeout_word(word: u32) -> Option<u64> {
    let value = (word & 0xf_ffff) as u64;
    match word >> 29 {
        0 => Some(value),
        1 => Some(value * 1_000),
        2 => Some(value * 60_000),
        3 => Some(value * 3_600_000),
        _ => None,
    }
}

/// Registers of a UAR page: byte offsets inside the page.
pub mod uar {
    /// Bytes of a UAR page; page *n* begins at BAR0 + n times this, with `log_uar_page_sz` 0.
    pub const PAGE_SIZE: usize = 4096;
    /// CQ arm doorbell, one 64-bit write: [`crate::datapath::cq_doorbell`].
    pub const CQ_DOORBELL: usize = 0x20;
    /// EQ doorbell that also arms, one 32-bit write: [`crate::datapath::eq_doorbell`].
    pub const EQ_DOORBELL_ARM: usize = 0x40;
    /// EQ doorbell that only updates the consumer index.
    pub const EQ_DOORBELL: usize = 0x48;
    /// BlueFlame register 0.
    pub const BLUEFLAME: usize = 0x800;
    /// BlueFlame registers of a page.
    pub const BLUEFLAME_REGISTERS: usize = 4;
    /// `log_bf_reg_size` of every device seen: registers 0x200 apart, each two buffers of 256
    /// bytes.
    pub const LOG_BF_REG_SIZE: u32 = 9;

    /// Offset of buffer `odd` (0 or 1) of BlueFlame register `register` (0 to 3).
    #[must_use]
    pub const fn blueflame(register: usize, odd: bool, log_bf_reg_size: u32) -> usize {
        BLUEFLAME + (register << log_bf_reg_size) + ((odd as usize) << (log_bf_reg_size - 1))
    }
}

const _: () = {
    assert!(initial_seg::cmdq_phy_addr_63_32.bit_offset as usize == CMDQ_ADDR_H_OFFSET * 8);
    assert!(initial_seg::cmdq_phy_addr_31_12.bit_offset as usize == CMDQ_ADDR_L_SZ_OFFSET * 8);
    assert!(initial_seg::command_doorbell_vector.bit_offset as usize == CMD_DBELL_OFFSET * 8);
    assert!(initial_seg::initializing.bit_offset as usize == INITIALIZING_OFFSET * 8);
    assert!(initial_seg::health_buffer.offset == HEALTH_BUFFER_OFFSET);
    assert!(initial_seg::health_syndrome.bit_offset as usize == HEALTH_COUNTER_OFFSET * 8);
    assert!(
        health_buffer::fw_version.bit_offset as usize
            == (HEALTH_FW_VERSION_OFFSET - HEALTH_BUFFER_OFFSET) * 8
    );
    assert!(health_buffer::rfr.bit_offset as usize == (HEALTH_RFR_OFFSET - HEALTH_BUFFER_OFFSET) * 8);
    assert!(
        health_buffer::irisc_index.bit_offset as usize == (HEALTH_SYND_OFFSET - HEALTH_BUFFER_OFFSET) * 8
    );
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blueflame_registers_alternate_their_halves() {
        assert_eq!(uar::blueflame(0, false, 9), 0x800);
        assert_eq!(uar::blueflame(0, true, 9), 0x900);
        assert_eq!(uar::blueflame(3, true, 9), 0xf00);
    }

    #[test]
    fn timeout_words() {
        assert_eq!(timeout_word(0x2000_003c), Some(60_000));
        assert_eq!(timeout_word(0), Some(0));
        assert_eq!(timeout_word(0x8000_0001), None);
    }
}
