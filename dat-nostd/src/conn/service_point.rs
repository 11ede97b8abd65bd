//! Public and reserved service points.

use crate::base::handle::{EpHandle, EvdHandle, IaHandle};
use crate::base::types::PspFlags;

/// A public service point.
#[derive(Debug)]
pub struct Psp {
    pub(crate) ia: IaHandle,
    pub(crate) conn_qual: u64,
    pub(crate) service_id: u64,
    pub(crate) evd: EvdHandle,
    pub(crate) flags: PspFlags,
}

/// A reserved service point.
#[derive(Debug)]
pub struct Rsp {
    pub(crate) ia: IaHandle,
    pub(crate) conn_qual: u64,
    pub(crate) service_id: u64,
    pub(crate) evd: EvdHandle,
    pub(crate) ep: Option<EpHandle>,
    /// Its request has come.
    pub(crate) used: bool,
}

/// Who gives the EP for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EpSource {
    /// The consumer, at accept.
    Consumer,
    /// The consumer, when it made the service point.
    Reserved(EpHandle),
    /// The provider.
    Provider,
}
