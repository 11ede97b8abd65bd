//! A Linux guest and a unikernel, each with an emulated HCA on one fabric, move data by messages, writes, reads and atomics,
//! each as server and as client.

use crate::guests::{LIMIT, census_without_keys, hcas_are_content, kernels_are_content, remove_drivers, run};
use crate::node::{Node, word};
use ib_types::Gid;
use rdma_lab::linux::{Kernel, Lab, Options};
use rdma_lab::unikernel::Verdict;
use runner::kernel_image;
use runner::linux::judge;
use runner::setup;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use workload::verbs::{PROGRAM, Step};

fn all_verified(who: &str, lines: &[String]) {
    let text = lines.join("\n");
    for Step { op, count } in PROGRAM {
        let start = format!("@result op={} ", op.name());
        let line = lines.iter().find(|line| line.starts_with(&start));
        let line = line.unwrap_or_else(|| panic!("{who} does not print {start:?}:\n{text}"));
        let word = format!("verified={count}");
        assert!(line.split_whitespace().any(|found| found == word), "{who}: {line}");
    }
    assert!(lines.iter().any(|line| line == "@done verified=true"), "{who}:\n{text}");
}

/// Returns a command that gives Linux the MAC address of a link-local GID, because a bare driver does not answer neighbour
/// discovery. Empty on InfiniBand.
fn neighbour(values: &str) -> String {
    let gid = word(values, "gid").parse::<Ipv6Addr>().expect("a GID");
    let Some(mac) = Gid(gid.octets()).link_local_mac().filter(|_| word(values, "lid") == "0") else {
        return String::new();
    };
    let device = "$(cat $(ls -d /sys/class/infiniband/*)/ports/1/gid_attrs/ndevs/0)";
    format!("/bin/ip -6 neigh replace {gid} lladdr {mac} dev {device} nud permanent || exit 1\n")
}

/// A unikernel on the first spare HCA and a guest move data by all operations.
pub fn exchange(lab: &mut Lab, image: &Path, guest: usize, role: &str) {
    let other = if role == "server" { "client" } else { "server" };
    let mut unikernel = Node::start(lab, image, &format!("program=verbs role={role}"));
    let values = unikernel.expect("@verbs ").split_off("@verbs ".len());
    let begin = format!(
        "{}background verbs verbs {other} {values}\n\
         listening verbs says '@verbs '",
        neighbour(&values)
    );
    let own = run(lab, guest, &begin).lines;
    let own = own.iter().find_map(|line| line.strip_prefix("@verbs ")).expect("its values");
    unikernel.tell(&format!("@peer {own}"));
    let answer = lab.run(guest, "reap verbs", LIMIT).expect("it ends");
    let (verdict, lines) = unikernel.end();
    let both = format!("Linux:\n{}\nunikernel:\n{}", answer.text(), lines.join("\n"));
    assert!(answer.success(), "status {}\n{both}", answer.status);
    assert_eq!(verdict, Verdict::Success, "{both}");
    all_verified("Linux", &answer.lines);
    all_verified("the unikernel", &lines);
    println!("unikernel as {role}: {:.1} s", answer.time.as_secs_f64());
}

fn meet(kernel: Kernel) {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("guest/verbs.c");
    let options = Options { spare: 1, programs: vec![program], ..Options::new(kernel, 1) };
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    println!("Linux {}", lab.version());
    setup::rust_targets().expect("the bare-metal target");
    let image = kernel_image::build_workload().expect("the image builds");
    run(&mut lab, 0, "dmesg -c > /dev/null; hcas-up");
    let before = census_without_keys(&lab);
    for role in ["server", "client"] {
        exchange(&mut lab, &image, 0, role);
        assert_eq!(census_without_keys(&lab), before, "objects before and after the exchange");
    }
    remove_drivers(&mut lab);
    kernels_are_content(&mut lab, 1);
    hcas_are_content(&lab);
    lab.stop().expect("it powers off");
}

#[test]
fn linux_and_a_unikernel_move_data_both_ways() {
    for kernel in judge::kernels() {
        meet(*kernel);
    }
}
