//! Measurements of two Linux guests and of two unikernels.

use super::pattern::{DEPTH, Pattern};
use super::table::Rates;
use super::{Options, RDS_STRESS};
use rdma_lab::error::{Error, Result};
use rdma_lab::linux::Lab;
use rdma_lab::setup::Qemu;
use rdma_lab::unikernel::{self, Running, Verdict};
use std::path::Path;
use std::time::Duration;

/// Addresses of the passive and of the active guest of a run.
const LINUX: [&str; 2] = ["172.16.0.1", "172.16.0.2"];
const UNIKERNELS: [&str; 2] = ["172.16.0.9", "172.16.0.10"];
/// Time limit of a run in addition to its measured time.
const LIMIT: Duration = Duration::from_secs(90);

fn limit(options: &Options) -> Duration {
    LIMIT + Duration::from_secs(options.seconds.into())
}

/// Returns a run's switches for rds-stress.
fn switches(Pattern { request, rdma, .. }: &Pattern, options: &Options) -> Vec<String> {
    let mut switches =
        vec![format!("-q{request}"), format!("-d{DEPTH}"), format!("-T{}", options.seconds), "-z".into()];
    if *rdma > 0 {
        switches.push(format!("-D{rdma}"));
    }
    if options.check {
        switches.push("-v".into());
    }
    switches
}

/// The two Linux guests.
pub struct Linux;

impl Linux {
    /// Sets up IP over InfiniBand, RDS above it, and socket buffers of the size that the program
    /// requests.
    pub fn set_up(lab: &mut Lab) -> Result<()> {
        for (guest, address) in LINUX.iter().enumerate() {
            let script = format!(
                "hcas-up && modprobe ib_ipoib || exit 1\n\
                 ip link set lo up; ip address add {address}/24 dev ib0 && ip link set ib0 up || exit 1\n\
                 for wait in $(seq 300); do [ \"$(cat /sys/class/net/ib0/carrier)\" = 1 ] && break; sleep 0.1; done\n\
                 echo 4194304 > /proc/sys/net/core/wmem_max; echo 4194304 > /proc/sys/net/core/rmem_max\n\
                 modprobe rds_rdma"
            );
            lab.succeed(guest, &script, LIMIT)?;
        }
        Ok(())
    }

    /// Runs a measurement. Returns the rates of the active side.
    pub fn run(lab: &mut Lab, pattern: &Pattern, options: &Options) -> Result<Rates> {
        let ([passive, active], limit) = (LINUX, limit(options));
        lab.succeed(0, &format!("background load rds_load serve {passive}\nlistening load 4000"), limit)?;
        let Pattern { request, rdma, .. } = pattern;
        let (seconds, check) = (options.seconds, u8::from(options.check));
        let asked = format!("rds_load run {active} {passive} {seconds} {DEPTH} {request} {rdma} {check}");
        let lines = lab.succeed(1, &asked, limit)?;
        lab.succeed(0, "reap load", limit)?;
        Rates::of_program(&lines)
    }

    /// Runs a measurement with rds-stress itself.
    pub fn run_rds_stress(lab: &mut Lab, pattern: &Pattern, options: &Options) -> Result<Rates> {
        let ([passive, active], limit) = (LINUX, limit(options));
        let served = format!(
            "background stress {RDS_STRESS} -r {passive}\n\
             listening stress says 'waiting for incoming'"
        );
        lab.succeed(0, &served, limit)?;
        let switches = switches(pattern, options).join(" ");
        let lines = lab.succeed(1, &format!("{RDS_STRESS} -r {active} -s {passive} {switches}"), limit)?;
        lab.succeed(0, "reap stress", limit)?;
        Rates::of_columns(&lines)
    }
}

/// Environment of the two unikernels.
pub struct Unikernels<'a> {
    pub qemu: &'a Qemu,
    pub image: &'a Path,
    pub lab: &'a Lab,
}

impl Unikernels<'_> {
    /// Runs a measurement. Returns the rates of the active side.
    pub fn run(&self, pattern: &Pattern, options: &Options) -> Result<Rates> {
        let ([passive, active], limit) = (UNIKERNELS, limit(options));
        let (mut lines, mut passive_lines) = (Vec::new(), Vec::new());
        let mut taking = self.start(0, &format!("ip={passive}/24"), options)?;
        taking.follow(&mut passive_lines, Some("waiting for incoming"), limit)?;
        let switches = switches(pattern, options).join(",");
        let mut asking =
            self.start(1, &format!("ip={active}/24 to={passive} switches={switches}"), options)?;
        asking.follow(&mut lines, None, limit)?;
        taking.follow(&mut passive_lines, None, limit)?;
        for (running, lines) in [(asking, &lines), (taking, &passive_lines)] {
            let verdict = running.finish(None)?.verdict;
            if verdict != Verdict::Success {
                let reason = lines.iter().find_map(|line| line.strip_prefix("error: "));
                let reason = reason.unwrap_or("it says nothing");
                return Err(Error::Guest(format!("{}: a unikernel {verdict}: {reason}", pattern.name)));
            }
        }
        Rates::of_columns(&lines)
    }

    fn start(&self, number: usize, words: &str, options: &Options) -> Result<Running> {
        let mut machine = unikernel::Options::new(&format!("app=rds mode=stress {words}"));
        machine.hcas = vec![self.lab.socket(self.lab.first_spare() + number)?.to_path_buf()];
        machine.accelerator.clone_from(&options.accelerator);
        unikernel::start(self.qemu, self.image, &machine)
    }
}
