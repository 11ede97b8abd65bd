//! Every layout against an independent description: Linux's `mlx5_ifc.h`, `device.h` and `qp.h` from Debian's package.

#[path = "header/ifc.rs"]
mod ifc;
#[allow(dead_code)]
#[path = "../examples/layouts.rs"]
mod layouts;
#[path = "header/package.rs"]
mod package;

use ifc::Header;
use mlx5_prm::{ALL, Kind};
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of headers, or `None` after saying in plain words that the comparison is skipped.
fn headers() -> Option<PathBuf> {
    match package::folder() {
        Ok(folder) => Some(folder),
        Err(reason) => {
            let required = std::env::var_os(package::REQUIRE).is_some_and(|value| !value.is_empty());
            assert!(!required, "{} is set, but the Linux 6.1 headers cannot be had: {reason}", package::REQUIRE);
            eprintln!("SKIPPED: layouts not compared, the Linux 6.1 headers cannot be had: {reason}");
            None
        }
    }
}

fn read(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_field_is_where_mlx5_ifc_has_it() {
    let Some(folder) = headers() else { return };
    // The main header includes the others.
    let text: String = ["mlx5_ifc.h", "mlx5_ifc_fpga.h", "mlx5_ifc_vdpa.h"].map(|name| read(&folder, name)).concat();
    let header = Header::parse(&text);
    let mut wrong = Vec::new();
    for layout in ALL {
        if !header.has(layout.name) {
            wrong.push(format!("{}: no such structure", layout.name));
            continue;
        }
        let (theirs, bits) = header.members(layout.name).unwrap();
        if bits != layout.size as u64 * 8 {
            wrong.push(format!("{} has {} bits, in the header {bits}", layout.name, layout.size * 8));
        }
        layout.visit(&mut |leaf| {
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
}
