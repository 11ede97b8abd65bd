//! What libmlx5 asks of an HCA beyond moving data, by a program of ours: memory windows, invalidation from both sides,
//! atomics, regions registered anew, CQs resized and moderated, events of shared receive queues.

use crate::guests::{census_without_keys, kernels_are_content, remove_drivers, run, run_everywhere};
use rdma_lab::linux::{Kernel, Lab, Options};
use runner::linux::judge;
use std::path::PathBuf;

/// What the program tries although it may not, as the HCA says it: accesses that windows and rights forbid, and a window
/// bound twice.
fn is_asked_for(complaint: &str) -> bool {
    complaint.contains("remote access error")
        || (complaint.contains("UMR of") && complaint.contains("is not free"))
}

fn objects(kernel: Kernel) {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("guest").join("objects.c");
    let options = Options { programs: vec![program], ..Options::new(kernel, 1) };
    let Some(mut lab): Option<Lab> = judge::lab_or_skip(options) else { return };
    println!("Linux {}", lab.version());
    run_everywhere(&mut lab, "dmesg -c > /dev/null; hcas-up");
    let before = census_without_keys(&lab);
    let answer = run(&mut lab, 0, "objects");
    let text = answer.text();
    assert!(text.contains("@done verified=true"), "{text}");
    assert_eq!(text.matches("@step ").count(), 10, "{text}");
    assert_eq!(census_without_keys(&lab), before, "objects before and after the program");
    let complaints = lab.complaints();
    assert!(complaints.iter().any(|complaint| is_asked_for(complaint)), "nothing was refused");
    let others: Vec<_> = complaints.iter().filter(|complaint| !is_asked_for(complaint)).collect();
    assert!(others.is_empty(), "the HCA complains: {others:#?}");
    remove_drivers(&mut lab);
    kernels_are_content(&mut lab, 1);
    lab.stop().expect("it powers off");
}

#[test]
fn linux_6_1_uses_every_object() {
    objects(Kernel::V6_1);
}

#[test]
fn linux_6_12_uses_every_object() {
    if runner::conditions::long() {
        objects(Kernel::V6_12);
    }
}
