//! Layouts and constants of the mlx5 Programmer's Reference Manual (PRM), bit-exact and named as the manual names them.
#![no_std]
#![forbid(unsafe_code)]

mod layout;

pub mod caps;
pub mod commands;
pub mod contexts;
pub mod registers;

pub use layout::{Entry, Field, Kind, Layout, Part, Tail};
