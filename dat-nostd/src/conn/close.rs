//! The end of connections: graceful and abrupt disconnects, what outlives them. DAT 1.2, `dat_ep_disconnect`.

use driver_mlx::{Bar, Instant, Platform, Qp, QpNumber, Wake};

use crate::adapter::objects::Objects;
use crate::base::handle::{EpHandle, EvdHandle, Typed};
use crate::base::ret::DatResult;
use crate::base::states::EpEvent;
use crate::base::types::{CloseFlags, EpState};
use crate::conn::Connections;
use crate::conn::closing::{Closing, LAST_RECEIVE_WITHIN, Phase, TICK, ticks};
use crate::ep::Ep;
use crate::evd::reaction::Reaction;

/// Far behind everything: events that follow what a dead device will never report.
const AFTER_ALL: u32 = 1 << 30;

impl<P: Platform> Connections<'_, '_, P> {
    /// Ends an EP's connection or attempt now, if the event means an end in its state: QP to error, flush, then the terminal event.
    /// Nothing happens if the flush has begun already; a graceful disconnect turns abrupt.
    pub(crate) fn end_ep(&mut self, slot: u16, event: EpEvent) {
        let (Some(handle), Some(ep)) = (self.objects.eps().handle_at(slot), self.objects.eps().at(slot))
        else {
            return;
        };
        if ep.connection().is_flushing() || event.in_state(ep.state()).is_none() {
            return;
        }
        self.objects.leave_awaiting(handle);
        self.abandon_attempt(handle);
        let dead = self.device.is_dead();
        let until = ticks(self.device.now()).wrapping_add(LAST_RECEIVE_WITHIN);
        let Some(ep) = self.objects.eps_mut().at_mut(slot) else { return };
        // A QP that never was ready for receives has taken nothing, and says nothing.
        let never = ep.srq().is_some() && !ep.can_have_received();
        ep.connection_mut().note_last_receive(never);
        let receive_end = if ep.srq().is_some() { until } else { ep.receives().head() };
        let Some(transition) = ep.take(event) else { return };
        if let Some(qp) = ep.qp_mut()
            && !dead
        {
            // The device may have come here by itself; then the command changes nothing.
            let _ = self.device.hca_mut().modify_to_error(qp);
        }
        // A suppressed request that had succeeded would leave no completion to tell the end by.
        if ep.ends_silently() && !dead {
            ep.post_marker();
        }
        let closing = Closing {
            event: transition.event,
            phase: Phase::Flushing,
            request_end: ep.requests().head(),
            receive_end,
            send_end: ep.qp().map(Qp::send_end),
        };
        ep.connection_mut().begin_closing(closing);
        self.progress.pending_mut().closing_mut().push(self.objects.eps_mut(), slot);
        self.progress.set_happened();
        self.progress_closing(slot);
    }

    /// `dat_ep_disconnect` of an EP whose state allows it. A graceful one of a connection lets outstanding requests finish first, and new
    /// ones are refused.
    pub(crate) fn disconnect(&mut self, handle: EpHandle, flags: CloseFlags) -> DatResult<()> {
        let ep = self.objects.get(handle)?;
        match (flags, ep.state()) {
            (_, EpState::DisconnectPending) if ep.connection().is_flushing() => {}
            (CloseFlags::Graceful, EpState::DisconnectPending) => {}
            (CloseFlags::Graceful, EpState::Connected) => self.drain(handle)?,
            (CloseFlags::Graceful, _) => self.end_ep(handle.any().slot(), EpEvent::DisconnectGraceful),
            (CloseFlags::Abrupt, _) => self.end_ep(handle.any().slot(), EpEvent::DisconnectAbrupt),
        }
        self.run_port();
        Ok(())
    }

    /// Lets the requests of a connected EP finish.
    fn drain(&mut self, handle: EpHandle) -> DatResult<()> {
        let dead = self.device.is_dead();
        let ep = self.objects.get_mut(handle)?;
        let Some(transition) = ep.take(EpEvent::DisconnectGraceful) else { return Ok(()) };
        if !dead && ep.requests().outstanding() > 0 {
            ep.post_marker();
        }
        let closing = Closing {
            event: transition.event,
            phase: Phase::Draining,
            request_end: ep.requests().head(),
            receive_end: ep.receives().head(),
            send_end: ep.qp().map(Qp::send_end),
        };
        ep.connection_mut().begin_closing(closing);
        // Should the peer leave meanwhile, it waits for our answer until we are done too.
        let conn = ep.connection().id();
        self.progress.pending_mut().closing_mut().push(self.objects.eps_mut(), handle.any().slot());
        if let Some(conn) = conn {
            self.device.cm_mut().defer_disconnect(conn);
        }
        self.progress_closing(handle.any().slot());
        Ok(())
    }

    /// The connection is broken, or its set-up failed on this, the passive side.
    pub(crate) fn fail_ep(&mut self, slot: u16) {
        // A peer that has left takes nothing any more: then that is why.
        let conn = self.objects.eps().at(slot).and_then(|ep| ep.connection().id());
        let left = conn.is_some_and(|conn| self.device.cm().peer_left(conn));
        self.end_ep(slot, if left { EpEvent::PeerDisconnected } else { EpEvent::Failed });
    }

    /// Goes on with every EP that is closing; says when one ends though the device has not said all.
    pub(crate) fn progress_all_closing(&mut self, now: Instant) -> Wake {
        let mut wake = Wake::Idle;
        for _ in 0..self.progress.pending().closing() {
            let Some(slot) = self.progress.pending_mut().closing_mut().rotate(self.objects.eps_mut()) else {
                break;
            };
            self.progress.visit();
            let Some(ep) = self.objects.eps_mut().at_mut(slot) else { continue };
            if ep.srq().is_some()
                && !ep.connection().last_receive()
                && let Some(Closing { phase: Phase::Flushing, receive_end, .. }) = ep.connection().closing()
            {
                let left = receive_end.wrapping_sub(ticks(now)) as i32;
                ep.connection_mut().note_last_receive(left <= 0);
                wake = wake.earliest(Wake::At(now + TICK * left.max(0) as u32));
            }
            self.progress_closing(slot);
        }
        wake
    }

    /// The device says that a QP in error takes nothing more from its SRQ, and that it has told of all that it took.
    pub(crate) fn last_receive(&mut self, qpn: QpNumber) {
        for slot in self.objects.eps().slots() {
            let Some(ep) = self.objects.eps_mut().at_mut(slot) else { continue };
            if ep.qpn() == qpn && ep.srq().is_some() {
                ep.connection_mut().note_last_receive(true);
                return self.progress_closing(slot);
            }
        }
    }

    /// If everything of a closing EP has been flushed (though perhaps not dequeued), queues its terminal event behind it.
    fn progress_closing(&mut self, slot: u16) {
        let dead = self.device.is_dead();
        let Some(ep) = self.objects.eps().at(slot) else { return };
        let Some(closing) = ep.connection().closing() else { return };
        let requests_done = dead || self.objects.requests_done(ep, &closing);
        match closing.phase {
            Phase::Draining if requests_done => return self.leave(slot),
            Phase::Draining | Phase::Leaving => return,
            Phase::Flushing => {}
        }
        if !requests_done || !dead && !self.objects.receives_done(ep, &closing) {
            return;
        }
        self.finish_closing(slot);
    }

    /// Everything of ours is done: tells the peer, who may still have something on its way to us.
    fn leave(&mut self, slot: u16) {
        let now = self.device.now();
        let conn = self.objects.eps().at(slot).and_then(|ep| ep.connection().id());
        let told = conn.is_some_and(|conn| self.device.cm_mut().disconnect(now, conn, &[]).is_ok());
        if !told || self.device.is_dead() {
            self.end_ep(slot, EpEvent::DisconnectAbrupt);
            return;
        }
        self.progress.pending_mut().request_flush();
        if let Some(ep) = self.objects.eps_mut().at_mut(slot) {
            ep.connection_mut().leave();
        }
    }

    /// Queues the terminal event.
    fn finish_closing(&mut self, slot: u16) {
        let dead = self.device.is_dead();
        self.progress.pending_mut().closing_mut().remove(self.objects.eps_mut(), slot);
        let Some(ep) = self.objects.eps_mut().at_mut(slot) else { return };
        let Some(closing) = ep.connection_mut().end_closing() else { return };
        let finished = || ep.take(EpEvent::Finished)?.event;
        let Some(event) = closing.event.or_else(finished) else { return };
        let position = self.objects.terminal_position(slot, dead);
        self.post_connection_event(slot, event, position);
    }

    /// Ends the closing of an EP at once; its flushes will be forgotten.
    pub(crate) fn end_closing(&mut self, handle: EpHandle) {
        self.finish_closing(handle.any().slot());
    }

    /// Forgets the connection of an EP, without events.
    pub(crate) fn forget(&mut self, handle: EpHandle) {
        self.objects.leave_awaiting(handle);
        self.abandon_attempt(handle);
        if let Ok(ep) = self.objects.get_mut(handle) {
            ep.connection_mut().end_closing();
            self.progress.pending_mut().closing_mut().remove(self.objects.eps_mut(), handle.any().slot());
        }
    }

    /// Takes the completions of EPs without a receive EVD.
    pub(crate) fn drain_sink(&mut self) {
        while let Some((ep, reaction)) = self.objects.next_sunk(self.device.sink_mut(), self.progress) {
            self.react(ep, reaction);
        }
    }

    /// Carries out what a completion means to its EP's connection.
    #[cold]
    pub(crate) fn react(&mut self, ep: u16, reaction: Reaction) {
        match reaction {
            Reaction::None => {}
            Reaction::Establish => self.establish_passive(ep),
            Reaction::Fail => self.fail_ep(ep),
        }
    }
}

impl<B: Bar> Objects<'_, B> {
    /// Whether an EP has told its peer that it leaves, and waits for the answer.
    pub(crate) fn is_leaving(&self, slot: u16) -> bool {
        let closing = self.eps().at(slot).and_then(|ep| ep.connection().closing());
        closing.is_some_and(|closing| closing.phase == Phase::Leaving)
    }

    /// Where the terminal event belongs in the connect EVD: behind all completions that are there.
    fn terminal_position(&self, slot: u16, dead: bool) -> Option<u32> {
        let ep = self.eps().at(slot)?;
        let evd = self.get(ep.streams().connect?).ok()?;
        let end = evd.end()?;
        Some(if dead { end.wrapping_add(AFTER_ALL) } else { end })
    }

    /// Whether all requests posted before the end are retired or their completions are in the CQ.
    fn requests_done(&self, ep: &Ep<B>, closing: &Closing) -> bool {
        if (ep.requests().tail().wrapping_sub(closing.request_end) as i32) >= 0 {
            return true;
        }
        let Some(qp) = ep.qp() else { return true };
        self.any_completion(ep.streams().request, |completion| {
            ep.owns(completion) && qp.end_of(completion).is_some_and(|end| Some(end) == closing.send_end)
        })
    }

    /// The same for receives, each of which has a completion of its own; those of an SRQ are done when the device says so.
    fn receives_done(&self, ep: &Ep<B>, closing: &Closing) -> bool {
        if ep.srq().is_some() {
            return ep.connection().last_receive() || ep.qp().is_none();
        }
        // What is posted while the end is pending belongs before it, what is posted to a disconnected EP does not.
        let pending = ep.state() == EpState::DisconnectPending;
        let end = if pending { ep.receives().head() } else { closing.receive_end };
        let mut left = end.wrapping_sub(ep.receives().tail()) as i32;
        if left <= 0 || ep.qp().is_none() {
            return true;
        }
        self.any_completion(ep.streams().recv, |completion| {
            if ep.owns(completion) && !completion.is_send() {
                left -= 1;
            }
            left == 0
        })
    }

    /// Returns whether a completion with an error waits for an EP whose QP was not moved to ERROR
    /// yet. In that case the device reported a transfer that failed by itself.
    pub(crate) fn has_failed(&self, slot: u16) -> bool {
        let Some(ep) = self.eps().at(slot).filter(|ep| !ep.connection().is_flushing()) else {
            return false;
        };
        let failed = |completion: &driver_mlx::Cqe| ep.owns(completion) && completion.error().is_some();
        [ep.streams().request, ep.streams().recv]
            .iter()
            .any(|evd| evd.is_some() && self.any_completion(*evd, failed))
    }

    /// Looks at the completions of an EVD until one is found; true without an EVD.
    fn any_completion(
        &self,
        evd: Option<EvdHandle>,
        mut found: impl FnMut(&driver_mlx::Cqe<'_>) -> bool,
    ) -> bool {
        let Some(Ok(evd)) = evd.map(|evd| self.get(evd)) else { return true };
        evd.cq().is_none() || evd.peek_all().flatten().any(|completion| found(&completion))
    }

    /// The EP waits for its peer's confirmation: completions of receives are looked at before they are delivered.
    pub(crate) fn enter_awaiting(&mut self, handle: EpHandle) {
        let Ok(ep) = self.get(handle) else { return };
        if let Some(Ok(evd)) = ep.streams().recv.map(|evd| self.get_mut(evd)) {
            evd.await_one();
        }
    }

    /// The EP, if it waits for its peer's confirmation, does so no more.
    pub(crate) fn leave_awaiting(&mut self, handle: EpHandle) {
        let Ok(ep) = self.get(handle) else { return };
        if ep.state() == EpState::CompletionPending
            && let Some(Ok(evd)) = ep.streams().recv.map(|evd| self.get_mut(evd))
        {
            evd.await_one_less();
        }
    }
}
