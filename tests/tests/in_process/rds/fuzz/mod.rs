//! RDS against whatever a peer may send. Every run is a function of a seed, which a failure prints.
//!
//! | variable | meaning |
//! |---|---|
//! | `CI` | 20 seconds instead of 5 |
//! | `MLX5_TESTS_LONG=1` | 10 minutes |
//! | `MLX5_TESTS_SEED=n` | this seed alone |

pub(super) mod honest;
mod hostile;
mod machine;
mod parser;

use harness::seeds::{ci, long};
use std::time::Duration;

/// How long to go on.
fn duration() -> Duration {
    Duration::from_secs(match (long(), ci()) {
        (true, _) => 600,
        (false, true) => 10,
        (false, false) => 5,
    })
}
