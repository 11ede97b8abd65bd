//! Fields that firmware has had since Linux 6.1's `mlx5_ifc.h`, or that only the code of drivers
//! shows. Named as mlx5_core names them.

use crate::layout::Field;

/// `cmd_hca_cap.terminate_scatter_list_mkey`: QUERY_SPECIAL_CONTEXTS says which key ends a scatter
/// list.
pub const CAP_TERMINATE_SCATTER_LIST_MKEY: Field = Field::bits(0x1c, 9, 9);
/// `query_special_contexts_out.terminate_scatter_list_mkey`.
pub const TERMINATE_SCATTER_LIST_MKEY: Field = Field::bits(0x14, 31, 0);

/// `query_q_counter_out.req_rnr_retries_exceeded`: requests given up because the receiver was never
/// ready.
pub const REQ_RNR_RETRIES_EXCEEDED: Field = Field::bits(0x70, 31, 0);

/// `cmd_hca_cap.dma_mmo_sq`: the send queue of a QP copies memory
/// ([`crate::datapath::SendOpcode::MMO`]).
pub const CAP_DMA_MMO_SQ: Field = Field::bits(0x28, 12, 12);
/// `cmd_hca_cap.log_dma_mmo_max_size`: log2 of the most bytes of one such copy.
pub const CAP_LOG_DMA_MMO_MAX_SIZE: Field = Field::bits(0x0c, 20, 16);
/// Kind of the general object that sets QP numbers aside; its bit in
/// `cmd_hca_cap.general_obj_types` says that it exists.
pub const RESERVED_QPN_OBJECT: u16 = 0x2c;
/// `cmd_hca_cap_2.log_max_num_reserved_qpn`: log2 of all numbers that can be set aside.
pub const CAP2_LOG_MAX_NUM_RESERVED_QPN: Field = Field::bits(0x10, 20, 16);
/// `cmd_hca_cap_2.log_reserved_qpn_granularity`: log2 of the fewest numbers of one object.
pub const CAP2_LOG_RESERVED_QPN_GRANULARITY: Field = Field::bits(0x10, 12, 8);
/// `cmd_hca_cap_2.log_reserved_qpn_max_alloc`: log2 of the most.
pub const CAP2_LOG_RESERVED_QPN_MAX_ALLOC: Field = Field::bits(0x10, 4, 0);
/// `device_mem_cap`: sizes in bytes, one bit each, of a write that increments device memory.
pub const MEMIC_INCREMENT_SIZES: Field = Field::bits(0x04, 31, 24);
/// `device_mem_cap`: sizes of a read that sets it.
pub const MEMIC_TEST_AND_SET_SIZES: Field = Field::bits(0x04, 15, 8);

/// `health_buffer.assert_var[0]` in BAR0, the first of [`ASSERT_VARS`] dwords: arguments of a
/// failed assertion, for the vendor.
pub const ASSERT_VAR_OFFSET: usize = 0x0200;
/// Number of dwords at [`ASSERT_VAR_OFFSET`].
pub const ASSERT_VARS: usize = 6;
/// `health_buffer.crr` in the dword at [`crate::init_seg::HEALTH_RFR_OFFSET`]: only switching the
/// power off helps.
pub const HEALTH_CRR: u32 = 1 << 30;
/// `health_buffer.rfr` there: firmware requests a reset.
pub const HEALTH_RFR: u32 = 1 << 31;
/// `initial_seg.embedded_cpu` in the dword at [`crate::init_seg::INITIALIZING_OFFSET`]: this side
/// is a BlueField's own processor.
pub const EMBEDDED_CPU: u32 = 1 << 23;

/// Bytes of a DTOR as ACCESS_REG carries it.
pub const DTOR_LEN: usize = 0x40;
