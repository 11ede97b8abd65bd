//! The data path between devices on a fabric, driven by work queues in guest memory and judged by what a driver sees:
//! completions, events, bytes.

mod addresses;
mod adversary;
mod attacks;
mod bed;
mod capture;
mod compression;
mod congestion;
mod copies;
mod counters;
mod credit;
mod datagram;
mod dma;
mod errors;
mod failures;
mod faults;
mod guest;
mod hostile;
mod inline;
mod links;
mod management;
mod memic;
mod neighbours;
mod partitions;
mod reliable;
mod requests;
mod roce;
mod roce_copies;
mod shared;
mod throughput;
mod umr;
mod unreliable;
