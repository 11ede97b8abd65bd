//! The emulated HCA between guests of which one is hostile.

mod fuzz;
mod guest;
