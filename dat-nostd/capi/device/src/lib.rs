//! What the C libraries have in common: an HCA that is opened by name, behind a lock, with a thread that moves it on.
//!
//! | module | subject |
//! |---|---|
//! | `target`, [`conf`] | names, `dat.conf`, and the devices that they stand for |
//! | [`device`] | opening one |
//! | `lock` | its lock, which tools for threads can see |
//! | `lent` | its tables |
//! | `thread` | its thread |
//! | `parked` | threads of the program's that wait |
//! | `cancel` | where those threads may be cancelled |
//! | `end` | what a child process has of all that, and what is done when the process ends |
//! | `debug` | what the environment asks of a library |
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod cancel;
pub mod conf;
mod debug;
#[allow(unsafe_code)]
pub mod device;
#[allow(unsafe_code)]
mod end;
#[allow(unsafe_code)]
mod lent;
#[allow(unsafe_code)]
mod lock;
mod parked;
mod target;
#[allow(unsafe_code)]
mod thread;

pub use cancel::{Cancellation, Slept};
pub use debug::complain;
pub use device::{Choices, Device};
pub use end::{Inherited, at_exit, close_inherited, guard_children};
pub use lent::Lent;
pub use lock::{Guard, Lock};
pub use parked::{Parked, Rest};
pub use target::Target;
pub use thread::{pause, start_thread};
