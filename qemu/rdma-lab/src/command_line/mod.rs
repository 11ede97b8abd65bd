//! Commands: a program is a list of them. Each has a table that parses its options and prints their
//! help.
//!
//! | module | what |
//! |---|---|
//! | `command` | the frame: trait, list, help, errors |
//! | `guests`, `boot`, `iso` | the commands |
//! | [`fabric`] | options of the fabric, for every command that has one |

mod boot;
mod command;
pub mod fabric;
mod guests;
mod iso;

pub use command::{Command, Entry, Host, OwnImage, Section, main};

/// Returns the commands of `rdma-lab`, which other programs have, too.
#[must_use]
pub fn for_users() -> Vec<Entry> {
    let summary = "emulated HCAs on one fabric, for any QEMU";
    let serve = Entry::program("serve", summary, hca_serve::product::command_line::main);
    vec![Entry::of::<guests::Guests>(), serve, Entry::of::<boot::Boot>(), Entry::of::<iso::Iso>()]
}
