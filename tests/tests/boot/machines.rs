//! Machines of other kinds than QEMU's plainest: other loaders and firmware, PCI behind several root buses, interrupts and DMA remapping as
//! large servers have them, and the machine's own end.

use crate::ground::{Fabric, Ground, LIMIT, ground, serve, skip};
use hca_model::Profile;
use hca_model::card::{CONNECTX_5, CONNECTX_5_EN};
use hca_serve::product::qemu::hca_argument;
use rdma_lab::iso;
use rdma_lab::process::Temporary;
use rdma_lab::unikernel::{self, Options, Transcript, Verdict};
use runner::conditions;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub fn boot(ground: &Ground, options: &Options) -> Transcript {
    unikernel::boot(&ground.qemu, &ground.image, options, LIMIT, |_| {}).expect("QEMU starts")
}

pub fn text(transcript: &Transcript) -> String {
    transcript.console.join("\n")
}

pub fn succeeded(transcript: &Transcript) -> String {
    let text = text(transcript);
    assert_eq!(transcript.verdict, Some(Verdict::Success), "{text}\n{:?}", transcript.qemu);
    text
}

/// An image that GRUB boots; `None` where GRUB is not installed and need not be.
pub fn disk(ground: &Ground, folder: &Path, words: &str) -> Option<PathBuf> {
    let missing = iso::missing_packages();
    if !missing.is_empty() {
        assert!(!conditions::required(), "these Debian packages are required here: {}", missing.join(" "));
        conditions::skip("no GRUB on this machine");
        return None;
    }
    let name: String = words.chars().filter(char::is_ascii_alphanumeric).collect();
    let path = folder.join(format!("{name}.iso"));
    iso::make(&ground.image, words, &path).expect("the image is made");
    Some(path)
}

pub fn ovmf() -> Option<PathBuf> {
    let found = iso::ovmf();
    assert!(found.is_some() || !conditions::required(), "the Debian package ovmf is required here");
    found
}

/// One node of the demonstration at a part of its volume, booted from an image.
fn node(
    ground: &Ground,
    fabric: &Fabric,
    folder: &Path,
    role: &str,
    firmware: Option<PathBuf>,
) -> Option<Options> {
    let (own, other): (usize, usize) = if role == "server" { (0, 1) } else { (1, 0) };
    let words =
        format!("app=demo role={role} ip=10.0.0.{} peer=10.0.0.{} divide=400 seed=5", own + 1, other + 1);
    let disk = Some(disk(ground, folder, &words)?);
    Some(Options { disk, firmware, hcas: vec![fabric.sockets[own].clone()], ..Options::new("") })
}

#[test]
fn the_demonstration_runs_from_an_image_that_boots_by_bios_and_uefi() {
    let Some(ground) = ground() else { return skip() };
    let folder = Temporary::folder("iso-test").expect("a folder");
    let fabric = serve(vec![Profile::node(0), Profile::node(1)]);
    let Some(server) = node(ground, &fabric, folder.path(), "server", None) else { return };
    // Without UEFI firmware both boot by BIOS.
    let firmware = ovmf();
    let Some(client) = node(ground, &fabric, folder.path(), "client", firmware) else { return };
    let transcripts: Vec<Transcript> = std::thread::scope(|scope| {
        [server, client]
            .map(|options| scope.spawn(move || boot(ground, &options)))
            .map(|t| t.join().expect("the thread"))
            .into()
    });
    for transcript in &transcripts {
        let text = succeeded(transcript);
        assert!(text.ends_with("@done verified=true"), "{text}");
    }
    fabric.assert_empty();
}

/// Nodes with a port of each medium: the demonstration runs over the port that `hca=` selects.
#[test]
fn the_demonstration_runs_over_either_port_of_nodes_with_both() {
    let Some(ground) = ground() else { return skip() };
    let cards = [&CONNECTX_5, &CONNECTX_5_EN];
    let fabric = serve((0..4).map(|index| Profile::of(cards[usize::from(index % 2)], index)).collect());
    for hca in [0, 1] {
        std::thread::scope(|scope| {
            for (role, own, other) in [("server", 0, 1), ("client", 1, 0)] {
                let words = format!(
                    "app=demo role={role} ip=10.0.0.{} peer=10.0.0.{} divide=400 seed=5 hca={hca}",
                    own + 1,
                    other + 1
                );
                let hcas = fabric.sockets[2 * own..][..2].to_vec();
                let options = Options { hcas, ..Options::new(&words) };
                scope.spawn(move || {
                    let text = succeeded(&boot(ground, &options));
                    assert!(text.ends_with("@done verified=true"), "{text}");
                });
            }
        });
    }
    fabric.assert_empty();
}

#[test]
fn network_cards_boot_it_by_bios_and_by_uefi() {
    let Some(ground) = ground() else { return skip() };
    let folder = Temporary::folder("pxe-test").expect("a folder");
    let missing = iso::missing_packages();
    if !missing.is_empty() {
        assert!(!conditions::required(), "these Debian packages are required here: {}", missing.join(" "));
        return conditions::skip("no GRUB on this machine");
    }
    iso::make_network(&ground.image, "app=hca", folder.path()).expect("the folder is filled");
    let fabric = serve(vec![Profile::node(0), Profile::node(1)]);
    std::thread::scope(|scope| {
        for (firmware, socket) in [None, ovmf()].into_iter().zip(&fabric.sockets) {
            let network = Some(folder.path().to_path_buf());
            let options = Options { network, firmware, hcas: vec![socket.clone()], ..Options::new("") };
            scope.spawn(move || {
                let text = succeeded(&boot(ground, &options));
                assert!(text.contains("port Active: "), "{text}");
            });
        }
    });
    fabric.assert_empty();
}

/// A root port on a root bus of its own, and what is behind it.
fn behind(bus: u8, number: u8, device: &str) -> Vec<String> {
    vec![
        format!("pxb-pcie,id=root{number},bus_nr={bus},bus=pcie.0"),
        format!("pcie-root-port,id=port{number},bus=root{number},chassis={number},slot={number}"),
        device.to_owned(),
    ]
}

/// An HCA at a root port.
pub fn hca_at(socket: &Path, port: u8) -> String {
    hca_argument(socket).replacen('{', &format!("{{\"bus\":\"port{port}\","), 1)
}

#[test]
fn hcas_on_several_root_buses_behind_other_cards_are_found_and_used() {
    let Some(ground) = ground() else { return skip() };
    let fabric = serve(vec![Profile::node(0), Profile::node(1)]);
    // An Ethernet card and another vendor's device come first; root buses that no bridge leads to, an empty hot-plug port.
    let mut devices = vec!["e1000e,romfile=".to_owned(), "virtio-rng-pci".to_owned()];
    devices.extend(behind(0x40, 1, &hca_at(&fabric.sockets[0], 1)));
    devices.extend(behind(0x80, 2, &hca_at(&fabric.sockets[1], 2)));
    devices.push("pcie-root-port,id=port3,bus=root2,chassis=3,slot=3".into());
    for (hca, bus) in [(0, "0000:41:00.0"), (1, "0000:81:00.0")] {
        let options = Options { devices: devices.clone(), ..Options::new(&format!("app=hca hca={hca}")) };
        let text = succeeded(&boot(ground, &options));
        assert!(text.contains(&format!("hca at {bus}: 15b3:")) && text.contains("Active"), "{text}");
    }
    // Both at once, each a node of its own, on one core.
    let options =
        Options { devices: devices.clone(), ..Options::new("app=pair ip=10.0.0.1 to=10.0.0.2 count=200") };
    let text = succeeded(&boot(ground, &options));
    assert!(text.contains("@pair messages=200 bytes="), "{text}");
    let options = Options { devices, ..Options::new("app=hca hca=2") };
    let transcript = boot(ground, &options);
    assert_eq!(transcript.verdict, Some(Verdict::NoDevice), "{:?}", transcript.console);
    fabric.assert_empty();
}

#[test]
fn bars_that_firmware_gave_no_address_get_one() {
    let Some(ground) = ground() else { return skip() };
    let fabric = serve(vec![Profile::node(0)]);
    let direct = vec![hca_argument(&fabric.sockets[0])];
    let below = vec![
        "pcie-root-port,id=port1,bus=pcie.0,chassis=1,slot=1".to_owned(),
        "x3130-upstream,id=up,bus=port1".to_owned(),
        "xio3130-downstream,id=port2,bus=up,chassis=2,slot=2".to_owned(),
        hca_at(&fabric.sockets[0], 2),
        "e1000e,romfile=".to_owned(),
    ];
    for devices in [direct, below] {
        let options = Options { devices, ..Options::new("app=hca bars=clear") };
        let text = succeeded(&boot(ground, &options));
        assert!(text.contains(": firmware gave BAR0 no address: 32768 KiB at 0x"), "{text}");
        assert!(text.contains("port Active: "), "{text}");
    }
    fabric.assert_empty();
}

#[test]
fn interrupts_arrive_where_firmware_has_switched_the_x2apic_on() {
    let Some(ground) = ground() else { return skip() };
    // Firmware does so where APIC IDs need more than 8 bits.
    let more = ["-smp", "1,maxcpus=288,sockets=2,cores=144"].map(str::to_owned).to_vec();
    let devices = vec!["intel-iommu,intremap=on,eim=on".to_owned(), "e1000e,romfile=".to_owned()];
    for words in ["app=idle", "app=msix"] {
        let options = Options { more: more.clone(), devices: devices.clone(), ..Options::new(words) };
        succeeded(&boot(ground, &options));
    }
    let fabric = serve(vec![Profile::node(0)]);
    // Its interrupts and its port with them; QEMU wants to hear of every mapping where it passes a device on.
    let mut devices = vec!["intel-iommu,intremap=on,eim=on,caching-mode=on".to_owned()];
    devices.push(hca_argument(&fabric.sockets[0]));
    let text = succeeded(&boot(ground, &Options { more, devices, ..Options::new("app=hca") }));
    assert!(text.contains("port Active: "), "{text}");
    fabric.assert_empty();
}

#[test]
fn dma_remapping_that_was_left_on_is_switched_off() {
    let Some(ground) = ground() else { return skip() };
    let fabric = serve(vec![Profile::node(0)]);
    let devices = vec!["intel-iommu,caching-mode=on".to_owned(), hca_argument(&fabric.sockets[0])];
    let text = succeeded(&boot(ground, &Options { devices, ..Options::new("app=remap") }));
    assert!(text.contains("remap: on 0xc0000000, then TurnedOff, 0x40000000, then Off"), "{text}");
    // The HCA reaches memory again.
    assert!(text.contains("port Active: "), "{text}");
    fabric.assert_empty();
}

#[test]
fn the_machine_is_switched_off_where_nobody_takes_an_exit_code() {
    let Some(ground) = ground() else { return skip() };
    // A reset would boot it again; only switching it off ends QEMU.
    let more = ["-action", "reboot=reset"].map(str::to_owned).to_vec();
    for words in ["app=hello", "app=fault kind=panic"] {
        let options = Options { exit_device: false, more: more.clone(), ..Options::new(words) };
        let transcript = boot(ground, &options);
        // The status of a QEMU whose machine was switched off.
        assert_eq!(transcript.verdict, Some(Verdict::Crash), "{}", text(&transcript));
        let lines = transcript.console.iter();
        let starts = lines.filter(|line| line.starts_with("memory: ") || line.starts_with("error: ")).count();
        assert_eq!(starts, 1, "it ran once:\n{}", text(&transcript));
    }
}

#[test]
fn a_machine_without_soft_off_halts_and_says_why() {
    let Some(ground) = ground() else { return skip() };
    // A reset would boot it again.
    let more = ["-action", "reboot=reset", "-machine", "acpi=off"].map(str::to_owned).to_vec();
    for words in ["app=hello", "app=fault kind=panic"] {
        let options = Options { exit_device: false, more: more.clone(), ..Options::new(words) };
        let mut running = unikernel::start(&ground.qemu, &ground.image, &options).expect("QEMU starts");
        let mut lines = Vec::new();
        let stays_on = running.follow(&mut lines, Some("machine: "), LIMIT);
        assert!(stays_on.is_ok(), "{stays_on:?}: {lines:#?}");
        let line = "machine: not switched off (ACPI names no sleep control register): switch it off";
        assert_eq!(lines.last().map(String::as_str), Some(line), "{lines:#?}");
        let more = running.next_line(Instant::now() + Duration::from_secs(3));
        assert!(matches!(more, Err(rdma_lab::Error::Timeout { .. })), "it halts: {more:?}");
        running.kill(None).expect("it ran");
        let starts = lines.iter().filter(|line| line.starts_with("memory: ") || line.starts_with("error: "));
        assert_eq!(starts.count(), 1, "it ran once: {lines:#?}");
    }
}

#[test]
fn the_console_is_the_first_serial_port_that_is_there() {
    let Some(ground) = ground() else { return skip() };
    for ports_before in [1, 2] {
        let transcript = boot(ground, &Options { ports_before, ..Options::new("app=hello") });
        assert!(succeeded(&transcript).contains("clock: by "), "{}", text(&transcript));
    }
}
