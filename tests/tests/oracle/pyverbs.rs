//! rdma-core's Python tests, as Debian ships them, in a guest with the latest kernel that Debian has for its stable release.
//!
//! Without QEMU or Debian packages the tests say that they are skipped; `MLX5_TESTS_REQUIRE=1` makes that a failure.

use rdma_lab::linux::{Kernel, Kind, Lab, Options};
use runner::linux::judge;
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

/// Tests of the suite that have to pass; the others are skipped, most of them for what the HCA says that it does not have.
const PASSING: usize = 163;

#[test]
fn rdma_cores_own_tests_pass_or_are_skipped() {
    // Programs in user space name their memory in fields that firmware does not look at.
    let options = Options { strict: false, ..Options::new(guest(), 1) };
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    println!("Linux {}", lab.version());
    let text = run(
        &mut lab,
        &format!(
            "hcas-up && modprobe ib_ipoib && modprobe rdma_ucm && ip address add 10.0.0.1/24 dev ib0 && \
             ip link set ib0 up && echo 64 > /proc/sys/vm/nr_hugepages && {UNPACK} && cd /tmp && \
             dmesg -c > /dev/null && timeout 580 python3 tests/run_tests.py --dev mlx5_0 -v 2>&1"
        ),
    );
    println!("{text}");
    let number_behind = |words: &str| {
        let rest = text.rsplit_once(words).map_or("", |(_, rest)| rest);
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<usize>().unwrap_or_else(|_| panic!("no number behind `{words}`:\n{text}"))
    };
    let (ran, skipped) = (number_behind("\nRan "), number_behind("OK (skipped="));
    assert!(ran - skipped >= PASSING, "{} of {ran} pass:\n{text}", ran - skipped);
    let messages = lab.guest(0).and_then(|guest| guest.take_kernel_log()).expect("the kernel's log");
    let complaints = judge::complaints(&messages);
    assert!(complaints.is_empty(), "the kernel complains:\n{}", complaints.join("\n"));
    run(&mut lab, "rmmod mlx5_ib && rmmod mlx5_core && ! grep ^mlx5 /proc/modules");
    let left = lab.served().census().expect("the devices' thread runs");
    assert_eq!(left[0].total(), 0, "left over: {}", left[0]);
}
