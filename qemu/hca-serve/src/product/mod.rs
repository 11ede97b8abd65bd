//! The program around the server: its command line, its output, and control while it runs.
//!
//! | module | what |
//! |---|---|
//! | [`command_line`] | the program's options, and its run |
//! | [`options`] | tables of options, which parse them and print their help |
//! | [`control`] | control socket for commands in JSON |
//! | [`report`] | reports in JSON |
//! | [`output`] | output that never blocks its producer |
//! | [`qemu`] | QEMU's arguments for a served HCA |

pub mod command_line;
pub mod control;
pub mod options;
pub mod output;
pub mod qemu;
mod ready;
pub mod report;
