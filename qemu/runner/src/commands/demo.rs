//! `demo`: two unikernels that move verified data.

use crate::demo;
use hca_serve::product::options::Argument;
use rdma_lab::Result;
use rdma_lab::command_line::fabric::{self, Accelerator, Fabric};
use rdma_lab::command_line::{Command, Host};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The command.
pub(super) struct Demonstrate {
    report: Option<PathBuf>,
    log: bool,
    divide: u64,
    with_linux: bool,
    limit: u64,
    fabric: Fabric,
    accelerator: Accelerator,
}

impl AsMut<Accelerator> for Demonstrate {
    fn as_mut(&mut self) -> &mut Accelerator {
        &mut self.accelerator
    }
}

impl AsMut<Fabric> for Demonstrate {
    fn as_mut(&mut self) -> &mut Fabric {
        &mut self.fabric
    }
}

impl Default for Demonstrate {
    fn default() -> Self {
        Self {
            report: None,
            log: false,
            divide: 1,
            with_linux: false,
            limit: 600,
            fabric: Fabric::default(),
            accelerator: Accelerator::default(),
        }
    }
}

impl Command for Demonstrate {
    const NAME: &'static str = "demo";
    const ARGUMENTS: &'static str = "[OPTION]...";
    const SUMMARY: &'static str = "two unikernels on two emulated ConnectX-5 HCAs move verified data";

    fn table() -> Vec<Argument<Self>> {
        let mut table = vec![
            Argument::value("--report FILE", "the report as JSON", |demo: &mut Self, value| {
                demo.report = Some(value.path());
                Ok(())
            }),
            Argument::flag("--log", "the unikernels' logs as well", |demo: &mut Self| demo.log = true),
            Argument::value("--divide N", "a Nth of the volume", |demo: &mut Self, value| {
                demo.divide = value.number()?;
                Ok(())
            }),
            Argument::flag(
                "--with-linux",
                "afterwards Linux and a unikernel exchange RDS messages and RDMA (--pcap FILE.linux.pcapng)",
                |demo: &mut Self| demo.with_linux = true,
            ),
            Argument::value("--limit SECONDS", "the whole run at most (600)", |demo: &mut Self, value| {
                demo.limit = value.number()?;
                Ok(())
            }),
            fabric::accelerator(),
        ];
        table.extend(fabric::arguments(
            "what the HCAs are, as in cx-7,command-time=1us..5ms (cx-5); `serve --help` lists all",
        ));
        table
    }

    fn run(self, _: &Host) -> Result<ExitCode> {
        let Fabric { kind, capture, faults, seed, open } = self.fabric;
        let options = demo::Options {
            report: self.report,
            capture,
            kind,
            faults,
            seed,
            open_fabric: open,
            accelerator: self.accelerator.name().to_owned(),
            log: self.log,
            divide: self.divide,
            with_linux: self.with_linux,
            limit: Duration::from_secs(self.limit),
        };
        demo::run(&options)?;
        Ok(ExitCode::SUCCESS)
    }
}
