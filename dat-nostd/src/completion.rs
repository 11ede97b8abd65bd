//! Completions: what they mean to the consumer and to the connection, in the CQ and out of it.

use driver_mlx::{Bar, Completion, CompletionKind, Platform, QpNumber, Retired};

use crate::adapter::Adapter;
use crate::adapter::Shared;
use crate::ep::Ep;
use crate::evd::{Notification, is_due};
use crate::event::{AsyncError, DtoCompletion, DtoOperation, EventData, Received, RmrCompletion};
use crate::handle::{EvdHandle, Handle, SrqHandle};
use crate::types::DtoStatus;
use crate::work::Note;

/// What a completion means.
#[derive(Clone, Copy)]
pub(crate) enum Meaning {
    /// Nothing for the consumer: of a freed EP, suppressed, or our own.
    Nothing,
    /// An event, and whether it notifies beyond its mere arrival.
    Deliver { unsignalled: bool },
}

/// What looking at a completion makes necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Nothing.
    None,
    /// The peer's data came before its confirmation.
    Establish,
    /// The connection is broken.
    Fail,
}

/// Retires the work request of a completion. None if there is no event: suppressed, or our own.
#[inline(always)]
pub(crate) fn deliver<B: Bar>(
    ep: &mut Ep<B>,
    shared: &mut Shared<'_>,
    completion: &Completion,
) -> Option<EventData> {
    let qp = ep.qp.as_mut()?;
    if ep.srq.is_some() && !completion.is_send() {
        return deliver_shared(ep, shared, completion);
    }
    let retired = qp.retire_kept(completion)?;
    let (user_cookie, note) = (retired.kept.cookie, Note(retired.kept.note));
    match completion.kind() {
        CompletionKind::Send => deliver_sent(ep, shared, retired),
        CompletionKind::Receive
        | CompletionKind::ReceiveImm
        | CompletionKind::ReceiveInval
        | CompletionKind::ReceiveWriteImm => {
            ep.receives.retired(retired.count);
            let received = received(shared, completion);
            // The device's claim is bounded by what was posted, except for a write with immediate, which is not stored there.
            let length = if completion.kind() == CompletionKind::ReceiveWriteImm {
                completion.byte_len()
            } else {
                completion.byte_len().min(note.length())
            };
            Some(EventData::Dto(DtoCompletion {
                ep: ep.handle,
                user_cookie,
                transferred_length: u64::from(length),
                operation: DtoOperation::Receive,
                status: DtoStatus::Success,
                received,
                vendor_syndrome: 0,
            }))
        }
        CompletionKind::SendError | CompletionKind::ReceiveError => {
            deliver_error(ep, shared, completion, retired)
        }
    }
}

/// A request that is done and retired from its QP.
#[inline(always)]
fn deliver_sent<B: Bar>(ep: &mut Ep<B>, shared: &mut Shared<'_>, retired: Retired) -> Option<EventData> {
    let note = Note(retired.kept.note);
    if note.is_special() {
        return deliver_special(ep, shared, retired, DtoStatus::Success);
    }
    ep.requests.retired(retired.count);
    Some(EventData::Dto(DtoCompletion {
        ep: ep.handle,
        user_cookie: retired.kept.cookie,
        transferred_length: u64::from(note.length()),
        operation: note.operation(),
        status: DtoStatus::Success,
        received: Received::Plain,
        vendor_syndrome: 0,
    }))
}

#[cold]
fn deliver_error<B: Bar>(
    ep: &mut Ep<B>,
    shared: &mut Shared<'_>,
    completion: &Completion,
    retired: Retired,
) -> Option<EventData> {
    let send = completion.is_send();
    let note = Note(retired.kept.note);
    let error = completion.error()?;
    if send && note.is_bind() {
        return deliver_special(ep, shared, retired, status_of(error.syndrome.0));
    }
    let work = if send { &mut ep.requests } else { &mut ep.receives };
    work.retired(retired.count);
    if note.is_marker() {
        return None;
    }
    Some(EventData::Dto(DtoCompletion {
        ep: ep.handle,
        user_cookie: retired.kept.cookie,
        transferred_length: 0,
        operation: if send { note.operation() } else { DtoOperation::Receive },
        status: status_of(error.syndrome.0),
        received: Received::Plain,
        vendor_syndrome: error.vendor,
    }))
}

/// What came with a message.
#[inline(always)]
fn received(shared: &mut Shared<'_>, completion: &Completion) -> Received {
    match completion.kind() {
        CompletionKind::ReceiveImm | CompletionKind::ReceiveWriteImm => Received::Immediate(completion.imm()),
        CompletionKind::ReceiveInval => {
            shared.invalidated(completion.imm());
            Received::Invalidated(completion.imm())
        }
        _ => Received::Plain,
    }
}

/// A request that is suppressed, our own, or a bind.
#[cold]
fn deliver_special<B: Bar>(
    ep: &mut Ep<B>,
    shared: &mut Shared<'_>,
    retired: Retired,
    status: DtoStatus,
) -> Option<EventData> {
    let success = status == DtoStatus::Success;
    let (user_cookie, note) = (retired.kept.cookie, Note(retired.kept.note));
    ep.requests.retired(retired.count);
    if !note.is_bind() {
        return None;
    }
    let rmr = shared.bind_done(note.place(), success)?;
    if success && note.is_silent() {
        return None;
    }
    Some(EventData::RmrBind(RmrCompletion { rmr, user_cookie, status }))
}

/// A receive that an EP took from its SRQ.
fn deliver_shared<B: Bar>(
    ep: &mut Ep<B>,
    shared: &mut Shared<'_>,
    completion: &Completion,
) -> Option<EventData> {
    let srq = shared.srqs.get_mut(ep.srq?).ok()?;
    let user_cookie = srq.retire(completion)?;
    let error = completion.error();
    // As with an EP's own receives, except that lengths are bounded by the longest of the queue.
    let length = match (error, completion.kind()) {
        (Some(_), _) => 0,
        (None, CompletionKind::ReceiveWriteImm) => completion.byte_len(),
        (None, _) => srq.bound(completion.byte_len()),
    };
    let received = received(shared, completion);
    Some(EventData::Dto(DtoCompletion {
        ep: ep.handle,
        user_cookie,
        transferred_length: u64::from(length),
        operation: DtoOperation::Receive,
        status: error.map_or(DtoStatus::Success, |error| status_of(error.syndrome.0)),
        received,
        vendor_syndrome: error.map_or(0, |error| error.vendor),
    }))
}

/// DAT 1.2 statuses for the syndromes of mlx5 error completions.
pub(crate) fn status_of(syndrome: u8) -> DtoStatus {
    match syndrome {
        0x01 => DtoStatus::ErrLocalLength,
        0x02 => DtoStatus::ErrLocalEp,
        0x04 | 0x11 => DtoStatus::ErrLocalProtection,
        0x06 => DtoStatus::RmrOperationFailed,
        0x10 => DtoStatus::ErrBadResponse,
        0x12 | 0x14 | 0x22 => DtoStatus::ErrRemoteResponder,
        0x13 => DtoStatus::ErrRemoteAccess,
        0x15 => DtoStatus::ErrTransport,
        0x16 => DtoStatus::ErrReceiverNotReady,
        // Flushed (0x05), and what nobody has defined.
        _ => DtoStatus::ErrFlushed,
    }
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// Looks at completions not yet looked at, at most `limit`: failures take effect, deliverable ones are counted.
    pub(crate) fn look_ahead(&mut self, slot: u16, limit: u32) {
        for _ in 0..limit {
            let Some(evd) = self.evds.at_mut(slot) else { return };
            let Some(cq) = &evd.cq else { return };
            let watched = evd.wait.is_some() || evd.cno.is_some();
            let meaning = match cq.peek(evd.ahead) {
                Ok(None) => return,
                Ok(Some(completion)) => {
                    let index = completion.user_index() as u16;
                    let (meaning, act) = match self.eps.at(index) {
                        Some(ep) if ep.owns(&completion) => {
                            // Only a wait or a CNO asks; without one the marks need not be looked up.
                            let meaning = if watched { ep.meaning(&completion) } else { Meaning::Nothing };
                            (meaning, ep.reaction(&completion))
                        }
                        _ => (Meaning::Nothing, Reaction::None),
                    };
                    self.react(index, act);
                    (meaning, completion.solicited() || completion.error().is_some())
                }
                Err(_) => (Meaning::Nothing, false),
            };
            let Some(evd) = self.evds.at_mut(slot) else { return };
            evd.looked_at_one();
            let seen = evd.position();
            self.progress = true;
            if let (Meaning::Deliver { unsignalled }, special) = meaning {
                let notifies = match evd.notification {
                    Notification::Threshold => true,
                    Notification::Unsignalled => !unsignalled,
                    Notification::Solicited => special,
                };
                evd.seen_ready += 1;
                evd.seen_notifying += u32::from(notifies);
                let news = !is_due(seen, evd.announced);
                if news {
                    evd.announced = seen;
                }
                if notifies
                    && news
                    && evd.cno.is_some()
                    && let Some(handle) = self.evds.handle_at(slot)
                {
                    self.arrived(handle);
                }
            }
        }
    }

    /// A completion that the device cannot have meant: counted, and told once.
    #[cold]
    pub(crate) fn bad_completion(&mut self) {
        self.counters.bad_completions += 1;
        if self.counters.bad_completions == 1 {
            self.async_error(None, AsyncError::ProviderInternalError, Handle::from_bits(0));
        }
    }

    /// Carries out what a completion makes necessary.
    #[cold]
    pub(crate) fn react(&mut self, ep: u16, reaction: Reaction) {
        match reaction {
            Reaction::None => {}
            Reaction::Establish => self.establish_passive(ep),
            Reaction::Fail => self.fail_ep(ep),
        }
    }

    /// Forgets the completions of a QP that is gone from the CQ of an EVD. Those of receives give their buffers back to `srq`.
    pub(crate) fn sweep(&mut self, evd: Option<EvdHandle>, qpn: QpNumber, srq: Option<SrqHandle>) {
        let Some(Ok(evd)) = evd.map(|evd| self.evds.get_mut(evd)) else { return };
        let Some(cq) = &mut evd.cq else { return };
        if let Some(Ok(srq)) = srq.map(|srq| self.shared.srqs.get_mut(srq)) {
            for ahead in 0..cq.capacity() {
                match cq.peek(ahead) {
                    Ok(Some(completion)) if completion.qpn() == qpn && !completion.is_send() => {
                        srq.retire(&completion);
                    }
                    Ok(Some(_)) | Err(_) => {}
                    Ok(None) => break,
                }
            }
        }
        // Entries that stay move up over those that go, so whatever counted entries before a place counts those moved past it
        // as well.
        let queue = &evd.queue;
        let (consumed, events) = (evd.consumed, &mut self.events);
        let gone_from = |position: u32| {
            let mut gone = 0;
            let mut ahead = position.wrapping_sub(consumed);
            if ahead as i32 > 0 || position == consumed {
                while let Ok(Some(completion)) = cq.peek(ahead) {
                    gone += u32::from(completion.qpn() == qpn);
                    ahead += 1;
                }
            }
            gone
        };
        let all = gone_from(consumed);
        if all == 0 {
            return;
        }
        events.reposition(queue, |follows| follows.wrapping_add(gone_from(follows)));
        let announced = evd.announced.wrapping_add(gone_from(evd.announced));
        let removed = cq.sweep(qpn);
        evd.announced = announced;
        evd.consumed = evd.consumed.wrapping_add(removed);
        // What was looked at is looked at again, which changes nothing.
        evd.look_again();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses() {
        let table = [
            (0x01, DtoStatus::ErrLocalLength),
            (0x02, DtoStatus::ErrLocalEp),
            (0x04, DtoStatus::ErrLocalProtection),
            (0x05, DtoStatus::ErrFlushed),
            (0x06, DtoStatus::RmrOperationFailed),
            (0x10, DtoStatus::ErrBadResponse),
            (0x11, DtoStatus::ErrLocalProtection),
            (0x12, DtoStatus::ErrRemoteResponder),
            (0x13, DtoStatus::ErrRemoteAccess),
            (0x14, DtoStatus::ErrRemoteResponder),
            (0x15, DtoStatus::ErrTransport),
            (0x16, DtoStatus::ErrReceiverNotReady),
            (0x22, DtoStatus::ErrRemoteResponder),
            (0x77, DtoStatus::ErrFlushed),
        ];
        for (syndrome, status) in table {
            assert_eq!(status_of(syndrome), status, "{syndrome:#x}");
        }
    }
}
