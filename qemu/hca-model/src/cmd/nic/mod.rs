//! Commands of an Ethernet port (PRM, command reference).

mod flow;
mod interfaces;
mod queues;
mod registers;
mod vport;
