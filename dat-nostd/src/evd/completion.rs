//! What a completion means to its endpoint, and the event that it becomes.

use driver_mlx::{Bar, Completion, Cqe, Failed, ReceiveOpcode, Received as Message, WorkQueue, WrId};

use crate::adapter::shared::Shared;
use crate::base::event::{DtoCompletion, DtoOperation, EventData, Received, RmrCompletion};
use crate::base::handle::EpHandle;
use crate::base::types::DtoStatus;
use crate::ep::endpoint::Ep;
use crate::ep::work::Note;

/// The event of a transfer that ended well.
#[inline(always)]
fn success(ep: EpHandle, user_cookie: u64, length: u32, operation: DtoOperation) -> DtoCompletion {
    DtoCompletion {
        ep,
        user_cookie,
        transferred_length: u64::from(length),
        operation,
        status: DtoStatus::Success,
        received: Received::Plain,
        vendor_syndrome: 0,
    }
}

/// A request that is no bind and not suppressed has ended well.
#[inline(always)]
pub(crate) fn sent_well<B: Bar>(ep: &mut Ep<B>, wr_id: WrId, count: u16) -> DtoCompletion {
    ep.requests.retired(count);
    let note = Note(wr_id.tag);
    success(ep.handle, wr_id.id, note.length(), note.transfer())
}

/// A message has arrived by an ordinary send.
#[inline(always)]
pub(crate) fn arrived<B: Bar>(ep: &mut Ep<B>, wr_id: WrId, length: u32) -> DtoCompletion {
    ep.receives.retired(1);
    // The device's claim is bounded by what was posted.
    let length = length.min(Note(wr_id.tag).length());
    success(ep.handle, wr_id.id, length, DtoOperation::Receive)
}

/// The event of a completion and what it retired. None if there is no event: suppressed, or our own.
pub(crate) fn deliver<B: Bar>(
    ep: &mut Ep<B>,
    shared: &mut Shared<'_>,
    cqe: &Cqe,
    retired: Option<Completion>,
) -> Option<EventData> {
    if ep.srq.is_some() && !cqe.is_send() {
        return deliver_shared(ep, shared, cqe);
    }
    match retired? {
        Completion::Sent(sent) if Note(sent.wr_id.tag).0 & Note::SPECIAL == 0 => {
            Some(EventData::Dto(sent_well(ep, sent.wr_id, sent.count)))
        }
        Completion::Received(message) if message.opcode == ReceiveOpcode::Send => {
            Some(EventData::Dto(arrived(ep, message.wr_id, message.length)))
        }
        Completion::Sent(sent) => deliver_special(ep, shared, sent.wr_id, sent.count, DtoStatus::Success),
        Completion::Received(message) => {
            ep.receives.retired(1);
            // The device's claim is bounded by what was posted, except for a write with immediate, which is not stored there.
            let length = match message.opcode {
                ReceiveOpcode::WriteImm(_) => message.length,
                _ => message.length.min(Note(message.wr_id.tag).length()),
            };
            Some(received(ep.handle, shared, &message, length))
        }
        Completion::Failed(failed) => deliver_error(ep, shared, &failed),
    }
}

fn deliver_error<B: Bar>(ep: &mut Ep<B>, shared: &mut Shared<'_>, failed: &Failed) -> Option<EventData> {
    let Failed { wr_id, queue, error, count } = *failed;
    let note = Note(wr_id.tag);
    let status = status_of(error.syndrome.0);
    let operation = match queue {
        WorkQueue::Send if note.is_bind() => return deliver_special(ep, shared, wr_id, count, status),
        WorkQueue::Send => {
            ep.requests.retired(count);
            note.operation()
        }
        WorkQueue::Receive => {
            ep.receives.retired(count);
            DtoOperation::Receive
        }
    };
    if note.is_marker() {
        return None;
    }
    Some(EventData::Dto(DtoCompletion {
        ep: ep.handle,
        user_cookie: wr_id.id,
        transferred_length: 0,
        operation,
        status,
        received: Received::Plain,
        vendor_syndrome: error.vendor,
    }))
}

/// The event of a message that has arrived, and what came with it.
fn received(ep: EpHandle, shared: &mut Shared<'_>, message: &Message, length: u32) -> EventData {
    let received = match message.opcode {
        ReceiveOpcode::Send => Received::Plain,
        ReceiveOpcode::SendImm(immediate) | ReceiveOpcode::WriteImm(immediate) => {
            Received::Immediate(immediate)
        }
        ReceiveOpcode::SendInval(rkey) => {
            shared.invalidated(rkey.get());
            Received::Invalidated(rkey.get())
        }
    };
    EventData::Dto(DtoCompletion {
        ep,
        user_cookie: message.wr_id.id,
        transferred_length: u64::from(length),
        operation: DtoOperation::Receive,
        status: DtoStatus::Success,
        received,
        vendor_syndrome: 0,
    })
}

/// A request that is suppressed, our own, an atomic, or a bind.
pub(crate) fn deliver_special<B: Bar>(
    ep: &mut Ep<B>,
    shared: &mut Shared<'_>,
    wr_id: WrId,
    count: u16,
    status: DtoStatus,
) -> Option<EventData> {
    let well = status == DtoStatus::Success;
    let note = Note(wr_id.tag);
    ep.requests.retired(count);
    if !note.is_bind() {
        let done = success(ep.handle, wr_id.id, note.length(), note.operation());
        return (!note.is_silent()).then_some(EventData::Dto(done));
    }
    let rmr = shared.bind_done(note.place(), well)?;
    if well && note.is_silent() {
        return None;
    }
    Some(EventData::RmrBind(RmrCompletion { rmr, user_cookie: wr_id.id, status }))
}

/// A receive that an EP took from its SRQ.
fn deliver_shared<B: Bar>(ep: &mut Ep<B>, shared: &mut Shared<'_>, cqe: &Cqe) -> Option<EventData> {
    let srq = shared.srqs.get_mut(ep.srq?).ok()?;
    match srq.retire(cqe)? {
        Completion::Received(message) => {
            // As with an EP's own receives, except that lengths are bounded by the longest of the queue.
            let length = match message.opcode {
                ReceiveOpcode::WriteImm(_) => message.length,
                _ => srq.bound(message.length),
            };
            Some(received(ep.handle, shared, &message, length))
        }
        Completion::Failed(failed) => Some(EventData::Dto(DtoCompletion {
            ep: ep.handle,
            user_cookie: failed.wr_id.id,
            transferred_length: 0,
            operation: DtoOperation::Receive,
            status: status_of(failed.error.syndrome.0),
            received: Received::Plain,
            vendor_syndrome: failed.error.vendor,
        })),
        Completion::Sent(_) => None,
    }
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
