//! The commands of the README's doors, as a newcomer types them at the project's root.

use crate::ground::{ground, skip};
use rdma_lab::process::Temporary;
use runner::root;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Returns the commands below a heading of the README. A line that ends with a backslash continues.
fn commands(heading: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join("README.md")).expect("the README");
    let section = text.split("\n## ").find(|section| section.starts_with(heading)).expect(heading);
    let (_, rest) = section.split_once("```").expect("commands");
    let (_, rest) = rest.split_once('\n').expect("commands");
    let (block, _) = rest.split_once("```").expect("their end");
    block.replace("\\\n", " ").lines().map(str::to_owned).collect()
}

fn shell(command: &str) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", command]).current_dir(root()).stdin(Stdio::null());
    shell
}

/// Runs a command to its end and returns its output.
fn run(command: &str) -> String {
    let output = shell(command).output().expect("bash starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {}\n{text}\n{errors}", output.status);
    text
}

/// A command that runs in a terminal of its own, until it is dropped.
struct Terminal(Child);

impl Terminal {
    /// Starts the command and waits for a line of its output that contains `wanted`.
    fn open(command: &str, wanted: &str) -> Self {
        // One process, so that the signal ends the program and not a shell around it.
        let child = shell(&format!("exec {command}")).stdout(Stdio::piped()).spawn().expect("bash starts");
        let mut terminal = Self(child);
        let mut lines =
            BufReader::new(terminal.0.stdout.take().expect("piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains(wanted)), "{command}: no {wanted:?}");
        // Later output has nobody to read it, and must not block the program.
        std::thread::spawn(move || lines.for_each(drop));
        terminal
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

#[test]
fn the_demonstration() {
    if ground().is_none() {
        return skip();
    }
    let commands = commands("Try it");
    let [demo, test] = commands.as_slice() else { panic!("{commands:?}") };
    assert!(test.starts_with("cargo xtask test "), "{test}");
    let output = run(demo);
    let last = output.lines().last().unwrap_or_default();
    assert!(last.starts_with("every byte verified in "), "{output}");
    for operation in ["send_recv", "rds"] {
        let row = |line: &&str| line.starts_with("client") && line.contains(&format!(" {operation} "));
        assert!(output.lines().any(|line| row(&line)), "no {operation}: {output}");
    }
}

#[test]
fn the_template_answers() {
    if ground().is_none() {
        return skip();
    }
    let commands = commands("Write firmware or a unikernel application");
    let [build, guests] = commands.as_slice() else { panic!("{commands:?}") };
    run(build);
    let output = run(guests);
    assert!(output.contains("@echo messages=50 bytes="), "{output}");
    assert!(output.contains("unikernel 0 succeeded"), "{output}");
}

#[test]
fn a_c_program_between_two_processes() {
    let commands = commands("Run C programs");
    let [install, compile, serve, first, second] = commands.as_slice() else { panic!("{commands:?}") };
    run(install);
    run(compile);
    // Several runs of this test may share the machine.
    let folder = Temporary::folder("newcomer").expect("a folder");
    let here = |command: &String| command.replace("/tmp/", &format!("{}/", folder.path().display()));
    let _serve = Terminal::open(&here(serve), "end with Ctrl-C");
    assert!(folder.path().join("b").exists());
    let _first = Terminal::open(&here(first), "ready");
    let output = run(&here(second));
    assert!(output.contains("1000 messages and answers"), "{output}");
}
