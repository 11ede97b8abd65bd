//! DAT under random use. Every run is a function of a seed, which a failure prints.
//!
//! | variable | meaning |
//! |---|---|
//! | `CI` | 500 seeds of random calls instead of 100 |
//! | `MLX5_TESTS_LONG=1` | full lengths: 10 minutes of random calls, 1000 seeds of faults instead of 100 |
//! | `MLX5_TESTS_SEED=n` | this seed alone |

mod calls;
mod faults;
mod model;
