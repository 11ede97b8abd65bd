//! `app=rds`: Reliable Datagram Sockets, between unikernels and with Linux's `rds_rdma`.
//!
//! | module | subject |
//! |---|---|
//! | `config`, `storage` | what a node is told, its memory |
//! | `run` | the node: RDS, one of the works below, the end |
//! | `work` | what these have in common |
//! | `report`, `error` | how it went, and why it did not |
//! | `ping` | `mode=ping`: what `rds-ping` does |
//! | `echo` | `mode=echo`: sends back whatever comes |
//! | `hash` | `mode=hash`: messages of all sizes from 8 sockets to 8 sockets, each checked where it arrives, one sum over all |
//! | `pattern` | what those messages hold |
//! | `requester`, `local`, `server`, `cases` | `mode=rdma`: operations on memory that the server offers, with every switch |
//! | `congestion`, `server` | `mode=congestion`: a port that is not read |
//! | `exchange` | what these say to each other |

mod cases;
mod config;
mod congestion;
mod echo;
mod error;
mod exchange;
mod hash;
mod local;
mod pattern;
mod ping;
mod report;
mod requester;
mod run;
mod server;
mod storage;
mod work;

pub use config::{
    Config, ECHO_PORT, EXCHANGE_CLIENT_PORT, EXCHANGE_PORT, Mode, RECEIVER_PORT, SENDER_PORT, SOCKETS,
};
pub use congestion::CongestionReport;
pub use echo::EchoReport;
use error::InCall;
pub use error::{AppError, CongestionFault, RdmaFault};
pub use hash::HashReport;
pub use pattern::{MAX_LEN, Pattern, Sum};
pub use ping::PingReport;
pub use rds_nostd::{Generation, TableKind};
pub use report::{Outcome, Report};
pub use requester::RdmaReport;
pub use run::RdsApp;
pub use server::ServerReport;
pub use storage::Storage;
