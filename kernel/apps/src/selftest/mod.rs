//! `app=selftest`: the first hour with a card, in a minute and without a partner. Each step is told with what came of it and how long it
//! took; at the end stands a verdict for each level, and what a level needs that could not be reached.

mod data;
mod halves;
mod layers;
mod report;
mod stage;
mod steps;
mod storage;

pub use layers::layers;
pub use report::{Level, Out, Summary, Verdict};
pub use stage::Stage;
pub use steps::run;
pub use storage::Storage;
