//! Cards as their owners measured them: dumps of self-tests, and profiles in files.

mod dump;
mod text;

pub use dump::{Dump, Measured};
