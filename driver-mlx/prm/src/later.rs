//! Fields that firmware has had since Linux 6.1's `mlx5_ifc.h`, or that only the code of drivers shows. Named as mlx5_core names them.

use crate::layout::Field;

/// `cmd_hca_cap.terminate_scatter_list_mkey`: QUERY_SPECIAL_CONTEXTS says which key ends a scatter list.
pub const CAP_TERMINATE_SCATTER_LIST_MKEY: Field = Field::bits(0x1c, 9, 9);
/// `query_special_contexts_out.terminate_scatter_list_mkey`.
pub const TERMINATE_SCATTER_LIST_MKEY: Field = Field::bits(0x14, 31, 0);

/// `health_buffer.assert_var[0]` in BAR0, the first of [`ASSERT_VARS`] dwords: arguments of a failed assertion, for the vendor.
pub const ASSERT_VAR_OFFSET: usize = 0x0200;
/// How many.
pub const ASSERT_VARS: usize = 6;
/// `health_buffer.crr` in the dword at [`crate::init_seg::HEALTH_RFR_OFFSET`]: only switching the power off helps.
pub const HEALTH_CRR: u32 = 1 << 30;
/// `health_buffer.rfr` there: firmware asks for a reset.
pub const HEALTH_RFR: u32 = 1 << 31;
/// `initial_seg.embedded_cpu` in the dword at [`crate::init_seg::INITIALIZING_OFFSET`]: this side is a BlueField's own processor.
pub const EMBEDDED_CPU: u32 = 1 << 23;

/// Bytes of a DTOR as ACCESS_REG carries it.
pub const DTOR_LEN: usize = 0x40;
