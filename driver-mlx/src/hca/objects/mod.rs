//! Objects that commands create: event queues, queues, protection domains, memory keys.

mod counters;
mod cq;
mod eq;
mod event_room;
mod multicast;
mod qp;
mod qp_context;
pub(super) mod raw_packet;
pub(super) mod region;
mod resize;
mod srq;
mod uar;
mod variants;
mod windows;

pub use counters::QCounters;
pub use region::{Deregistration, MemoryRegion, MkeyState, Registration};
pub use srq::SrqState;

use super::firmware::Firmware;
use super::memory::Memory;
use crate::cmd::input;
use crate::config::{MAX_COMPLETION_EQS, Service};
use crate::eq::Eq;
use crate::error::{Error, Step};
use crate::platform::{Bar, Platform};
use crate::qp::Qp;
use crate::types::{CqNumber, LKey, UarPage};
use event_room::EventRoom;
use mlx5_prm::commands::{query_special_contexts_in, query_special_contexts_out};
use mlx5_prm::datapath::DATA_LKEY_TERMINATOR;
use mlx5_prm::later;
use mlx5_prm::opcode::Opcode;
use raw_packet::RawPacket;
use uar::BlueFlame;
use variants::Variants;

/// The driver's own objects, and the limits of those that consumers have.
pub(super) struct Objects<B> {
    /// Control page: arming, event queues, plain doorbells.
    uar: Option<UarPage>,
    blueflame: BlueFlame<B>,
    completion_eqs: [Option<Eq>; MAX_COMPLETION_EQS as usize],
    room: EventRoom,
    variants: Variants,
    /// The raw-packet QP, if there is one.
    raw_packet: Option<RawPacket>,
    reserved_lkey: LKey,
    /// The key that ends a scatter list.
    terminator: LKey,
}

impl<B: Bar> Objects<B> {
    pub(super) fn new() -> Self {
        Self {
            uar: None,
            blueflame: BlueFlame::new(),
            completion_eqs: [const { None }; MAX_COMPLETION_EQS as usize],
            room: EventRoom::default(),
            variants: Variants::default(),
            raw_packet: None,
            reserved_lkey: LKey::new(0),
            terminator: LKey::new(DATA_LKEY_TERMINATOR),
        }
    }

    /// Creates the driver's own objects.
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub(super) fn start<P: Platform<Bar = B>>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
    ) -> Result<(), Error> {
        firmware.enter(Step::Uar);
        let page = uar::alloc(firmware, memory)?;
        self.uar = Some(page);
        firmware.enter(Step::EventQueues);
        let async_eq = eq::create_async(firmware, memory, page)?;
        self.room.set_entries(async_eq.size());
        firmware.set_async_eq(async_eq);
        for index in 0..firmware.config().completion_eqs {
            let eq = eq::create_completion(firmware, memory, page, index)?;
            if let Some(slot) = self.completion_eqs.get_mut(usize::from(index)) {
                *slot = Some(eq);
            }
        }
        firmware.arm_async();
        self.arm_completions(firmware.bar());
        firmware.enter(Step::Resources);
        let query = input::<{ query_special_contexts_in::SIZE }>(Opcode::QUERY_SPECIAL_CONTEXTS, 0);
        let mut out = [0; query_special_contexts_out::SIZE];
        firmware.exec(memory, &query, &mut out)?;
        self.reserved_lkey = LKey::new(query_special_contexts_out::resd_lkey.get32(&out));
        if firmware.caps().terminate_scatter_list_mkey {
            self.terminator = LKey::new(later::TERMINATE_SCATTER_LIST_MKEY.get32(&out));
        }
        Ok(())
    }

    /// Destroys the driver's own objects, and returns the first error.
    pub(super) fn stop<P: Platform<Bar = B>>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
    ) -> Result<(), Error> {
        let mut result = Ok(());
        for eq in self.completion_eqs.iter_mut().filter_map(Option::take) {
            result = result.and(eq::destroy(firmware, memory, &eq));
        }
        // Page requests are lost from here on, but no later command makes firmware need pages.
        if let Some(eq) = firmware.take_async_eq() {
            result = result.and(eq::destroy(firmware, memory, &eq));
        }
        for page in self.blueflame.take_pages().chain(self.uar.take()) {
            result = result.and(uar::dealloc(firmware, memory, page));
        }
        result
    }

    /// Forgets the driver's own objects of a device that was reset, `async_eq` with them.
    pub(super) fn begin_generation(
        &mut self,
        memory: &mut Memory<'_>,
        async_eq: Option<Eq>,
    ) -> Result<(), Error> {
        for eq in self.completion_eqs.iter_mut().filter_map(Option::take).chain(async_eq) {
            memory.release(eq.memory())?;
        }
        self.uar = None;
        self.raw_packet = None;
        self.blueflame.forget_pages();
        Ok(())
    }

    /// Numbers of the raw-packet QP that is `qp`, if it is usable.
    pub(super) fn raw_packet<P: Platform<Bar = B>>(
        &self,
        firmware: &Firmware<'_, P>,
        qp: &Qp<B>,
    ) -> Option<RawPacket> {
        self.raw_packet.filter(|_| qp.service() == Service::RawPacket && firmware.resolve(qp).is_ok())
    }

    /// The local key of all memory.
    pub(super) fn reserved_lkey(&self) -> LKey {
        self.reserved_lkey
    }

    /// Takes completion events, and returns the numbers of those taken and of those without meaning.
    pub(super) fn poll_completions(&mut self, bar: B, mut notify: impl FnMut(CqNumber)) -> (u32, u32) {
        let (mut taken, mut bad) = (0, 0);
        // The queues fill the array from its beginning, and most functions have one.
        for eq in self.completion_eqs.iter_mut().map_while(Option::as_mut) {
            for _ in 0..eq.size() {
                match eq.next_completion(bar) {
                    None => break,
                    Some(Ok(cqn)) => {
                        taken += 1;
                        notify(cqn);
                    }
                    Some(Err(_)) => bad += 1,
                }
            }
            eq.update(bar);
        }
        (taken, bad)
    }

    /// Arms the queues of completion events.
    pub(super) fn arm_completions(&mut self, bar: B) {
        self.completion_eqs.iter_mut().flatten().for_each(|eq| eq.arm(bar));
    }

    /// Counts out an object, if it was destroyed. Its events take room until they are taken.
    fn forget_events<P: Platform<Bar = B>>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        events: u32,
        destroyed: &Result<(), Error>,
    ) {
        if destroyed.is_ok() {
            firmware.drain_async(memory, firmware.now());
            self.room.remove(events);
        }
    }
}
