//! rdma-core's Python tests, as Debian ships them, in a guest with the latest kernel that Debian has for its stable release.
//!
//! Without QEMU or Debian packages the tests say that they are skipped; `MLX5_TESTS_REQUIRE=1` makes that a failure.

use crate::skips;
use rdma_lab::linux::{Kernel, Kind, Lab, Options};
use runner::conditions;
use runner::linux::judge;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The longest that one thing may take, on a machine that is busy with others.
const LIMIT: Duration = Duration::from_secs(600);

fn run(lab: &mut Lab, script: &str) -> String {
    let answer = lab.run(0, script, LIMIT).unwrap_or_else(|error| panic!("`{script}`: {error}"));
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

/// Tests of the suite that have to pass on InfiniBand, and on either medium.
const PASSING: usize = 163;
const PASSING_ON_EITHER: usize = 185;

/// Outcome of each test of the suite.
#[derive(Default)]
struct Outcome {
    passed: BTreeSet<String>,
    /// Skipped, and why.
    skipped: BTreeMap<String, String>,
}

impl Outcome {
    /// Reads the output of unittest's `-v`: a test's name, perhaps its first words and what it prints, then how it ended.
    fn parse(text: &str) -> Self {
        let (mut outcome, mut name) = (Self::default(), None);
        for line in text.lines() {
            if line.starts_with("test_")
                && let Some((_, rest)) = line.split_once(" (tests.")
                && let Some((id, _)) = rest.split_once(')')
            {
                name = Some(id.to_owned());
            }
            // The test's own output can precede the word.
            let reason = line.strip_prefix("skipped ").or_else(|| Some(line.split_once(" skipped ")?.1));
            if let Some(reason) = reason
                && let Some(id) = name.take()
            {
                outcome.skipped.insert(id, reason.trim_matches(['\'', '"']).to_owned());
            } else if (line == "ok" || line.ends_with(" ok"))
                && let Some(id) = name.take()
            {
                outcome.passed.insert(id);
            }
        }
        outcome
    }

    /// Tests whose reason to be skipped is in none of `lists`.
    fn unexplained(&self, lists: [&[(&str, &str)]; 2]) -> Vec<String> {
        let known = |reason: &str| lists.concat().iter().any(|(start, _)| reason.starts_with(start));
        let strange = self.skipped.iter().filter(|(_, reason)| !known(reason));
        strange.map(|(name, reason)| format!("{name}: {reason}")).collect()
    }
}

/// Runs the suite on a device. No test fails, and each that is skipped has its reason in `lists`.
fn suite(lab: &mut Lab, device: &str, lists: [&[(&str, &str)]; 2]) -> Outcome {
    let command = format!(
        "cd /tmp && dmesg -c > /dev/null && timeout 580 python3 tests/run_tests.py --dev {device} -v 2>&1"
    );
    let text = run(lab, &command);
    println!("{text}");
    let number_behind = |words: &str| {
        let rest = text.rsplit_once(words).map_or("", |(_, rest)| rest);
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<usize>().unwrap_or_else(|_| panic!("no number behind `{words}`:\n{text}"))
    };
    let (outcome, counts) = (Outcome::parse(&text), [number_behind("\nRan "), number_behind("OK (skipped=")]);
    let found = [outcome.passed.len() + outcome.skipped.len(), outcome.skipped.len()];
    assert_eq!(found, counts, "tests, and skipped ones:\n{text}");
    let strange = outcome.unexplained(lists);
    assert!(strange.is_empty(), "skipped for reasons that are in no list:\n{}", strange.join("\n"));
    println!("{device}: {} pass, {} are skipped", outcome.passed.len(), outcome.skipped.len());
    outcome
}

/// The kernel has not complained. Without drivers no object is left.
fn nothing_is_left(lab: &mut Lab) {
    let messages = lab.guest(0).and_then(|guest| guest.take_kernel_log()).expect("the kernel's log");
    let complaints = judge::complaints(&messages);
    assert!(complaints.is_empty(), "the kernel complains:\n{}", complaints.join("\n"));
    run(lab, "rmmod mlx5_ib && rmmod mlx5_core && ! grep ^mlx5 /proc/modules");
    for left in lab.served().census().expect("the devices' thread runs") {
        assert_eq!(left.total(), 0, "left over: {left}");
    }
}

/// Gets the suite's guest ready, whose first HCA is InfiniBand's.
fn set_up(lab: &mut Lab) {
    println!("Linux {}", lab.version());
    run(
        lab,
        &format!(
            "hcas-up && modprobe ib_ipoib && modprobe rdma_ucm && ip address add 10.0.0.1/24 dev ib0 && \
             ip link set ib0 up && echo 64 > /proc/sys/vm/nr_hugepages && {UNPACK}"
        ),
    );
}

#[test]
fn rdma_cores_own_tests_pass_or_are_skipped() {
    // Programs in user space name their memory in fields that firmware does not look at.
    let options = Options { strict: false, ..Options::new(guest(), 1) };
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    set_up(&mut lab);
    let outcome = suite(&mut lab, "mlx5_0", [skips::ANYWHERE, skips::INFINIBAND]);
    assert!(outcome.passed.len() >= PASSING, "{} pass", outcome.passed.len());
    nothing_is_left(&mut lab);
}

#[test]
fn rdma_cores_own_tests_pass_or_are_skipped_on_either_medium() {
    if !conditions::long() {
        return;
    }
    let hcas = ["cx-6", "cx-6-dx"].map(|card| card.parse().expect("a card")).to_vec();
    let options = Options { strict: false, ..Options::new(Kind { hcas, ..guest() }, 1) };
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    set_up(&mut lab);
    let infiniband = suite(&mut lab, "mlx5_0", [skips::ANYWHERE, skips::INFINIBAND]);
    let ethernet = suite(&mut lab, "mlx5_1", [skips::ANYWHERE, skips::ETHERNET]);
    let both = infiniband.passed.union(&ethernet.passed).count();
    println!("{both} pass on one of both");
    assert!(both >= PASSING_ON_EITHER, "{both} pass");
    nothing_is_left(&mut lab);
}
