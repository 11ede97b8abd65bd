//! Layouts and constants of the mlx5 Programmer's Reference Manual (PRM), bit-exact and named as the manual names them.
#![no_std]
#![forbid(unsafe_code)]

mod layout;

pub mod caps;
pub mod cmd;
mod all;
mod code;
pub mod commands;
pub mod contexts;
pub mod datapath;
pub mod event;
pub mod init_seg;
pub mod opcode;
pub mod registers;
pub mod status;
pub mod value;

pub use layout::{Entry, Field, Kind, Layout, Leaf, Part, Path, Tail, plain_name};
pub use all::ALL;
pub use opcode::Opcode;
