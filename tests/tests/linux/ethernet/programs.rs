//! Programs of others over RoCE: UCX, NVMe over RDMA, AF_RDS, and RoCE in a VLAN.

use super::RXE;
use crate::guests::{At, any_between, between, both, run, run_everywhere};
use crate::programs::{nvme, ucx};
use rdma_lab::linux::{Kernel, Lab};

/// MiB of a disk that are written and compared.
const MIB: u32 = 64;

/// UCX's own measurements, by each of its transports.
pub fn measurements(lab: &mut Lab, kernel: Kernel, long: bool) {
    for line in ucx::lines(kernel, long) {
        let client = format!("{line} guest0");
        let answers = any_between(lab, [0, 1], At::Tcp(ucx::PORT), &line, &client);
        let good = answers.iter().all(|answer| answer.success() && !answer.text().contains("ERROR"));
        assert!(good, "{}\n{:#?}", both(&line, &client, &answers), lab.complaints());
        println!("{line}");
    }
}

/// NVMe between two HCAs, and with rxe as initiator and as target.
pub fn disks(lab: &mut Lab) {
    for guests in [[0, 1], [0, RXE], [RXE, 0]] {
        let address = format!("10.78.0.{}", guests[0] + 1);
        nvme::exchange(lab, guests, &address, MIB).unwrap_or_else(|text| panic!("{guests:?}: {text}"));
        println!("{guests:?} NVMe, {MIB} MiB");
    }
}

/// RDMA by cookie and congestion between two kernels' AF_RDS.
pub fn rds(lab: &mut Lab) {
    for guest in 0..RXE {
        run(lab, guest, "modprobe rds_rdma");
    }
    for script in ["rdma", "congestion"] {
        run(lab, 0, "background server timeout 100 rds_rdma server 10.78.0.1 && sleep 1");
        let client = run(lab, 1, &format!("timeout 100 rds_rdma {script} 10.78.0.2 10.78.0.1 2")).text();
        let server = run(lab, 0, "reap server").text();
        assert!(server.contains("wrong=0"), "{server}");
        assert!(client.contains(&format!("@{script} ")), "{client}");
        println!("AF_RDS {script}: {client}");
    }
    run_everywhere(lab, "! lsmod | grep -q ^rds_rdma || { rmmod rds_rdma && rmmod rds; }");
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
