//! RoCE v2 between Ethernet HCAs, and with `rdma_rxe`, an independent implementation.

use super::RXE;
use crate::guests::{At, any_between, between, run};
use rdma_fabric::faults::Faults;
use rdma_lab::linux::{Answer, Lab};

/// Where the programs of rdma-core and perftest listen.
const PORT: u16 = 18515;

/// Runs one of `ibv_*_pingpong`, which checks its messages.
fn pingpong(lab: &mut Lab, guests: [usize; 2], program: &str, gid: &str, size: u64) {
    let line = format!("{program} -c -g {gid} -s {size} -n 100");
    let [server, client] = between(lab, guests, At::Tcp(PORT), &line, &format!("{line} guest{}", guests[0]));
    [&server, &client].into_iter().for_each(|answer| assert_moved(answer, size, &line));
    println!("{guests:?} {line}: {}", client.lines.last().map_or("", String::as_str));
}

fn assert_moved(answer: &Answer, size: u64, line: &str) {
    let (text, moved) = (answer.text(), format!("{} bytes in", size * 200));
    assert!(answer.success() && text.contains(&moved) && !text.contains("invalid data"), "{line}:\n{text}");
}

/// `ibv_rc_pingpong` where frames are lost: the side that ends first may leave the other one without its last acknowledgement.
fn lossy_pingpong(lab: &mut Lab, guests: [usize; 2]) {
    let (line, size) = ("ibv_rc_pingpong -c -g $(roce-gid) -s 65536 -n 100", 65_536);
    let mut answers =
        any_between(lab, guests, At::Tcp(PORT), line, &format!("{line} guest{}", guests[0])).to_vec();
    answers.retain(|answer| !answer.text().contains("transport retry counter exceeded"));
    assert!(!answers.is_empty(), "both sides found nobody");
    answers.iter().for_each(|answer| assert_moved(answer, size, line));
    println!("{guests:?} with loss: {}", answers[0].lines.last().map_or("", String::as_str));
}

/// A program of perftest, addressed over TCP. Its usual limit for an acknowledgement, 67 ms, is short for a guest on a busy
/// machine.
fn perftest(lab: &mut Lab, guests: [usize; 2], line: &str) {
    let line = format!("{line} -u 17 -F -x $(roce-gid)");
    between(lab, guests, At::Tcp(PORT), &line, &format!("{line} guest{}", guests[0]));
    println!("{guests:?} {line}");
}

/// Connections by RDMA-CM.
fn by_cm(lab: &mut Lab, guests: [usize; 2]) {
    let to = format!("roce{}", guests[0]);
    let line = format!("rping -V -C 100 -a 10.78.0.{}", guests[0] + 1);
    between(lab, guests, At::Cm, &format!("{line} -s"), &format!("{line} -c"));
    let line = format!("rping -V -C 100 -a fd78:0::{}", guests[0] + 1);
    between(lab, guests, At::Cm, &format!("{line} -s"), &format!("{line} -c"));
    let line = "ib_send_lat -R -n 50 -F";
    between(lab, guests, At::Cm, line, &format!("{line} {to}"));
    println!("{guests:?} RDMA-CM");
}

/// Datagrams to a group, which the server has joined once IGMP says so. Linux has RoCE v2 multicast for IPv4 only.
fn multicast(lab: &mut Lab, [server, client]: [usize; 2]) {
    let mckey = |guest: usize| format!("timeout 60 mckey -m 239.1.2.3 -C 10 -b 10.78.0.{}", guest + 1);
    run(lab, server, &format!("background server {}", mckey(server)));
    run(
        lab,
        server,
        "for wait in $(seq 100); do grep -q 030201EF /proc/net/igmp && exit 0; sleep 0.1; done; exit 1",
    );
    let sent = run(lab, client, &format!("{} -s", mckey(client))).text();
    let received = run(lab, server, "reap server").text();
    for text in [sent, received] {
        assert!(text.contains("data transfers complete") && text.contains("return status 0"), "{text}");
    }
    println!("{:?} multicast", [server, client]);
}

/// Messages of all services by RoCE v2 on IPv4 and IPv6, and by RoCE v1.
pub fn between_hcas(lab: &mut Lab) {
    let guests = [0, 1];
    for gid in ["$(roce-gid mlx5_0 4)", "$(roce-gid mlx5_0 6)", "0"] {
        for size in [1, 4096, 65_536] {
            pingpong(lab, guests, "ibv_rc_pingpong", gid, size);
        }
        pingpong(lab, guests, "ibv_uc_pingpong", gid, 65_536);
        pingpong(lab, guests, "ibv_srq_pingpong", gid, 4096);
        // This one only says whether all of it succeeded.
        let line = format!("ibv_xsrq_pingpong -m 1024 -g {gid} -s 4096 -n 100");
        for answer in between(lab, guests, At::Tcp(PORT), &line, &format!("{line} guest0")) {
            assert_eq!(
                answer.lines.last().map(String::as_str),
                Some("success"),
                "{line}:\n{}",
                answer.text()
            );
        }
        pingpong(lab, guests, "ibv_ud_pingpong", gid, 1024);
    }
    for line in ["ib_write_bw -n 200 -s 65536", "ib_read_bw -n 200 -s 65536", "ib_atomic_lat -n 100"] {
        perftest(lab, guests, line);
    }
    by_cm(lab, guests);
    multicast(lab, guests);
}

/// The same programs with rxe at one end, in both roles; then again on a network that loses frames.
pub fn with_rxe(lab: &mut Lab, long: bool) {
    for guests in [[0, RXE], [RXE, 0]] {
        for (program, size) in [
            ("ibv_rc_pingpong", 65_536),
            ("ibv_uc_pingpong", 4096),
            ("ibv_srq_pingpong", 4096),
            ("ibv_ud_pingpong", 1024),
        ] {
            pingpong(lab, guests, program, "$(roce-gid)", size);
        }
        for line in
            ["ib_write_bw -n 200 -s 65536", "ib_read_bw -o 4 -n 200 -s 65536", "ib_send_bw -n 200 -s 65536"]
        {
            perftest(lab, guests, line);
        }
        // Both ends have to agree on outstanding operations.
        perftest(lab, guests, "ib_atomic_lat -n 100 -o 4");
        by_cm(lab, guests);
        multicast(lab, guests);
    }
    let seeds = if long { 1..=5 } else { 1..=1 };
    for seed in seeds {
        let faults: Faults = "loss=1%".parse().expect("a fault");
        lab.served().set_faults(faults, seed).expect("the server runs");
        for guests in [[0, RXE], [RXE, 0]] {
            lossy_pingpong(lab, guests);
            perftest(lab, guests, "ib_write_bw -n 100 -s 65536");
            perftest(lab, guests, "ib_read_bw -o 4 -n 100 -s 65536");
        }
    }
    lab.served().set_faults(Faults::default(), 1).expect("the server runs");
}

/// Frames in a queue from which number on the switch marks further ones.
const DEPTH: u32 = 8;

/// A counter of RDMA over Ethernet in a guest with an HCA.
fn hw_counter(lab: &mut Lab, guest: usize, name: &str) -> u64 {
    let path = format!("/sys/class/infiniband/mlx5_0/ports/1/hw_counters/{name}");
    let text = run(lab, guest, &format!("cat {path}")).text();
    text.trim().parse().unwrap_or_else(|_| panic!("{path}: {text}"))
}

/// Marks that HCA 0 received, notifications that it sent, notifications that HCA 1 took; marks of the switch.
fn marks(lab: &mut Lab) -> [u64; 4] {
    let by_switch = lab.served().with_world(|world, _| world.medium.switch().switch_counters().marked);
    [
        hw_counter(lab, 0, "np_ecn_marked_roce_packets"),
        hw_counter(lab, 0, "np_cnp_sent"),
        hw_counter(lab, 1, "rp_cnp_handled"),
        by_switch.expect("the server runs"),
    ]
}

/// Bursts fill the queue to a port: the switch marks packets that support it, the receiver notifies their sender. A
/// notification to rxe ends at the switch: rxe's kernel would complain of it in its log, which is checked at the end.
pub fn congestion(lab: &mut Lab) {
    let set = |lab: &Lab, spec: &str| {
        lab.served().set_faults(spec.parse().expect("a fault"), 1).expect("the server runs");
    };
    let line = "ib_write_bw -n 500 -s 65536";
    // Queues that never are so long.
    set(lab, "ecn=1000000");
    let before = marks(lab);
    perftest(lab, [0, 1], line);
    assert_eq!(marks(lab), before, "without congestion");
    set(lab, &format!("ecn={DEPTH}"));
    perftest(lab, [0, 1], line);
    let after = marks(lab);
    let [marked, sent, handled, by_switch] = std::array::from_fn(|i| after[i] - before[i]);
    println!("{by_switch} marks, {marked} at the receiver, {sent} notifications sent, {handled} taken");
    assert!(marked > 0 && sent > 0 && sent <= marked, "{marked} marks, {sent} notifications");
    // Acknowledgements in a long queue are marked, too.
    assert!(marked <= by_switch && handled == sent, "{by_switch} marks by the switch, {handled} taken");
    // rxe sends packets that do not support marks, then some that do.
    for (options, is_capable) in [("", false), (" --tclass=2", true)] {
        let before = marks(lab);
        perftest(lab, [0, RXE], &format!("{line}{options}"));
        let after = marks(lab);
        let [marked, sent, _, _] = std::array::from_fn(|i| after[i] - before[i]);
        println!("from rxe{options}: {marked} marks, {sent} notifications");
        assert_eq!((marked > 0, sent > 0), (is_capable, is_capable), "from rxe{options}");
    }
    set(lab, "none");
}
