//! Communication management (IBA volume 1, chapter 12): connecting queue pairs of two nodes.
//!
//! [`message`] holds the messages; [`Cm`] is the state machine without I/O, shaped as `process` (a MAD came), `dispatch`
//! (a MAD to send), `poll_event` (something for the owner), `poll_at` (when to call again).
//!
//! | side | steps |
//! |---|---|
//! | active | [`Cm::connect`] → [`CmEvent::Reply`] → QP to RTR and RTS → [`Cm::rtu`] |
//! | passive | [`Cm::listen`] → [`CmEvent::ConnectRequest`] → QP to RTR → [`Cm::accept`] → [`CmEvent::Established`] → QP to RTS |
//! | either | [`Cm::disconnect`], or the peer does → [`CmEvent::Disconnected`] → QP to error → [`CmEvent::TimeWaitExit`] |
//!
//! Reliable connections only. Not supported: alternate paths (a LAP is answered "not supported") and service id resolution
//! (a SIDR_REQ is answered "service id not supported"); their messages are there.

mod id;
mod input;
mod machine;
pub mod message;
mod output;
mod reason;
mod slot;
mod types;

pub use machine::Cm;
pub use reason::RejReason;
pub use slot::CmSlot;
pub use types::{
    AcceptParams, CmConfig, CmCounters, CmError, CmEvent, ConnId, ConnInfo, ConnectParams, DisconnectCause,
    ListenError, Listener, Outgoing, QpAttributes, Role, Stage, State,
};

#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;
