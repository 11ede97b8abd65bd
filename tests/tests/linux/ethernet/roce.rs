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

/// A program of perftest, addressed over TCP.
fn perftest(lab: &mut Lab, guests: [usize; 2], line: &str) {
    let line = format!("{line} -F -x $(roce-gid)");
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
