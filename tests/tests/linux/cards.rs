//! One guest with an HCA of every kind: Linux probes each as it would a card of that kind, without a warning, moves packets, and
//! lets it go; also where cards take their time and ask for pages whenever they like.

use crate::guests::{hcas_are_content, kernels_are_content, remove_drivers, run};
use hca_model::{Card, DeviceSpec};
use rdma_lab::linux::{Kernel, Kind, Lab, Options};
use runner::linux::judge;

/// Habits of the second round, one set for each card.
const HABITS: [&str; 5] = [
    "command-time=1us..2ms,page-requests=4",
    "nic-interface=1,disabled-until-enabled,initializing=1s,initializing-again=100ms",
    "training=2s,link-follows-driver,other-function=3:40",
    "function=2,boot-pages=5000,msix-in-registers",
    "command-time=10us..1ms,reset-time=50ms,neighbour-syndrome=8",
];

/// The device's number, its firmware and the rate of its port, a line for each HCA.
const WHAT: &str = r#"
for device in /sys/class/infiniband/*; do
    echo "$(cat $device/device/device) $(cat $device/fw_ver) $(cat $device/ports/1/rate)"
done
"#;

/// Cards with an InfiniBand port; `ethernet` has the others.
fn cards() -> impl Iterator<Item = &'static Card> {
    Card::ALL.iter().copied().filter(|card| !card.is_ethernet())
}

fn lab(kernel: Kernel, kinds: Vec<DeviceSpec>) -> Option<Lab> {
    let kind = Kind { hcas: kinds, memory_mib: Some(2048), ..Kind::from(kernel) };
    judge::lab_or_skip(Options::new(kind, 1))
}

fn expected(card: &Card) -> String {
    let (major, minor, sub_minor) = card.firmware;
    let rate = match card.name {
        "cx-6" => "200 Gb/sec (4X HDR)",
        "cx-7" => "400 Gb/sec (4X NDR)",
        _ => "100 Gb/sec (4X EDR)",
    };
    format!("{:#06x} {major}.{minor}.{sub_minor:04} {rate}", card.device_id)
}

fn every_card(kernel: Kernel, habits: bool) {
    let specs = cards().zip(HABITS).map(|(card, habits_of_it)| {
        let text = if habits { format!("{},{habits_of_it}", card.name) } else { card.name.to_owned() };
        text.parse::<DeviceSpec>().expect("right")
    });
    let Some(mut lab) = lab(kernel, specs.collect()) else { return };
    run(&mut lab, 0, "dmesg -c > /dev/null");
    run(&mut lab, 0, "modprobe mlx5_ib && ports-active");
    let found = run(&mut lab, 0, WHAT);
    let mut found: Vec<&str> = found.lines.iter().map(|line| line.trim()).collect();
    found.sort_unstable();
    let expected: Vec<String> = {
        let mut all: Vec<String> = cards().map(expected).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(found, expected);
    remove_drivers(&mut lab);
    if !habits {
        kernels_are_content(&mut lab, 1);
    }
    hcas_are_content(&lab);
    lab.stop().expect("it powers off");
}

#[test]
fn linux_6_1_probes_every_card() {
    every_card(Kernel::V6_1, false);
}

#[test]
fn trixie_backports_kernel_probes_every_card() {
    if runner::conditions::long() {
        every_card(Kernel::Backports, false);
    }
}

#[test]
fn linux_lives_with_every_habit() {
    every_card(Kernel::V6_1, true);
}
