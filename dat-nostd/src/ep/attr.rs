//! Endpoint attributes: checks against limits and against other endpoints. DAT 1.2, `DAT_EP_ATTR`.

use driver_mlx::Platform;

use crate::adapter::Adapter;
use crate::base::attr::EpAttributes;
use crate::base::handle::EvdHandle;
use crate::base::ret::{DatResult, DatReturn};
use crate::base::types::{CompletionFlags, EvdFlags, Qos, WATERMARK_INFINITE};
use crate::ep::endpoint::{MAX_DTOS, MAX_IOV};
use crate::ep::streams::{Streams, notification, request_notification};
use crate::evd::dispatcher::Notification;

impl<'s, P: Platform> Adapter<'s, P> {
    /// The attributes as they will be in force. `bad` if they are above the limits. With `lenient`, counts without an EVD are
    /// let pass (and mean nothing): an EP of the provider gets its EVDs one after the other.
    pub(crate) fn check_attributes(
        &self,
        streams: &Streams,
        given: Option<&EpAttributes>,
        lenient: bool,
        bad: DatReturn,
    ) -> DatResult<EpAttributes> {
        let Some(given) = given else {
            let mut attributes = EpAttributes::DEFAULT;
            if streams.recv.is_none() {
                attributes.max_recv_dtos = 0;
            }
            if streams.request.is_none() {
                attributes.max_request_dtos = 0;
            }
            attributes.max_rdma_read_iov = attributes.max_request_iov;
            attributes.max_rdma_write_iov = attributes.max_request_iov;
            return Ok(attributes);
        };
        let mut attributes = *given;
        for iov in [&mut attributes.max_rdma_read_iov, &mut attributes.max_rdma_write_iov] {
            if *iov == 0 {
                *iov = given.max_request_iov;
            }
        }
        let caps = self.device.hca.caps();
        let longest = 1u64 << caps.log_max_msg.clamp(12, 31);
        let iov = [
            attributes.max_recv_iov,
            attributes.max_request_iov,
            attributes.max_rdma_read_iov,
            attributes.max_rdma_write_iov,
        ];
        // What the standard promises to every adapter with 2^31 is accepted and cut to what the device has.
        let too_long = |size: u64| size > longest.max(1 << 31);
        let recv_flags = [
            CompletionFlags::empty(),
            CompletionFlags::EVD_THRESHOLD,
            CompletionFlags::UNSIGNALLED,
            CompletionFlags::SOLICITED_WAIT,
        ];
        let request_flags = CompletionFlags::EVD_THRESHOLD
            | CompletionFlags::UNSIGNALLED
            | CompletionFlags::SUPPRESS
            | CompletionFlags::SOLICITED_WAIT
            | CompletionFlags::BARRIER_FENCE;
        let reads = 1u32 << caps.log_max_ra_res_qp.min(7);
        let reads_out = 1u32 << caps.log_max_ra_req_qp.min(7);
        let mismatch = |count: u32, evd: Option<EvdHandle>| {
            if lenient { count == 0 && evd.is_some() } else { (count == 0) != evd.is_none() }
        };
        let wrong = given.qos != Qos::BestEffort
            || mismatch(attributes.max_recv_dtos, streams.recv)
            || mismatch(attributes.max_request_dtos, streams.request)
            || attributes.max_recv_dtos > self.max_dtos()
            || attributes.max_request_dtos > self.max_dtos()
            || iov.iter().any(|&iov| iov > MAX_IOV as u32)
            || too_long(attributes.max_message_size)
            || too_long(attributes.max_rdma_size)
            || !recv_flags.contains(&attributes.recv_completion_flags)
            || !request_flags.contains(attributes.request_completion_flags)
            || attributes.max_rdma_read_in > reads
            || attributes.max_rdma_read_out > reads_out
            || attributes.srq_soft_hw < WATERMARK_INFINITE
            || attributes.retry_count > 7
            || attributes.rnr_retry > 7
            || attributes.rnr_timer > 31
            || attributes.sl.is_some_and(|sl| sl > 15);
        if wrong { Err(bad) } else { Ok(attributes) }
    }

    /// Operations that an EP may have outstanding in one direction.
    pub(crate) fn max_dtos(&self) -> u32 {
        (1u32 << self.device.hca.caps().log_max_qp_sz.min(15)).min(MAX_DTOS)
    }

    /// The rules for EPs that share an EVD (DAT 1.2, completion flags): one mode for all streams, and only the threshold mode
    /// on an EVD with other streams.
    pub(crate) fn check_notification(
        &self,
        streams: &Streams,
        attributes: &EpAttributes,
        bad: DatReturn,
    ) -> DatResult<()> {
        let recv = notification(attributes.recv_completion_flags);
        let request = request_notification(attributes);
        if streams.recv.is_some() && streams.recv == streams.request && recv != request {
            return Err(bad);
        }
        let completions = EvdFlags::DTO | EvdFlags::RMR_BIND;
        for (evd, mode) in [(streams.recv, recv), (streams.request, request)] {
            let Some(Ok(evd)) = evd.map(|evd| self.objects.evds.get(evd)) else { continue };
            let mixed = !completions.contains(evd.flags) && mode != Notification::Threshold;
            if mixed || evd.dto_streams > 0 && evd.notification != mode {
                return Err(bad);
            }
        }
        Ok(())
    }

    /// Whether the EVDs' CQs have room for what an EP may have outstanding.
    pub(crate) fn can_reserve(&self, streams: &Streams, requests: u32, receives: u32) -> bool {
        let room = |evd: Option<EvdHandle>, count: u32| match evd.map(|evd| self.objects.evds.get(evd)) {
            Some(Ok(evd)) => evd.unreserved() >= count,
            _ => count == 0,
        };
        if streams.recv == streams.request {
            room(streams.recv, receives + requests)
        } else {
            room(streams.recv, receives) && room(streams.request, requests)
        }
    }
}
