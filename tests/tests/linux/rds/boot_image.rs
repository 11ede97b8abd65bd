//! A UEFI machine boots a program over RDMA from Linux: `rdmaserve` on the kernel's `rds_rdma`.

use super::{Ground, LINUX, UNIKERNEL, result};
use crate::node::number;
use crate::uefi::Machine;
use rdma_lab::linux::Kernel;
use runner::kernel_image;

/// The server, by its path from the guests' programs.
const SERVER: &str = "../../kernel/efi/server/rdmaserve.c";

#[test]
fn linux_serves_an_image_that_uefi_boots() {
    let program = kernel_image::build_efi("selftest").expect("the program builds");
    let bytes = std::fs::metadata(&program).expect("a file").len();
    let Some(mut ground) = Ground::with_binaries(Kernel::V6_1, &[SERVER], vec![program]) else { return };
    {
        let socket = ground.lab.socket(ground.lab.first_spare()).expect("a socket").to_path_buf();
        let qemu = ground.lab.qemu().clone();
        let Some(machine) = Machine::new(&qemu, &socket) else { return };
        let mut node = machine.start(&format!("bootset.efi ip={UNIKERNEL}/24 server={LINUX}"));
        node.expect("@rdmaboot settings: ip=");
        drop(node);
        ground.linux(&format!(
            "background serve rdmaserve {LINUX} /usr/bin/selftest.efi 1\n\
             listening serve says '@rdmaserve listening'"
        ));
        let mut node = machine.start("echo the shell");
        let line = node.expect("@rdmaboot bytes=");
        println!("{line}");
        assert_eq!(number(&line, "bytes"), bytes);
        node.expect("@done cards=1 verified=true");
    }
    let lines = ground.linux("reap serve");
    result(&lines, "@rdmaserve complete client=");
    // The self-test's dump asks for all capabilities and registers.
    let asked = ["QUERY_HCA_CAP: bad parameter", "ACCESS_REG: bad parameter"];
    ground.end_but_for(&["no response from QP ", asked[0], asked[1]]);
}
