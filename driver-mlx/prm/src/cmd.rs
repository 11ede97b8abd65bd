//! The command queue: its entry, the mailbox blocks, ownership and signatures.

crate::layout! {
    /// Command queue entry.
    cmd_queue_entry (64) {
        0x00: r#type [31:24];
        0x04: input_length [31:0];
        0x08: input_mailbox_pointer_63_32 [31:0];
        0x0c: input_mailbox_pointer_31_9 [31:9];
        0x10: command_input_inline_data (bytes 16);
        0x20: command_output_inline_data (bytes 16);
        0x30: output_mailbox_pointer_63_32 [31:0];
        0x34: output_mailbox_pointer_31_9 [31:9];
        0x38: output_length [31:0];
        0x3c: token [31:24], signature [23:16], status [7:1], ownership [0];
    }
    /// Command interface box: one mailbox block.
    cmd_if_box (576) {
        0x000: mailbox_data (bytes 512);
        0x230: next_pointer_63_32 [31:0];
        0x234: next_pointer_31_10 [31:10];
        0x238: block_number [31:0];
        0x23c: token [23:16], ctrl_signature [15:8], signature [7:0];
    }
    /// Head of every command input.
    cmd_in (8) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: command (tail 4);
    }
    /// Head of every command output.
    cmd_out (12) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: command_output [31:0];
    }
}

/// `cmd_queue_entry.type`: the command comes over PCI.
pub const TYPE_PCI_CMD_XPORT: u8 = 7;
/// Entries a command queue can have, as the doorbell vector has 32 bits.
pub const MAX_ENTRIES: usize = 32;
/// Bytes of an input or output that the entry itself holds.
pub const INLINE_LEN: usize = 16;
/// Bytes of data in a mailbox block.
pub const BLOCK_DATA_LEN: usize = 512;
/// Alignment of a mailbox block that every device accepts.
pub const BLOCK_ALIGN: usize = 1024;
/// Byte of the entry that holds delivery status and ownership.
pub const STATUS_OWN_OFFSET: usize = 0x3f;
/// Byte of the entry that holds the token.
pub const TOKEN_OFFSET: usize = 0x3c;
/// Byte of the entry that holds the signature.
pub const SIGNATURE_OFFSET: usize = 0x3d;
/// Ownership bit in the byte at [`STATUS_OWN_OFFSET`]: set while firmware has the entry.
pub const OWNERSHIP_HW: u8 = 1;

/// Mailbox blocks for an input or output of `len` bytes.
#[must_use]
pub const fn blocks(len: usize) -> usize {
    len.saturating_sub(INLINE_LEN).div_ceil(BLOCK_DATA_LEN)
}

/// Returns whether firmware owns the entry, and the delivery status, which is valid once it does
/// not.
#[must_use]
pub const fn status_own(byte: u8) -> (bool, crate::status::DeliveryStatus) {
    (byte & OWNERSHIP_HW != 0, crate::status::DeliveryStatus(byte >> 1))
}

/// The exclusive or of all bytes.
#[must_use]
pub fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

/// Signature of a command queue entry whose ownership bit is already set: all 64 bytes together
/// then give 0xff.
#[must_use]
pub fn entry_signature(entry: &[u8; cmd_queue_entry::SIZE]) -> u8 {
    !(xor(entry) ^ entry[SIGNATURE_OFFSET])
}

/// Returns whether a command queue entry has the right signature, as the driver posted it.
#[must_use]
pub fn entry_signature_holds(entry: &[u8; cmd_queue_entry::SIZE]) -> bool {
    xor(entry) == 0xff
}

/// `ctrl_signature` and `signature` of a mailbox block, whatever the block holds in these two
/// bytes.
#[must_use]
pub fn block_signatures(block: &[u8; cmd_if_box::SIZE]) -> (u8, u8) {
    let ctrl = !xor(&block[0x200..0x23e]);
    let all = !(xor(&block[..0x23e]) ^ ctrl);
    (ctrl, all)
}

/// Returns whether a mailbox block has the right signatures.
#[must_use]
pub fn block_signatures_hold(block: &[u8; cmd_if_box::SIZE]) -> bool {
    xor(&block[0x200..0x23f]) == 0xff && xor(block) == 0xff
}

const _: () = {
    assert!(cmd_queue_entry::ownership.bit_offset as usize == STATUS_OWN_OFFSET * 8 + 7);
    assert!(cmd_queue_entry::token.bit_offset as usize == TOKEN_OFFSET * 8);
    assert!(cmd_queue_entry::signature.bit_offset as usize == SIGNATURE_OFFSET * 8);
    assert!(cmd_if_box::mailbox_data.len == BLOCK_DATA_LEN);
    assert!(cmd_queue_entry::command_input_inline_data.len == INLINE_LEN);
};

#[cfg(test)]
mod tests {
    use super::*;

    /// ENABLE_HCA as a ConnectX-4 got it from Linux (publicly posted dump).
    const ENABLE_HCA_ENTRY: [u32; 16] =
        [0x0700_0000, 0x0000_0010, 0, 0, 0x0104_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0000_0010, 0x01fd_0001];

    fn captured() -> [u8; 64] {
        let mut entry = [0; 64];
        for (bytes, word) in entry.chunks_exact_mut(4).zip(ENABLE_HCA_ENTRY) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        entry
    }

    #[test]
    fn a_captured_entry_is_reproduced() {
        let mut entry = [0u8; 64];
        cmd_queue_entry::r#type.set(&mut entry, TYPE_PCI_CMD_XPORT);
        cmd_queue_entry::input_length.set(&mut entry, 16u32);
        cmd_queue_entry::output_length.set(&mut entry, 16u32);
        let input = cmd_queue_entry::command_input_inline_data.of_mut(&mut entry);
        cmd_in::opcode.set(input, crate::opcode::Opcode::ENABLE_HCA.0);
        cmd_queue_entry::token.set(&mut entry, 1u8);
        cmd_queue_entry::ownership.set(&mut entry, 1u8);
        let signature = entry_signature(&entry);
        cmd_queue_entry::signature.set(&mut entry, signature);
        assert_eq!(entry, captured());
        assert!(entry_signature_holds(&entry));
        entry[5] ^= 0x40;
        assert!(!entry_signature_holds(&entry));
    }

    #[test]
    fn block_signatures_cover_data_and_control() {
        let mut block = [0u8; 576];
        for (at, byte) in block.iter_mut().enumerate() {
            *byte = (at * 7) as u8;
        }
        let (ctrl, all) = block_signatures(&block);
        cmd_if_box::ctrl_signature.set(&mut block, ctrl);
        cmd_if_box::signature.set(&mut block, all);
        assert!(block_signatures_hold(&block));
        block[17] ^= 1;
        assert!(!block_signatures_hold(&block));
    }

    #[test]
    fn block_counts() {
        assert_eq!([0, 16, 17, 528, 529, 4112].map(blocks), [0, 0, 1, 1, 2, 8]);
        assert_eq!(status_own(0x13), (true, crate::status::DeliveryStatus::RESERVED_NOT_ZERO));
    }
}
