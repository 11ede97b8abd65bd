//! Linux guests at the Ethernet switch: two with an Ethernet HCA, and one whose RDMA is `rdma_rxe` on a virtio-net device.

mod frames;
mod programs;
mod roce;
mod throughput;
mod unikernel;

use crate::guests::{
    census_without_keys, hcas_complain_of_silence_and, nothing_is_left, run, run_everywhere,
};
use crate::rds::stress;
use hca_model::Census;
use rdma_lab::linux::{Kernel, Kind, Lab, Options, Recipe};
use runner::conditions;
use runner::linux::judge;
use std::path::PathBuf;

/// The guest with rxe. Guests 0 and 1 have the HCAs. Its kernel is 6.1: rxe of Linux 7.3 stalls now and then where frames are
/// lost.
const RXE: usize = 2;

/// Warnings that are right here. The card has no tables that ignore levels, which tc offload needs. In promiscuous mode Linux
/// strips tags. WQEs are executed from BlueFlame buffers with the habit `blueflame` only. virtio-net reports no speed.
const WARNINGS: [&str; 4] = [
    "firmware level support is missing",
    "S-tagged traffic will be dropped",
    "Write combining is not supported",
    "speed is unknown, defaulting to",
];

/// The guests, with their addresses.
struct Ground {
    lab: Lab,
    before: Vec<Census>,
}

impl Ground {
    /// HCAs' guests with what `recipe` has, and tools of the network; rxe's guest of `rxe`. `None` where there can be none.
    fn new(recipe: Recipe, rxe: Recipe, card: &str, strict: bool) -> Option<Self> {
        let recipe = recipe.with_packages(["ethtool", "iperf3"]).expect("names");
        let recipe = recipe.with_modules(["8021q"]).expect("a name");
        let ethernet = Kind { hcas: vec![card.parse().expect("a card")], ..recipe.into() };
        let rxe = Kind { hcas: Vec::new(), rxe: true, ..rxe.into() };
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("guest");
        let programs = ["wrong_checksum.c", "rds_rdma.c"].map(|name| folder.join(name)).into();
        let binaries = stress::program().into_iter().collect();
        let options =
            Options { programs, binaries, strict, ..Options::of(vec![ethernet.clone(), ethernet, rxe]) };
        let mut lab = judge::lab_or_skip(options)?;
        println!("Linux {}", lab.version());
        run_everywhere(&mut lab, "dmesg -c > /dev/null; hcas-up && modprobe rdma_ucm");
        let before = census_without_keys(&lab);
        Some(Self { lab, before })
    }

    /// Removes the drivers. Fails if an object is left over or a kernel or HCA has complained.
    fn end(mut self) {
        let lab = &mut self.lab;
        assert_eq!(census_without_keys(lab), self.before, "objects before and after the programs");
        run_everywhere(lab, "rmmod rdma_ucm rdma_cm");
        for guest in 0..RXE {
            run(lab, guest, "rmmod mlx5_ib && rmmod mlx5_core && ! grep ^mlx5 /proc/modules");
        }
        nothing_is_left(lab);
        self.switch_off(TOLERATED);
    }

    /// Ends the guests as they are. Fails if a kernel has complained, or an HCA without one of these words.
    fn switch_off(mut self, tolerated: &[&str]) {
        let lab = &mut self.lab;
        (0..=RXE).for_each(|guest| kernel_is_content(lab, guest));
        hcas_complain_of_silence_and(lab, tolerated);
        self.lab.stop().expect("they power off");
    }
}

/// Fails if a guest's kernel has complained of what is not right here.
fn kernel_is_content(lab: &mut Lab, guest: usize) {
    let log = lab.guest(guest).and_then(|guest| guest.take_kernel_log()).expect("the kernel's log");
    let mut complaints = judge::complaints(&log);
    complaints.retain(|line| !WARNINGS.iter().any(|words| line.contains(words)));
    assert!(complaints.is_empty(), "guest {guest} complains:\n{}", complaints.join("\n"));
}

fn everything(kernel: Kernel, card: &str) {
    let Some(mut ground) = Ground::new(Recipe::new(kernel), Recipe::new(Kernel::V6_1), card, true) else {
        return;
    };
    let lab = &mut ground.lab;
    frames::stack(lab);
    frames::settings(lab);
    roce::between_hcas(lab);
    roce::congestion(lab);
    roce::with_rxe(lab, conditions::long());
    ground.end();
}

#[test]
fn the_latest_kernel_uses_an_ethernet_port_beside_rxe() {
    everything(Kernel::Backports, "cx-6-dx");
}

#[test]
fn linux_6_1_uses_an_ethernet_port_beside_rxe() {
    if conditions::long() {
        everything(Kernel::V6_1, "cx-5-en");
    }
}

/// The complaints of lenient HCAs about UCX: it creates completion queues in memory that it has not initialized.
const TOLERATED: &[&str] = &["do not hold the invalid opcode 15"];

/// UCX leaves bytes of earlier WQEs in reserved fields of address vectors.
const STRICT: bool = false;

/// perftest, UCX and NVMe over RoCE, and RoCE in a VLAN.
fn programs_of_others(kernel: Kernel, card: &str) {
    let recipe = judge::programs(kernel).expect("names");
    let rxe = judge::programs(Kernel::V6_1).expect("names");
    let Some(mut ground) = Ground::new(recipe, rxe, card, STRICT) else { return };
    let lab = &mut ground.lab;
    programs::vlan(lab);
    programs::perftest(lab);
    programs::measurements(lab, kernel, false);
    // Of the completion queues that kernel users share, the kernel keeps those that it made.
    programs::disks(lab);
    ground.before = census_without_keys(&ground.lab);
    ground.end();
}

/// AF_RDS between two kernels. The guests are switched off with the module in place: where connections are open, Linux 7.3 runs
/// work of `rds_rdma` after it has unloaded it.
fn af_rds(kernel: Kernel, card: &str) {
    let Some(mut ground) = Ground::new(Recipe::new(kernel), Recipe::new(Kernel::V6_1), card, true) else {
        return;
    };
    programs::rds(&mut ground.lab);
    ground.switch_off(&[]);
}

#[test]
fn af_rds_runs_over_roce_on_the_latest_kernel() {
    if conditions::long() {
        af_rds(Kernel::Backports, "cx-6-dx");
    }
}

#[test]
fn af_rds_runs_over_roce_on_linux_6_1() {
    if conditions::long() {
        af_rds(Kernel::V6_1, "cx-5-en");
    }
}

#[test]
fn programs_of_others_use_roce_on_the_latest_kernel() {
    if conditions::long() {
        programs_of_others(Kernel::Backports, "cx-6-dx");
    }
}

#[test]
fn programs_of_others_use_roce_on_linux_6_1() {
    if conditions::long() {
        programs_of_others(Kernel::V6_1, "cx-5-en");
    }
}
