//! What a completion means to its endpoint, and the event that it becomes.

use driver_mlx::{Bar, Completion, CompletionKind, Retired};

use crate::adapter::shared::Shared;
use crate::base::event::{DtoCompletion, DtoOperation, EventData, Received, RmrCompletion};
use crate::base::types::DtoStatus;
use crate::ep::endpoint::Ep;
use crate::ep::work::Note;

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
pub(crate) fn deliver_sent<B: Bar>(
    ep: &mut Ep<B>,
    shared: &mut Shared<'_>,
    retired: Retired,
) -> Option<EventData> {
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
pub(crate) fn deliver_error<B: Bar>(
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
pub(crate) fn received(shared: &mut Shared<'_>, completion: &Completion) -> Received {
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
pub(crate) fn deliver_special<B: Bar>(
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
pub(crate) fn deliver_shared<B: Bar>(
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
