//! The page "RDMA in your CI": its commands, as they stand there, in a shell at the project's root.

use runner::cache;
use runner::conditions;
use std::path::Path;
use std::process::{Command, Stdio};

/// The commands below the page's heading `heading`.
fn commands(heading: &str) -> String {
    let page = cache::root().join("qemu/runner/RDMA_IN_CI.md");
    let text = std::fs::read_to_string(page).expect("the page");
    let section = text.split("\n## ").find(|section| section.starts_with(heading)).expect(heading);
    let (_, rest) = section.split_once("```sh\n").expect("commands");
    rest.split_once("```").expect("their end").0.to_owned()
}

/// Runs them; what they print has to contain `wanted`.
fn run(heading: &str, wanted: &[&str]) {
    let commands = commands(heading);
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &commands])
        .current_dir(cache::root())
        .stdin(Stdio::null())
        .output()
        .expect("bash starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if !conditions::required() && errors.contains("guests need Debian or Ubuntu") {
        return conditions::skip(&format!("no Linux guest on this machine: {errors}"));
    }
    assert!(output.status.success(), "{heading} ends with {}:\n{text}\n{errors}", output.status);
    for words in wanted {
        assert!(text.contains(words), "{heading}: no `{words}`:\n{text}\n{errors}");
    }
}

#[test]
fn perftest_as_the_page_has_it() {
    run("perftest", &["BW average[MB/sec]", "guest 0: status 0", "guest 1: status 0"]);
}

#[test]
fn a_program_in_rust_as_the_page_has_it() {
    if !conditions::required() && !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return conditions::skip("libibverbs-dev is not installed");
    }
    run("A program of your own", &["1000 messages of 4096 bytes sent, answered and compared"]);
}

#[test]
fn nvme_as_the_page_has_it() {
    if conditions::long() {
        run("NVMe over RDMA", &["what was written is stored"]);
    }
}

#[test]
fn rdma_cores_tests_as_the_page_has_them() {
    if conditions::long() {
        run("rdma-core's own tests", &["OK (skipped="]);
    }
}
