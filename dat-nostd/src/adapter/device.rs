//! The HCA of an adapter, its port and its addresses.

use driver_mlx::{Cq, Hca, Platform};
use ib_port::Port;

use crate::adapter::config::Neighbour;
use crate::base::random::Random;
use crate::base::types::IaAddress;

/// The HCA of an adapter, its port and its addresses.
pub(crate) struct Device<'s, P: Platform> {
    pub(crate) hca: Hca<'s, P>,
    pub(crate) port: Port<'s, P::Bar>,
    /// The CQ of streams that have no EVD.
    pub(crate) null_cq: Cq<P::Bar>,
    pub(crate) name: &'s str,
    pub(crate) address: IaAddress,
    pub(crate) neighbours: &'s [Neighbour],
    pub(crate) random: Random,
    pub(crate) local_port: u16,
    /// The connection manager has something to send.
    pub(crate) flush_port: bool,
    /// The device is gone.
    pub(crate) dead: bool,
    pub(crate) id: u8,
}
