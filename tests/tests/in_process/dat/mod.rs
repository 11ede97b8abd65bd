//! DAT between nodes.

mod batches;
mod fuzz;
mod objects;
mod transfer;
