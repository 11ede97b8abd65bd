//! The HCA of an adapter, its port and its addresses.

use core::net::{Ipv4Addr, Ipv6Addr};

use driver_mlx::{Hca, Instant, Platform};
use ib_port::Port;

use crate::adapter::config::Neighbour;
use crate::base::random::Random;
use crate::base::ret::{DatResult, DatReturn, ReturnType};
use crate::base::types::IaAddress;
use crate::ep::MAX_DTOS;
use crate::ia::listing::Listings;
use crate::srq::queue::MAX_SRQ_DTOS;
use crate::srq::sink::Sink;

/// The HCA of an adapter, its port and its addresses.
pub(crate) struct Device<'s, P: Platform> {
    pub(crate) hca: Hca<'s, P>,
    pub(crate) port: Port<'s, P::Bar>,
    pub(crate) sink: Sink<P::Bar>,
    pub(crate) address: IaAddress,
    pub(crate) neighbours: &'s [Neighbour],
    pub(crate) random: Random,
    /// The device is gone.
    pub(crate) dead: bool,
    /// Completions that every CQ has room for at least.
    pub(crate) min_completions: u32,
    /// Its names, and which of them are registered.
    pub(crate) listings: Listings<'s>,
}

impl<P: Platform> Device<'_, P> {
    /// What the clock says: for calls that are not given the time.
    pub(crate) fn now(&self) -> Instant {
        self.hca.now()
    }

    /// INTERNAL_ERROR if the device is gone: nothing can be made any more.
    pub(crate) fn usable(&self) -> DatResult<()> {
        if self.dead { Err(DatReturn::new(ReturnType::InternalError)) } else { Ok(()) }
    }

    /// The address that is none, of this port's family.
    pub(crate) fn unspecified(&self) -> IaAddress {
        match self.address {
            IaAddress::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IaAddress::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Bytes of the longest message that the device takes.
    pub(crate) fn longest_message(&self) -> u64 {
        1 << self.hca.caps().log_max_msg.clamp(12, 31)
    }

    /// Operations that an EP may have outstanding in one direction.
    pub(crate) fn max_dtos(&self) -> u32 {
        (1u32 << self.hca.caps().log_max_qp_sz.min(15)).min(MAX_DTOS)
    }

    /// RDMA reads that an EP may have outstanding: as target, and as originator.
    pub(crate) fn max_reads(&self) -> (u32, u32) {
        let caps = self.hca.caps();
        (1 << caps.log_max_ra_res_qp.min(7), 1 << caps.log_max_ra_req_qp.min(7))
    }

    /// Buffers that an SRQ may be asked to hold.
    pub(crate) fn max_srq_dtos(&self) -> u32 {
        MAX_SRQ_DTOS.min((1 << self.hca.caps().log_max_srq_sz.min(15)) - 1)
    }
}
