//! How a run went.

use rds_nostd::Counters;

use super::echo::EchoReport;
use super::ping::PingReport;

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Of [`Mode::Ping`](super::Mode::Ping).
    Ping(PingReport),
    /// Of [`Mode::Echo`](super::Mode::Echo).
    Echo(EchoReport),
}

/// What came of a run: how it went, and what RDS counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it went.
    pub report: Report,
    /// What RDS counted.
    pub counters: Counters,
}
