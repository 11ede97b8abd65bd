//! Command opcodes, and for each one the layouts of its input and output.
//!
//! The table serves the driver's tracing (names, sizes) and the emulated HCA's strict checks
//! (unknown opcode, length, reserved bits), so that the two cannot disagree.

use crate::Layout;
use crate::commands::*;
use crate::management::{
    create_general_object_in, create_general_object_out, destroy_general_object_in,
    destroy_general_object_out,
};
use core::fmt;

/// A command opcode: the first 16 bits of every command input. Any value can be stored, defined or
/// not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(pub u16);

/// Description of a command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The opcode.
    pub opcode: Opcode,
    /// The manual's name.
    pub name: &'static str,
    /// Input and output; `None` for commands of which only the number is defined here.
    pub layouts: Option<(&'static Layout, &'static Layout)>,
}

macro_rules! opcodes {
    ($( $name:ident = $value:literal $(, $input:ident, $output:ident)? ; )+) => {
        impl Opcode {
            $(
                #[doc = concat!("`", stringify!($name), "`, ", stringify!($value), ".")]
                pub const $name: Self = Self($value);
            )+

            /// The manual's name, `None` for an unknown opcode.
            ///
            /// Apart from [`COMMANDS`], so that a program that prints names does not contain all
            /// layouts.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                crate::code::text(&[$( $value ),+], concat!($( stringify!($name), "\n" ),+), self.0)
            }
        }

        /// Every defined command, in ascending order of opcode.
        pub static COMMANDS: &[Command] = &[ $( Command {
            opcode: Opcode::$name,
            name: stringify!($name),
            layouts: opcodes!(@layouts $($input $output)?),
        } ),+ ];
    };
    (@layouts) => { None };
    (@layouts $input:ident $output:ident) => { Some((&$input::LAYOUT, &$output::LAYOUT)) };
}

opcodes! {
    QUERY_HCA_CAP = 0x100, query_hca_cap_in, query_hca_cap_out;
    QUERY_ADAPTER = 0x101, query_adapter_in, query_adapter_out;
    INIT_HCA = 0x102, init_hca_in, init_hca_out;
    TEARDOWN_HCA = 0x103, teardown_hca_in, teardown_hca_out;
    ENABLE_HCA = 0x104, enable_hca_in, enable_hca_out;
    DISABLE_HCA = 0x105, disable_hca_in, disable_hca_out;
    QUERY_PAGES = 0x107, query_pages_in, query_pages_out;
    MANAGE_PAGES = 0x108, manage_pages_in, manage_pages_out;
    SET_HCA_CAP = 0x109, set_hca_cap_in, set_hca_cap_out;
    QUERY_ISSI = 0x10a, query_issi_in, query_issi_out;
    SET_ISSI = 0x10b, set_issi_in, set_issi_out;
    SET_DRIVER_VERSION = 0x10d, set_driver_version_in, set_driver_version_out;
    QUERY_SF_PARTITION = 0x111;
    ALLOC_SF = 0x113;
    DEALLOC_SF = 0x114;
    SUSPEND_VHCA = 0x115;
    RESUME_VHCA = 0x116;
    QUERY_VHCA_MIGRATION_STATE = 0x117;
    SAVE_VHCA_STATE = 0x118;
    LOAD_VHCA_STATE = 0x119;
    CREATE_MKEY = 0x200, create_mkey_in, create_mkey_out;
    QUERY_MKEY = 0x201, query_mkey_in, query_mkey_out;
    DESTROY_MKEY = 0x202, destroy_mkey_in, destroy_mkey_out;
    QUERY_SPECIAL_CONTEXTS = 0x203, query_special_contexts_in, query_special_contexts_out;
    PAGE_FAULT_RESUME = 0x204, page_fault_resume_in, page_fault_resume_out;
    ALLOC_MEMIC = 0x205, alloc_memic_in, alloc_memic_out;
    DEALLOC_MEMIC = 0x206, dealloc_memic_in, dealloc_memic_out;
    MODIFY_MEMIC = 0x207, modify_memic_in, modify_memic_out;
    CREATE_EQ = 0x301, create_eq_in, create_eq_out;
    DESTROY_EQ = 0x302, destroy_eq_in, destroy_eq_out;
    QUERY_EQ = 0x303, query_eq_in, query_eq_out;
    GEN_EQE = 0x304;
    CREATE_CQ = 0x400, create_cq_in, create_cq_out;
    DESTROY_CQ = 0x401, destroy_cq_in, destroy_cq_out;
    QUERY_CQ = 0x402, query_cq_in, query_cq_out;
    MODIFY_CQ = 0x403, modify_cq_in, modify_cq_out;
    CREATE_QP = 0x500, create_qp_in, create_qp_out;
    DESTROY_QP = 0x501, destroy_qp_in, destroy_qp_out;
    RST2INIT_QP = 0x502, rst2init_qp_in, rst2init_qp_out;
    INIT2RTR_QP = 0x503, init2rtr_qp_in, init2rtr_qp_out;
    RTR2RTS_QP = 0x504, rtr2rts_qp_in, rtr2rts_qp_out;
    RTS2RTS_QP = 0x505, rts2rts_qp_in, rts2rts_qp_out;
    SQERR2RTS_QP = 0x506, sqerr2rts_qp_in, sqerr2rts_qp_out;
    QP_2ERR = 0x507, qp_2err_in, qp_2err_out;
    QP_2RST = 0x50a, qp_2rst_in, qp_2rst_out;
    QUERY_QP = 0x50b, query_qp_in, query_qp_out;
    SQD_RTS_QP = 0x50c, sqd2rts_qp_in, sqd2rts_qp_out;
    MAD_IFC = 0x50d, mad_ifc_in, mad_ifc_out;
    INIT2INIT_QP = 0x50e, init2init_qp_in, init2init_qp_out;
    CREATE_PSV = 0x600, create_psv_in, create_psv_out;
    DESTROY_PSV = 0x601, destroy_psv_in, destroy_psv_out;
    CREATE_SRQ = 0x700, create_srq_in, create_srq_out;
    DESTROY_SRQ = 0x701, destroy_srq_in, destroy_srq_out;
    QUERY_SRQ = 0x702, query_srq_in, query_srq_out;
    ARM_RQ = 0x703, arm_rq_in, arm_rq_out;
    CREATE_XRC_SRQ = 0x705, create_xrc_srq_in, create_xrc_srq_out;
    DESTROY_XRC_SRQ = 0x706, destroy_xrc_srq_in, destroy_xrc_srq_out;
    QUERY_XRC_SRQ = 0x707, query_xrc_srq_in, query_xrc_srq_out;
    ARM_XRC_SRQ = 0x708, arm_xrc_srq_in, arm_xrc_srq_out;
    CREATE_DCT = 0x710, create_dct_in, create_dct_out;
    DESTROY_DCT = 0x711, destroy_dct_in, destroy_dct_out;
    DRAIN_DCT = 0x712, drain_dct_in, drain_dct_out;
    QUERY_DCT = 0x713, query_dct_in, query_dct_out;
    ARM_DCT_FOR_KEY_VIOLATION = 0x714;
    CREATE_XRQ = 0x717, create_xrq_in, create_xrq_out;
    DESTROY_XRQ = 0x718, destroy_xrq_in, destroy_xrq_out;
    QUERY_XRQ = 0x719, query_xrq_in, query_xrq_out;
    ARM_XRQ = 0x71a, arm_xrq_in, arm_xrq_out;
    QUERY_XRQ_DC_PARAMS_ENTRY = 0x725;
    SET_XRQ_DC_PARAMS_ENTRY = 0x726;
    QUERY_XRQ_ERROR_PARAMS = 0x727;
    RELEASE_XRQ_ERROR = 0x729;
    MODIFY_XRQ = 0x72a;
    QUERY_ESW_FUNCTIONS = 0x740;
    QUERY_VPORT_STATE = 0x750, query_vport_state_in, query_vport_state_out;
    MODIFY_VPORT_STATE = 0x751, modify_vport_state_in, modify_vport_state_out;
    QUERY_ESW_VPORT_CONTEXT = 0x752;
    MODIFY_ESW_VPORT_CONTEXT = 0x753;
    QUERY_NIC_VPORT_CONTEXT = 0x754, query_nic_vport_context_in, query_nic_vport_context_out;
    MODIFY_NIC_VPORT_CONTEXT = 0x755, modify_nic_vport_context_in, modify_nic_vport_context_out;
    QUERY_ROCE_ADDRESS = 0x760, query_roce_address_in, query_roce_address_out;
    SET_ROCE_ADDRESS = 0x761, set_roce_address_in, set_roce_address_out;
    QUERY_HCA_VPORT_CONTEXT = 0x762, query_hca_vport_context_in, query_hca_vport_context_out;
    MODIFY_HCA_VPORT_CONTEXT = 0x763, modify_hca_vport_context_in, modify_hca_vport_context_out;
    QUERY_HCA_VPORT_GID = 0x764, query_hca_vport_gid_in, query_hca_vport_gid_out;
    QUERY_HCA_VPORT_PKEY = 0x765, query_hca_vport_pkey_in, query_hca_vport_pkey_out;
    QUERY_VNIC_ENV = 0x76f, query_vnic_env_in, query_vnic_env_out;
    QUERY_VPORT_COUNTER = 0x770, query_vport_counter_in, query_vport_counter_out;
    ALLOC_Q_COUNTER = 0x771, alloc_q_counter_in, alloc_q_counter_out;
    DEALLOC_Q_COUNTER = 0x772, dealloc_q_counter_in, dealloc_q_counter_out;
    QUERY_Q_COUNTER = 0x773, query_q_counter_in, query_q_counter_out;
    SET_MONITOR_COUNTER = 0x774;
    ARM_MONITOR_COUNTER = 0x775;
    SET_PP_RATE_LIMIT = 0x780;
    QUERY_RATE_LIMIT = 0x781;
    CREATE_SCHEDULING_ELEMENT = 0x782;
    DESTROY_SCHEDULING_ELEMENT = 0x783;
    QUERY_SCHEDULING_ELEMENT = 0x784;
    MODIFY_SCHEDULING_ELEMENT = 0x785;
    CREATE_QOS_PARA_VPORT = 0x786;
    DESTROY_QOS_PARA_VPORT = 0x787;
    ALLOC_PD = 0x800, alloc_pd_in, alloc_pd_out;
    DEALLOC_PD = 0x801, dealloc_pd_in, dealloc_pd_out;
    ALLOC_UAR = 0x802, alloc_uar_in, alloc_uar_out;
    DEALLOC_UAR = 0x803, dealloc_uar_in, dealloc_uar_out;
    CONFIG_INT_MODERATION = 0x804, config_int_moderation_in, config_int_moderation_out;
    ACCESS_REG = 0x805, access_register_in, access_register_out;
    ATTACH_TO_MCG = 0x806, attach_to_mcg_in, attach_to_mcg_out;
    DETACH_FROM_MCG = 0x807, detach_from_mcg_in, detach_from_mcg_out;
    GET_DROPPED_PACKET_LOG = 0x80a;
    QUERY_MAD_DEMUX = 0x80b, query_mad_demux_in, query_mad_demux_out;
    SET_MAD_DEMUX = 0x80c, set_mad_demux_in, set_mad_demux_out;
    NOP = 0x80d, nop_in, nop_out;
    ALLOC_XRCD = 0x80e, alloc_xrcd_in, alloc_xrcd_out;
    DEALLOC_XRCD = 0x80f, dealloc_xrcd_in, dealloc_xrcd_out;
    ALLOC_TRANSPORT_DOMAIN = 0x816, alloc_transport_domain_in, alloc_transport_domain_out;
    DEALLOC_TRANSPORT_DOMAIN = 0x817, dealloc_transport_domain_in, dealloc_transport_domain_out;
    QUERY_CONG_STATUS = 0x822, query_cong_status_in, query_cong_status_out;
    MODIFY_CONG_STATUS = 0x823;
    QUERY_CONG_PARAMS = 0x824;
    MODIFY_CONG_PARAMS = 0x825;
    QUERY_CONG_STATISTICS = 0x826, query_cong_statistics_in, query_cong_statistics_out;
    ADD_VXLAN_UDP_DPORT = 0x827;
    DELETE_VXLAN_UDP_DPORT = 0x828;
    SET_L2_TABLE_ENTRY = 0x829, set_l2_table_entry_in, set_l2_table_entry_out;
    QUERY_L2_TABLE_ENTRY = 0x82a;
    DELETE_L2_TABLE_ENTRY = 0x82b, delete_l2_table_entry_in, delete_l2_table_entry_out;
    SET_WOL_ROL = 0x830;
    QUERY_WOL_ROL = 0x831;
    CREATE_LAG = 0x840;
    MODIFY_LAG = 0x841;
    QUERY_LAG = 0x842, query_lag_in, query_lag_out;
    DESTROY_LAG = 0x843;
    CREATE_VPORT_LAG = 0x844;
    DESTROY_VPORT_LAG = 0x845;
    CREATE_TIR = 0x900, create_tir_in, create_tir_out;
    MODIFY_TIR = 0x901, modify_tir_in, modify_tir_out;
    DESTROY_TIR = 0x902, destroy_tir_in, destroy_tir_out;
    QUERY_TIR = 0x903, query_tir_in, query_tir_out;
    CREATE_SQ = 0x904, create_sq_in, create_sq_out;
    MODIFY_SQ = 0x905, modify_sq_in, modify_sq_out;
    DESTROY_SQ = 0x906, destroy_sq_in, destroy_sq_out;
    QUERY_SQ = 0x907, query_sq_in, query_sq_out;
    CREATE_RQ = 0x908, create_rq_in, create_rq_out;
    MODIFY_RQ = 0x909, modify_rq_in, modify_rq_out;
    DESTROY_RQ = 0x90a, destroy_rq_in, destroy_rq_out;
    QUERY_RQ = 0x90b, query_rq_in, query_rq_out;
    CREATE_RMP = 0x90c, create_rmp_in, create_rmp_out;
    MODIFY_RMP = 0x90d, modify_rmp_in, modify_rmp_out;
    DESTROY_RMP = 0x90e, destroy_rmp_in, destroy_rmp_out;
    QUERY_RMP = 0x90f, query_rmp_in, query_rmp_out;
    SET_DELAY_DROP_PARAMS = 0x910;
    CREATE_TIS = 0x912, create_tis_in, create_tis_out;
    MODIFY_TIS = 0x913, modify_tis_in, modify_tis_out;
    DESTROY_TIS = 0x914, destroy_tis_in, destroy_tis_out;
    QUERY_TIS = 0x915, query_tis_in, query_tis_out;
    CREATE_RQT = 0x916, create_rqt_in, create_rqt_out;
    MODIFY_RQT = 0x917, modify_rqt_in, modify_rqt_out;
    DESTROY_RQT = 0x918, destroy_rqt_in, destroy_rqt_out;
    QUERY_RQT = 0x919, query_rqt_in, query_rqt_out;
    SET_FLOW_TABLE_ROOT = 0x92f, set_flow_table_root_in, set_flow_table_root_out;
    CREATE_FLOW_TABLE = 0x930, create_flow_table_in, create_flow_table_out;
    DESTROY_FLOW_TABLE = 0x931, destroy_flow_table_in, destroy_flow_table_out;
    QUERY_FLOW_TABLE = 0x932, query_flow_table_in, query_flow_table_out;
    CREATE_FLOW_GROUP = 0x933, create_flow_group_in, create_flow_group_out;
    DESTROY_FLOW_GROUP = 0x934, destroy_flow_group_in, destroy_flow_group_out;
    QUERY_FLOW_GROUP = 0x935, query_flow_group_in, query_flow_group_out;
    SET_FLOW_TABLE_ENTRY = 0x936, set_fte_in, set_fte_out;
    QUERY_FLOW_TABLE_ENTRY = 0x937, query_fte_in, query_fte_out;
    DELETE_FLOW_TABLE_ENTRY = 0x938, delete_fte_in, delete_fte_out;
    ALLOC_FLOW_COUNTER = 0x939, alloc_flow_counter_in, alloc_flow_counter_out;
    DEALLOC_FLOW_COUNTER = 0x93a, dealloc_flow_counter_in, dealloc_flow_counter_out;
    QUERY_FLOW_COUNTER = 0x93b, query_flow_counter_in, query_flow_counter_out;
    MODIFY_FLOW_TABLE = 0x93c, modify_flow_table_in, modify_flow_table_out;
    ALLOC_PACKET_REFORMAT_CONTEXT = 0x93d;
    DEALLOC_PACKET_REFORMAT_CONTEXT = 0x93e;
    QUERY_PACKET_REFORMAT_CONTEXT = 0x93f;
    ALLOC_MODIFY_HEADER_CONTEXT = 0x940;
    DEALLOC_MODIFY_HEADER_CONTEXT = 0x941;
    QUERY_MODIFY_HEADER_CONTEXT = 0x942;
    FPGA_CREATE_QP = 0x960;
    FPGA_MODIFY_QP = 0x961;
    FPGA_QUERY_QP = 0x962;
    FPGA_DESTROY_QP = 0x963;
    FPGA_QUERY_QP_COUNTERS = 0x964;
    CREATE_GENERAL_OBJECT = 0xa00, create_general_object_in, create_general_object_out;
    MODIFY_GENERAL_OBJECT = 0xa01;
    QUERY_GENERAL_OBJECT = 0xa02;
    DESTROY_GENERAL_OBJECT = 0xa03, destroy_general_object_in, destroy_general_object_out;
    CREATE_UCTX = 0xa04, create_uctx_in, create_uctx_out;
    DESTROY_UCTX = 0xa06, destroy_uctx_in, destroy_uctx_out;
    CREATE_UMEM = 0xa08, create_umem_in, create_umem_out;
    DESTROY_UMEM = 0xa0a, destroy_umem_in, destroy_umem_out;
    SYNC_STEERING = 0xb00;
    QUERY_VHCA_STATE = 0xb0d;
    MODIFY_VHCA_STATE = 0xb0e;
}

impl Opcode {
    /// The opcode of a command input; zero (no command) when `input` is shorter than two bytes.
    #[must_use]
    pub fn of(input: &[u8]) -> Self {
        match input {
            [high, low, ..] => Self(u16::from_be_bytes([*high, *low])),
            _ => Self(0),
        }
    }

    /// The entry of [`COMMANDS`], `None` for an opcode that no source names.
    #[must_use]
    pub fn command(self) -> Option<&'static Command> {
        let at = COMMANDS.binary_search_by_key(&self, |command| command.opcode).ok()?;
        COMMANDS.get(at)
    }

    /// The layout of the input; its `size` is the input length without an open-ended array.
    #[must_use]
    pub fn input_layout(self) -> Option<&'static Layout> {
        self.command()?.layouts.map(|(input, _)| input)
    }

    /// The layout of the output; its `size` is the output length without an open-ended array.
    #[must_use]
    pub fn output_layout(self) -> Option<&'static Layout> {
        self.command()?.layouts.map(|(_, output)| output)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "opcode {:#05x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Opcode {
    fn format(&self, f: defmt::Formatter<'_>) {
        match self.name() {
            Some(name) => defmt::write!(f, "{=str}", name),
            None => defmt::write!(f, "opcode {=u16:#05x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_every_command_is_found() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.opcode < b.opcode));
        for command in COMMANDS {
            assert_eq!(command.opcode.name(), Some(command.name));
        }
        assert_eq!(Opcode::CREATE_CQ.input_layout().map(|l| (l.name, l.size)), Some(("create_cq_in", 272)));
        assert_eq!(Opcode(0xfff).name(), None);
    }

    #[test]
    fn layouts_belong_to_their_command() {
        for command in COMMANDS {
            let Some((input, output)) = command.layouts else { continue };
            let (name, out) = (input.name.strip_suffix("_in"), output.name.strip_suffix("_out"));
            assert!(name.is_some() && name == out, "{command:?}");
            // Five structures are not named like their command in `mlx5_ifc.h`.
            let expected = match command.opcode {
                Opcode::SET_FLOW_TABLE_ENTRY => "set_fte",
                Opcode::QUERY_FLOW_TABLE_ENTRY => "query_fte",
                Opcode::DELETE_FLOW_TABLE_ENTRY => "delete_fte",
                Opcode::ACCESS_REG => "access_register",
                Opcode::SQD_RTS_QP => "sqd2rts_qp",
                _ => command.name,
            };
            assert!(name.is_some_and(|n| n.eq_ignore_ascii_case(expected)), "{command:?}");
        }
    }
}
