//! `bench`: instructions, and RDS against Linux's.

use crate::{levels, rds_bench};
use hca_serve::product::options::{Argument, Value};
use rdma_lab::command_line::fabric::{self, Accelerator};
use rdma_lab::command_line::{Command, Host};
use rdma_lab::{Error, Result, accelerator};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Stack,
    Model,
    Rds,
}

/// The command.
pub(super) struct Measure {
    what: What,
    report: Option<PathBuf>,
    rds: rds_bench::Options,
    /// A given option that is for RDS alone.
    of_rds: Option<&'static str>,
    accelerator: Accelerator,
}

impl AsMut<Accelerator> for Measure {
    fn as_mut(&mut self) -> &mut Accelerator {
        &mut self.accelerator
    }
}

impl Measure {
    fn set_rounds(&mut self, value: Value) -> hca_serve::Result<()> {
        self.of_rds = Some("--rounds");
        self.rds.rounds = value.parse::<NonZeroU32>()?.get();
        Ok(())
    }

    fn set_seconds(&mut self, value: Value) -> hca_serve::Result<()> {
        self.of_rds = Some("--seconds");
        self.rds.seconds = value.parse::<NonZeroU32>()?.get();
        Ok(())
    }

    fn set_check(&mut self) {
        self.of_rds = Some("--check");
        self.rds.check = true;
    }

    fn set_rds_stress(&mut self, value: Value) {
        self.of_rds = Some("--rds-stress");
        self.rds.rds_stress = Some(value.path());
    }

    fn set_what(&mut self, value: Value) -> hca_serve::Result<()> {
        let refused = value.clone().refused("give model or rds");
        self.what = match value.text()?.as_str() {
            "model" => What::Model,
            "rds" => What::Rds,
            _ => return Err(refused),
        };
        Ok(())
    }
}

impl Default for Measure {
    fn default() -> Self {
        Self {
            what: What::Stack,
            report: None,
            rds: rds_bench::Options::default(),
            of_rds: None,
            accelerator: Accelerator::default(),
        }
    }
}

impl Command for Measure {
    const NAME: &'static str = "bench";
    const ARGUMENTS: &'static str = "[model | rds] [OPTION]...";
    const SUMMARY: &'static str = "instructions per operation; RDS against Linux's";

    fn table() -> Vec<Argument<Self>> {
        vec![
            Argument::word(
                "WHAT",
                "model: of the emulated HCA in place of driver, DAT and RDS, and its speed against memcpy's; rds: \
                 messages and RDMA from Linux to Linux and from unikernel to unikernel, in turn, and their ratios",
                Self::set_what,
            ),
            Argument::value("--report FILE", "as JSON", |bench: &mut Self, value| {
                bench.report = Some(value.path());
                Ok(())
            }),
            Argument::value("--rounds N", "rds: everything so many times (3)", Self::set_rounds),
            Argument::value("--seconds N", "rds: so long each time (3)", Self::set_seconds),
            Argument::flag(
                "--check",
                "rds: both sides compare all bytes, not headers alone",
                Self::set_check,
            ),
            Argument::value(
                "--rds-stress FILE",
                "rds: rds-stress of rds-tools, linked statically, is measured on Linux, too",
                |bench: &mut Self, value| {
                    bench.set_rds_stress(value);
                    Ok(())
                },
            ),
            fabric::accelerator(),
        ]
    }

    fn run(self, _: &Host) -> Result<ExitCode> {
        let bench = match self.what {
            What::Rds => {
                let accelerator = accelerator::choose(self.accelerator.name())?;
                rds_bench::run(&rds_bench::Options { accelerator, report: self.report, ..self.rds })?;
                return Ok(ExitCode::SUCCESS);
            }
            What::Stack => levels::Bench::Instructions,
            What::Model => levels::Bench::Model,
        };
        // Only measurements of RDS run guests.
        let accelerator = self.accelerator.is_given().then_some("--accel");
        if let Some(option) = self.of_rds.or(accelerator) {
            return Err(Error::Usage(format!("{option} is for `bench rds`")));
        }
        levels::bench(bench, self.report.as_deref())?;
        Ok(ExitCode::SUCCESS)
    }
}
