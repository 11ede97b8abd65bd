//! Communication management (IBA volume 1, chapter 12): connecting queue pairs of two nodes.
//!
//! [`message`] contains the messages. [`Cm`] is the state machine without I/O. `process` takes a
//! received MAD, `dispatch` returns a MAD to send. `poll_event` returns an event for the owner,
//! `poll_at` the time of the next call.
//!
//! | side | steps |
//! |---|---|
//! | active | [`Cm::connect`] → [`CmEvent::Reply`] → QP to RTR and RTS → [`Cm::rtu`] |
//! | passive | [`Cm::listen`] → [`CmEvent::ConnectRequest`] → QP to RTR → [`Cm::accept`] |
//! | | → [`CmEvent::Established`] → QP to RTS |
//! | either | [`Cm::disconnect`], or a DREQ → [`CmEvent::Disconnected`] → QP to error |
//! | | → [`CmEvent::TimeWaitExit`] |
//!
//! Datagram services (unreliable datagrams; service id resolution, section 12.11):
//! [`Cm::listen_datagram`] → [`CmEvent::DatagramRequest`] → [`Cm::answer_datagram`];
//! [`Cm::resolve_datagram`] → [`CmEvent::DatagramReply`].
//!
//! If a peer repeats a REQ before the owner has decided, the manager sends an MRA by itself.
//! [`Cm::defer`] sends it immediately, for a REP too. Connections are reliable ones only. Not
//! supported: alternate paths (a LAP is answered "not supported").

mod history;
mod id;
mod input;
mod machine;
pub mod message;
mod output;
mod reason;
mod sidr;
mod slot;
mod types;

pub use history::EndedSet;
pub use machine::Cm;
pub use reason::{RejClass, RejReason};
pub use slot::CmSlot;
pub use types::{
    AcceptParams, CmConfig, CmCounters, CmError, CmEvent, ConnId, ConnInfo, ConnectParams, DatagramService,
    DisconnectCause, ListenError, Listener, Outgoing, QpAttributes, ResolveParams, Role, Stage, State,
};

// Thousands of connections: nothing for an interpreter.
#[cfg(all(test, not(miri)))]
mod sim;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_sidr;
