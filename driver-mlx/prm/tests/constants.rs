//! Numbers with a name against the enumerators and macros of Linux's headers, from the same package
//! as the layouts' test.

#[allow(dead_code)]
#[path = "header/ifc.rs"]
mod ifc;
#[path = "header/package.rs"]
mod package;

use mlx5_prm::datapath::*;
use mlx5_prm::event::*;
use mlx5_prm::opcode::COMMANDS;
use mlx5_prm::status::*;
use mlx5_prm::value::*;
use mlx5_prm::{Field, init_seg};
use std::collections::BTreeMap;
use std::fs;

/// All constants of the headers, or `None` after saying in plain words that the comparison is
/// skipped.
fn constants() -> Option<BTreeMap<String, u64>> {
    let folder = package::folder_or_skip("constants")?;
    let names = ["mlx5_ifc.h", "device.h", "qp.h", "cq.h", "driver.h", "doorbell.h"];
    let text: String = names
        .map(|name| {
            let path = folder.join(name);
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        })
        .concat();
    Some(ifc::constants(&text))
}

struct Comparison {
    theirs: BTreeMap<String, u64>,
    wrong: Vec<String>,
    compared: usize,
}

impl Comparison {
    fn one(&mut self, c_name: &str, ours: u64) {
        self.compared += 1;
        match self.theirs.get(c_name) {
            Some(value) if *value == ours => {}
            Some(value) => self.wrong.push(format!("{c_name}: {ours:#x} here, {value:#x} in the header")),
            None => self.wrong.push(format!("{c_name}: not in the header")),
        }
    }
}

/// Compares every value of an open enumeration; `$c_name` makes the C name from ours, or nothing
/// where 6.1 has none.
macro_rules! codes {
    ($comparison:ident, $type:ident, $c_name:expr) => {
        for value in $type::ALL {
            let c_name: Option<String> = $c_name(value.name().expect("ALL holds named values"));
            if let Some(c_name) = c_name {
                $comparison.one(&c_name, value.0.into());
            }
        }
    };
}

macro_rules! flags {
    ($comparison:ident, $type:ident, $c_name:expr) => {
        for (name, value) in $type::all().iter_names() {
            let c_name: Option<String> = $c_name(name);
            if let Some(c_name) = c_name {
                $comparison.one(&c_name, value.bits().into());
            }
        }
    };
}

fn prefix(prefix: &'static str) -> impl Fn(&str) -> Option<String> {
    move |name| Some(format!("{prefix}{name}"))
}

#[test]
fn named_numbers_equal_the_headers() {
    let Some(theirs) = constants() else { return };
    let mut all = Comparison { theirs, wrong: Vec::new(), compared: 0 };
    for command in COMMANDS {
        // Rust names cannot begin with a digit.
        let name = match command.name {
            "QP_2ERR" => "2ERR_QP",
            "QP_2RST" => "2RST_QP",
            name => name,
        };
        all.one(&format!("MLX5_CMD_OP_{name}"), command.opcode.0.into());
    }
    codes!(all, CmdStatus, |name: &str| Some(match name {
        "OK" | "RES_BUSY" | "LIM_ERR" | "IX_ERR" => format!("MLX5_CMD_STAT_{name}"),
        "INTERNAL_ERR" => "MLX5_CMD_STAT_INT_ERR".into(),
        _ => format!("MLX5_CMD_STAT_{name}_ERR"),
    }));
    codes!(all, CqeSyndrome, prefix("MLX5_CQE_SYNDROME_"));
    codes!(all, HealthSyndrome, |name: &str| {
        (name != "HEALTHY").then(|| format!("MLX5_INITIAL_SEG_HEALTH_SYNDROME_{name}"))
    });
    codes!(all, EventType, prefix("MLX5_EVENT_TYPE_"));
    codes!(all, PortChange, prefix("MLX5_PORT_CHANGE_SUBTYPE_"));
    codes!(all, GeneralEvent, prefix("MLX5_GENERAL_SUBTYPE_"));
    codes!(all, EventQueueType, prefix("MLX5_EVENT_QUEUE_TYPE_"));
    codes!(all, QpState, prefix("MLX5_QP_STATE_"));
    codes!(all, ServiceType, prefix("MLX5_QP_ST_"));
    codes!(all, PmState, prefix("MLX5_QP_PM_"));
    codes!(all, RqType, prefix("MLX5_"));
    codes!(all, AccessMode, prefix("MLX5_MKC_ACCESS_MODE_"));
    codes!(all, TeardownProfile, prefix("MLX5_TEARDOWN_HCA_IN_PROFILE_"));
    codes!(all, PortType, prefix("MLX5_CAP_PORT_TYPE_"));
    codes!(all, PpcntGroup, |name: &str| Some(match name {
        "PHYSICAL_LAYER_STATISTICAL" => format!("MLX5_{name}_GROUP"),
        _ => format!("MLX5_{name}_COUNTERS_GROUP"),
    }));
    codes!(all, WqState, prefix("MLX5_SQC_STATE_"));
    codes!(all, WqState, prefix("MLX5_RQC_STATE_"));
    codes!(all, TirDisp, prefix("MLX5_TIRC_DISP_TYPE_"));
    codes!(all, RxHash, prefix("MLX5_RX_HASH_FN_"));
    codes!(all, NicVportList, prefix("MLX5_NVPRT_LIST_TYPE_"));
    codes!(all, FlowDestination, prefix("MLX5_IFC_FLOW_DESTINATION_TYPE_"));
    codes!(all, RegisterId, prefix("MLX5_REG_"));
    codes!(all, CqeOpcode, prefix("MLX5_CQE_"));
    codes!(all, SendOpcode, |name: &str| {
        // Legacy opcodes that Linux no longer names, and one that only programs use.
        (!["FAST_REG", "LOCAL_INVAL", "MMO"].contains(&name)).then(|| format!("MLX5_OPCODE_{name}"))
    });
    flags!(all, OptParamMask, prefix("MLX5_QP_OPTPAR_"));
    flags!(all, MkeyMask, prefix("MLX5_MKEY_MASK_"));
    flags!(all, AccessFlags, prefix("MLX5_PERM_"));
    flags!(all, HcaVportFields, prefix("MLX5_HCA_VPORT_SEL_"));
    flags!(all, AtomicOperations, prefix("MLX5_ATOMIC_OPS_"));
    flags!(all, FlowAction, prefix("MLX5_FLOW_CONTEXT_ACTION_"));
    flags!(all, HashFields, prefix("MLX5_HASH_FIELD_SEL_"));
    for (c_name, flag) in [
        ("MLX5_ETH_WQE_L3_CSUM", EthChecksums::L3),
        ("MLX5_ETH_WQE_L4_CSUM", EthChecksums::L4),
        ("MLX5_ETH_WQE_L3_INNER_CSUM", EthChecksums::L3_INNER),
        ("MLX5_ETH_WQE_L4_INNER_CSUM", EthChecksums::L4_INNER),
    ] {
        all.one(c_name, flag.bits().into());
    }
    for (c_name, flag) in [
        ("MLX5_WQE_CTRL_SOLICITED", FmCeSe::SOLICITED),
        ("MLX5_WQE_CTRL_CQ_UPDATE", FmCeSe::CQ_UPDATE),
        ("MLX5_WQE_CTRL_CQ_UPDATE_AND_EQE", FmCeSe::CQ_UPDATE_AND_EQE),
        ("MLX5_FENCE_MODE_INITIATOR_SMALL", FmCeSe::INITIATOR_SMALL_FENCE),
        ("MLX5_FENCE_MODE_FENCE", FmCeSe::FENCE),
        ("MLX5_FENCE_MODE_STRONG_ORDERING", FmCeSe::STRONG_ORDERING),
        ("MLX5_FENCE_MODE_SMALL_AND_FENCE", FmCeSe::SMALL_AND_FENCE),
    ] {
        all.one(c_name, flag.bits().into());
    }
    for (c_name, flag) in [
        ("MLX5_UMR_INLINE", UmrFlags::INLINE),
        ("MLX5_UMR_CHECK_NOT_FREE", UmrFlags::FAIL_IF_NOT_FREE),
        ("MLX5_UMR_CHECK_FREE", UmrFlags::FAIL_IF_FREE),
        ("MLX5_UMR_TRANSLATION_OFFSET_EN", UmrFlags::TRANSLATION_OFFSET_EN),
    ] {
        all.one(c_name, flag.bits().into());
    }
    for (c_name, value) in [
        ("MLX5_INVALID_LKEY", u64::from(DATA_LKEY_TERMINATOR)),
        ("MLX5_SEND_WQE_BB", WQEBB_SIZE as u64),
        ("MLX5_SEND_WQE_DS", DS_SIZE as u64),
        ("MLX5_MAX_COMMANDS", mlx5_prm::cmd::MAX_ENTRIES as u64),
        ("MLX5_CMD_DATA_BLOCK_SIZE", mlx5_prm::cmd::BLOCK_DATA_LEN as u64),
        ("MLX5_PCI_CMD_XPORT", mlx5_prm::cmd::TYPE_PCI_CMD_XPORT.into()),
        ("MLX5_BF_OFFSET", init_seg::uar::BLUEFLAME as u64),
        ("MLX5_CQ_DOORBELL", init_seg::uar::CQ_DOORBELL as u64),
        ("MLX5_BFREGS_PER_UAR", init_seg::uar::BLUEFLAME_REGISTERS as u64),
        ("MLX5_NIC_IFC_OFFSET", init_seg::NIC_INTERFACE_SHIFT.into()),
        ("MLX5_RCV_DBR", DBR_RECEIVE as u64 / 4),
        ("MLX5_SND_DBR", DBR_SEND as u64 / 4),
        ("MLX5_CQ_DB_REQ_NOT_SOL", cq_arm_value(0, CqArm::Solicited, 0).into()),
        ("MLX5_CQ_DB_REQ_NOT", cq_arm_value(0, CqArm::Next, 0).into()),
        ("MLX5_CQE_OWNER_MASK", 1),
    ] {
        all.one(c_name, value);
    }
    assert!(all.wrong.is_empty(), "{} differences:\n{}", all.wrong.len(), all.wrong.join("\n"));
    assert!(all.compared > 300, "only {} constants compared", all.compared);
}

/// The bits of a field inside its dword, in CPU order.
fn mask(field: Field) -> u64 {
    field.max() << (32 - field.bit_offset % 32 - field.bit_width)
}

#[test]
fn packed_words_agree_with_the_masks_in_the_headers() {
    let Some(theirs) = constants() else { return };
    let mut all = Comparison { theirs, wrong: Vec::new(), compared: 0 };
    all.one("MLX5_WQE_CTRL_DS_MASK", mask(wqe_ctrl_seg::ds));
    all.one("MLX5_WQE_CTRL_QPN_MASK", mask(wqe_ctrl_seg::qpn));
    all.one("MLX5_WQE_CTRL_OPCODE_MASK", mask(wqe_ctrl_seg::opcode));
    all.one("MLX5_WQE_CTRL_WQE_INDEX_MASK", mask(wqe_ctrl_seg::wqe_index));
    all.one("MLX5_EXTENDED_UD_AV", mask(av::ext));
    all.one("MLX5_EXTENDED_UD_AV", EXTENDED_UD_AV.into());
    all.one("MLX5_INLINE_SEG", mask(wqe_inline_seg::inline));
    all.one("MLX5_INLINE_SEG", INLINE_SEG.into());
    all.one("MLX5_CQE_OWNER_MASK", mask(cqe64::owner));
    all.one("MLX5_WQE_CTRL_CQ_UPDATE_AND_EQE", mask(wqe_ctrl_seg::ce));
    all.one("MLX5_WQE_CTRL_SOLICITED", mask(wqe_ctrl_seg::se));
    assert!(all.wrong.is_empty(), "{:#?}", all.wrong);
}
