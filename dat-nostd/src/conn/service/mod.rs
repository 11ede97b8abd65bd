//! Service points. DAT 1.2, connection management.

mod calls;

use crate::base::event::ServicePoint;
use crate::base::handle::{EpHandle, EvdHandle, IaHandle};
use crate::base::table::of_ia;
use crate::base::types::PspFlags;

/// A public service point.
#[derive(Debug)]
pub struct Psp {
    ia: IaHandle,
    conn_qual: u64,
    service_id: u64,
    evd: EvdHandle,
    flags: PspFlags,
}

/// A reserved service point.
#[derive(Debug)]
pub struct Rsp {
    ia: IaHandle,
    conn_qual: u64,
    service_id: u64,
    evd: EvdHandle,
    ep: Option<EpHandle>,
    /// Its request has come.
    used: bool,
}

of_ia! { Psp }
of_ia! { Rsp }

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

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) sp: ServicePoint,
    pub(crate) ia: IaHandle,
    pub(crate) conn_qual: u64,
    pub(crate) service_id: u64,
    pub(crate) evd: EvdHandle,
    pub(crate) source: EpSource,
}
