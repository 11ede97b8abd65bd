//! Events.

use crate::handles::{Kinded, RawHandle};
use crate::layout::{Event, EventWords, IbEvent};
use crate::node::Node;
use crate::state::State;
use dat_nostd::{
    ConnectionEvent, DtoCompletion, DtoOperation, DtoStatus, EvdHandle, EventData, EventNumber, Received,
    ServicePoint,
};

const NOTHING: EventWords = EventWords { first: 0, second: 0, third: 0, fourth: 0 };

// Halves of words are the low ones.
const _: () = assert!(cfg!(target_endian = "little"));

/// A completion of a transfer as C has it: most events are.
#[inline]
pub(crate) fn completion(evd: EvdHandle, done: &DtoCompletion) -> Event {
    let data = EventWords {
        first: done.ep.bits(),
        second: done.user_cookie,
        third: done.status as u64,
        fourth: done.transferred_length,
    };
    Event { event_number: EventNumber::DtoCompletion as u32, evd_handle: evd.bits(), data }
}

/// A form in which C programs take events.
pub trait TakenEvent: Copy {
    /// Converts an event.
    fn of<N: Node>(event: &dat_nostd::Event, inner: &mut State<N>) -> Self;
}

impl TakenEvent for Event {
    fn of<N: Node>(event: &dat_nostd::Event, inner: &mut State<N>) -> Self {
        if let EventData::Dto(done) = &event.data {
            return completion(event.evd, done);
        }
        let data = other(event, inner);
        Self { event_number: event.number() as u32, evd_handle: event.evd.bits(), data }
    }
}

/// `DAT_IB_DTO_EVENT`: the event has extension data.
const IB_DTO_EVENT: u32 = 0x40000;

impl TakenEvent for IbEvent {
    fn of<N: Node>(event: &dat_nostd::Event, inner: &mut State<N>) -> Self {
        let mut taken = Self { event: Event::of(event, inner), extension: [0; 8] };
        if let EventData::Dto(done) = &event.data
            && let Some((kind, value)) = extension(done)
        {
            taken.event.event_number = IB_DTO_EVENT;
            // `DAT_IB_EXTENSION_EVENT_DATA`: type, status, and the value in the second word.
            let failed = u64::from(done.status != DtoStatus::Success);
            taken.extension[0] = u64::from(kind as u32) | failed << 32;
            taken.extension[1] = u64::from(value);
        }
        taken
    }
}

/// `DAT_IB_EXT_TYPE`.
#[derive(Clone, Copy)]
enum ExtensionType {
    FetchAndAdd = 0,
    CmpAndSwap = 1,
    RdmaWriteImmedData = 3,
    RecvInvalidated = 0x100,
}

/// The extension data of a completion, if it has any: its type and its value.
fn extension(done: &DtoCompletion) -> Option<(ExtensionType, u32)> {
    match (done.received, done.operation) {
        (Received::Immediate(immediate), _) => Some((ExtensionType::RdmaWriteImmedData, immediate)),
        (Received::Invalidated(rkey), _) => Some((ExtensionType::RecvInvalidated, rkey)),
        (Received::Plain, DtoOperation::CompareSwap) => Some((ExtensionType::CmpAndSwap, 0)),
        (Received::Plain, DtoOperation::FetchAdd) => Some((ExtensionType::FetchAndAdd, 0)),
        (Received::Plain, _) => None,
    }
}

fn other<N: Node>(event: &dat_nostd::Event, inner: &mut State<N>) -> EventWords {
    match event.data {
        EventData::Dto(_) => NOTHING,
        EventData::RmrBind(done) => EventWords {
            first: done.rmr.raw(),
            second: done.user_cookie,
            third: done.status as u64,
            fourth: 0,
        },
        EventData::ConnectionRequest { sp, local_address: _, conn_qual, cr } => {
            let sp = match sp {
                ServicePoint::Psp(psp) => psp.raw(),
                ServicePoint::Rsp(rsp) => rsp.raw(),
            };
            let address = inner.beside.address().expose_provenance() as u64;
            EventWords { first: sp, second: address, third: conn_qual, fourth: cr.raw() }
        }
        EventData::Connection { event, ep, private_data_size } => {
            let size = private_data_size as u64;
            let hands_over = matches!(event, ConnectionEvent::Established | ConnectionEvent::PeerRejected);
            let data = match inner.adapter.ep_private_data(ep) {
                Ok(data) if hands_over && size > 0 => {
                    inner.beside.asides.private_data(ep.raw(), data).expose_provenance() as u64
                }
                _ => 0,
            };
            EventWords { first: ep.raw(), second: if data == 0 { 0 } else { size }, third: data, fourth: 0 }
        }
        EventData::Software { value } => EventWords { first: value, ..NOTHING },
        EventData::Async { handle, reason, .. } => {
            // What concerns the whole adapter concerns the IA that hears of it.
            let ia = || inner.adapter.evd_query(event.evd).map_or(0, |evd| evd.ia.raw());
            let about: RawHandle = if handle.bits() == 0 { ia() } else { handle.bits() };
            EventWords { first: about, second: u64::from(reason as u32), ..NOTHING }
        }
    }
}
