//! One HCA in other hands without a reset in between, as at a kexec or a crash kernel: a Linux guest dies with its driver loaded, a
//! unikernel takes the HCA, moves data by RDS and stops it, and Linux's own driver starts on what it left.

use crate::guests::{hcas_are_content, kernels_are_content, remove_drivers, run};
use crate::unikernel::exchange;
use hca_model::device::Life;
use rdma_lab::linux::{Kernel, Lab, Options};
use rdma_lab::qemu::Output;
use rdma_lab::unikernel::{self, Running, Verdict};
use runner::kernel_image;
use runner::linux::{judge, power_on};
use runner::setup;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(180);
/// The HCA that changes hands.
const HCA: usize = 0;

/// What the next owner finds.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    life: Life,
    objects: usize,
    pages: u32,
    bus_master: bool,
    resets: u64,
}

fn found(lab: &Lab) -> Found {
    let found = lab.served().with_world(|world, _| {
        let hca = &world.nodes()[HCA].hca;
        Found {
            life: hca.life(),
            objects: hca.census().total(),
            pages: hca.pages().given(),
            bus_master: hca.bus_master(),
            resets: hca.resets(),
        }
    });
    found.expect("the devices' thread runs")
}

fn unikernel(lab: &Lab, image: &Path, node: usize, words: &str) -> Running {
    let mut options = unikernel::Options::new(words);
    options.hcas = vec![lab.socket(node).expect("a socket").to_path_buf()];
    unikernel::start(lab.qemu(), image, &options).expect("QEMU starts")
}

/// The unikernel's lines, until one begins with `prefix` or to its end.
fn lines(running: &mut Running, prefix: Option<&str>) -> Vec<String> {
    let deadline = Instant::now() + LIMIT;
    let mut lines = Vec::new();
    while let Some(line) = running.next_line(deadline).unwrap_or_else(|error| panic!("{error}: {lines:#?}")) {
        let (Output::Console(line) | Output::Qemu(line)) = line;
        lines.push(line);
        if prefix.is_some_and(|prefix| lines.last().is_some_and(|line| line.starts_with(prefix))) {
            return lines;
        }
    }
    assert_eq!(prefix, None, "it ended before: {lines:#?}");
    lines
}

/// Messages of all sizes from a unikernel on the HCA to another beside it.
fn by_rds(lab: &Lab, image: &Path) {
    let words = "program=rds_messages role=server ip=10.0.0.1 to=10.0.0.2 count=500";
    let mut server = unikernel(lab, image, lab.first_spare(), words);
    let listening = lines(&mut server, Some("@rds listening"));
    let words = "program=rds_messages role=client ip=10.0.0.2 to=10.0.0.1 count=500";
    let mut client = unikernel(lab, image, HCA, words);
    let said = lines(&mut client, None);
    let heard = lines(&mut server, None);
    for (running, lines) in [(client, &said), (server, &heard)] {
        let verdict = running.finish(None).expect("it ends").verdict;
        assert_eq!(verdict, Verdict::Success, "{}\n{}", listening.join("\n"), lines.join("\n"));
        assert!(
            lines.iter().any(|line| line.starts_with("@result op=rds_messages messages=500 ")),
            "{}",
            lines.join("\n")
        );
    }
}

fn hand_over(kernel: Kernel) {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("guest/verbs.c");
    let options = Options { spare: 1, programs: vec![program], ..Options::new(kernel, 1) };
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    println!("Linux {}", lab.version());
    setup::rust_targets().expect("the bare-metal target");
    let image = kernel_image::build().expect("the image builds");
    run(&mut lab, 0, "hcas-up");
    lab.served().with_world(|world, _| world.hca_mut(HCA).expect("served").set_warm(true)).expect("served");
    let running = found(&lab);
    assert!(running.life == Life::Initialized && running.objects > 0, "{running:?}");

    // Linux is gone in the middle of its work; the HCA does not know.
    lab.kill(0).expect("it ran");
    let partners = kernel_image::build_workload().expect("the partners' image builds");
    by_rds(&lab, &partners);
    let stopped = found(&lab);
    println!("{running:?}, then {stopped:?}");
    let (life, resets) = (Life::Disabled, stopped.resets);
    assert_eq!(stopped, Found { life, objects: 0, pages: 0, bus_master: false, resets });

    lab.boot(0).expect("QEMU starts");
    lab.wait_ready(0).expect("it comes up");
    let linux = power_on::linux(&mut lab, 0).expect("its port becomes Active");
    let unikernel = power_on::unikernel(&lab, &image, lab.first_spare()).expect("its port becomes Active");
    println!("power on to an Active port: {linux:?}, {unikernel:?}, 1/{:.0}", unikernel.times(&linux));
    assert!(unikernel.times(&linux) >= 30.0, "{linux:?}, {unikernel:?}");
    run(&mut lab, 0, "dmesg -c > /dev/null; hcas-up");
    exchange(&mut lab, &partners, 0, "server");
    kernels_are_content(&mut lab, 1);
    assert_eq!(found(&lab).resets, resets, "nobody reset the HCA");
    hcas_are_content(&lab);
    remove_drivers(&mut lab);
    lab.stop().expect("it powers off");
}

#[test]
fn a_killed_linux_a_unikernel_and_linux_again_on_one_hca_without_a_reset() {
    hand_over(Kernel::V6_1);
}

#[test]
fn linux_6_12_again_on_one_hca_without_a_reset() {
    if runner::conditions::long() {
        hand_over(Kernel::V6_12);
    }
}
