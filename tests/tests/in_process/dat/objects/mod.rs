//! DAT's objects between nodes: windows, shared receive queues, service points, disconnects, notification.

mod connections;
mod notification;
mod shared;
mod windows;

use dat_nostd::{CompletionFlags, Qos};

const NONE: CompletionFlags = CompletionFlags::empty();
const BEST: Qos = Qos::BestEffort;
