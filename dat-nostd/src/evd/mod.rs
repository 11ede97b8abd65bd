//! Events: dispatchers, waits. DAT 1.2, event management.

pub(crate) mod completion;
pub(crate) mod control;
pub(crate) mod cq_map;
pub(crate) mod delivery;
pub(crate) mod dequeue;
pub(crate) mod dispatcher;
pub(crate) mod life;
pub(crate) mod look_ahead;
pub(crate) mod looks;
pub(crate) mod queue;
pub(crate) mod reaction;
pub(crate) mod wait;
pub(crate) mod waiter;
