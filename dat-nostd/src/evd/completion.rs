//! What a completion means to its endpoint, and the event that it becomes.

use driver_mlx::{Bar, Completion, Cqe, Failed, ReceiveOpcode, Received as Message, WorkQueue, WrId};

use crate::adapter::shared::Shared;
use crate::base::event::{DtoCompletion, DtoOperation, EventData, Received, RmrCompletion};
use crate::base::handle::EpHandle;
use crate::base::table::Table;
use crate::base::types::{DtoStatus, EpState};
use crate::ep::endpoint::Ep;
use crate::ep::work::Note;
use crate::evd::reaction::Reaction;
use crate::srq::draining::EndedQp;
use crate::srq::draining::take_drained;

/// An EP with its handle.
type Entry<'a, B> = (EpHandle, &'a mut Ep<B>);

/// What becomes of a completion of any kind.
pub(crate) struct Outcome {
    /// Slot of its EP.
    pub(crate) ep: u16,
    /// The consumer's event. None if it was suppressed, or our own.
    pub(crate) data: Option<EventData>,
    /// What it means to the EP's connection.
    pub(crate) reaction: Reaction,
    /// Its queue pair is gone.
    pub(crate) is_stale: bool,
}

/// Retires what a completion reports done, if it is a transfer that ended well and nothing else depends on it: what becomes of it. `None`,
/// and nothing has changed, for anything else. With `RUNS` requests of which the device says nothing may be done with it.
#[inline(always)]
pub(crate) fn take_transfer<const RUNS: bool, B: Bar>(
    eps: &mut Table<'_, EpHandle, Ep<B>>,
    cqe: &Cqe<'_>,
) -> Option<DtoCompletion> {
    let (handle, ep) = eps.entry_mut(cqe.user_index() as u16)?;
    // The first message to an EP that waits for its peer's confirmation establishes it.
    if ep.state() == EpState::CompletionPending {
        return None;
    }
    let retired = ep.qp.as_mut()?.retire_common::<RUNS>(cqe, Note::SPECIAL)?;
    Some(match &retired {
        Completion::Received(message) => arrived((handle, ep), message),
        _ => sent_well((handle, ep), retired.wr_id(), retired.count()),
    })
}

impl Outcome {
    /// Of what is no completion.
    pub(crate) const NOTHING: Self = Self { ep: 0, data: None, reaction: Reaction::None, is_stale: false };

    /// Retires what a completion reports done.
    pub(crate) fn new<B: Bar>(
        eps: &mut Table<'_, EpHandle, Ep<B>>,
        shared: &mut Shared<'_>,
        draining: &Table<'_, EpHandle, EndedQp<B>>,
        cqe: &Cqe<'_>,
    ) -> Self {
        let slot = cqe.user_index() as u16;
        let Some((handle, ep)) = eps.entry_mut(slot).filter(|(_, ep)| ep.owns(cqe)) else {
            let is_stale = !take_drained(draining, &mut shared.srqs, cqe);
            return Self { is_stale, ..Self::NOTHING };
        };
        let reaction = ep.reaction(cqe);
        let data = if ep.srq.is_some() && !cqe.is_send() {
            deliver_shared((handle, ep), shared, cqe)
        } else {
            ep.retire(cqe).and_then(|retired| deliver((handle, ep), shared, &retired))
        };
        Self { ep: slot, data, reaction, is_stale: false }
    }
}

/// The event of a request that ended well and is no bind.
#[inline]
fn sent_well<B: Bar>((handle, ep): Entry<'_, B>, wr_id: WrId, count: u16) -> DtoCompletion {
    ep.requests.retired(count);
    let note = Note(wr_id.tag);
    success(handle, wr_id.id, note.length(), note.transfer())
}

/// The event of a message that came by a send without more.
#[inline]
fn arrived<B: Bar>((handle, ep): Entry<'_, B>, message: &Message) -> DtoCompletion {
    ep.receives.retired(1);
    // The device's claim is bounded by what was posted.
    let length = message.length.min(Note(message.wr_id.tag).length());
    success(handle, message.wr_id.id, length, DtoOperation::Receive)
}

/// The event of a transfer that ended well.
#[inline]
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

/// The event of what was retired.
fn deliver<B: Bar>(
    (handle, ep): Entry<'_, B>,
    shared: &mut Shared<'_>,
    retired: &Completion,
) -> Option<EventData> {
    match retired {
        Completion::Sent(sent) => {
            deliver_special((handle, ep), shared, sent.wr_id, sent.count, DtoStatus::Success)
        }
        Completion::Received(message) => {
            ep.receives.retired(1);
            // The device's claim is bounded by what was posted, except for a write with immediate, which is not stored there.
            let length = match message.opcode {
                ReceiveOpcode::WriteImm(_) => message.length,
                _ => message.length.min(Note(message.wr_id.tag).length()),
            };
            Some(received(handle, shared, message, length))
        }
        Completion::Failed(failed) => deliver_error((handle, ep), shared, failed),
    }
}

fn deliver_error<B: Bar>(
    (handle, ep): Entry<'_, B>,
    shared: &mut Shared<'_>,
    failed: &Failed,
) -> Option<EventData> {
    let Failed { wr_id, queue, error, count } = *failed;
    let note = Note(wr_id.tag);
    let status = status_of(error.syndrome.0);
    let operation = match queue {
        WorkQueue::Send if note.is_bind() => {
            return deliver_special((handle, ep), shared, wr_id, count, status);
        }
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
        ep: handle,
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
            shared.windows.invalidated(rkey.get());
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
fn deliver_special<B: Bar>(
    (handle, ep): Entry<'_, B>,
    shared: &mut Shared<'_>,
    wr_id: WrId,
    count: u16,
    status: DtoStatus,
) -> Option<EventData> {
    let well = status == DtoStatus::Success;
    let note = Note(wr_id.tag);
    ep.requests.retired(count);
    if !note.is_bind() {
        let done = success(handle, wr_id.id, note.length(), note.operation());
        return (!note.is_silent()).then_some(EventData::Dto(done));
    }
    let rmr = shared.windows.bind_done(note.place(), well)?;
    if well && note.is_silent() {
        return None;
    }
    Some(EventData::RmrBind(RmrCompletion { rmr, user_cookie: wr_id.id, status }))
}

/// A receive that an EP took from its SRQ.
fn deliver_shared<B: Bar>(
    (handle, ep): Entry<'_, B>,
    shared: &mut Shared<'_>,
    cqe: &Cqe<'_>,
) -> Option<EventData> {
    let srq = shared.srqs.get_mut(ep.srq?).ok()?;
    match srq.retire(cqe)? {
        Completion::Received(message) => {
            // As with an EP's own receives, except that lengths are bounded by the longest of the queue.
            let length = match message.opcode {
                ReceiveOpcode::WriteImm(_) => message.length,
                _ => srq.bound(message.length),
            };
            Some(received(handle, shared, &message, length))
        }
        Completion::Failed(failed) => Some(EventData::Dto(DtoCompletion {
            ep: handle,
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
