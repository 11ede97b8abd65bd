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

mod config;
mod echo;
mod error;
mod ping;
mod report;
mod run;
mod storage;
mod work;

pub use config::{Config, ECHO_PORT, MAX_LEN, Mode, SOCKETS, Settings};
pub use echo::EchoReport;
pub use error::{AppError, InCall};
pub use ping::PingReport;
pub use rds_nostd::{Generation, TableKind};
pub use report::{Outcome, Report};
pub use run::{ModeWork, Node, RdsApp};
pub use storage::Storage;
pub use work::{Work, bind_all, close, receive, send, stop};
