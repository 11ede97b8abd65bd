//! Remote memory regions: create, bind, query, free. DAT 1.2, memory management.

use driver_mlx::{Bar, CompletionKind, MwBind, MwType, Platform, RKey};

use crate::adapter::Adapter;
use crate::adapter::objects::{Objects, Tables};
use crate::base::attr::{RmrBinding, RmrParameters};
use crate::base::handle::{EpHandle, PzHandle, RmrHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::states::{Effect, EpCall};
use crate::base::table::OfIa;
use crate::base::types::{CompletionFlags, EpState, EvdFlags, LmrTriplet, MemPriv};
use crate::ep::post::{RDMA_FLAGS, check_flags};
use crate::ep::post_error;
use crate::ep::work::{How, Note};
use crate::mem::Memory;
use crate::mem::bind::{Bind, Bound};
use crate::mem::lmr::{access, creation_error, lmr_of, sge_of};
use crate::mem::rmr::{FULL, Rmr};

impl<P: Platform> Memory<'_, '_, P> {
    fn create_window(&mut self, pz: PzHandle, kind: MwType) -> DatResult<RmrHandle> {
        const FULL: DatReturn =
            DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemoryRegion);
        let zone = self.pzs.get_mut(pz)?;
        let (ia, pd) = (zone.ia(), zone.pd());
        self.device.usable()?;
        let rmrs = self.windows.table_mut();
        if rmrs.len() >= rmrs.capacity() {
            return Err(FULL);
        }
        let window = self.device.hca_mut().alloc_mw(pd, kind).map_err(|error| match error {
            driver_mlx::Error::MissingCapability(_) => DatReturn::new(ReturnType::ModelNotSupported),
            error => creation_error(error, Subtype::ResourceMemoryRegion),
        })?;
        let handle = rmrs.insert(Rmr::new(ia, pz, pd, window)).map_err(|_| FULL)?;
        zone.users_mut().attach();
        Ok(handle)
    }

    fn free_window(&mut self, handle: RmrHandle) -> DatResult<()> {
        let window = self.windows.table().get(handle)?.window();
        if !self.device.is_dead() {
            self.device
                .hca_mut()
                .dealloc_mw(window)
                .map_err(|_| DatReturn::new(ReturnType::InternalError))?;
        }
        self.forget_window(handle)
    }

    /// Frees a window for an IA that closes: what the device refuses to free ends with the adapter.
    pub(crate) fn drop_window(&mut self, rmr: RmrHandle) -> DatResult<()> {
        self.free_window(rmr).or_else(|_| self.forget_window(rmr))
    }

    /// Takes a window out of the table, whatever the device has of it.
    fn forget_window(&mut self, handle: RmrHandle) -> DatResult<()> {
        let rmr = self.windows.table_mut().remove(handle)?;
        self.leave_zone(rmr.pz());
        Ok(())
    }
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_rmr_create`: a window, bound to nothing.
    ///
    /// # Errors
    /// INVALID_HANDLE; INSUFFICIENT_RESOURCES; MODEL_NOT_SUPPORTED if the device has no windows.
    pub fn rmr_create(&mut self, pz: PzHandle) -> DatResult<RmrHandle> {
        self.memory().create_window(pz, MwType::One)
    }

    /// Extension: a window whose context a peer can end by [`Adapter::ep_post_send_invalidate`], over the connection that it was bound
    /// on; others cannot use it (IBTA's type 2B). While it is bound it cannot be bound to anything else: it is unbound first, by a bind of
    /// length 0 or by the peer, of which [`Received::Invalidated`](crate::Received::Invalidated) tells.
    ///
    /// # Errors
    /// As [`Adapter::rmr_create`].
    pub fn rmr_create_invalidatable(&mut self, pz: PzHandle) -> DatResult<RmrHandle> {
        self.memory().create_window(pz, MwType::Two)
    }

    /// `dat_rmr_query`.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn rmr_query(&self, handle: RmrHandle) -> DatResult<RmrParameters> {
        let rmr = self.objects().get(handle)?;
        let binding = self.objects().windows().bound(rmr).map(|bound| bound.binding);
        Ok(RmrParameters { ia: rmr.ia(), pz: rmr.pz(), binding })
    }

    /// `dat_rmr_free`, bound or not: the window's context is dead afterwards. A bind that is still on its way fails, and with it
    /// its connection.
    ///
    /// # Errors
    /// INVALID_HANDLE; INTERNAL_ERROR: the device refuses, and the window stays as it is.
    pub fn rmr_free(&mut self, rmr: RmrHandle) -> DatResult<()> {
        self.memory().free_window(rmr)
    }

    /// `dat_rmr_bind`: peers may reach the triplet's bytes by the context that this answers, once the RMR-bind event on the EP's
    /// request EVD (which needs that stream) has come, or what was posted behind this. The context of the last bind is dead from
    /// then on. A triplet of length 0 binds to nothing; its context means nothing. A window has less than 2 GiB: a work request counts
    /// its bytes in 31 bits, and `dat_rmr_bind` lets a provider refuse a range (INVALID_PARAMETER). After a bind that was never carried
    /// out, and with no other on its way, the next one has that one's context.
    ///
    /// # Errors
    /// INVALID_HANDLE (RMR, EP); INVALID_STATE unless connected or disconnected (flushed), if the request EVD takes no
    /// RMR-bind events (EP_EVD_REQUEST), or for an invalidatable window that is bound; INVALID_PARAMETER for a range beyond the LMR (ARG2), rights that do not exist (ARG3),
    /// flags; PRIVILEGES_VIOLATION for a context that names no LMR, or rights that the LMR does not have; PROTECTION_VIOLATION if
    /// the zones differ; INSUFFICIENT_RESOURCES if `max_request_dtos` are outstanding, or [`Capacities::binds`](crate::Capacities::binds) of
    /// the adapter have not completed.
    pub fn rmr_bind(
        &mut self,
        rmr: RmrHandle,
        triplet: &LmrTriplet,
        mem_priv: MemPriv,
        ep: EpHandle,
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<u32> {
        let wrong = |argument| DatReturn::error(ReturnType::InvalidParameter, argument);
        let window = self.objects().get(rmr)?;
        let endpoint = self.objects().get(ep)?;
        let effect = EpCall::Bind.in_state(endpoint.state())?;
        check_flags(flags, RDMA_FLAGS, endpoint.attributes().request_completion_flags, Subtype::InvalidArg6)?;
        let takes_binds = endpoint
            .streams()
            .request
            .is_some_and(|evd| self.objects().get(evd).is_ok_and(|evd| evd.takes(EvdFlags::RMR_BIND)));
        if !takes_binds {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateEpEvdRequest));
        }
        if window.pd() != endpoint.pd() {
            return Err(DatReturn::error(ReturnType::ProtectionViolation, Subtype::NoSubtype));
        }
        let bound = if triplet.segment_length == 0 {
            None
        } else if window.window().kind() == MwType::Two && self.objects().windows().bound(window).is_some() {
            return Err(DatReturn::new(ReturnType::InvalidState));
        } else {
            if triplet.segment_length >= 1 << 31 {
                return Err(wrong(Subtype::InvalidArg2));
            }
            let lmrs = self.objects().table();
            let lmr = lmr_of(lmrs, triplet.lmr_context)?;
            let sge = sge_of(lmrs, 0, triplet, window.pd(), false).map_err(|error| {
                if error.is(ReturnType::InvalidParameter) { wrong(Subtype::InvalidArg2) } else { error }
            })?;
            if !(MemPriv::ALL | MemPriv::REMOTE_ATOMIC).contains(mem_priv) {
                return Err(wrong(Subtype::InvalidArg3));
            }
            lmr.may_expose(mem_priv)?;
            Some((lmr.handle(), sge))
        };
        self.make_request_room(ep)?;
        let place = self.objects().windows().vacant_bind().ok_or(FULL)?;
        let bind = MwBind {
            lkey: bound.map(|(_, sge)| sge.lkey).unwrap_or_default(),
            address: triplet.virtual_address,
            length: triplet.segment_length as u32,
            access: access(mem_priv & !MemPriv::LOCAL_WRITE),
            zero_based: false,
        };
        let rmr_context = self.post_bind(rmr, ep, &bind, user_cookie, flags, place)?;
        let binding = RmrBinding { lmr_triplet: *triplet, mem_priv, rmr_context };
        let bound = bound.map(|(lmr, _)| Bound { lmr, binding });
        let bind = Bind { rmr, ep, order: 0, bound, key: RKey::new(rmr_context) };
        self.objects_mut().windows_mut().keep_bind(place, bind, effect == Effect::Flush);
        Ok(rmr_context)
    }

    /// Posts the bind, which is kept at `place`; the window has its new key then, unless the EP only flushes.
    fn post_bind(
        &mut self,
        rmr: RmrHandle,
        ep: EpHandle,
        bind: &MwBind,
        user_cookie: u64,
        flags: CompletionFlags,
        place: u16,
    ) -> DatResult<u32> {
        let dead = self.is_dead();
        let Tables { eps, windows, .. } = self.objects_mut().split();
        let window = windows.table_mut().get_mut(rmr)?;
        let ep = eps.get_mut(ep)?;
        // A suppressed bind completes visibly to us all the same, always: we learn what the window is bound to.
        let how = How::new(flags, ep.requests().left(), 1);
        let mut next = window.window();
        let qp = ep.qp_mut().ok_or(DatReturn::new(ReturnType::InternalError))?;
        let note = Note::bind(place, how.marks);
        let wr_id = note.with(user_cookie);
        let (_, doorbell) = qp.post_bind(&mut next, bind, wr_id, how.send_flags).map_err(post_error)?;
        if !dead {
            qp.ring(doorbell);
        }
        ep.count_posted(how);
        if ep.state() == EpState::Connected {
            window.set_window(next);
        }
        Ok(next.rkey().get())
    }
}

/// Applies the successful binds in the request CQ of an EP whose QP is about to be destroyed, and drops its other binds,
/// which will never complete.
pub(crate) fn settle_binds<B: Bar>(objects: &mut Objects<'_, B>, handle: EpHandle) {
    let Tables { eps, evds, windows, .. } = objects.split();
    let Ok(ep) = eps.get(handle) else { return };
    if let Some(Ok(evd)) = ep.streams().request.map(|evd| evds.table().get(evd)) {
        for completion in evd.peek_all().flatten() {
            if completion.kind() != CompletionKind::Send || !ep.owns(&completion) {
                continue;
            }
            if let Some(place) = ep.marks_of(&completion).and_then(Note::bind_place) {
                windows.bind_done(place, true);
            }
        }
    }
    windows.forget_binds(handle);
}
