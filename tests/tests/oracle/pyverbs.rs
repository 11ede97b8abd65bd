//! rdma-core's Python tests, as Debian ships them, in a guest with the latest kernel that Debian has for its stable release.
//!
//! Without QEMU or Debian packages the tests say that they are skipped; `MLX5_TESTS_REQUIRE=1` makes that a failure.

use rdma_lab::linux::{Kernel, Kind, Lab, Options};
use runner::conditions;
use runner::linux::judge;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The longest that one thing may take, on a machine that is busy with others.
const LIMIT: Duration = Duration::from_secs(600);

fn run(lab: &mut Lab, script: &str) -> String {
    run_in(lab, 0, script)
}

fn run_in(lab: &mut Lab, guest: usize, script: &str) -> String {
    let answer = lab.run(guest, script, LIMIT).unwrap_or_else(|error| panic!("`{script}`: {error}"));
    let complaints = lab.complaints().join("\n");
    assert!(answer.success(), "`{script}` ended with {}:\n{}\n{complaints}", answer.status, answer.text());
    answer.text()
}

/// A guest with the tests.
fn guest() -> Kind {
    judge::programs(Kernel::Backports).expect("names").into()
}

/// The tests, unpacked where they run.
const UNPACK: &str = "cp -r /usr/share/doc/rdma-core/tests /tmp/tests && gunzip /tmp/tests/*.gz";

/// Traffic between two queue pairs in memory that the process registers. The other test of the file, of asynchronous events,
/// fails in itself before it reaches the device: it parses 8 bytes as a structure of 64 (rdma-core 56, scapy 2.6).
const TRAFFIC: &str = "test_mlx5vfio_rc_qp_send_imm_traffic";

#[test]
fn a_user_space_driver_brings_the_hca_up_behind_an_iommu() {
    let kind = Kind { iommu: true, ..guest() };
    let options = Options { strict: false, ..Options::new(kind, 1) };
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    println!("Linux {}", lab.version());
    let text = run(
        &mut lab,
        &format!(
            "B=$(lspci -Dn -d 15b3: | cut -d' ' -f1)\n\
             modprobe vfio-pci && modprobe vfio_iommu_type1 && \
             echo vfio-pci > /sys/bus/pci/devices/$B/driver_override && echo $B > /sys/bus/pci/drivers_probe && \
             modprobe ib_uverbs && {UNPACK} && cd /tmp && \
             timeout 300 python3 tests/run_tests.py -v --pci-dev $B \
             tests.test_mlx5_vfio.Mlx5VfioTrafficTest.{TRAFFIC} 2>&1"
        ),
    );
    println!("{text}\n{}", lab.complaints().join("\n"));
    assert!(text.ends_with("OK"), "{text}");
}

/// Tests of the suite that have to pass on InfiniBand; the others are skipped, most of them for what the HCA says that it does not
/// have.
const PASSING: usize = 163;
/// Tests that have to pass on InfiniBand or Ethernet.
const PASSING_SOMEWHERE: usize = 185;

/// What became of a test.
#[derive(Debug, PartialEq)]
enum Outcome {
    Passed,
    Skipped(String),
    Failed,
}

/// Runs the suite in guest `guest`, after `setup`. Returns the outcome of each test by its name.
fn suite(lab: &mut Lab, guest: usize, setup: &str) -> BTreeMap<String, Outcome> {
    let script = format!(
        "hcas-up && modprobe rdma_ucm && {setup} && echo 64 > /proc/sys/vm/nr_hugepages && {UNPACK} && cd /tmp && \
         dmesg -c > /dev/null && timeout 580 python3 tests/run_tests.py --dev mlx5_0 -v 2>&1; true"
    );
    let answer = lab.run(guest, &script, LIMIT).unwrap_or_else(|error| panic!("the suite: {error}"));
    let text = answer.text();
    println!("{text}");
    let mut outcomes = BTreeMap::new();
    // A name with its module, a description on a line of its own if there is one, and the outcome.
    let mut name = None;
    for line in text.lines() {
        if line.starts_with("test_")
            && let Some((method, rest)) = line.split_once(' ')
        {
            let module = rest.trim_start_matches('(').split(')').next().unwrap_or_default();
            name =
                Some(if module.ends_with(method) { module.to_owned() } else { format!("{module}.{method}") });
        }
        let outcome = match line.rsplit_once(" ... ") {
            Some((_, "ok")) => Outcome::Passed,
            Some((_, rest)) if rest.starts_with("skipped ") => {
                Outcome::Skipped(rest["skipped ".len()..].trim_matches(['\'', '"']).to_owned())
            }
            Some((_, "ERROR" | "FAIL")) => Outcome::Failed,
            _ => continue,
        };
        if let Some(name) = name.take() {
            outcomes.insert(name, outcome);
        }
    }
    let failed: Vec<&String> =
        outcomes.iter().filter(|(_, outcome)| **outcome == Outcome::Failed).map(|(name, _)| name).collect();
    assert!(failed.is_empty() && text.contains("\nRan "), "{failed:#?} failed:\n{text}");
    let messages = lab.guest(guest).and_then(|guest| guest.take_kernel_log()).expect("the kernel's log");
    let complaints = judge::complaints(&messages);
    assert!(complaints.is_empty(), "the kernel complains:\n{}", complaints.join("\n"));
    run_in(lab, guest, "rmmod mlx5_ib && rmmod mlx5_core && ! grep ^mlx5 /proc/modules");
    let left = lab.served().census().expect("the devices' thread runs");
    assert_eq!(left[guest].total(), 0, "left over: {}", left[guest]);
    outcomes
}

fn passed(outcomes: &BTreeMap<String, Outcome>) -> BTreeSet<&String> {
    outcomes.iter().filter(|(_, outcome)| **outcome == Outcome::Passed).map(|(name, _)| name).collect()
}

const IPOIB: &str = "modprobe ib_ipoib && ip address add 10.0.0.1/24 dev ib0 && ip link set ib0 up";

#[test]
fn rdma_cores_own_tests_pass_or_are_skipped() {
    // Programs in user space name their memory in fields that firmware does not look at.
    let options = Options { strict: false, ..Options::new(guest(), 1) };
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    println!("Linux {}", lab.version());
    let outcomes = suite(&mut lab, 0, IPOIB);
    let passed = passed(&outcomes).len();
    assert!(passed >= PASSING, "{passed} of {} pass", outcomes.len());
}

/// Beginnings of the reasons for which tests are skipped on Ethernet.
const REASONS: [&str; 0] = [];

#[test]
fn rdma_cores_own_tests_pass_or_are_skipped_on_ethernet() {
    if !conditions::long() {
        return;
    }
    let kinds = ["cx-5", "cx-6-dx"];
    let kinds = kinds.map(|card| Kind { hcas: vec![card.parse().expect("a card")], ..guest() });
    let options = Options { strict: false, ..Options::of(kinds.into()) };
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    let infiniband = suite(&mut lab, 0, IPOIB);
    let ethernet = suite(&mut lab, 1, "true");
    let unknown: Vec<_> = ethernet
        .iter()
        .filter(|(_, outcome)| match outcome {
            Outcome::Skipped(reason) => !REASONS.iter().any(|known| reason.starts_with(known)),
            _ => false,
        })
        .collect();
    assert!(unknown.is_empty(), "skipped for another reason: {unknown:#?}");
    let (infiniband, ethernet) = (passed(&infiniband), passed(&ethernet));
    let somewhere = infiniband.union(&ethernet).count();
    println!(
        "{} pass on InfiniBand, {} on Ethernet, {somewhere} somewhere",
        infiniband.len(),
        ethernet.len()
    );
    assert!(somewhere >= PASSING_SOMEWHERE, "{somewhere} pass on InfiniBand or Ethernet");
}
