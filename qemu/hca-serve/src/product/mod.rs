//! What makes the server a program to work with: its command line, what it tells, and how it is told things while it runs.
//!
//! | module | what |
//! |---|---|
//! | [`command_line`] | options, and the program from its start to its end |
//! | [`control`] | a socket that takes commands, one line of JSON each |
//! | [`report`] | what happened, as JSON |
//! | [`output`] | output that never holds up who makes it |
//! | [`qemu`] | QEMU's arguments for a served HCA |

pub mod command_line;
pub mod control;
pub mod output;
pub mod qemu;
mod ready;
pub mod report;
