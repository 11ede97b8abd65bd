//! A unikernel beside Linux guests, and how one of them and it reach each other.

use crate::guests::{LIMIT, run};
use rdma_lab::linux::{Answer, Lab};
use rdma_lab::qemu::Output;
use rdma_lab::unikernel::{self, Running, Verdict};
use std::path::Path;
use std::time::Instant;

/// A Linux guest and a unikernel that reach each other at these addresses.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub guest: usize,
    pub linux: &'static str,
    pub unikernel: &'static str,
    /// Further words of the unikernel's command line.
    pub words: &'static str,
}

impl Pair {
    /// The first guest, by IP over InfiniBand.
    pub const INFINIBAND: Self = Self { guest: 0, linux: "172.16.0.1", unikernel: "172.16.0.9", words: "" };

    /// Starts the unikernel.
    pub fn start(&self, lab: &Lab, image: &Path, words: &str) -> Node {
        Node::start(lab, image, &format!("{words} ip={} {}", self.unikernel, self.words))
    }

    /// Runs a script in the guest, which has to succeed.
    pub fn run(&self, lab: &mut Lab, script: &str) -> Answer {
        run(lab, self.guest, script)
    }
}

/// A unikernel and what it has said.
pub struct Node {
    running: Running,
    lines: Vec<String>,
}

impl Node {
    /// Starts a unikernel with the first spare HCA.
    pub fn start(lab: &Lab, image: &Path, words: &str) -> Self {
        let mut options = unikernel::Options::new(words);
        options.hcas = vec![lab.socket(lab.first_spare()).expect("a socket").to_path_buf()];
        let running = unikernel::start(lab.qemu(), image, &options).expect("QEMU starts");
        Self { running, lines: Vec::new() }
    }

    fn text(&self) -> String {
        self.lines.join("\n")
    }

    /// The next line; `None` at the end.
    fn line(&mut self) -> Option<String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.running.next_line(deadline) {
                Ok(Some(Output::Console(line))) => {
                    self.lines.push(line.clone());
                    return Some(line);
                }
                Ok(Some(Output::Qemu(line))) => eprintln!("qemu: {line}"),
                Ok(None) => return None,
                Err(error) => panic!("{error}; the unikernel printed:\n{}", self.text()),
            }
        }
    }

    /// The next line that begins with `start`.
    pub fn expect(&mut self, start: &str) -> String {
        while let Some(line) = self.line() {
            if line.starts_with(start) {
                return line;
            }
        }
        panic!("the unikernel ended before {start:?}:\n{}", self.text());
    }

    /// Writes a line to its console.
    pub fn tell(&mut self, line: &str) {
        self.running.write_line(line).expect("it reads");
    }

    /// Ends a server.
    pub fn quit(&mut self) {
        self.tell("@quit");
    }

    /// Its end, and all that it said.
    pub fn end(mut self) -> (Verdict, Vec<String>) {
        while self.line().is_some() {}
        (self.running.finish(None).expect("it ends").verdict, self.lines)
    }

    /// Its end, with success; all that it said.
    pub fn finish(self) -> Vec<String> {
        let (verdict, lines) = self.end();
        let text = lines.join("\n");
        assert_eq!(verdict, Verdict::Success, "{text}");
        assert!(lines.iter().any(|line| line == "@done verified=true"), "{text}");
        lines
    }
}

/// The value behind `key=` in a line.
pub fn word(line: &str, key: &str) -> String {
    let found = line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("no {key}= in {line}")).to_owned()
}

/// The number behind `key=` in a line.
pub fn number(line: &str, key: &str) -> u64 {
    let value = word(line, key);
    value.parse().unwrap_or_else(|_| panic!("{key}={value}"))
}
