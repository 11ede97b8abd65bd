//! Programs of others over RoCE: perftest, UCX, NVMe over RDMA, AF_RDS, and RoCE in a VLAN.

use super::RXE;
use crate::guests::{At, any_between, between, both, run};
use crate::programs::{nvme, perftest, ucx};
use crate::rds::stress::{self, average, judge_run};
use rdma_lab::linux::{Kernel, Lab};

/// MiB of a disk that are written and compared.
const MIB: u32 = 64;

/// UCX's own measurements, by each of its transports.
pub fn measurements(lab: &mut Lab, kernel: Kernel, long: bool) {
    for line in ucx::lines(kernel, long) {
        measure(lab, At::Tcp(ucx::PORT), &line, "guest0", |text| !text.contains("ERROR"));
    }
}

/// perftest, by each transport and operation.
pub fn perftest(lab: &mut Lab) {
    for (at, line) in perftest::lines(10, false) {
        let (line, to) = match at {
            At::Tcp(_) => (format!("{line} -x $(roce-gid)"), "guest0"),
            At::Cm => (line, "roce0"),
        };
        measure(lab, at, &line, to, perftest::has_result);
    }
}

/// Runs a program between the HCAs' guests. Both sides succeed, with a `good` output.
fn measure(lab: &mut Lab, at: At, line: &str, to: &str, good: impl Fn(&str) -> bool) {
    let client = format!("{line} {to}");
    let answers = any_between(lab, [0, 1], at, line, &client);
    let good = answers.iter().all(|answer| answer.success() && good(&answer.text()));
    assert!(good, "{}\n{:#?}", both(line, &client, &answers), lab.complaints());
    println!("{line}");
}

/// NVMe between two HCAs, and with rxe as initiator and as target.
pub fn disks(lab: &mut Lab) {
    for guests in [[0, 1], [0, RXE], [RXE, 0]] {
        let address = format!("10.78.0.{}", guests[0] + 1);
        nvme::exchange(lab, guests, &address, MIB).unwrap_or_else(|text| panic!("{guests:?}: {text}"));
        println!("{guests:?} NVMe, {MIB} MiB");
    }
}

/// rds-stress of rds-tools, with messages and with RDMA.
fn rds_stress(lab: &mut Lab) {
    for switches in stress::RUNS.map(|switches| format!("{switches} -T3")) {
        let server = "background stress rds-stress -r 10.78.0.1 && \
             listening stress says 'waiting for incoming'";
        run(lab, 0, server);
        let active = run(lab, 1, &format!("rds-stress -r 10.78.0.2 -s 10.78.0.1 {switches}"));
        let passive = run(lab, 0, "reap stress");
        let active = average("active,", &switches, &active.lines);
        judge_run(&switches, &active, &average("passive,", &switches, &passive.lines));
    }
}

/// RDMA by cookie and congestion between two kernels' AF_RDS.
pub fn rds(lab: &mut Lab) {
    for guest in 0..RXE {
        run(lab, guest, "modprobe rds_rdma");
    }
    for (script, rounds) in [("offered", 2), ("congestion", 8)] {
        run(
            lab,
            0,
            "background server timeout 150 rds_rdma server 10.78.0.1 && \
             listening server says '@rds server'",
        );
        let line = format!("timeout 150 rds_rdma {script} 10.78.0.2 10.78.0.1 {rounds}");
        let client = run(lab, 1, &line).text();
        let server = run(lab, 0, "reap server").text();
        assert!(server.contains("@server ") && client.contains("@done"), "{client}\n{server}");
        println!("AF_RDS {script}: {client}");
    }
    if stress::program().is_some() {
        rds_stress(lab);
    }
}

/// Index of the GID of VLAN 7's IPv4 address, in a shell.
const VLAN_GID: &str = "$(cd /sys/class/infiniband/mlx5_0/ports/1; for i in $(seq 0 31); do \
    grep -q ffff:0a4f:000 gids/$i && grep -q v2 gid_attrs/types/$i && echo $i; done 2> /dev/null)";

/// RoCE v2 in a VLAN, by GID and by RDMA-CM.
pub fn vlan(lab: &mut Lab) {
    for guest in 0..RXE {
        run(
            lab,
            guest,
            "dev=$(cat /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0)\n\
             /bin/ip link add link $dev name tagged type vlan id 7 && \
             /bin/ip address add 10.79.0.$((GUEST + 1))/24 dev tagged && /bin/ip link set tagged up",
        );
    }
    run(lab, 1, "/bin/ping -c 3 10.79.0.1");
    let line = format!("ibv_rc_pingpong -c -g {VLAN_GID} -s 65536 -n 100");
    between(lab, [0, 1], At::Tcp(18515), &line, &format!("{line} guest0"));
    let line = "rping -V -C 100 -a 10.79.0.1";
    between(lab, [0, 1], At::Cm, &format!("{line} -s"), &format!("{line} -c"));
    for guest in 0..RXE {
        run(lab, guest, "/bin/ip link del tagged");
    }
    println!("RoCE in a VLAN");
}
