//! The pages of `rdma-lab`: their commands, as they stand there, by an installed `rdma-lab` in an
//! empty directory.

use rdma_lab::process::Temporary;
use runner::{conditions, root};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const FOLDER: &str = "qemu/rdma-lab";

/// Returns the commands below the heading `heading` of a page.
fn commands(page: &str, heading: &str) -> String {
    let text = std::fs::read_to_string(root().join(FOLDER).join(page)).expect("the page");
    let section = text
        .split("\n## ")
        .find(|section| section.trim_start_matches("# ").starts_with(heading))
        .expect(heading);
    let (_, rest) = section.split_once("```sh\n").expect("commands");
    rest.split_once("```").expect("their end").0.to_owned()
}

/// Installs `rdma-lab` as the README says, in the profile of the tests. Returns the directory of the
/// program.
fn installed() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        let install = commands("README.md", "rdma-lab");
        let (install, _) = install.split_once('\n').expect("the first command");
        let install = format!("{install} --debug --locked --force --quiet --root '{}'", place.display());
        let status = Command::new("bash").args(["-c", &install]).current_dir(root()).status();
        assert!(status.expect("bash starts").success(), "{install}");
        place.join("bin")
    })
}

/// Runs commands in a directory. Their output has to contain `wanted`.
fn run(commands: &str, folder: &Path, wanted: &[&str]) {
    let mut path = installed().as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", commands])
        .current_dir(folder)
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .expect("bash starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if !conditions::required() && errors.contains("guests need Debian or Ubuntu") {
        return conditions::skip(&format!("no Linux guest on this machine: {errors}"));
    }
    assert!(output.status.success(), "status {}:\n{commands}\n{text}\n{errors}", output.status);
    for words in wanted {
        assert!(text.contains(words), "no `{words}`:\n{commands}\n{text}\n{errors}");
    }
}

/// Runs the commands of a page's section in an empty directory.
fn run_anywhere(page: &str, heading: &str, wanted: &[&str]) {
    run_in_empty_directory(&commands(page, heading), wanted);
}

fn run_in_empty_directory(commands: &str, wanted: &[&str]) {
    let folder = Temporary::folder("page").expect("a folder");
    run(commands, folder.path(), wanted);
    let left = std::fs::read_dir(folder.path()).expect("the folder").count();
    assert_eq!(left, 0, "files are left in the user's directory");
}

#[test]
fn perftest_as_both_readmes_have_it() {
    let (own, root) =
        (commands("README.md", "rdma-lab"), commands("../../README.md", "Test RDMA in your CI"));
    assert_eq!(own, root);
    let (_, commands) = own.split_once('\n').expect("after the installation");
    run_in_empty_directory(commands, &["BW average[MB/sec]", "guest 0: status 0", "guest 1: status 0"]);
}

#[test]
fn perftest_as_the_page_has_it() {
    if conditions::long() {
        run_anywhere("RDMA_IN_CI.md", "perftest", &["BW average[MB/sec]", "guest 1: status 0"]);
    }
}

#[test]
fn a_program_in_rust_as_the_page_has_it() {
    if !conditions::required() && !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return conditions::skip("libibverbs-dev is not installed");
    }
    let commands = commands("RDMA_IN_CI.md", "A program of your own");
    run(&commands, &root().join(FOLDER), &["1000 messages of 4096 bytes sent, answered and compared"]);
}

#[test]
fn roce_as_the_page_has_it() {
    if conditions::long() {
        run_anywhere("RDMA_IN_CI.md", "RoCE", &["BW average[MB/sec]", "guest 1: status 0"]);
    }
}

#[test]
fn nvme_as_the_page_has_it() {
    if conditions::long() {
        run_anywhere("RDMA_IN_CI.md", "NVMe over RDMA", &["what was written is stored"]);
    }
}

#[test]
fn rdma_cores_tests_as_the_page_has_them() {
    if conditions::long() {
        run_anywhere("RDMA_IN_CI.md", "rdma-core's own tests", &["OK (skipped="]);
    }
}
