//! PCI that firmware has not finished: slots without power, bridges without bus numbers.

use crate::ground::{LIMIT, ground, serve, skip};
use crate::machines::{boot, hca_at, succeeded};
use hca_model::Profile;
use rdma_lab::process::Temporary;
use rdma_lab::qemu::Output;
use rdma_lab::unikernel::{self, Options, Verdict};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

/// QEMU's machine protocol.
pub struct Monitor {
    stream: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Monitor {
    pub fn connect(socket: &Path, deadline: Instant) -> Self {
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < deadline, "no monitor: {error}"),
            }
            std::thread::yield_now();
        };
        let answers = BufReader::new(stream.try_clone().expect("the same socket"));
        let mut monitor = Self { stream, answers };
        monitor.call("qmp_capabilities", "{}");
        monitor
    }

    pub fn call(&mut self, name: &str, arguments: &str) {
        let command = format!("{{\"execute\":\"{name}\",\"arguments\":{arguments}}}\n");
        self.stream.write_all(command.as_bytes()).expect("it takes commands");
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).expect("an answer"), 0, "QEMU stays");
            assert!(!line.contains("\"error\""), "{name}: {line}");
            if line.contains("\"return\"") {
                return;
            }
        }
    }
}

#[test]
fn a_card_in_a_slot_without_power_is_switched_on_and_used() {
    let Some(ground) = ground() else { return skip() };
    let fabric = serve(vec![Profile::node(0)]);
    let folder = Temporary::folder("slot").expect("a folder");
    let socket = folder.path().join("monitor");
    let monitor = format!("unix:{},server=on,wait=off", socket.display());
    // Slots as PCI Express has them, not as ACPI does; the machine begins when the card has been plugged.
    let more = ["-S", "-qmp", &monitor, "-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"];
    let options = Options {
        devices: vec![
            "pcie-root-port,id=port1,bus=pcie.0,chassis=1,slot=11".into(),
            "pcie-root-port,id=port2,bus=pcie.0,chassis=2,slot=12".into(),
        ],
        more: more.map(str::to_owned).to_vec(),
        ..Options::new("app=hca")
    };
    let mut running = unikernel::start(&ground.qemu, &ground.image, &options).expect("QEMU starts");
    let deadline = Instant::now() + LIMIT;
    let mut monitor = Monitor::connect(&socket, deadline);
    monitor.call("device_add", &hca_at(&fabric.sockets[0], 1));
    monitor.call("cont", "{}");
    let mut lines = Vec::new();
    while let Some(line) = running.next_line(deadline).expect("it ends in time") {
        let (Output::Console(line) | Output::Qemu(line)) = line;
        lines.push(line);
    }
    let text = lines.join("\n");
    assert_eq!(running.finish(None).expect("it ended").verdict, Verdict::Success, "{text}");
    let told: Vec<&String> = lines.iter().filter(|line| line.contains(": slot ")).collect();
    assert_eq!(told.len(), 1, "the other one is empty: {text}");
    assert!(told[0].ends_with(": slot 11: its power was off: switched on"), "{text}");
    assert!(text.contains("port Active: "), "{text}");
    fabric.assert_empty();
}

#[test]
fn bridges_that_have_no_bus_numbers_get_some() {
    let Some(ground) = ground() else { return skip() };
    let fabric = serve(vec![Profile::node(0)]);
    let devices = vec![
        "pcie-root-port,id=port1,bus=pcie.0,chassis=1,slot=1".to_owned(),
        "x3130-upstream,id=up,bus=port1".to_owned(),
        "xio3130-downstream,id=port2,bus=up,chassis=2,slot=2".to_owned(),
        "xio3130-downstream,id=port3,bus=up,chassis=3,slot=3".to_owned(),
        hca_at(&fabric.sockets[0], 3),
        // Without another root bus: QEMU finds no way past one whose ports have no numbers.
        "pcie-root-port,id=port4,bus=pcie.0,chassis=4,slot=4".to_owned(),
        "e1000e,romfile=,bus=port4".to_owned(),
    ];
    // As if firmware had given none: all are taken away before any is looked at.
    let options = Options { devices, ..Options::new("app=hca buses=assign") };
    let text = succeeded(&boot(ground, &options));
    let told: Vec<&str> =
        text.lines().filter(|line| line.contains(": a bridge without a bus number: ")).collect();
    // Two root ports, the switch's upstream port and two downstream ports.
    assert_eq!(told.len(), 5, "{text}");
    assert!(told.iter().all(|line| line.contains(" is below it now")), "{text}");
    assert!(text.contains("hca at 0000:04:00.0: 15b3:") && text.contains("port Active: "), "{text}");
    fabric.assert_empty();
}
