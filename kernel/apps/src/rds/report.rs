//! How a run went.

use rds_nostd::Counters;

use super::congestion::CongestionReport;
use super::echo::EchoReport;
use super::hash::HashReport;
use super::ping::PingReport;
use super::requester::RdmaReport;
use super::server::ServerReport;

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Of [`Mode::Ping`](super::Mode::Ping).
    Ping(PingReport),
    /// Of [`Mode::Echo`](super::Mode::Echo).
    Echo(EchoReport),
    /// Of [`Mode::Hash`](super::Mode::Hash).
    Hash(HashReport),
    /// Of [`Mode::Serve`](super::Mode::Serve).
    Serve(ServerReport),
    /// Of [`Mode::Rdma`](super::Mode::Rdma).
    Rdma(RdmaReport),
    /// Of [`Mode::Congestion`](super::Mode::Congestion).
    Congestion(CongestionReport),
}

/// What came of a run: how it went, and what RDS counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it went.
    pub report: Report,
    /// What RDS counted.
    pub counters: Counters,
}
