//! Ends of machines other than QEMU's default: hardware-reduced ACPI, a halt that leaves the result on the console, a
//! management controller's NMI.

use crate::ground::{LIMIT, ground, skip};
use crate::machines::disk;
use rdma_lab::process::{Supervised, Temporary};
use rdma_lab::unikernel::{self, Options, Running};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

/// The lines up to one that begins so.
fn follow(running: &mut Running, start: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let found = running.follow(&mut lines, Some(start), LIMIT);
    assert!(found.is_ok(), "{found:?}: {lines:#?}");
    lines
}

/// A monitor of QEMU at a socket.
fn monitor(folder: &Path) -> (Vec<String>, std::path::PathBuf) {
    let path = folder.join("monitor");
    let chardev = format!("socket,id=monitor,path={},server=on,wait=off", path.display());
    let more = ["-chardev", &chardev, "-mon", "chardev=monitor,mode=readline"].map(str::to_owned).to_vec();
    (more, path)
}

#[test]
fn hardware_reduced_machine_is_switched_off_by_its_sleep_control_register() {
    let Some(ground) = ground() else { return skip() };
    let folder = Temporary::folder("microvm-test").expect("a folder");
    let console = folder.path().join("console");
    let mut command = ground.qemu.command();
    // QEMU's microvm has its sleep control register in memory, and no PM1 registers.
    command.args(["-accel", "tcg", "-cpu", "max", "-m", "256", "-machine"]);
    command.arg("microvm,acpi=on,pcie=on,rtc=on,pit=on,pic=on,isa-serial=on");
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-serial"]);
    command.arg(format!("file:{}", console.display()));
    command.arg("-kernel").arg(&ground.image).args(["-append", "app=hello"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut machine = Supervised::spawn(command).expect("QEMU starts");
    let ended = machine.wait_until(Instant::now() + LIMIT).expect("QEMU is waited for");
    let text = std::fs::read_to_string(&console).expect("the console");
    // A reset would boot it again, and a halted machine stays.
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}: {text}");
    assert!(!text.contains("machine: "), "{text}");
}

#[test]
fn halted_machine_shows_its_result_and_reports_an_nmi() {
    let Some(ground) = ground() else { return skip() };
    let folder = Temporary::folder("halt-test").expect("a folder");
    let (more, socket) = monitor(folder.path());
    // QEMU's exit device is there, and is not used.
    let options = Options { more, ..Options::new("app=hello end=halt") };
    let mut running = unikernel::start(&ground.qemu, &ground.image, &options).expect("QEMU starts");
    let lines = follow(&mut running, "machine: ");
    assert_eq!(lines.last().map(String::as_str), Some("machine: halted (end=halt): switch it off"));
    // As a management controller sends it: by the local interrupt of the processor.
    let mut monitor = UnixStream::connect(&socket).expect("QEMU's monitor");
    monitor.write_all(b"nmi\n").expect("it listens");
    let lines = follow(&mut running, "machine: ");
    // It may come before the line's end has left the serial port.
    assert!(lines.iter().any(|line| line.contains("exception 2 NMI non-maskable interrupt")), "{lines:#?}");
    running.kill(None).expect("it ran");
}

#[test]
fn real_machine_with_a_screen_halts_unless_told_otherwise() {
    let Some(ground) = ground() else { return skip() };
    let folder = Temporary::folder("screen-halt-test").expect("a folder");
    // No hypervisor, as far as the processor says.
    let more = ["-cpu", "max,-hypervisor"].map(str::to_owned).to_vec();
    for (words, end) in [
        (
            "app=hello",
            "machine: halted, so that the screen can be read (end=off switches it off): switch it off",
        ),
        ("app=hello end=halt", "machine: halted (end=halt): switch it off"),
    ] {
        let Some(disk) = disk(ground, folder.path(), words) else { return };
        let devices = vec!["VGA".to_owned()];
        let options = Options { disk: Some(disk), devices, more: more.clone(), ..Options::new("") };
        let mut running = unikernel::start(&ground.qemu, &ground.image, &options).expect("QEMU starts");
        let lines = follow(&mut running, "machine: ");
        assert_eq!(lines.last().map(String::as_str), Some(end), "{words}");
        running.kill(None).expect("it ran");
    }
}
