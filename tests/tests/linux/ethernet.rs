//! Two Linux guests on Ethernet HCAs: frames by the network stack, RoCE by rdma-core's programs and perftest.

use crate::guests::{At, census_without_keys, hcas_are_content, pair, remove_drivers, run, run_everywhere};
use crate::ip::none_lost;
use crate::verbs::pingpong;
use rdma_lab::linux::{Kernel, Kind, Lab, Options};
use runner::conditions;
use runner::linux::judge;

/// Indexes of the GIDs that Linux makes of the netdev's IPv4 address.
const ROCE_V1: u8 = 2;
const ROCE_V2: u8 = 3;

/// Loads the drivers and gives the guests 172.16.0.1 and 172.16.0.2.
const UP: &str = "dmesg -c > /dev/null
    modprobe mlx5_core && modprobe mlx5_ib && modprobe rdma_ucm || exit 1
    for wait in $(seq 100); do
        netdev=$(ls /sys/bus/pci/drivers/mlx5_core/*:*/net 2> /dev/null) && break
        sleep 0.1
    done
    ip link set $netdev mtu 9000 && ip link set $netdev up || exit 1
    ip address add 172.16.0.$((GUEST + 1))/24 dev $netdev || exit 1
    for wait in $(seq 300); do
        [ \"$(cat /sys/class/infiniband/mlx5_0/ports/1/gids/3)\" = 0000:0000:0000:0000:0000:ffff:ac10:000$((GUEST + 1)) ] &&
            grep -q ACTIVE /sys/class/infiniband/mlx5_0/ports/1/state && exit 0
        sleep 0.1
    done
    exit 1";

/// Pings with and without fragments, then TCP's checksums and segmentation: a file arrives as it was sent.
fn frames(lab: &mut Lab) {
    none_lost(lab, 1, "172.16.0.1", 50);
    let fragments = run(lab, 0, "ping -c 3 -s 20000 172.16.0.2").text();
    assert!(fragments.contains(" 0% packet loss"), "{fragments}");
    let file = "head -c 8000000 /dev/zero | tr '\\0' x";
    run(lab, 0, &format!("mkdir -p /tmp/www && {file} > /tmp/www/file"));
    let serve = "httpd -f -p 172.16.0.1:8000 -h /tmp/www";
    run(lab, 0, &format!("background server {serve} && listening server 8000"));
    let fetched = run(lab, 1, "wget -q -O - http://172.16.0.1:8000/file | md5sum").text();
    run(lab, 0, "kill $(cat /tmp/server.pid); reap server; true");
    assert_eq!(fetched, run(lab, 0, "md5sum < /tmp/www/file").text());
    println!("8 MB by TCP");
}

/// Messages by GIDs of both versions, each checked by the program, and a connection by RDMA-CM.
fn roce(lab: &mut Lab) {
    for gid in [ROCE_V1, ROCE_V2] {
        for size in [1, 4096, 65_536] {
            pingpong(lab, "ibv_rc_pingpong", &format!("-c -g {gid}"), size);
        }
        pingpong(lab, "ibv_uc_pingpong", &format!("-c -g {gid}"), 65_536);
        pingpong(lab, "ibv_srq_pingpong", &format!("-c -g {gid}"), 4096);
        pingpong(lab, "ibv_ud_pingpong", &format!("-c -g {gid}"), 1024);
    }
    for program in ["ib_write_bw -n 200 -s 65536", "ib_read_bw -n 200 -s 65536", "ib_atomic_lat -n 100"] {
        let line = format!("{program} -F -x {ROCE_V2}");
        pair(lab, At::Tcp(18515), &line, &format!("{line} guest0"));
        println!("{line}");
    }
    pair(lab, At::Cm, "ib_send_lat -R -n 50 -F", "ib_send_lat -R -n 50 -F 172.16.0.1");
}

/// Linux warns that it cannot hand all of tc to the card, which has no tables that ignore levels.
const NO_POST_ACTIONS: &str = "firmware level support is missing";

/// Fails when a kernel has complained, except about what the cards do not have.
fn kernel_is_content(lab: &mut Lab, guest: usize) {
    let log = lab.guest(guest).and_then(|guest| guest.take_kernel_log()).expect("the kernel's log");
    let mut complaints = judge::complaints(&log);
    complaints.retain(|line| !line.contains(NO_POST_ACTIONS));
    assert!(complaints.is_empty(), "guest {guest} complains:\n{}", complaints.join("\n"));
}

fn run_on(kernel: Kernel, card: &str) {
    let kind = Kind { hcas: vec![card.parse().expect("right")], ..kernel.into() };
    let Some(mut lab) = judge::lab_or_skip(Options::new(kind, 2)) else { return };
    println!("Linux {}", lab.version());
    run_everywhere(&mut lab, UP);
    let before = census_without_keys(&lab);
    frames(&mut lab);
    roce(&mut lab);
    assert_eq!(census_without_keys(&lab), before, "objects before and after the programs");
    run_everywhere(&mut lab, "rmmod rdma_ucm rdma_cm");
    remove_drivers(&mut lab);
    (0..2).for_each(|guest| kernel_is_content(&mut lab, guest));
    hcas_are_content(&lab);
    lab.stop().expect("they power off");
}

#[test]
fn linux_6_1_uses_an_ethernet_port() {
    run_on(Kernel::V6_1, "cx-5-en");
}

#[test]
fn the_latest_kernel_uses_an_ethernet_port() {
    if conditions::long() {
        run_on(Kernel::Backports, "cx-6-dx");
    }
}
