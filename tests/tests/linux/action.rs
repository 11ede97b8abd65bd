//! The composite action `.github/actions/rdma-lab`: its steps in a fresh Debian system, which has a
//! Rust toolchain and nothing else.

use rdma_lab::debian;
use rdma_lab::process::Temporary;
use runner::{conditions, root};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ACTION: &str = ".github/actions/rdma-lab";

/// A step with a script.
#[derive(Debug, Default)]
struct Step {
    name: String,
    /// Variables with the input that each is set to.
    variables: Vec<(String, String)>,
    script: String,
}

/// The parts of an action that the test runs.
#[derive(Debug, Default)]
struct Action {
    /// Defaults of the inputs.
    inputs: BTreeMap<String, String>,
    steps: Vec<Step>,
}

impl Action {
    /// Parses the forms of YAML that the file has: keys at fixed depths, and blocks of text.
    fn parse(text: &str) -> Self {
        let mut action = Self::default();
        let (mut input, mut in_block) = (String::new(), false);
        for line in text.lines() {
            let depth = line.len() - line.trim_start().len();
            let word = line.trim();
            let (key, value) = word.split_once(':').unwrap_or((word, ""));
            let value = value.trim().trim_matches('"');
            if in_block && (depth >= 8 || word.is_empty()) {
                let step = action.steps.last_mut().expect("a step");
                let _ = writeln!(step.script, "{}", line.get(8..).unwrap_or_default());
                continue;
            }
            in_block = false;
            match (depth, key) {
                (2, _) if action.steps.is_empty() => input = key.into(),
                (4, "default") => drop(action.inputs.insert(input.clone(), value.into())),
                (4, "- name") => action.steps.push(Step { name: value.into(), ..Step::default() }),
                (6, "run") => in_block = true,
                (8, _) if value.starts_with("${{ inputs.") => {
                    let named = value.trim_start_matches("${{ inputs.").trim_end_matches("}}").trim();
                    let step = action.steps.last_mut().expect("a step");
                    step.variables.push((key.into(), named.into()));
                }
                _ => {}
            }
        }
        action.steps.retain(|step| !step.script.is_empty());
        action
    }
}

#[test]
fn the_action_has_its_parts() {
    let text = std::fs::read_to_string(root().join(ACTION).join("action.yml")).expect("the action");
    let action = Action::parse(&text);
    let names: Vec<&str> = action.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["Install packages", "Install rdma-lab", "Run the script"], "{action:?}");
    assert_eq!(action.inputs.get("guests").map(String::as_str), Some("count=2 vcpus=2"), "{action:?}");
    let [_, _, run] = &action.steps[..] else { panic!("{action:?}") };
    let inputs: Vec<&str> = run.variables.iter().map(|(_, input)| input.as_str()).collect();
    assert_eq!(inputs, ["debian-mirror", "guests", "options", "script"]);
    // bash accepts each script.
    for step in &action.steps {
        let checked = Command::new("bash").args(["-n", "-c", &step.script]).status().expect("bash starts");
        assert!(checked.success(), "{step:?}");
    }
}

/// Returns the directories of the Rust toolchain and of cargo's downloads.
fn toolchain() -> [PathBuf; 2] {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).current_dir(root()).output();
    let sysroot = String::from_utf8(sysroot.expect("rustc starts").stdout).expect("a path");
    let home = PathBuf::from(std::env::var_os("HOME").expect("HOME"));
    let cargo = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    [sysroot.trim().into(), cargo]
}

#[test]
fn the_action_runs_a_script_in_a_fresh_debian_system() {
    if !conditions::long() {
        return;
    }
    if std::fs::metadata("/proc/self").expect("a process").uid() != 0 {
        return conditions::skip("only root can use a Debian system in a directory");
    }
    let folder = Temporary::folder("action").expect("a folder");
    let system = folder.path().join("system");
    let mirror = debian::mirror().expect("a mirror");
    let made = Command::new("mmdebstrap")
        .args(["--quiet", "--variant=apt", "--include=ca-certificates", "bookworm"])
        .arg(&system)
        .arg(&mirror)
        .status();
    assert!(made.expect("mmdebstrap starts").success(), "no Debian system from {mirror}");
    let text = std::fs::read_to_string(root().join(ACTION).join("action.yml")).expect("the action");
    let action = Action::parse(&text);
    let script = "hcas-up || exit 1\n\
                  if [ $GUEST = 0 ]; then background server ib_write_bw -n 100; listening server 18515 && tell ready && reap server\n\
                  else await guest0 ready && ib_write_bw -n 100 guest0; fi";
    let mut whole = String::from("set -e\n");
    for step in &action.steps {
        let _ = writeln!(whole, "echo 'step: {}'", step.name);
        for (name, input) in &step.variables {
            let value = if input == "script" { script } else { &action.inputs[input] };
            let _ = writeln!(whole, "export {name}='{value}'");
        }
        // A shell of its own for each step, as on GitHub.
        let file = format!("step-{}.sh", step.name.replace(' ', "-"));
        std::fs::write(system.join(&file), &step.script).expect("a file");
        let _ = writeln!(whole, "bash --noprofile --norc -eo pipefail /{file}");
    }
    let output = run_in(&system, &whole);
    assert!(output.contains("BW average[MB/sec]") && output.contains("guest 1: status 0"), "{output}");
}

/// Runs a script in a Debian system in a directory, with this machine's toolchain and project.
fn run_in(system: &Path, script: &str) -> String {
    std::fs::write(system.join("all.sh"), script).expect("a file");
    let [sysroot, cargo] = toolchain();
    let binds = [
        (sysroot, "/toolchain"),
        (cargo, "/cargo"),
        // This machine's certificates, so that its network works there, too.
        ("/etc/ssl/certs".into(), "/etc/ssl/certs"),
        (root(), "/project"),
        ("/proc".into(), "/proc"),
        ("/dev".into(), "/dev"),
    ];
    let mut prepare = String::from("set -e\n");
    for (from, to) in &binds {
        let place = format!("'{}{to}'", system.display());
        let _ = writeln!(prepare, "mkdir -p {place} && mount --rbind '{}' {place}", from.display());
        // The toolchain and the project stay as they are, whatever the steps do.
        if ["/toolchain", "/project"].contains(to) {
            let _ = writeln!(prepare, "mount -o remount,bind,ro {place}");
        }
    }
    let _ = writeln!(
        prepare,
        "cp /etc/resolv.conf '{0}/etc/' && exec chroot '{0}' bash /all.sh 2>&1",
        system.display()
    );
    let output = Command::new("unshare")
        .args(["--mount", "bash", "-c", &prepare])
        .env_clear()
        .envs([
            ("PATH", "/toolchain/bin:/user/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ("HOME", "/user"),
            ("CARGO_HOME", "/cargo"),
            ("CARGO_INSTALL_ROOT", "/user"),
            ("CARGO_TARGET_DIR", "/user/target"),
            ("GITHUB_ACTION_PATH", "/project/.github/actions/rdma-lab"),
            ("DEBIAN_FRONTEND", "noninteractive"),
        ])
        .stdin(Stdio::null())
        .output()
        .expect("unshare starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    text
}
