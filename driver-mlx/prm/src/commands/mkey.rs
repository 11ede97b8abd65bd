//! Memory keys: inputs and outputs of the commands (PRM, "Command Reference").

use crate::contexts::mkc;

crate::layout! {
    /// CREATE_MKEY input (opcode 0x200).
    create_mkey_in (272) {
        0x000: opcode [31:16], uid [15:0];
        0x004: op_mod [15:0];
        0x00c: pg_access [31], mkey_umem_valid [30];
        0x010: memory_key_mkey_entry (struct mkc);
        0x060: translations_octword_actual_size [31:0];
        0x110: klm_pas_mtt (tail 4);
    }
    /// CREATE_MKEY output.
    create_mkey_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: mkey_index [23:0];
    }
    /// QUERY_MKEY input (opcode 0x201).
    query_mkey_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: mkey_index [23:0];
        0x0c: pg_access [31];
    }
    /// QUERY_MKEY output.
    query_mkey_out (304) {
        0x000: status [31:24];
        0x004: syndrome [31:0];
        0x010: memory_key_mkey_entry (struct mkc);
        0x110: bsf0_klm0_pas_mtt0_1 (bytes 16);
        0x120: bsf1_klm1_pas_mtt2_3 (bytes 16);
    }
    /// DESTROY_MKEY input (opcode 0x202).
    destroy_mkey_in (16) {
        0x00: opcode [31:16], uid [15:0];
        0x04: op_mod [15:0];
        0x08: mkey_index [23:0];
    }
    /// DESTROY_MKEY output.
    destroy_mkey_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// QUERY_SPECIAL_CONTEXTS input (opcode 0x203).
    query_special_contexts_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
    }
    /// QUERY_SPECIAL_CONTEXTS output.
    query_special_contexts_out (32) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x08: dump_fill_mkey [31:0];
        0x0c: resd_lkey [31:0];
        0x10: null_mkey [31:0];
    }
    /// PAGE_FAULT_RESUME input (opcode 0x204).
    page_fault_resume_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: error [31], page_fault_type [26:24], wq_number [23:0];
        0x0c: token [23:0];
    }
    /// PAGE_FAULT_RESUME output.
    page_fault_resume_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
    /// CREATE_PSV input (opcode 0x600).
    create_psv_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: num_psv [31:28], pd [23:0];
    }
    /// CREATE_PSV output.
    create_psv_out (32) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
        0x10: psv0_index [23:0];
        0x14: psv1_index [23:0];
        0x18: psv2_index [23:0];
        0x1c: psv3_index [23:0];
    }
    /// DESTROY_PSV input (opcode 0x601).
    destroy_psv_in (16) {
        0x00: opcode [31:16];
        0x04: op_mod [15:0];
        0x08: psvn [23:0];
    }
    /// DESTROY_PSV output.
    destroy_psv_out (16) {
        0x00: status [31:24];
        0x04: syndrome [31:0];
    }
}

/// `create_mkey_in.klm_pas_mtt` as MTTs: one 64-bit physical address each, with `mtt.wr_en` and
/// `rd_en` in its lowest bits. (The field itself counts in dwords, as `mlx5_ifc.h` declares it.)
pub const CREATE_MKEY_MTT: crate::Tail =
    crate::Tail { offset: create_mkey_in::klm_pas_mtt.offset, stride: 8 };

/// `create_mkey_in.klm_pas_mtt` as KLMs or KSMs: [`klm`](mod@crate::datapath::klm), 16 bytes each.
pub const CREATE_MKEY_KLM: crate::Tail =
    crate::Tail { offset: create_mkey_in::klm_pas_mtt.offset, stride: 16 };
