//! What a completion means to its endpoint, and the event that it becomes.

use driver_mlx::{Bar, Completion, Cqe, Failed, ReceiveOpcode, WrId};

use crate::base::event::{DtoCompletion, DtoOperation, EventData, ReceiveDto, Received, RmrCompletion};
use crate::base::handle::EpHandle;
use crate::base::table::{HandleRef, Table};
use crate::base::types::{DtoStatus, EpState};
use crate::ep::Ep;
use crate::ep::work::{EpReceiver, Note};
use crate::evd::reaction::Reaction;
use crate::mem::rmr::Windows;
use crate::srq::draining::Srqs;

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
pub(super) fn take_transfer<const RUNS: bool, B: Bar>(
    eps: &mut Table<'_, EpHandle, Ep<B>>,
    cqe: &Cqe<'_>,
) -> Option<DtoCompletion> {
    let (handle, ep) = ep_of(eps, cqe)?;
    let retired = ep.retire_common::<RUNS>(cqe)?;
    let (WrId { id, .. }, note) = (retired.wr_id(), Note::of(retired.wr_id()));
    Some(match &retired {
        // The device's claim is bounded by what was posted.
        Completion::Received(message) => {
            success(handle.get(), id, message.length.min(note.length()), DtoOperation::Receive)
        }
        _ => success(handle.get(), id, note.length(), note.transfer()),
    })
}

/// As [`take_transfer`] of a receive, with the queue that it was taken from.
#[inline(always)]
pub(super) fn take_receive<'e, B: Bar>(
    eps: &'e mut Table<'_, EpHandle, Ep<B>>,
    cqe: &Cqe<'_>,
) -> Option<(EpReceiver<'e>, ReceiveDto)> {
    let (_, ep) = ep_of(eps, cqe)?;
    let mut receiver = ep.receiver()?;
    let receive = receiver.retire(cqe)?;
    Some((receiver, receive))
}

/// Returns the EP of a completion, unless a message establishes it.
#[inline(always)]
fn ep_of<'e, B: Bar>(
    eps: &'e mut Table<'_, EpHandle, Ep<B>>,
    cqe: &Cqe<'_>,
) -> Option<(HandleRef<'e, EpHandle>, &'e mut Ep<B>)> {
    let (handle, ep) = eps.entry_mut(cqe.user_index() as u16)?;
    // The EVD of such an EP is not on the fast path, but the device may name any EP.
    if ep.state() == EpState::CompletionPending { None } else { Some((handle, ep)) }
}

impl Outcome {
    /// Of what is no completion.
    pub(crate) const NOTHING: Self = Self { ep: 0, data: None, reaction: Reaction::None, is_stale: false };

    /// Retires what a completion reports done.
    pub(crate) fn new<B: Bar>(
        eps: &mut Table<'_, EpHandle, Ep<B>>,
        srqs: &mut Srqs<'_, B>,
        windows: &mut Windows<'_>,
        cqe: &Cqe<'_>,
    ) -> Self {
        let slot = cqe.user_index() as u16;
        let Some((handle, ep)) = eps.entry_mut(slot).filter(|(_, ep)| ep.owns(cqe)) else {
            let is_stale = !srqs.take_drained(cqe);
            return Self { is_stale, ..Self::NOTHING };
        };
        let reaction = ep.reaction(cqe);
        Self { ep: slot, data: retire((handle.get(), ep), srqs, windows, cqe), reaction, is_stale: false }
    }
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

/// The event of an operation that failed.
pub(super) fn failure(
    ep: EpHandle,
    user_cookie: u64,
    operation: DtoOperation,
    (status, vendor_syndrome): (DtoStatus, u8),
) -> EventData {
    EventData::Dto(DtoCompletion { status, vendor_syndrome, ..success(ep, user_cookie, 0, operation) })
}

/// Retires what a completion reports done: its event, if the consumer gets one.
fn retire<B: Bar>(
    (handle, ep): Entry<'_, B>,
    srqs: &mut Srqs<'_, B>,
    windows: &mut Windows<'_>,
    cqe: &Cqe<'_>,
) -> Option<EventData> {
    // The device's claim is bounded by what was posted: here, or anywhere in the SRQ.
    if let Some(srq) = ep.srq().filter(|_| !cqe.is_send()) {
        let srq = srqs.table_mut().get_mut(srq).ok()?;
        return Some(receive_done(handle, windows, &srq.retire(cqe)?, srq.longest()));
    }
    let retired = ep.retire(cqe)?;
    if cqe.is_send() {
        return request_done(handle, windows, &retired);
    }
    Some(receive_done(handle, windows, &retired, Note::of(retired.wr_id()).length()))
}

/// Returns the DAT status of a completion, and the vendor syndrome.
fn status(retired: &Completion) -> (DtoStatus, u8) {
    match retired {
        Completion::Failed(Failed { error, .. }) => (status_of(error.syndrome.0), error.vendor),
        _ => (DtoStatus::Success, 0),
    }
}

/// The event of a request, or of a bind. None if it is suppressed, or our own.
fn request_done(ep: EpHandle, windows: &mut Windows<'_>, retired: &Completion) -> Option<EventData> {
    let (WrId { id, .. }, ended) = (retired.wr_id(), status(retired));
    let note = Note::of(retired.wr_id());
    let well = ended.0 == DtoStatus::Success;
    let rmr = match note.bind_place() {
        Some(place) => Some(windows.bind_done(place, well)?),
        None => None,
    };
    if !note.is_reported(well) {
        return None;
    }
    Some(match rmr {
        Some(rmr) => EventData::RmrBind(RmrCompletion { rmr, user_cookie: id, status: ended.0 }),
        None if well => EventData::Dto(success(ep, id, note.length(), note.operation())),
        None => failure(ep, id, note.operation(), ended),
    })
}

/// The event of a receive, and what came with the message. At most `longest` bytes are stored.
fn receive_done(ep: EpHandle, windows: &mut Windows<'_>, retired: &Completion, longest: u32) -> EventData {
    let cookie = retired.wr_id().id;
    let Completion::Received(message) = retired else {
        return failure(ep, cookie, DtoOperation::Receive, status(retired));
    };
    // The data of a write is not stored in the receive.
    let is_write = matches!(message.opcode, ReceiveOpcode::WriteImm(_));
    let length = if is_write { message.length } else { message.length.min(longest) };
    let received = match message.opcode {
        ReceiveOpcode::Send => Received::Plain,
        ReceiveOpcode::SendImm(data) | ReceiveOpcode::WriteImm(data) => Received::Immediate(data),
        ReceiveOpcode::SendInval(rkey) => {
            windows.invalidated(rkey.get());
            Received::Invalidated(rkey.get())
        }
    };
    EventData::Dto(DtoCompletion { received, ..success(ep, cookie, length, DtoOperation::Receive) })
}

/// DAT 1.2 statuses for the syndromes of mlx5 error completions.
fn status_of(syndrome: u8) -> DtoStatus {
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
