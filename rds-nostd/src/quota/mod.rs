//! Accounts of frames, messages and bytes: what connections and sockets have taken, and what they
//! may still take. Only this module changes the counts.

mod buffer;
mod shares;

pub(crate) use buffer::Buffer;
pub(crate) use shares::{Shares, Used};
