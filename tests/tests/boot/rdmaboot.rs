//! `rdmaboot.efi` as the option ROM of an HCA: OVMF boots an image from a unikernel, over RDMA.

use crate::ground::{Fabric, Ground, ground, serve, serve_with, skip};
use crate::uefi::{Machine, Node};
use hca_model::Profile;
use hca_model::card::CONNECTX_5_EN;
use rdma_lab::unikernel::{self, Options};
use runner::{conditions, kernel_image};
use std::path::Path;

const SERVER: &str = "10.0.0.1";
const CLIENT: &str = "10.0.0.2";

/// A unikernel that serves this file.
fn server(ground: &Ground, fabric: &Fabric, image: &Path) -> Node {
    let options = Options {
        hcas: vec![fabric.sockets[0].clone()],
        more: vec!["-initrd".into(), image.display().to_string()],
        memory_mib: 512,
        ..Options::new(&format!("app=serve ip={SERVER}/24 dma=128M"))
    };
    let mut node = Node::new(unikernel::start(&ground.qemu, &ground.image, &options).expect("QEMU starts"));
    node.expect("@serve listening");
    node
}

#[test]
fn option_rom_boots_a_program_over_rdma_and_names_each_obstacle() {
    let Some(ground) = ground() else { return skip() };
    let fabric = serve(vec![Profile::node(0), Profile::node(1)]);
    let Some(machine) = Machine::new(&ground.qemu, &fabric.sockets[1]) else { return };
    let settings = format!("ip={CLIENT}/24 server={SERVER} wait=5");

    // Nothing is set: the shell is the next option, and sets it.
    let mut node =
        machine.start(&format!("bootset.efi\r\nbootset.efi server=1.2.3\r\nbootset.efi {settings}"));
    node.expect("rdmaboot: no settings: bootset.efi sets them; next boot option");
    node.expect("@rdmaboot settings: none; bootset.efi ip=");
    node.expect("error: ip= is missing");
    node.expect(&format!("@rdmaboot settings: {settings}"));
    drop(node);

    // A server that is absent.
    let mut node = machine.start("echo the shell");
    node.expect(&format!("{CLIENT} loads `` from {SERVER}"));
    node.expect("rdmaboot: the server does not answer; next boot option");
    node.expect("the shell");
    drop(node);

    // A server that dies in the middle.
    let large = machine.folder.path().join("large");
    std::fs::write(&large, vec![7; 24 << 20]).expect("written");
    let mut dying = server(ground, &fabric, &large);
    let mut node = machine.start("echo the shell");
    dying.expect("@serve parts=2 ");
    drop(dying);
    node.expect("rdmaboot: the server stopped answering after ");
    node.expect("the shell");
    drop(node);

    boots_the_self_test(ground, &fabric, &machine, 0);
}

/// Loads and starts the self-test, which takes the card from the driver that loaded it. Zeros extend the image to `least` bytes.
fn boots_the_self_test(ground: &Ground, fabric: &Fabric, machine: &Machine<'_>, least: usize) {
    let program = kernel_image::build_efi("selftest").expect("the program builds");
    let mut bytes = std::fs::read(program).expect("the program");
    bytes.resize(bytes.len().max(least), 0);
    let image = machine.folder.path().join("selftest.efi");
    std::fs::write(&image, &bytes).expect("written");
    let mut serving = server(ground, fabric, &image);
    let mut node = machine.start("echo the shell");
    let line = node.expect("@rdmaboot bytes=");
    let number = |key: &str| -> u64 {
        let word = line.split_whitespace().find_map(|word| word.strip_prefix(key));
        word.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{key} in {line}"))
    };
    println!("{line}");
    assert_eq!(number("bytes="), bytes.len() as u64);
    assert!(number("stack=") <= 192 << 10, "a quarter of the stack is left: {line}");
    node.expect("@card number=1 ");
    node.expect("@done cards=1 verified=true");
    drop(node);
    serving.running.write_line("@quit").expect("it reads");
    serving.expect("refused=0 malformed=0");
    serving.expect("@done verified=true");
}

/// Sets addresses, and boots the self-test over a fabric of two HCAs: the server's and the machine's.
fn boots_over(profiles: Vec<Profile>, faults: &str, least: usize) {
    let Some(ground) = ground() else { return skip() };
    let fabric = serve_with(profiles, faults);
    let Some(machine) = Machine::new(&ground.qemu, &fabric.sockets[1]) else { return };
    let mut node = machine.start(&format!("bootset.efi ip={CLIENT}/24 server={SERVER}"));
    node.expect("@rdmaboot settings: ip=");
    drop(node);
    boots_the_self_test(ground, &fabric, &machine, least);
    let lost = fabric.served.counters().expect("the devices' thread runs").dropped;
    println!("packets lost: {lost}");
    assert_eq!(lost > 0, faults != "none");
}

#[test]
fn option_rom_boots_a_program_over_ethernet() {
    boots_over([0, 1].map(|node| Profile::of(&CONNECTX_5_EN, node)).to_vec(), "none", 0);
}

#[test]
fn option_rom_boots_a_program_from_a_fabric_that_loses_packets() {
    if conditions::long() {
        // 2,000 packets: some are lost.
        boots_over([0, 1].map(Profile::node).to_vec(), "loss=1%", 8 << 20);
    }
}
