//! UEFI programs on OVMF, from a USB stick.

use crate::ground::{LIMIT, ground, serve, skip};
use crate::machines::ovmf;
use crate::uefi::mtools;
use hca_model::Profile;
use hca_model::card::CONNECTX_6_DX;
use hca_serve::product::qemu::hca_argument;
use rdma_lab::iso;
use rdma_lab::process::Temporary;
use rdma_lab::unikernel::{self, Options, Verdict};
use runner::{conditions, kernel_image};
use std::path::{Path, PathBuf};

/// PCI device number of the first HCA; the others follow.
const FIRST_DEVICE: usize = 0x10;

/// A stick whose shell script takes bus mastering from `cards` HCAs, which OVMF has switched on, and runs
/// the self-test. The shell powers the machine off after the program has returned.
fn stick(folder: &Path, program: &Path, cards: usize) -> PathBuf {
    let stick = folder.join("stick.img");
    let script = folder.join("startup.nsh");
    // Segment, bus, device, function, and the register: an HCA's command register.
    let stops =
        (0..cards).map(|card| format!("mm 00000000{:04x}0004 2 -w 2 -n -PCI\r\n", FIRST_DEVICE + card));
    let lines = stops.chain(["fs0:\r\nselftest.efi\r\necho status %lasterror%\r\nreset -s\r\n".to_owned()]);
    let lines: String = lines.collect();
    std::fs::write(&script, lines).expect("the script");
    mtools("mformat", &["-C", "-T", "65536", "-h", "64", "-s", "32", "-v", "STICK", "::"], &stick);
    for (file, name) in [(script.as_path(), "::/startup.nsh"), (program, "::/selftest.efi")] {
        mtools("mcopy", &["-o", file.to_str().expect("text"), name], &stick);
    }
    stick
}

/// Boots the self-test on HCAs of these kinds. Returns the report, and the text of the console.
fn self_test(profiles: Vec<Profile>) -> Option<(String, String)> {
    let Some(ground) = ground() else {
        skip();
        return None;
    };
    let Some(firmware) = ovmf().filter(|_| iso::missing_packages().is_empty()) else {
        assert!(!conditions::required(), "the Debian packages ovmf and mtools are required here");
        conditions::skip("no OVMF or no mtools on this machine");
        return None;
    };
    let program = kernel_image::build_efi("selftest").expect("the program builds");
    let folder = Temporary::folder("efi-test").expect("a folder");
    let stick = stick(folder.path(), &program, profiles.len());
    let fabric = serve(profiles);
    let device = |(card, socket)| {
        let at = format!("{{\"addr\":\"{:#x}\",", FIRST_DEVICE + card);
        hca_argument(socket).replacen('{', &at, 1)
    };
    let options = Options {
        stick: Some(stick.clone()),
        firmware: Some(firmware),
        devices: fabric.sockets.iter().map(|socket| socket.as_path()).enumerate().map(device).collect(),
        memory_mib: 512,
        ..Options::new("")
    };
    let ran = unikernel::boot(&ground.qemu, &program, &options, LIMIT, |_| {}).expect("QEMU starts");
    let console = ran.console.join("\n");
    // The status of a QEMU whose machine was switched off.
    assert_eq!(ran.verdict, Some(Verdict::Crash), "{console}");
    fabric.assert_empty();
    Some((mtools("mtype", &["-t", "::/selftest.txt"], &stick), console))
}

#[test]
fn selftest_efi_verifies_cards_of_both_media_and_reports_on_the_stick() {
    let profiles = vec![Profile::node(0), Profile::of(&CONNECTX_6_DX, 1)];
    let Some((report, console)) = self_test(profiles) else { return };
    assert!(report.matches(" bus_master=off").count() == 2, "the program switches it on: {report}");
    for level in apps::selftest::Level::ALL {
        let line = format!("@level name={} verdict=\"passed\"", level.name());
        assert_eq!([&report, &console].map(|text| text.matches(&line).count()), [2, 2], "{line}: {report}");
    }
    let mut end = report.lines().rev();
    let stack = end.next().and_then(|line| line.strip_prefix("@stack used=")).expect("the stack");
    let used: usize = stack.split(' ').next().and_then(|used| used.parse().ok()).expect("a number");
    assert!(used <= 192 << 10, "a quarter of the stack is left: {used}");
    assert_eq!(end.next(), Some("@done cards=2 verified=true"), "{report}");
    // The shell goes on.
    assert!(console.contains("status 0x0"), "{console}");
}
