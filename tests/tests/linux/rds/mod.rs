//! Linux with `rds_rdma` and a unikernel on one fabric.

mod library;
mod messages;
mod rdma;
pub mod stress;

use crate::guests::{LIMIT, census_without_keys, hcas_are_content, kernels_are_content, remove_drivers, run};
use hca_model::Census;
use rdma_lab::linux::{Kernel, Lab, Options};
use rdma_lab::qemu::Output;
use rdma_lab::unikernel::{self, Running, Verdict};
use runner::kernel_image;
use runner::linux::judge;
use runner::setup;
use std::path::PathBuf;
use std::time::Instant;

/// Where Linux is, and where the unikernel is.
pub const LINUX: &str = "172.16.0.1";
pub const UNIKERNEL: &str = "172.16.0.9";

/// A unikernel and what it has said.
pub struct Node {
    pub running: Running,
    pub lines: Vec<String>,
}

impl Node {
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
                Err(error) => panic!("{error}; the unikernel printed:\n{}", self.lines.join("\n")),
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
        panic!("the unikernel ended before {start:?}:\n{}", self.lines.join("\n"));
    }

    /// Asks it to end, as a server does only when it is told to.
    pub fn quit(&mut self) {
        self.running.write_line("@quit").expect("it reads");
    }

    /// Its end, with success; all that it said.
    pub fn finish(mut self) -> Vec<String> {
        while self.line().is_some() {}
        let text = self.lines.join("\n");
        let finished = self.running.finish(None).expect("it ends");
        assert_eq!(finished.verdict, Verdict::Success, "{text}");
        assert!(self.lines.iter().any(|line| line == "@done verified=true"), "{text}");
        self.lines
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

/// The line of a program of ours that begins with `start`.
pub fn result<'a>(lines: &'a [String], start: &str) -> &'a str {
    let found = lines.iter().find(|line| line.starts_with(start));
    found.unwrap_or_else(|| panic!("no {start:?} in:\n{}", lines.join("\n")))
}

/// A guest with `rds_rdma` over IP on InfiniBand, room for a unikernel, and its image.
pub struct Ground {
    pub lab: Lab,
    image: PathBuf,
    /// Image of the test partners.
    workload: PathBuf,
    /// Objects in the unikernel's HCA before anything else.
    before: Census,
}

impl Ground {
    /// With programs of ours from the folder `guest`. `None` where there can be none.
    pub fn new(kernel: Kernel, programs: &[&str]) -> Option<Self> {
        Self::with_binaries(kernel, programs, vec![])
    }

    /// And with these programs, which run in any guest.
    pub fn with_binaries(kernel: Kernel, programs: &[&str], binaries: Vec<PathBuf>) -> Option<Self> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("guest");
        let programs = programs.iter().map(|name| folder.join(name)).collect();
        let capture = std::env::var_os("RDS_CAPTURE").map(PathBuf::from);
        let options = Options { spare: 1, programs, binaries, capture, ..Options::new(kernel, 1) };
        let mut lab = judge::lab_or_skip(options)?;
        println!("Linux {}", lab.version());
        setup::rust_targets().expect("the bare-metal target");
        let image = kernel_image::build().expect("the image builds");
        let workload = kernel_image::build_workload().expect("the partners' image builds");
        run(
            &mut lab,
            0,
            &format!(
                "dmesg -c > /dev/null; hcas-up && modprobe ib_ipoib || exit 1\n\
                 ip link set lo up; ip address add {LINUX}/24 dev ib0 && ip link set ib0 up || exit 1\n\
                 for wait in $(seq 300); do [ \"$(cat /sys/class/net/ib0/carrier 2> /dev/null)\" = 1 ] && break; sleep 0.1; done\n\
                 modprobe rds_rdma"
            ),
        );
        let before = census_without_keys(&lab).remove(1);
        Some(Self { lab, image, workload, before })
    }

    /// A unikernel with this command line.
    pub fn unikernel(&self, words: &str) -> Node {
        let mut options = unikernel::Options::new(&format!("{words} ip={UNIKERNEL}/24"));
        options.hcas = vec![self.lab.socket(self.lab.first_spare()).expect("a socket").to_path_buf()];
        let image = if words.contains("program=") { &self.workload } else { &self.image };
        let running = unikernel::start(self.lab.qemu(), image, &options).expect("QEMU starts");
        Node { running, lines: Vec::new() }
    }

    /// Runs a script in the guest, which has to succeed; what it printed.
    pub fn linux(&mut self, script: &str) -> Vec<String> {
        run(&mut self.lab, 0, script).lines
    }

    /// Nothing of any unikernel is left in its HCA.
    pub fn nothing_is_left_of_the_unikernel(&self) {
        assert_eq!(census_without_keys(&self.lab).remove(1), self.before, "left in the unikernel's HCA");
    }

    /// Takes Linux down; neither its kernel nor an HCA may have complained.
    pub fn end(self) {
        self.end_but_for(None);
    }

    /// The same where HCAs were made to refuse something; they tell of that by lines with these words.
    pub fn end_but_for(mut self, refusal: Option<&str>) {
        self.nothing_is_left_of_the_unikernel();
        kernels_are_content(&mut self.lab, 1);
        self.linux("rmmod rds_rdma && rmmod rds && rmmod rdma_cm ib_ipoib");
        remove_drivers(&mut self.lab);
        let guest = self.lab.guest(0).expect("the guest");
        let complaints = judge::complaints(&guest.take_kernel_log().expect("the kernel's log"));
        // Linux tries for ever to reach a unikernel that is gone: an attempt may meet the removal of its device.
        let others = complaints.iter().filter(|line| !line.ends_with("rds_ib_setup_qp failed (-95)"));
        let others: Vec<_> = others.collect();
        assert!(others.is_empty(), "{others:?}");
        match refusal {
            None => hcas_are_content(&self.lab),
            Some(words) => {
                let complaints = self.lab.complaints();
                assert!(complaints.iter().all(|line| line.contains(words)), "{}", complaints.join("\n"));
            }
        }
        self.lab.stop().expect("it powers off");
    }
}
