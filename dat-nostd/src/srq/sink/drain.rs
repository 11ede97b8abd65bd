//! Completions in the sink's CQ, and the size of that CQ.

use driver_mlx::{Bar, Cqe, Platform, QpNumber};

use crate::adapter::objects::Objects;
use crate::adapter::progress::Progress;
use crate::base::handle::SrqHandle;
use crate::base::ret::{DatResult, Subtype};
use crate::evd::reaction::Reaction;
use crate::mem::lmr::creation_error;
use crate::srq::QueuePairs;
use crate::srq::sink::Sink;

impl<P: Platform> QueuePairs<'_, '_, P> {
    /// Makes the sink hold the completions of all SRQs that it serves; `count` are those of an SRQ that it is to serve as well.
    pub(in crate::srq) fn make_room_in_sink(&mut self, srq: SrqHandle, count: u32) -> DatResult<()> {
        let entries = self.objects.sunk_completions(srq).saturating_add(count);
        let resized = self.device.resize_sink(entries);
        resized.map_err(|error| creation_error(error, Subtype::ResourceTevd))
    }

    /// Drops the completions of a destroyed QP from the sink. Their buffers go back to the SRQ.
    pub(in crate::srq) fn sweep_sink(&mut self, qpn: QpNumber, srq: SrqHandle) {
        let cq = &mut self.device.sink_mut().cq;
        if let Ok(srq) = self.objects.get_mut(srq) {
            srq.take_back(cq, qpn);
        }
        cq.sweep(qpn);
    }
}

impl<B: Bar> Objects<'_, B> {
    /// Takes completions from the sink up to one that matters to its EP's connection: returns the
    /// EP and what follows for it. Buffers go back to their SRQs.
    pub(crate) fn next_sunk(
        &mut self,
        sink: &mut Sink<B>,
        progress: &mut Progress,
    ) -> Option<(u16, Reaction)> {
        loop {
            match sink.cq.poll(|cqe| self.sunk(cqe, progress)) {
                Ok(Some(Some((_, Reaction::None)) | None)) => {}
                Ok(Some(found)) => return found,
                Ok(None) => return None,
                Err(_) => _ = progress.count_bad(),
            }
        }
    }

    /// Retires what a completion in the sink reports done. Returns its EP and what follows for it.
    fn sunk(&mut self, cqe: &Cqe<'_>, progress: &mut Progress) -> Option<(u16, Reaction)> {
        let slot = cqe.user_index() as u16;
        let Some(ep) = self.eps().at(slot).filter(|ep| ep.owns(cqe)) else {
            progress.count_stale(!self.srqs_mut().take_drained(cqe));
            return None;
        };
        let reaction = ep.reaction(cqe);
        if let Some(Ok(srq)) = ep.srq().map(|srq| self.get_mut(srq)) {
            srq.retire(cqe);
        }
        Some((slot, reaction))
    }

    /// Whether the EPs on an SRQ include one whose receives nobody hears of.
    pub(crate) fn is_sunk(&self, srq: SrqHandle) -> bool {
        self.eps().iter().any(|(_, ep)| ep.srq() == Some(srq) && ep.streams().recv.is_none())
    }

    /// Completions that may be in the sink at once, but for those of `except`.
    fn sunk_completions(&self, except: SrqHandle) -> u32 {
        let srqs = self.table().iter().filter(|(srq, _)| *srq != except && self.is_sunk(*srq));
        srqs.map(|(_, srq)| srq.completions()).sum()
    }
}
