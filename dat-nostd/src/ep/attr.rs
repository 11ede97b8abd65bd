//! Endpoint attributes: checks against the device's limits. DAT 1.2, `DAT_EP_ATTR`.

use driver_mlx::Platform;

use crate::adapter::device::Device;
use crate::base::attr::EpAttributes;
use crate::base::handle::EvdHandle;
use crate::base::ret::{DatResult, DatReturn};
use crate::base::types::{CompletionFlags, HW_DEFAULT, Qos, WATERMARK_INFINITE};
use crate::ep::post::SEND_FLAGS;
use crate::ep::streams::Streams;
use crate::ep::{Longest, MAX_IOV};

/// What the counts of DTOs say about the EVDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// 0 exactly without an EVD.
    Match,
    /// Counts without an EVD mean nothing: an EP of the provider gets its EVDs one after the other.
    Lenient,
    /// The same of requests; the receives are the SRQ's, so their count is the consumer's own, 0 and [`HW_DEFAULT`] as well.
    OnSrq,
}

impl<P: Platform> Device<'_, P> {
    /// The attributes as they will be in force. `bad` if they are above the limits.
    pub(crate) fn check_attributes(
        &self,
        streams: &Streams,
        given: Option<&EpAttributes>,
        counts: Counts,
        bad: DatReturn,
    ) -> DatResult<EpAttributes> {
        let mut attributes = *given.unwrap_or(&EpAttributes::DEFAULT);
        for iov in [&mut attributes.max_rdma_read_iov, &mut attributes.max_rdma_write_iov] {
            if *iov == 0 {
                *iov = attributes.max_request_iov;
            }
        }
        if given.is_none() {
            if streams.recv.is_none() {
                attributes.max_recv_dtos = 0;
            }
            if streams.request.is_none() {
                attributes.max_request_dtos = 0;
            }
            return Ok(attributes);
        }
        let own_receives = counts != Counts::OnSrq;
        let iov = [
            if own_receives { attributes.max_recv_iov } else { 0 },
            attributes.max_request_iov,
            attributes.max_rdma_read_iov,
            attributes.max_rdma_write_iov,
        ];
        // What the standard promises to every adapter with 2^31 is accepted and cut to what the device has.
        let too_long = |size: u64| size > self.longest_message().max(1 << 31);
        let recv_modes =
            CompletionFlags::EVD_THRESHOLD | CompletionFlags::UNSIGNALLED | CompletionFlags::SOLICITED_WAIT;
        let recv_flags = attributes.recv_completion_flags;
        let request_flags = SEND_FLAGS | CompletionFlags::EVD_THRESHOLD;
        let reads = self.max_reads();
        let mismatch = |count: u32, evd: Option<EvdHandle>| match counts {
            Counts::Lenient => count == 0 && evd.is_some(),
            Counts::Match | Counts::OnSrq => (count == 0) != evd.is_none(),
        };
        let wrong = attributes.qos != Qos::BestEffort
            || own_receives && mismatch(attributes.max_recv_dtos, streams.recv)
            || mismatch(attributes.max_request_dtos, streams.request)
            || own_receives && attributes.max_recv_dtos > self.max_dtos()
            || !own_receives
                && attributes.max_recv_dtos > self.max_srq_dtos()
                && attributes.max_recv_dtos != HW_DEFAULT
            || attributes.max_request_dtos > self.max_dtos()
            || iov.iter().any(|&iov| iov > MAX_IOV as u32)
            || too_long(attributes.max_message_size)
            || too_long(attributes.max_rdma_size)
            || !recv_modes.contains(recv_flags)
            || recv_flags.bits().count_ones() > 1
            || !request_flags.contains(attributes.request_completion_flags)
            || attributes.max_rdma_read_in > reads.0
            || attributes.max_rdma_read_out > reads.1
            || attributes.srq_soft_hw < WATERMARK_INFINITE
            || attributes.retry_count > 7
            || attributes.rnr_retry > 7
            || attributes.rnr_timer > 31
            || attributes.sl.is_some_and(|sl| sl > 15);
        if wrong { Err(bad) } else { Ok(attributes) }
    }

    /// The longest transfers of an EP with these attributes.
    pub(crate) fn longest(&self, attributes: &EpAttributes) -> Longest {
        let longest = self.longest_message();
        let limit = |asked: u64| if asked == 0 { longest } else { asked.min(longest) };
        Longest { message: limit(attributes.max_message_size), rdma: limit(attributes.max_rdma_size) }
    }
}
