//! Posts: send, receive, RDMA read and write. DAT 1.2, data transfer operations.

use driver_mlx::{Platform, RKey, SendOp};

use crate::adapter::Adapter;
use crate::adapter::objects::Tables;
use crate::adapter::part::Parts;
use crate::base::handle::EpHandle;
use crate::base::ret::{DatResult, DatReturn, ReturnType};
use crate::base::states::EpCall;
use crate::base::types::{CompletionFlags, LmrTriplet, RmrTriplet};
use crate::ep::MAX_IOV;
use crate::ep::post::Post;

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_ep_post_send`.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE unless connected or disconnected; INSUFFICIENT_RESOURCES if `max_request_dtos` are
    /// outstanding; INVALID_PARAMETER (too many segments, a segment outside its LMR, too long, flags);
    /// PROTECTION_VIOLATION; PRIVILEGES_VIOLATION for a context that names no LMR.
    #[inline]
    pub fn ep_post_send(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post_plain(ep, iov, user_cookie, None, flags)
    }

    /// Extension: send with immediate data, which the peer's receive completion carries.
    ///
    /// # Errors
    /// As [`Adapter::ep_post_send`].
    pub fn ep_post_send_immediate(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        immediate: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post(ep, &Post::send(SendOp::SendImm(immediate), iov, user_cookie, flags))
    }

    /// Extension: send that kills the peer's `rmr_context`.
    ///
    /// # Errors
    /// As [`Adapter::ep_post_send`].
    pub fn ep_post_send_invalidate(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        rmr_context: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post(ep, &Post::send(SendOp::SendInval(RKey::new(rmr_context)), iov, user_cookie, flags))
    }

    /// `dat_ep_post_rdma_write`.
    ///
    /// # Errors
    /// As [`Adapter::ep_post_send`]; LENGTH_ERROR if the remote buffer is shorter than the local ones.
    #[inline(always)]
    pub fn ep_post_rdma_write(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post_plain(ep, iov, user_cookie, Some(remote), flags)
    }

    /// Posts a send, or an RDMA write to `remote`.
    #[inline(always)]
    fn post_plain(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        remote: Option<&RmrTriplet>,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let [segment] = iov else { return self.post(ep, &Post::plain(iov, remote, user_cookie, flags)) };
        if self.try_post::<1>(ep, &Post::plain(iov, remote, user_cookie, flags)).is_ok() {
            return Ok(());
        }
        self.post_any(ep, segment, user_cookie, remote, flags)
    }

    // By its arguments, so that a common request is never put into memory, and with no more of them than there are registers.
    #[cold]
    #[inline(never)]
    fn post_any(
        &mut self,
        ep: EpHandle,
        segment: &LmrTriplet,
        user_cookie: u64,
        remote: Option<&RmrTriplet>,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let iov = core::slice::from_ref(segment);
        self.post(ep, &Post::plain(iov, remote, user_cookie, flags))
    }

    /// Extension: RDMA write that then takes a receive of the peer and hands it `immediate`.
    ///
    /// # Errors
    /// As [`Adapter::ep_post_rdma_write`].
    pub fn ep_post_rdma_write_immediate(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        remote: &RmrTriplet,
        immediate: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let rkey = RKey::new(remote.rmr_context);
        let op = SendOp::WriteImm { raddr: remote.target_address, rkey, imm: immediate };
        self.post(ep, &Post { op, iov, remote_length: Some(remote.segment_length), user_cookie, flags })
    }

    /// `dat_ep_post_rdma_read`: all of the remote buffer into the local segments, in order.
    ///
    /// # Errors
    /// As [`Adapter::ep_post_send`]; LENGTH_ERROR if the local segments are shorter than the remote buffer;
    /// PRIVILEGES_VIOLATION for a local segment without local write.
    pub fn ep_post_rdma_read(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let op = SendOp::Read { raddr: remote.target_address, rkey: RKey::new(remote.rmr_context) };
        self.post(ep, &Post { op, iov, remote_length: Some(remote.segment_length), user_cookie, flags })
    }

    /// Checks and posts a request of at most `N` segments, and rings for it.
    #[inline(always)]
    fn try_post<const N: usize>(&mut self, handle: EpHandle, post: &Post<'_>) -> DatResult<()> {
        let Parts { device, objects, .. } = self.parts();
        let Tables { eps, lmrs, .. } = objects.split();
        let ep = eps.get_mut(handle)?;
        // Where a request is common there is a connection, and no device that is gone.
        let rings = N < MAX_IOV || ep.rings(device.is_dead());
        ep.post(&post.check::<N, _>(ep, lmrs)?, rings).map(|_| ())
    }

    /// Checks and posts any request, and rings for it.
    pub(crate) fn post(&mut self, handle: EpHandle, post: &Post<'_>) -> DatResult<()> {
        EpCall::PostRequest.in_state(self.objects().get(handle)?.state())?;
        self.make_request_room(handle)?;
        self.try_post::<MAX_IOV>(handle, post)
    }

    /// `dat_ep_post_recv`. Legal in every state; on a disconnected EP the receive is flushed at once.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (EP_NOTREADY) without a protection zone; INSUFFICIENT_RESOURCES if `max_recv_dtos` are
    /// outstanding; INVALID_PARAMETER; PROTECTION_VIOLATION; PRIVILEGES_VIOLATION without local write.
    #[inline]
    pub fn ep_post_recv(
        &mut self,
        handle: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let Tables { eps, lmrs, .. } = self.objects_mut().split();
        if let Ok(ep) = eps.get_mut(handle)
            && ep.post_recv::<1>(lmrs, iov, user_cookie, flags).is_ok()
        {
            return Ok(());
        }
        self.post_recv_any(handle, iov, user_cookie, flags)
    }

    #[cold]
    #[inline(never)]
    fn post_recv_any(
        &mut self,
        handle: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let Tables { eps, lmrs, .. } = self.objects_mut().split();
        eps.get_mut(handle)?.post_recv::<MAX_IOV>(lmrs, iov, user_cookie, flags)
    }

    /// Makes sure that one more request may be outstanding. If not, takes suppressed completions from the head of the request EVD's CQ,
    /// so that a run of suppressed requests goes on without anybody dequeuing. Nothing else happens: a post never waits.
    ///
    /// # Errors
    /// INVALID_HANDLE; INSUFFICIENT_RESOURCES if there is still no room.
    pub(crate) fn make_request_room(&mut self, handle: EpHandle) -> DatResult<()> {
        const FULL: DatReturn = DatReturn::new(ReturnType::InsufficientResources);
        let ep = self.objects().get(handle)?;
        if !ep.requests.is_full() {
            return Ok(());
        }
        let evd = ep.streams.request.ok_or(FULL)?;
        self.dispatchers().drop_silent(evd);
        if self.objects().get(handle)?.requests.is_full() { Err(FULL) } else { Ok(()) }
    }
}
