//! UEFI programs on OVMF, from a USB stick.

use crate::ground::{LIMIT, ground, serve, skip};
use crate::machines::ovmf;
use hca_model::Profile;
use hca_serve::product::qemu::hca_argument;
use rdma_lab::iso;
use rdma_lab::process::Temporary;
use rdma_lab::unikernel::{self, Options, Verdict};
use runner::{conditions, kernel_image};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs a program of mtools on the stick; its output.
fn mtools(program: &str, arguments: &[&str], stick: &Path) -> String {
    let mut command = Command::new(program);
    command.args(arguments.iter().take(1)).arg("-i").arg(stick).args(&arguments[1..]);
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A stick whose shell script takes bus mastering from the HCA, which OVMF has switched on, and runs
/// the self-test. The shell powers the machine off after the program has returned.
fn stick(folder: &Path, program: &Path) -> PathBuf {
    let stick = folder.join("stick.img");
    let script = folder.join("startup.nsh");
    // Segment, bus, device, function, and the register: the HCA's command register.
    let lines = "mm 0000000000100004 2 -w 2 -n -PCI\r\nfs0:\r\nselftest.efi\r\necho status %lasterror%\r\nreset -s\r\n";
    std::fs::write(&script, lines).expect("the script");
    mtools("mformat", &["-C", "-T", "65536", "-h", "64", "-s", "32", "-v", "STICK", "::"], &stick);
    for (file, name) in [(script.as_path(), "::/startup.nsh"), (program, "::/selftest.efi")] {
        mtools("mcopy", &["-o", file.to_str().expect("text"), name], &stick);
    }
    stick
}

/// Boots the self-test on an HCA of this kind. Returns the report, and the text of the console.
fn self_test(profile: Profile) -> Option<(String, String)> {
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
    let stick = stick(folder.path(), &program);
    let fabric = serve(vec![profile]);
    let options = Options {
        stick: Some(stick.clone()),
        firmware: Some(firmware),
        devices: vec![hca_argument(&fabric.sockets[0]).replacen('{', "{\"addr\":\"0x10\",", 1)],
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
fn selftest_efi_verifies_an_infiniband_card_and_reports_on_the_stick() {
    let Some((report, console)) = self_test(Profile::node(0)) else { return };
    assert!(report.contains(" ConnectX5 bus_master=off"), "the program switches it on: {report}");
    for level in apps::selftest::Level::ALL {
        let line = format!("@level name={} verdict=\"passed\"", level.name());
        assert!(report.contains(&line) && console.contains(&line), "{line}: {report}");
    }
    let mut end = report.lines().rev();
    let stack = end.next().and_then(|line| line.strip_prefix("@stack used=")).expect("the stack");
    let used: usize = stack.split(' ').next().and_then(|used| used.parse().ok()).expect("a number");
    assert!(used <= 192 << 10, "a quarter of the stack is left: {used}");
    assert_eq!(end.next(), Some("@done cards=1 verified=true"), "{report}");
    // The shell goes on.
    assert!(console.contains("status 0x0"), "{console}");
}
