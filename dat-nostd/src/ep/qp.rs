//! The queue pair of an endpoint: how it is made.

use driver_mlx::{Access, InitParams, Platform, Psn, Qp, QpConfig};

use crate::adapter::device::Device;
use crate::adapter::objects::Objects;
use crate::base::handle::EvdHandle;
use crate::base::ret::{DatResult, Subtype};
use crate::base::types::EvdFlags;
use crate::ep::plan::Plan;
use crate::evd::Evd;
use crate::mem::lmr::creation_error;

impl<P: Platform> Device<'_, P> {
    /// A QP ready for receives, for the EP in this slot.
    pub(crate) fn build_qp(
        &mut self,
        objects: &Objects<'_, P::Bar>,
        plan: &Plan,
        slot: u16,
    ) -> DatResult<Qp<P::Bar>> {
        let cq_of = |evd: Option<EvdHandle>| {
            let evd = evd.and_then(|evd| objects.get(evd).ok());
            evd.and_then(Evd::cq).map(|cq| cq.number())
        };
        let attributes = &plan.attributes;
        let none = self.sink_mut().number();
        let (requests, receives) = (cq_of(plan.streams.request), cq_of(plan.streams.recv));
        let send_cq = requests.or(receives).unwrap_or(none);
        // Receives from an SRQ complete without a receive EVD too.
        let recv_cq = receives.or(requests.filter(|_| plan.srq.is_none())).unwrap_or(none);
        let request_iov =
            attributes.max_request_iov.max(attributes.max_rdma_read_iov).max(attributes.max_rdma_write_iov);
        let (requests, receives) = plan.counts();
        let takes_binds = plan
            .streams
            .request
            .is_some_and(|evd| objects.get(evd).is_ok_and(|evd| evd.takes(EvdFlags::RMR_BIND)));
        let config = QpConfig {
            send_cq,
            recv_cq,
            // One more for our marker.
            max_send_wr: if requests == 0 { 0 } else { requests + 1 },
            max_recv_wr: receives,
            max_send_sge: request_iov.max(1),
            // Segments of receives from an SRQ are the SRQ's.
            max_recv_sge: if plan.srq.is_some() { 1 } else { attributes.max_recv_iov.max(1) },
            user_index: u32::from(slot),
            srq: plan.srq.and_then(|srq| objects.get(srq).ok()).map(|srq| srq.number()),
            memory_windows: takes_binds,
            ..QpConfig::rc(plan.pd, send_cq)
        };
        let failed = |error| creation_error(error, Subtype::ResourceTep);
        let mut qp = self.hca_mut().create_qp(&config).map_err(failed)?;
        let mut access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        access.set(Access::REMOTE_ATOMIC, self.hca().caps().atomic);
        // Its path may name another partition: then the index changes on the way to RTR.
        let params = InitParams { port: 1, pkey_index: self.port().info().pkey_index, access };
        if let Err(error) = self.hca_mut().modify_to_init(&mut qp, &params) {
            let _ = self.hca_mut().destroy_qp(qp);
            return Err(failed(error));
        }
        Ok(qp)
    }

    /// A starting PSN.
    pub(crate) fn next_psn(&mut self) -> Psn {
        Psn::new((self.next_random() >> 32) as u32)
    }
}
