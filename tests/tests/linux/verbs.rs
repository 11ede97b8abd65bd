//! Two Linux guests move data from one to the other by rdma-core's programs, each with an emulated HCA on one fabric.

use crate::guests::{
    At, census_without_keys, hcas_are_content, kernels_are_content, pair, remove_drivers, run, run_everywhere,
};
use rdma_lab::linux::{Kernel, Lab, Options};
use runner::conditions;
use runner::linux::judge;

/// The TCP port at which the programs exchange addresses.
const PORT: u16 = 18515;

/// Runs `program` with `arguments` for messages of `size` bytes, and checks that all of them arrived.
pub fn pingpong(lab: &mut Lab, program: &str, arguments: &str, size: u64) {
    let iterations = if size > 65_536 { 20 } else { 100 };
    let line = format!("{program} {arguments} -s {size} -n {iterations}");
    let [server, client] = pair(lab, At::Tcp(PORT), &line, &format!("{line} guest0"));
    let moved = format!("{} bytes in", size * iterations * 2);
    for answer in [&server, &client] {
        let text = answer.text();
        assert!(text.contains(&moved) && !text.contains("invalid data"), "{line}:\n{text}");
    }
    println!("{line}: {}", client.lines.last().map_or("", String::as_str));
}

/// Sizes of a reliable or unreliable connection, with the path's MTU.
const SIZES: [(u64, u32); 6] =
    [(1, 1024), (64, 256), (1000, 512), (4096, 4096), (65_536, 2048), (1 << 20, 4096)];

fn reliable_connections(lab: &mut Lab) {
    for (size, mtu) in SIZES {
        pingpong(lab, "ibv_rc_pingpong", &format!("-c -m {mtu}"), size);
    }
    pingpong(lab, "ibv_rc_pingpong", "-c -e", 4096);
    pingpong(lab, "ibv_rc_pingpong", "-c -e", 1 << 20);
}

fn all_programs(lab: &mut Lab) {
    reliable_connections(lab);
    for (size, mtu) in SIZES {
        pingpong(lab, "ibv_uc_pingpong", &format!("-c -m {mtu}"), size);
        pingpong(lab, "ibv_srq_pingpong", &format!("-c -m {mtu}"), size);
    }
    pingpong(lab, "ibv_uc_pingpong", "-c -e", 4096);
    pingpong(lab, "ibv_srq_pingpong", "-c -e", 4096);
    for size in [1, 1000, 2048, 4096] {
        pingpong(lab, "ibv_ud_pingpong", "-c", size);
    }
    pingpong(lab, "ibv_ud_pingpong", "-c -e", 2048);
    // Extended reliable connections: this one only says whether all of it succeeded.
    for size in [1, 4096, 65_536] {
        let line = format!("ibv_xsrq_pingpong -m 2048 -s {size} -n 100");
        for answer in pair(lab, At::Tcp(PORT), &line, &format!("{line} guest0")) {
            assert_eq!(
                answer.lines.last().map(String::as_str),
                Some("success"),
                "{line}:\n{}",
                answer.text()
            );
        }
    }
}

fn exchange(options: Options, programs: impl FnOnce(&mut Lab)) {
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    println!("Linux {}", lab.version());
    run_everywhere(&mut lab, "dmesg -c > /dev/null; hcas-up");
    run(&mut lab, 1, "ping -c 1 guest0 > /dev/null");
    let before = census_without_keys(&lab);
    programs(&mut lab);
    assert_eq!(census_without_keys(&lab), before, "objects before and after the programs");
    remove_drivers(&mut lab);
    kernels_are_content(&mut lab, 2);
    hcas_are_content(&lab);
    lab.stop().expect("they power off");
}

/// As packets, so that the guests see a pipelined wire.
#[test]
fn linux_6_1_moves_data_by_all_programs() {
    exchange(Options { packets_only: true, ..Options::new(Kernel::V6_1, 2) }, all_programs);
}

#[test]
fn linux_6_12_moves_data() {
    if conditions::long() {
        exchange(Options::new(Kernel::V6_12, 2), all_programs);
    }
}
