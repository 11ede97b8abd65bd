//! Programs of others move data between two Linux guests of two processors each: perftest, qperf, UCX, NVMe over RDMA; tools ask
//! the HCA what it is; it is taken away while a program uses it. All on one pair of guests, one after the other, on the kernel of
//! Debian 12. With `--long` also on 6.12 and on the latest that Debian has for its stable release, where tools run, too.
//!
//! After each part the HCAs hold what they held before; at the end the kernels have no complaint, and nothing is left.

pub mod nvme;
pub mod perftest;
mod qperf;
mod removal;
mod tools;
pub mod ucx;

use crate::guests::{
    At, LIMIT, any_between, both, census_without_keys, kernels_are_content, nothing_is_left, run_everywhere,
};
use crate::ip::{ip_up, resources};
use hca_model::Census;
use rdma_lab::linux::{Answer, Kernel, Kind, Lab, Options};
use runner::conditions;
use runner::linux::judge;
use std::time::{Duration, Instant};

/// Two guests, and what became of each program.
struct Ground {
    lab: Lab,
    began: Instant,
    failures: Vec<String>,
    /// Objects in the HCAs, and what the kernels hold, before anything else.
    before: (Vec<Census>, Vec<String>),
}

impl Ground {
    /// `None` where there can be none. The guests' HCAs are of the kind `hca`.
    fn new(kernel: Kernel, hca: &str) -> Option<Self> {
        let hcas = vec![hca.parse().expect("right")];
        let kind = Kind { cpus: 2, hcas, ..judge::programs(kernel).expect("names").into() };
        let mut lab = judge::lab_or_skip(Options { strict: STRICT, ..Options::new(kind, 2) })?;
        println!("Linux {}", lab.version());
        ip_up(&mut lab);
        let before = (census_without_keys(&lab), resources(&mut lab, 2));
        Some(Self { lab, began: Instant::now(), failures: Vec::new(), before })
    }

    /// A program in guest 0, and its client in guest 1: both have to succeed, and `verify` looks at what they printed.
    fn pair(&mut self, at: At, server: &str, client: &str, verify: impl Fn(&str) -> bool) {
        let answers = any_between(&mut self.lab, [0, 1], at, server, client);
        let good = answers.iter().all(|answer| answer.success() && verify(&answer.text()));
        let [_, Answer { time, .. }] = &answers;
        self.report(client, *time, good, || both(server, client, &answers));
    }

    fn try_in(&mut self, guest: usize, script: &str) -> Answer {
        self.lab.run(guest, script, LIMIT).unwrap_or_else(|error| panic!("`{script}`: {error}"))
    }

    fn report(&mut self, what: &str, time: Duration, good: bool, text: impl FnOnce() -> String) {
        println!("{}: {what}, {:.1} s", if good { "right" } else { "WRONG" }, time.as_secs_f64());
        if !good {
            self.failures.push(text());
        }
    }

    /// Runs a part, all of which has to succeed.
    fn run(&mut self, name: &str, part: impl FnOnce(&mut Self)) {
        let began = Instant::now();
        part(self);
        println!("{name}: {:.1} s", began.elapsed().as_secs_f64());
        assert!(self.failures.is_empty(), "{}\n{:#?}", self.failures.join("\n\n"), self.lab.complaints());
    }

    /// Runs a part; afterwards nobody may hold more than before.
    fn part(&mut self, name: &str, part: impl FnOnce(&mut Self)) {
        self.run(name, part);
        assert_eq!(
            census_without_keys(&self.lab),
            self.before.0,
            "objects in the HCAs before and after: {name}"
        );
        assert_eq!(resources(&mut self.lab, 2), self.before.1, "what kernels hold before and after: {name}");
        kernels_are_content(&mut self.lab, 2);
    }

    /// The drivers go, and nothing is left.
    fn end(mut self) {
        run_everywhere(&mut self.lab, "rmmod rdma_ucm rdma_cm ib_ipoib; rmmod mlx5_ib && rmmod mlx5_core");
        nothing_is_left(&self.lab);
        kernels_are_content(&mut self.lab, 2);
        println!("all programs: {:.1} s", self.began.elapsed().as_secs_f64());
        self.lab.stop().expect("they power off");
    }
}

/// Programs in user space name their memory in fields that firmware does not look at.
const STRICT: bool = false;

fn programs_of_others(kernel: Kernel) {
    let Some(mut ground) = Ground::new(kernel, "cx-5") else { return };
    let long = conditions::long();
    if kernel == Kernel::Backports {
        ground.part("tools", tools::run);
    }
    ground.part("UCX", |ground| ucx::run(ground, kernel, long));
    ground.part("qperf", |ground| qperf::run(ground, long));
    ground.part("perftest", |ground| perftest::run(ground, long));
    // The last: of the completion queues that kernel users share, the kernel keeps those that it made.
    ground.run("NVMe over RDMA", nvme::run);
    ground.run("removal", removal::run);
    ground.end();
}

#[test]
fn programs_of_others_run_on_linux_6_1() {
    programs_of_others(Kernel::V6_1);
}

#[test]
fn programs_of_others_run_on_the_latest_kernel() {
    // One kernel judges them in CI: a second takes minutes and has always agreed.
    if conditions::long() {
        programs_of_others(Kernel::Backports);
    }
}

#[test]
fn programs_of_others_run_on_linux_6_12() {
    if conditions::long() {
        programs_of_others(Kernel::V6_12);
    }
}

/// perftest on HCAs that forgive no mistake: the kernels make none.
fn perftest_on_adversarial_cards(kernel: Kernel) {
    let Some(mut ground) = Ground::new(kernel, "cx-5,adversarial") else { return };
    ground.part("perftest, adversarial", |ground| perftest::run(ground, conditions::long()));
    ground.end();
}

#[test]
fn perftest_runs_on_adversarial_cards_and_linux_6_1() {
    perftest_on_adversarial_cards(Kernel::V6_1);
}

#[test]
fn perftest_runs_on_adversarial_cards_and_the_latest_kernel() {
    if conditions::long() {
        perftest_on_adversarial_cards(Kernel::Backports);
    }
}
