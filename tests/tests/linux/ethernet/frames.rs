//! Linux's network stack on an Ethernet HCA.

use crate::guests::{run, run_everywhere};
use crate::ip::none_lost;
use rdma_lab::linux::Lab;

/// Interface of the first HCA, in a shell.
const NETDEV: &str = "$(cat /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0)";

/// A JSON report of iperf3 says that bytes came, and how many datagrams did not.
fn iperf3(lab: &mut Lab, arguments: &str) {
    run(lab, 0, "background server iperf3 -s -1 -p 5201 && listening server 5201");
    let text = run(lab, 1, &format!("iperf3 -c roce0 -p 5201 {arguments}")).text();
    run(lab, 0, "reap server");
    let received = text.lines().find(|line| line.contains("receiver")).unwrap_or_default();
    assert!(received.contains("bits/sec"), "iperf3 {arguments}:\n{text}");
    println!("iperf3 {arguments}: {}", received.trim());
}

/// Counter `name` of `ethtool -S` in guest 0.
fn counter(lab: &mut Lab, name: &str) -> u64 {
    let line = run(lab, 0, &format!("ethtool -S {NETDEV} | grep -w {name}:")).text();
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {line}"))
}

/// Pings by both protocols, also of jumbo frames that may not be fragmented; TCP and UDP, with the data of a file compared.
pub fn stack(lab: &mut Lab) {
    none_lost(lab, 1, "roce0", 50);
    none_lost(lab, 0, "fd78:0::2", 20);
    for address in ["roce1", "fd78:0::3"] {
        let jumbo = run(lab, 0, &format!("/bin/ping -c 3 -M do -s 8900 {address}")).text();
        assert!(jumbo.contains(" 0% packet loss"), "{jumbo}");
    }
    let too_long = lab.run(0, "/bin/ping -c 1 -M do -s 9000 roce1", crate::guests::LIMIT).expect("it ends");
    assert!(!too_long.success(), "more than the MTU: {}", too_long.text());
    let file = "head -c 8000000 /dev/urandom";
    run(lab, 0, &format!("mkdir -p /tmp/www && {file} > /tmp/www/file"));
    run(lab, 0, "background server httpd -f -p 10.78.0.1:8000 -h /tmp/www && listening server 8000");
    let sum = run(lab, 0, "md5sum < /tmp/www/file").text();
    for guest in [1, 2] {
        let fetched = run(lab, guest, "wget -q -O - http://roce0:8000/file | md5sum").text();
        assert_eq!(fetched, sum, "8 MB by TCP to guest {guest}");
    }
    run(lab, 0, "kill $(cat /tmp/server.pid); reap server; true");
    iperf3(lab, "-t 2");
    iperf3(lab, "-t 2 -R");
    iperf3(lab, "-u -b 20M -t 2");
    // All but those of ARP.
    assert!(counter(lab, "rx_csum_none") < 20, "the HCA verifies each checksum");
    assert!(counter(lab, "rx_csum_complete") + counter(lab, "rx_csum_unnecessary") > 1000);
    assert!(counter(lab, "tx_tso_packets") > 0 && counter(lab, "tx_csum_partial") > 0);
    // A frame whose checksum is wrong comes, and the HCA does not vouch for it.
    let errors = "grep ^Udp: /proc/net/snmp | tail -n 1 | cut -d' ' -f 8";
    let before: u64 = run(lab, 0, errors).text().trim().parse().expect("a number");
    run(lab, 2, "wrong_checksum 10.78.0.1");
    let after: u64 = run(lab, 0, errors).text().trim().parse().expect("a number");
    assert_eq!(after - before, 3, "datagrams with wrong checksums");
}

/// Changes settings as an administrator does (VLANs, channels, features, MTU, MAC address, groups), then reloads the driver.
/// Frames pass after each change.
pub fn settings(lab: &mut Lab) {
    for guest in [0, 1] {
        let vlan = format!(
            "modprobe 8021q; ip link add link {NETDEV} name vlan5 type vlan id 5 && ip link set vlan5 up && \
             ip address add 10.79.0.{}/24 dev vlan5",
            guest + 1
        );
        run(lab, guest, &vlan);
    }
    none_lost(lab, 0, "10.79.0.2", 20);
    let set = [
        "ethtool -S DEV > /dev/null && ethtool -k DEV > /dev/null && ethtool -l DEV && ethtool -g DEV",
        "ethtool -L DEV combined 1",
        "ethtool -K DEV rxvlan off txvlan off",
        "ethtool -K DEV rxvlan on txvlan on",
        "ethtool -K DEV rx off tx off",
        "ethtool -K DEV rx on tx on",
        "ip link set DEV mtu 1500",
        "ip link set DEV mtu 4000",
        "ip link set DEV address 02:11:22:33:44:55",
        "ip link set DEV promisc on",
        "ip link set DEV promisc off",
        "/bin/ip link set DEV allmulticast on",
        "/bin/ip link set DEV allmulticast off",
    ];
    for command in set {
        // Some close the port: Linux drops what is sent before it is up again.
        run(lab, 0, &format!("{} && ports-active", command.replace("DEV", NETDEV)));
        // From here: the peer learns a new address by that.
        none_lost(lab, 0, "10.79.0.2", 3);
        none_lost(lab, 0, "roce1", 3);
    }
    // A group of IPv6: all nodes that have joined answer.
    let nodes = run(lab, 1, &format!("/bin/ping -c 3 -i 0.2 ff02::1%{NETDEV}")).text();
    assert!(nodes.contains("3 packets transmitted") && !nodes.contains("100% packet loss"), "{nodes}");
    run_everywhere(lab, "ip link delete vlan5 2> /dev/null; true");
    for guest in [0, 1] {
        let device = "pci/$(basename $(ls -d /sys/bus/pci/drivers/mlx5_core/*:*))";
        run(lab, guest, &format!("devlink dev reload {device} && ethernet-up && ports-active"));
    }
    none_lost(lab, 0, "roce1", 10);
}
