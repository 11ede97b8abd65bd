//! What every object is stated in: handles, tables, return codes, states, types.

pub(crate) mod attr;
pub(crate) mod context;
pub(crate) mod event;
pub(crate) mod fields;
pub(crate) mod handle;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod random;
pub(crate) mod reports;
pub(crate) mod ret;
pub mod states;
pub(crate) mod table;
pub(crate) mod types;
pub(crate) mod users;
pub(crate) mod waiter;
