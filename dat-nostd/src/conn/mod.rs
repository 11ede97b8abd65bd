//! Connections: service points, requests, the active side, the end.

pub(crate) mod attempt;
pub(crate) mod close;
pub(crate) mod closing;
pub(crate) mod connect;
pub(crate) mod cr;
pub(crate) mod duplicate;
pub(crate) mod framing;
pub(crate) mod ip;
pub(crate) mod request;
pub(crate) mod service;
pub(crate) mod service_point;
