//! Throughput of an HCA between two guests, and of virtio-net and `rdma_rxe` between the same guests. The test only reports
//! it, because it depends on the machine's load.

use super::kernel_is_content;
use crate::guests::{At, between, run, run_everywhere};
use rdma_lab::linux::{Kernel, Kind, Lab, Options, Recipe};
use runner::conditions;
use runner::linux::judge;

/// RDMA devices of each guest, with the guests' addresses. The second is rxe on virtio-net.
const DEVICES: [(&str, &str); 2] = [("mlx5_0", "10.78.0"), ("rxe0", "10.78.1")];

/// Measurements by perftest.
const PROGRAMS: [&str; 4] = [
    "ib_write_bw -s 65536 -n 500",
    "ib_read_bw -o 4 -s 65536 -n 500",
    "ib_send_bw -s 65536 -n 500",
    "ib_send_bw -s 1024 -n 1000",
];

/// MiB per second by TCP.
fn tcp(lab: &mut Lab, network: &str) -> f64 {
    run(lab, 0, "background server iperf3 -s -1 -p 5201 && listening server 5201");
    let text = run(lab, 1, &format!("iperf3 -c {network}.1 -p 5201 -t 3 -f M")).text();
    run(lab, 0, "reap server");
    let line = text.lines().find(|line| line.ends_with("receiver")).unwrap_or_else(|| panic!("{text}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "MBytes/sec").unwrap_or_else(|| panic!("{text}"));
    words.get(at - 1).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// MiB per second by RDMA: the average in perftest's table.
fn rdma(lab: &mut Lab, program: &str, device: &str) -> f64 {
    let line = format!("{program} -F -d {device} -x $(roce-gid {device})");
    let [_, client] = between(lab, [0, 1], At::Tcp(18515), &line, &format!("{line} guest0"));
    let text = client.text();
    let table = text.split_once("#bytes").and_then(|(_, table)| table.lines().nth(1));
    let average = table.and_then(|line| line.split_whitespace().nth(3));
    average.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn an_hca_moves_data_beside_virtio_net_and_rxe() {
    if !conditions::long() {
        return;
    }
    let recipe = Recipe::new(Kernel::V6_1).with_packages(["iperf3"]).expect("a name");
    let hcas = vec!["cx-6-dx".parse().expect("a card")];
    let kind = Kind { hcas, rxe: true, ..recipe.into() };
    let Some(mut lab) = judge::lab_or_skip(Options::of(vec![kind.clone(), kind])) else { return };
    println!("Linux {}", lab.version());
    run_everywhere(&mut lab, "hcas-up");
    println!("{:32} {:>10} {:>10}", "MiB/s", "HCA", "virtio-net");
    let mut rows: Vec<(&str, Vec<f64>)> = vec![("TCP", Vec::new())];
    for (_, network) in DEVICES {
        let moved = tcp(&mut lab, network);
        rows[0].1.push(moved);
    }
    for program in PROGRAMS {
        let moved = DEVICES.iter().map(|(device, _)| rdma(&mut lab, program, device)).collect();
        rows.push((program, moved));
    }
    for (what, moved) in &rows {
        println!("{what:32} {:10.1} {:10.1}", moved[0], moved[1]);
        assert!(moved.iter().all(|value| *value > 0.0), "{what}: {moved:?}");
    }
    [0, 1].into_iter().for_each(|guest| kernel_is_content(&mut lab, guest));
    lab.stop().expect("they power off");
}
