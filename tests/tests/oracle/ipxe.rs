//! iPXE, a boot loader with a driver of its own for the HCA: it opens its port and fetches a file from a Linux guest, by IP
//! over InfiniBand.
//!
//! Without QEMU or Debian packages the test says that it is skipped; `MLX5_TESTS_REQUIRE=1` makes that a failure.

use rdma_lab::debian::{self, Packages};
use rdma_lab::error::Error;
use rdma_lab::linux::{Kernel, Lab, Options};
use rdma_lab::process::Temporary;
use rdma_lab::qemu::{Guest, Machine, Output, write_file};
use runner::conditions;
use runner::linux::judge;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// The longest that one thing may take, on a machine that is busy with others.
const LIMIT: Duration = Duration::from_secs(180);
/// Comment lines between two words of the fetched script: it is of many segments.
const COMMENTS: usize = 1000;
/// Words of the fetched script.
const WORDS: u64 = 5;

/// The boot loader, in the form that is started as Linux kernels are.
pub fn loader() -> Option<PathBuf> {
    let packages = Packages { suites: &["trixie"], release: None, names: &["ipxe"] };
    let remedy = "the test of iPXE needs Debian on x86-64, root and the network (package mmdebstrap)";
    match debian::tree("ipxe-trixie", &packages, remedy) {
        Ok(tree) => Some(tree.join("usr/lib/ipxe/ipxe.lkrn")),
        Err(Error::Missing { what, remedy }) if !conditions::required() => {
            conditions::skip(&format!("no iPXE on this machine: {what}; {remedy}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// What iPXE does when it is started. It goes on where a command failed: the line that is waited for is missing then.
const SCRIPT: &str = "#!ipxe\n\
    set net0/ip 10.0.0.7\n\
    set net0/netmask 255.255.255.0\n\
    ifopen net0\n\
    ifstat net0\n\
    chain --autofree http://10.0.0.1/second.ipxe && echo chain ended ||\n\
    ifstat net0\n\
    ifclose net0\n\
    ifopen net0 && imgfetch --name again http://10.0.0.1/second.ipxe && echo fetched again ||\n\
    imgstat\n\
    ifclose net0\n\
    poweroff\n";

/// The script that the guest has for it: made in the guest, as long as it is.
fn make_second() -> String {
    let mut script = "mkdir /tmp/www && { echo '#!ipxe'\n".to_owned();
    for word in 0..WORDS {
        let _ = writeln!(script, "for n in $(seq {COMMENTS}); do echo \"# {word} $n $((n * 7919))\"; done");
        let _ = writeln!(script, "echo 'echo word {}'", word * 7919 + 12_345);
    }
    script + "} > /tmp/www/second.ipxe && wc -c < /tmp/www/second.ipxe"
}

fn run(lab: &mut Lab, script: &str) -> String {
    let answer = lab.run(0, script, LIMIT).unwrap_or_else(|error| panic!("`{script}`: {error}"));
    assert!(answer.success(), "`{script}` ended with {}:\n{}", answer.status, answer.text());
    answer.text()
}

#[test]
fn ipxe_boots_over_infiniband() {
    let Some(loader) = loader() else { return };
    // It leaves lengths and fields wrong that firmware does not look at.
    let options = Options { spare: 1, strict: false, ..Options::new(Kernel::V6_1, 1) };
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    run(
        &mut lab,
        "hcas-up && modprobe ib_ipoib && ip address add 10.0.0.1/24 dev ib0 && ip link set ib0 up && \
         dmesg -c > /dev/null",
    );
    let size = run(&mut lab, &make_second());
    run(&mut lab, "busybox httpd -h /tmp/www");

    let folder = Temporary::folder("ipxe").expect("a folder");
    let mut machine = Machine::new(&loader);
    machine.initramfs = Some(write_file(folder.path(), "boot.ipxe", SCRIPT.as_bytes()).expect("written"));
    machine.hcas = vec![lab.socket(lab.first_spare()).expect("a socket").to_path_buf()];
    // Without a display the firmware's console, which is iPXE's too, is the serial port.
    machine.more = ["-machine", "graphics=off"].map(str::to_owned).to_vec();
    machine.exit_device = false;
    let guest = Guest::start(lab.qemu(), &machine).expect("QEMU");
    let mut lines = Vec::new();
    let ended = guest.run(LIMIT, |line| match line {
        Output::Console(line) => lines.push(line.trim_end().to_owned()),
        Output::Qemu(line) => eprintln!("qemu: {line}"),
    });
    let text = lines.join("\n");
    println!("{text}");
    println!("{}", lab.complaints().join("\n"));
    if let Err(error) = ended {
        panic!("{error}:\n{text}");
    }
    assert!(text.contains("using ConnectX-5 on"), "the driver has the HCA:\n{text}");
    let words: Vec<String> = (0..WORDS).map(|word| format!("word {}", word * 7919 + 12_345)).collect();
    let found: Vec<&String> = lines.iter().filter(|line| words.contains(line)).collect();
    assert_eq!(found, words.iter().collect::<Vec<_>>(), "the fetched script ran:\n{text}");
    assert!(text.contains("fetched again"), "{text}");
    assert!(text.contains(&format!("again : {} bytes", size.trim())), "{size} bytes:\n{text}");
    // It said what it saw, and refused nothing.
    let summary = lab.stop().expect("stops");
    assert_eq!(summary.refusals, [0, 0], "refusals");
    assert_eq!(summary.hcas.iter().map(|hca| hca.census.total()).collect::<Vec<_>>()[1], 0, "left over");
}
