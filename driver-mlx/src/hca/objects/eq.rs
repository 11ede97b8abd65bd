//! Creation and destruction of event queues.

use crate::buddy::BLOCK;
use crate::cmd::{Tail, input};
use crate::dma::DmaMemory;
use crate::eq::Eq;
use crate::error::Error;
use crate::hca::firmware::Firmware;
use crate::hca::memory::Memory;
use crate::hca::page_list::PageList;
use crate::platform::Platform;
use crate::types::{EqNumber, UarPage};
use mlx5_prm::commands::*;
use mlx5_prm::contexts::eqc;
use mlx5_prm::event::EventType;
use mlx5_prm::init_seg::uar;
use mlx5_prm::opcode::Opcode;

/// The events that the asynchronous queue takes. Without COMM_EST, which every connection would
/// send: the events of each object are bounded, see `event_room`.
const ASYNC_EVENTS: [EventType; 12] = [
    EventType::PATH_MIG,
    EventType::SQ_DRAINED,
    EventType::CQ_ERROR,
    EventType::WQ_CATAS_ERROR,
    EventType::PATH_MIG_FAILED,
    EventType::PORT_CHANGE,
    EventType::PAGE_REQUEST,
    EventType::WQ_INVAL_REQ_ERROR,
    EventType::WQ_ACCESS_ERROR,
    EventType::SRQ_CATAS_ERROR,
    EventType::SRQ_LAST_WQE,
    EventType::SRQ_RQ_LIMIT,
];

/// Creates the queue of asynchronous events.
pub(super) fn create_async<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    page: UarPage,
) -> Result<Eq, Error> {
    let mask = ASYNC_EVENTS.iter().fold(0, |mask, event| mask | event.mask_bit().1);
    let (vector, log_size) = (firmware.config().async_vector, firmware.config().log_async_eq_size);
    create_eq(firmware, memory, page, vector, mask, log_size)
}

/// Creates a queue of completion events for the CQs that name `index`.
pub(super) fn create_completion<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    page: UarPage,
    index: u8,
) -> Result<Eq, Error> {
    let vector = firmware.config().completion_vector.saturating_add(u16::from(index));
    create_eq(firmware, memory, page, vector, 0, firmware.config().log_eq_size)
}

/// Destroys an event queue.
pub(super) fn destroy<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    eq: &Eq,
) -> Result<(), Error> {
    let mut destroy = input::<{ destroy_eq_in::SIZE }>(Opcode::DESTROY_EQ, 0);
    destroy_eq_in::eq_number.set(&mut destroy, eq.number().get());
    let result = firmware.exec(memory, &destroy, &mut [0; destroy_eq_out::SIZE]);
    memory.release_unless(&result, eq.memory());
    result
}

/// Creates an event queue of `1 << log_size` entries, or as many as the device can.
fn create_eq<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    page: UarPage,
    vector: u16,
    mask: u64,
    log_size: u8,
) -> Result<Eq, Error> {
    if vector > 0xfff {
        return Err(Error::InvalidArgument("vector"));
    }
    let log_size = u32::from(log_size.min(firmware.caps().log_max_eq_sz));
    let ring = memory.take(firmware.usable()?, 64 << log_size, BLOCK)?;
    let made = create_eq_over(firmware, memory, ring, page, vector, mask, log_size);
    if let Err(error) = &made {
        memory.release_unless(&error.not_created(), ring);
    }
    made
}

fn create_eq_over<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    ring: DmaMemory,
    page: UarPage,
    vector: u16,
    mask: u64,
    log_size: u32,
) -> Result<Eq, Error> {
    let offset = page.get() as usize * uar::PAGE_SIZE;
    let mut eq = Eq::new(ring, log_size, offset).ok_or(Error::OutOfBounds)?;
    let mut create = input::<{ create_eq_in::SIZE }>(Opcode::CREATE_EQ, 0);
    let context = create_eq_in::eq_context_entry.of_mut(&mut create);
    let pages = PageList::new(ring, ring.len());
    eqc::log_eq_size.set(context, log_size);
    eqc::uar_page.set(context, page.get());
    eqc::intr.set(context, vector);
    eqc::log_page_size.set(context, pages.log_page());
    if let Some(word) = create_eq_in::event_bitmask.of_mut(&mut create).first_chunk_mut() {
        *word = mask.to_be_bytes();
    }
    let tail = Tail { count: pages.count(), entry: &|index| pages.entry(index) };
    let mut out = [0; create_eq_out::SIZE];
    firmware.exec_with(memory, &create, tail, &mut out)?;
    eq.set_number(EqNumber::new(create_eq_out::eq_number.get(&out) as u8));
    Ok(eq)
}
