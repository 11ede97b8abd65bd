//! Tests of the driver on the emulated HCA.

mod bring_up;
mod cards;
mod common;
mod data_path;
mod ethernet;
mod event_room;
mod frames;
mod hostile;
mod lifecycle;
mod memory;
mod page;
mod pending;
mod real_cards;
mod recovery;
mod reset;
mod resize;
mod services;
mod shared_queue;
mod stale;
#[path = "transcript/main.rs"]
mod transcript;
mod unreliable;
mod windows;
