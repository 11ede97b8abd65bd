//! Tests of DAT on the emulated HCA.

mod cards;
mod chaos;
mod common;
mod completions;
mod connect;
mod events;
mod limits;
mod lives;
mod memory;
mod misuse;
mod partitions;
mod ping;
mod ports;
mod qp1;
mod ready;
mod recovery;
mod requests;
mod roce;
mod shared_queue;
mod states;
mod transfer;
mod virtual_function;
