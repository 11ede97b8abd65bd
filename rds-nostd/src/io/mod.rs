//! Where the protocol meets the adapter: posts, completions, connection events, and the objects behind them.

mod connect;
mod held;
mod identity;
mod latency;
mod lend;
mod message;
mod objects;
mod offers;
mod poll;
mod post;
mod rdma;
mod recovery;
mod start;
mod windows;
mod within;
mod zone;

pub(crate) use connect::service_level;
pub(crate) use held::Held;
pub(crate) use objects::Objects;
