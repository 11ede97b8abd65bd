//! `app=rds mode=stress`: what `rds-stress` of rds-tools does, with another unikernel or with the program itself.
//!
//! Each side has a number of tasks, a socket each; every task keeps requests under way to every task of the other side, and answers
//! theirs. With RDMA a request offers memory, which its answer's sender reads or writes before the answer. A TCP connection carries the
//! options to the passive side, and its end ends the run.
//!
//! | module | subject |
//! |---|---|
//! | `options` | what both sides know, and how it goes over the TCP connection |
//! | `switches` | the same as rds-stress's switches |
//! | `message` | the header of each message, and the bytes behind it |
//! | `pairs` | what one task and one of the other side's have under way |
//! | `exchange` | the tasks: their sockets, requests and answers |
//! | `memory` | what is read and written by RDMA |
//! | `control` | the TCP connection |
//! | `stats` | counts, and the columns that are printed |
//! | `run` | the run from the first connection to the average |
//! | `error` | why one ended |

mod control;
mod error;
mod exchange;
mod memory;
mod message;
mod options;
mod pairs;
mod run;
mod stats;
mod switches;

pub use error::StressError;
pub use options::{MAX_SLOTS, MAX_TASKS, Options};
pub use run::{Config, Say, Stress, StressStorage};
pub use stats::{Heading, Row};
pub use switches::BadSwitch;
