//! Every layout against an independent description: Linux's `mlx5_ifc.h`, `device.h` and `qp.h`
//! from Debian's package.

#[path = "header/ifc.rs"]
mod ifc;
#[allow(dead_code)]
#[path = "../examples/layouts.rs"]
mod layouts;
#[path = "header/package.rs"]
mod package;

use ifc::{Dialect, Header};
use mlx5_prm::{ALL, Kind};
use std::fs;
use std::path::Path;

fn read(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_field_is_where_mlx5_ifc_has_it() {
    let Some(folder) = package::folder_or_skip("layouts") else { return };
    let header = ifc_header(&folder);
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for layout in ALL {
        if !header.has(layout.name) {
            if !OTHER_SOURCES.iter().any(|(name, _)| *name == layout.name) {
                wrong.push(format!("{}: no such structure", layout.name));
            }
            continue;
        }
        let (theirs, bits) = header.members(layout.name).unwrap();
        if bits != layout.size as u64 * 8 {
            wrong.push(format!("{} has {} bits, in the header {bits}", layout.name, layout.size * 8));
        }
        layout.visit(&mut |leaf| {
            compared += 1;
            let full = leaf.path.to_string();
            let path = full.split_once('.').unwrap().1.to_owned();
            match theirs.get(&path) {
                None => wrong.push(format!("{full} {} {}: no such name", leaf.bit_offset, leaf.bit_width)),
                Some(p) => {
                    if (p.bit_offset, p.bit_width) != (leaf.bit_offset.into(), leaf.bit_width.into()) {
                        wrong.push(format!(
                            "{full} {} {}: header has {} {}",
                            leaf.bit_offset, leaf.bit_width, p.bit_offset, p.bit_width
                        ));
                    } else if matches!(leaf.kind, Kind::Field(_)) && !p.scalar {
                        wrong.push(format!("{full}: not an integer in the header"));
                    }
                }
            }
        });
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    // A test that compared nothing must not pass.
    assert!(compared > 1000, "only {compared} fields compared");
}

/// The structures that `mlx5_ifc.h` lacks, with the source of each: a C structure of the same
/// package, or only the code of Linux's driver. In the second case unit tests next to the layout
/// compare it with the bytes that this code writes. The words that C keeps packed are checked in
/// `constants.rs` against the masks that the headers define.
const OTHER_SOURCES: &[(&str, Source)] = &[
    ("wqe_ctrl_seg", Source::C("qp.h", "wqe_ctrl_seg")),
    ("wqe_raddr_seg", Source::C("qp.h", "wqe_raddr_seg")),
    ("wqe_atomic_seg", Source::C("qp.h", "wqe_atomic_seg")),
    ("wqe_masked_atomic_seg", Source::C("qp.h", "wqe_masked_atomic_seg")),
    ("wqe_xrc_seg", Source::C("qp.h", "wqe_xrc_seg")),
    ("av", Source::C("qp.h", "av")),
    (
        "wqe_eth_seg",
        Source::Code(
            "mlx5_wqe_eth_seg in qp.h and mlx5e_txwqe_build_eseg in drivers/net/ethernet/mellanox/mlx5/core/en_tx.c",
        ),
    ),
    ("wqe_data_seg", Source::C("qp.h", "wqe_data_seg")),
    ("wqe_inline_seg", Source::C("qp.h", "wqe_inline_seg")),
    ("wqe_umr_ctrl_seg", Source::C("qp.h", "wqe_umr_ctrl_seg")),
    ("wqe_srq_next_seg", Source::C("device.h", "wqe_srq_next_seg")),
    ("klm", Source::C("qp.h", "klm")),
    ("cqe64", Source::C("device.h", "cqe64")),
    ("err_cqe", Source::C("device.h", "err_cqe")),
    ("sig_err_cqe", Source::C("device.h", "sig_err_cqe")),
    ("eqe_page_req", Source::C("device.h", "eqe_page_req")),
    ("eqe_vport_change", Source::C("device.h", "eqe_vport_change")),
    ("eqe_port_module", Source::C("device.h", "eqe_port_module")),
    ("eqe_xrq_err", Source::C("device.h", "eqe_xrq_err")),
    ("eqe_sync_fw_update", Source::C("device.h", "eqe_sync_fw_update")),
    ("eqe_vhca_state", Source::C("device.h", "eqe_vhca_state")),
    ("eqe_obj_change", Source::C("device.h", "eqe_obj_change")),
    ("ksm", Source::Code("the KLM above with the byte count reserved; drivers/infiniband/hw/mlx5/odp.c")),
    ("qp_doorbell_record", Source::Code("MLX5_RCV_DBR and MLX5_SND_DBR in qp.h")),
    ("cq_doorbell_record", Source::Code("mlx5_cq_set_ci and mlx5_cq_arm in cq.h")),
    ("cq_db", Source::Code("mlx5_cq_arm in cq.h")),
    ("eq_db", Source::Code("eq_update_ci in drivers/net/ethernet/mellanox/mlx5/core/lib/eq.h")),
    (
        "host_endianness",
        Source::Code("handle of MLX5_REG_HOST_ENDIANNESS in drivers/net/ethernet/mellanox/mlx5/core/main.c"),
    ),
];

enum Source {
    /// Header and C structure without its prefix.
    C(&'static str, &'static str),
    /// Where the driver's code shows it.
    Code(&'static str),
}

/// Our fields that are parts of one C member, as (structure, our field, C member).
const PARTS: &[(&str, &str, &str)] = &[
    ("wqe_ctrl_seg", "opmod", "opmod_idx_opcode"),
    ("wqe_ctrl_seg", "wqe_index", "opmod_idx_opcode"),
    ("wqe_ctrl_seg", "opcode", "opmod_idx_opcode"),
    ("wqe_ctrl_seg", "qpn", "qpn_ds"),
    ("wqe_ctrl_seg", "ds", "qpn_ds"),
    ("wqe_ctrl_seg", "dci_stream_channel_id", "rsvd"),
    ("wqe_ctrl_seg", "fm", "fm_ce_se"),
    ("wqe_ctrl_seg", "ce", "fm_ce_se"),
    ("wqe_ctrl_seg", "se", "fm_ce_se"),
    ("wqe_xrc_seg", "xrc_srqn", "xrc_srqn"),
    ("av", "qkey", "key.qkey.qkey"),
    ("av", "ext", "dqp_dct"),
    ("av", "dqp_dct", "dqp_dct"),
    ("av", "stat_rate", "stat_rate_sl"),
    ("av", "sl", "stat_rate_sl"),
    ("av", "fl", "fl_mlid"),
    ("av", "mlid", "fl_mlid"),
    ("av", "grh", "grh_gid_fl"),
    ("av", "src_addr_index", "grh_gid_fl"),
    ("av", "flow_label", "grh_gid_fl"),
    ("wqe_data_seg", "byte_count", "byte_count"),
    ("wqe_inline_seg", "inline", "byte_count"),
    ("wqe_inline_seg", "byte_count", "byte_count"),
    ("cqe64", "g", "flags_rqpn"),
    ("cqe64", "sl", "flags_rqpn"),
    ("cqe64", "rqpn", "flags_rqpn"),
    ("cqe64", "lro_num_seg", "srqn"),
    ("cqe64", "srqn", "srqn"),
    ("cqe64", "s_wqe_opcode", "sop_drop_qpn"),
    ("cqe64", "qpn", "sop_drop_qpn"),
    ("cqe64", "opcode", "op_own"),
    ("cqe64", "format", "op_own"),
    ("cqe64", "se", "op_own"),
    ("cqe64", "owner", "op_own"),
    ("err_cqe", "srqn", "srqn"),
    ("err_cqe", "s_wqe_opcode", "s_wqe_opcode_qpn"),
    ("err_cqe", "qpn", "s_wqe_opcode_qpn"),
    ("err_cqe", "opcode", "op_own"),
    ("err_cqe", "format", "op_own"),
    ("err_cqe", "se", "op_own"),
    ("err_cqe", "owner", "op_own"),
    ("sig_err_cqe", "qpn", "qpn"),
    ("sig_err_cqe", "opcode", "op_own"),
    ("sig_err_cqe", "format", "op_own"),
    ("sig_err_cqe", "se", "op_own"),
    ("sig_err_cqe", "owner", "op_own"),
    ("eqe_xrq_err", "type", "type_xrqn"),
    ("eqe_xrq_err", "xrqn", "type_xrqn"),
    ("eqe_sync_fw_update", "sync_rst_state", "sync_rst_state"),
];

#[test]
fn what_mlx5_ifc_lacks_is_where_the_c_structures_have_it() {
    let Some(folder) = package::folder_or_skip("layouts") else { return };
    let text: String = ["device.h", "qp.h"].map(|name| read(&folder, name)).concat();
    let header = Header::parse(&text, Dialect::C);
    let mut wrong = Vec::new();
    for (name, source) in OTHER_SOURCES {
        let layout =
            ALL.iter().find(|layout| layout.name == *name).unwrap_or_else(|| panic!("no layout {name}"));
        let (file, c_name) = match source {
            Source::C(file, c_name) => (file, c_name),
            Source::Code(place) => {
                println!("{name} is in no header: {place}");
                continue;
            }
        };
        let (theirs, bits) = header.members(c_name).unwrap_or_else(|error| panic!("{file}: {error}"));
        if bits != layout.size as u64 * 8 {
            wrong.push(format!("{name} has {} bits, in {file} {bits}", layout.size * 8));
        }
        layout.visit(&mut |leaf| {
            let full = leaf.path.to_string();
            let field = full.split_once('.').map_or("", |(_, field)| field);
            let part = PARTS.iter().find(|(layout, ours, _)| layout == name && *ours == field);
            let c_field = part.map_or(field, |(_, _, c_field)| c_field);
            let (from, width) = (u64::from(leaf.bit_offset), u64::from(leaf.bit_width));
            match theirs.get(c_field) {
                None => wrong.push(format!("{full}: no member {c_field} in {file}")),
                Some(p) if part.is_some() => {
                    if from < p.bit_offset || from + width > p.bit_offset + p.bit_width {
                        wrong.push(format!("{full} lies outside {c_field} of {file}"));
                    }
                }
                Some(p) => {
                    if (p.bit_offset, p.bit_width) != (from, width) {
                        wrong.push(format!(
                            "{full} {from} {width}: {file} has {} {}",
                            p.bit_offset, p.bit_width
                        ));
                    }
                }
            }
        });
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

/// Every structure of `mlx5_ifc.h` that we have is complete: what the header names, we name.
#[test]
fn nothing_that_the_header_names_is_reserved_here() {
    let Some(folder) = package::folder_or_skip("layouts") else { return };
    let header = ifc_header(&folder);
    let mut wrong = Vec::new();
    for layout in ALL.iter().filter(|layout| header.has(layout.name)) {
        let (theirs, _) = header.members(layout.name).unwrap();
        for (path, place) in theirs {
            // The fixed size is followed by an open-ended array, which the other test compares.
            let end = (place.bit_offset + place.bit_width).min(layout.size as u64 * 8);
            let missing = place.scalar
                && (place.bit_offset..end)
                    .any(|bit| layout.named_bits(bit as usize / 32 * 4) & (1 << (31 - bit % 32)) == 0);
            if missing {
                wrong.push(format!("{}.{path}", layout.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} missing:\n{}", wrong.len(), wrong.join("\n"));
}

fn ifc_header(folder: &Path) -> Header {
    // The main header includes the others.
    let text: String =
        ["mlx5_ifc.h", "mlx5_ifc_fpga.h", "mlx5_ifc_vdpa.h"].map(|name| read(folder, name)).concat();
    Header::parse(&text, Dialect::Bits)
}
