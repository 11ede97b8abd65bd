//! A UEFI machine boots over RDMA from `rdmaserve`: a program from Linux's `rds_rdma`, and Linux from `librds`.

use super::{Ground, LINUX, UNIKERNEL, result};
use crate::c_programs::{self, Here};
use crate::node::number;
use crate::uefi::Machine;
use rdma_lab::linux::{self, Kernel, Options, Recipe, Settings};
use runner::install::RDS;
use runner::linux::judge;
use runner::{conditions, kernel_image};
use std::path::Path;
use std::process::Command;

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
            "background serve rdmaserve -n 1 {LINUX} /usr/bin/selftest.efi\n\
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

/// Kernel arguments of the guest, as those of `rdma_lab`'s, and its first process.
const ARGUMENTS: &str = "console=ttyS0 loglevel=5 panic=-1 nokaslr mitigations=off no_timer_check random.trust_cpu=on rdinit=/usr/bin/uefi.sh";

#[test]
fn option_rom_boots_linux_which_uses_the_same_card() {
    if !conditions::long() {
        return;
    }
    // Two HCAs, and no guest of the lab's.
    let Some(lab) = judge::lab_or_skip(Options { spare: 2, ..Options::of(vec![]) }) else { return };
    let [near, far] = [0, 1].map(|node| lab.socket(node).expect("a socket").to_path_buf());
    let Some(mut machine) = Machine::new(lab.qemu(), &far) else { return };
    machine.memory_mib = 1024;
    let recipe = Recipe::new(Kernel::V6_1).with_files(["/boot"]).expect("a path");
    let image = linux::image(&recipe).expect("the guest's image");
    let at = |name| machine.folder.path().join(name);
    let kernel = image.file(|name| name.starts_with("boot/vmlinuz-")).expect("the kernel");
    std::fs::write(at("vmlinuz"), &kernel).expect("written");
    let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
    let rds = linux::compile(&guest.join("rds.c"), machine.folder.path()).expect("it compiles");
    let settings = Settings { programs: vec![guest.join("uefi.sh"), rds], ..Settings::default() };
    image.write_initramfs(&settings, &at("initrd.img")).expect("written");

    let program = c_programs::compile(&RDS, &["-include", "rds/sockets.h"], "kernel/efi/server/rdmaserve.c");
    let mut command = Command::new(program);
    command.env("RDS_DEVICE", format!("{}@{LINUX}", near.display()));
    let mut server = Here::start(command.arg(LINUX).args([at("initrd.img"), at("vmlinuz")]));
    server.expect("@rdmaserve listening");

    let settings = format!("ip={UNIKERNEL}/24 server={LINUX} image=vmlinuz initrd=initrd.img");
    let arguments = format!("{ARGUMENTS} client={UNIKERNEL} server={LINUX}");
    let mut node = machine.start(&format!("bootset.efi {settings} args={arguments}"));
    node.expect("@rdmaboot settings: ip=");
    drop(node);
    let mut node = machine.start("echo the shell");
    let line = node.expect("@rdmaboot bytes=");
    println!("{line}");
    assert_eq!(number(&line, "bytes"), kernel.len() as u64);
    assert_eq!(number(&line, "initrd"), std::fs::metadata(at("initrd.img")).expect("a file").len());
    let line = node.expect("@rds ping ");
    assert_eq!((number(&line, "sent"), number(&line, "received")), (100, 100), "{line}");
    let line = node.expect("@linux status=");
    assert!(line.contains("status=0 ") && line.ends_with(&arguments), "{line}");
    node.expect("reboot: Power down");
    drop((node, server));
    let complaints = lab.complaints();
    assert!(complaints.is_empty(), "the HCAs complain:\n{}", complaints.join("\n"));
    lab.stop().expect("it ends");
}
