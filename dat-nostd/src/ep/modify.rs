//! `dat_ep_modify`: what may be changed, in which states, and how. DAT 1.2, endpoint management.

use crate::base::fields::EpFields;
use crate::base::states::EpCall;
use driver_mlx::Platform;

use crate::adapter::Adapter;
use crate::base::attr::{EpAttributes, EpParameters};
use crate::base::handle::EpHandle;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::EpState;
use crate::ep::attr::Counts;
use crate::ep::endpoints::BAD_VALUE;
use crate::ep::plan::Plan;
use crate::ep::streams::Streams;

/// What no call changes.
const FIXED: EpFields = EpFields::IA_HANDLE
    .union(EpFields::EP_STATE)
    .union(EpFields::LOCAL_IA_ADDRESS_PTR)
    .union(EpFields::LOCAL_PORT_QUAL)
    .union(EpFields::REMOTE_IA_ADDRESS_PTR)
    .union(EpFields::REMOTE_PORT_QUAL)
    .union(EpFields::SRQ_HANDLE)
    .union(EpFields::SRQ_SOFT_HW);
/// What only an unconnected EP takes: our extensions are the provider's own attributes.
const SPECIFIC: EpFields = EpFields::NUM_TRANSPORT_ATTR
    .union(EpFields::TRANSPORT_SPECIFIC_ATTR)
    .union(EpFields::NUM_PROVIDER_ATTR)
    .union(EpFields::PROVIDER_SPECIFIC_ATTR);

/// The attributes with what the mask names taken from `from`.
fn merge(mask: EpFields, into: &EpAttributes, from: &EpAttributes) -> EpAttributes {
    let mut out = *into;
    let has = |field| mask.contains(field);
    macro_rules! take {
        ($($field:ident $member:ident),*) => { $(if has(EpFields::$field) { out.$member = from.$member; })* };
    }
    take!(
        MAX_MESSAGE_SIZE max_message_size,
        MAX_RDMA_SIZE max_rdma_size,
        QOS qos,
        RECV_COMPLETION_FLAGS recv_completion_flags,
        REQUEST_COMPLETION_FLAGS request_completion_flags,
        MAX_RECV_DTOS max_recv_dtos,
        MAX_REQUEST_DTOS max_request_dtos,
        MAX_RECV_IOV max_recv_iov,
        MAX_REQUEST_IOV max_request_iov,
        MAX_RDMA_READ_IN max_rdma_read_in,
        MAX_RDMA_READ_OUT max_rdma_read_out,
        MAX_RDMA_READ_IOV max_rdma_read_iov,
        MAX_RDMA_WRITE_IOV max_rdma_write_iov
    );
    if has(EpFields::PROVIDER_SPECIFIC_ATTR) {
        (out.retry_count, out.rnr_retry, out.rnr_timer) = (from.retry_count, from.rnr_retry, from.rnr_timer);
        (out.sl, out.traffic_class) = (from.sl, from.traffic_class);
    }
    out
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_ep_modify`: takes what `mask` names from `parameters`. Receives already posted stay; those that do not fit a new
    /// protection zone will end with a protection error. An EP that the provider made gets zone and EVDs here.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for a field that cannot be changed (ARG2) or a value that cannot be (ARG3);
    /// INVALID_STATE if the state forbids the change, or receives are posted and their completion flags or number would not
    /// fit; INSUFFICIENT_RESOURCES. Nothing has changed then.
    pub fn ep_modify(
        &mut self,
        handle: EpHandle,
        mask: EpFields,
        parameters: &EpParameters,
    ) -> DatResult<()> {
        let ep = self.objects().get(handle)?;
        if mask.intersects(FIXED) || !EpFields::all().contains(mask) {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2));
        }
        let attributes = !(FIXED | SPECIFIC | EpFields::PZ_HANDLE);
        for (fields, call) in [
            (SPECIFIC, EpCall::ModifySpecific),
            (EpFields::PZ_HANDLE, EpCall::ModifyPz),
            (attributes, EpCall::ModifyAttributes),
        ] {
            if mask.intersects(fields) {
                call.in_state(ep.state())?;
            }
        }
        let pz = if mask.contains(EpFields::PZ_HANDLE) { parameters.pz } else { ep.pz };
        let pd = match pz {
            Some(pz) => self.objects().get(pz).and_then(|pz| pz.domain(ep.ia)).map_err(|_| BAD_VALUE)?,
            None => Default::default(),
        };
        let old = ep.streams();
        let pick = |field, new, old| if mask.contains(field) { new } else { old };
        let streams = Streams {
            recv: pick(EpFields::RECV_EVD_HANDLE, parameters.recv_evd, old.recv),
            request: pick(EpFields::REQUEST_EVD_HANDLE, parameters.request_evd, old.request),
            connect: pick(EpFields::CONNECT_EVD_HANDLE, parameters.connect_evd, old.connect),
        };
        self.objects().check_streams(ep.ia, &streams).map_err(|_| BAD_VALUE)?;
        let merged = merge(mask, &ep.attributes, &parameters.attributes);
        let counts = match ep.state() {
            EpState::TentativeConnectionPending => Counts::Lenient,
            _ if ep.srq.is_some() => Counts::OnSrq,
            _ => Counts::Match,
        };
        let attributes = self.device().check_attributes(&streams, Some(&merged), counts, BAD_VALUE)?;
        let posted = ep.receives.outstanding();
        if posted > 0 {
            let loses = streams.recv.is_none() || pz.is_none() || attributes.max_recv_dtos < posted;
            let flags = attributes.recv_completion_flags != ep.attributes.recv_completion_flags;
            if loses || flags {
                return Err(ep.state().invalid());
            }
        }
        let plan = Plan { pd, streams, srq: ep.srq, attributes };
        if let (Some(srq), true) = (ep.srq, mask.contains(EpFields::PZ_HANDLE)) {
            self.objects().check_srq_zone(srq, pd)?;
        }
        self.device().usable()?;
        // The EP's own places do not stand in its way.
        self.objects_mut().count(handle, false);
        let result = self.endpoints().apply(handle, pz, &plan);
        self.objects_mut().count(handle, true);
        self.delivery().feeds_changed(handle);
        result
    }
}
