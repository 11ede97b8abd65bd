//! Creation, limits, queries and destruction of shared receive queues.
//!
//! With interface step sequence 1 a shared receive queue is a receive memory pool (RMP) with a linked list; completions go to the CQ of
//! the QP that took the receive. The device cannot resize one.

use super::Objects;
use super::event_room::EVENTS_OF_SRQ;
use crate::cmd::{Tail, input};
use crate::config::SrqConfig;
use crate::error::Error;
use crate::hca::Hca;
use crate::hca::firmware::Firmware;
use crate::hca::memory::Memory;
use crate::hca::page_list::PageList;
use crate::platform::{Bar, Platform};
use crate::srq::{Srq, SrqGeometry};
use crate::types::SrqNumber;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{rmpc, wq};
use mlx5_prm::opcode::Opcode;

/// `rmpc.state`: ready, error.
const READY: u64 = 1;
const FAILED: u64 = 3;
/// `wq.wq_type` of a linked list.
const LINKED_LIST: u32 = 0;

/// How a shared receive queue stands, as the device has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SrqState {
    /// Whether it has failed.
    pub failed: bool,
    /// The limit that is armed: an event comes when fewer receives are left; 0 for none.
    pub limit: u16,
}

impl<P: Platform> Hca<'_, P> {
    /// Makes a shared receive queue.
    ///
    /// # Errors
    /// Any [`Error`] of a command, [`Error::OutOfMemory`], [`Error::Limit`]; [`Error::MissingCapability`] with firmware of interface
    /// step sequence 0.
    pub fn create_srq(&mut self, config: &SrqConfig) -> Result<Srq, Error> {
        let Self { firmware, memory, objects, .. } = self;
        objects.create_srq(firmware, memory, config)
    }

    /// Destroys a shared receive queue that no QP uses any more.
    ///
    /// # Errors
    /// Any [`Error`] of a command; firmware refuses while a QP uses it. The queue's memory then stays taken, as the device may still
    /// read there.
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), Error> {
        let Self { firmware, memory, objects, .. } = self;
        objects.destroy_srq(firmware, memory, srq)
    }

    /// Asks for one [`AsyncEvent::SrqLimit`](crate::AsyncEvent::SrqLimit) as soon as a receive is taken and fewer than `limit` are left;
    /// 0 takes it back.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::Limit`] if the queue holds fewer; [`Error::Stale`].
    pub fn arm_srq(&mut self, srq: &Srq, limit: u16) -> Result<(), Error> {
        if limit > srq.capacity() {
            return Err(Error::Limit { what: "wq.lwm", asked: limit.into(), limit: srq.capacity().into() });
        }
        let mut modify = input::<{ modify_rmp_in::SIZE }>(Opcode::MODIFY_RMP, 0);
        modify_rmp_in::rmpn.set(&mut modify, self.firmware.resolve(srq)?.get());
        modify_rmp_in::rmp_state.set(&mut modify, READY);
        rmp_bitmask::lwm.set(modify_rmp_in::bitmask.of_mut(&mut modify), true);
        let context = modify_rmp_in::ctx.of_mut(&mut modify);
        rmpc::state.set(context, READY);
        wq::lwm.set(rmpc::wq.of_mut(context), limit);
        self.exec(&modify, &mut [0; modify_rmp_out::SIZE])
    }

    /// How a shared receive queue stands, as the device has it.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::BadAnswer`] for a state that does not exist; [`Error::Stale`].
    pub fn query_srq(&mut self, srq: &Srq) -> Result<SrqState, Error> {
        let mut query = input::<{ query_rmp_in::SIZE }>(Opcode::QUERY_RMP, 0);
        query_rmp_in::rmpn.set(&mut query, self.firmware.resolve(srq)?.get());
        let mut out = [0; query_rmp_out::SIZE];
        self.exec(&query, &mut out)?;
        let context = query_rmp_out::rmp_context.of(&out);
        let failed = match rmpc::state.get(context) {
            READY => false,
            FAILED => true,
            value => return Err(Error::BadAnswer { step: self.firmware.step(), field: "rmpc.state", value }),
        };
        Ok(SrqState { failed, limit: wq::lwm.get(rmpc::wq.of(context)) as u16 })
    }
}

impl<B: Bar> Objects<B> {
    fn create_srq<P: Platform<Bar = B>>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        config: &SrqConfig,
    ) -> Result<Srq, Error> {
        self.room.check(EVENTS_OF_SRQ)?;
        if firmware.identity().issi() == 0 {
            return Err(Error::MissingCapability("supported_issi_dw0"));
        }
        if config.max_wr == 0 {
            return Err(Error::InvalidArgument("max_wr"));
        }
        let most_sges = u64::from(firmware.caps().max_wqe_sz_rq / 16).saturating_sub(1).min(127);
        if u64::from(config.max_sge) > most_sges {
            return Err(Error::Limit {
                what: "max_wqe_sz_rq",
                asked: config.max_sge.into(),
                limit: most_sges,
            });
        }
        let log_limit = u32::from(firmware.caps().log_max_srq_sz.min(15));
        let geometry = SrqGeometry::new(config.max_wr, config.max_sge)
            .filter(|geometry| geometry.log_size <= log_limit)
            .ok_or(Error::Limit {
                what: "log_max_srq_sz",
                asked: config.max_wr.into(),
                limit: (1u64 << log_limit) - 1,
            })?;
        let rings = memory.take_ring(firmware.usable()?, geometry.ring_bytes)?;
        let slots = match memory.take_slots(geometry.slots()) {
            Ok(slots) => slots,
            Err(error) => {
                memory.release_ring_unless(&Ok(()), rings);
                return Err(error);
            }
        };
        let mut srq =
            Srq::new(rings, slots, &geometry, config.max_sge as u8, self.terminator, firmware.generation())
                .ok_or(Error::OutOfBounds)?;
        if let Err(error) = create_srq_over(firmware, memory, &mut srq, &geometry, config) {
            free_srq(memory, &error.not_created(), srq);
            return Err(error);
        }
        self.room.add(EVENTS_OF_SRQ);
        Ok(srq)
    }

    fn destroy_srq<P: Platform<Bar = B>>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        srq: Srq,
    ) -> Result<(), Error> {
        let mut destroy = input::<{ destroy_rmp_in::SIZE }>(Opcode::DESTROY_RMP, 0);
        destroy_rmp_in::rmpn.set(&mut destroy, srq.number().get());
        let result = firmware.destroy(memory, &srq, &destroy, &mut [0; destroy_rmp_out::SIZE]);
        free_srq(memory, &result, srq);
        self.forget_events(firmware, memory, EVENTS_OF_SRQ, &result);
        result
    }
}

fn free_srq(memory: &mut Memory<'_>, destroyed: &Result<(), Error>, srq: Srq) {
    memory.release_ring_unless(destroyed, srq.memory());
    // The device does not see the slots.
    memory.release_slots(srq.into_slots());
}

fn create_srq_over<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    srq: &mut Srq,
    geometry: &SrqGeometry,
    config: &SrqConfig,
) -> Result<(), Error> {
    let [ring, record] = srq.memory();
    let pages = PageList::new(ring, geometry.ring_bytes);
    let mut create = input::<{ create_rmp_in::SIZE }>(Opcode::CREATE_RMP, 0);
    let context = create_rmp_in::ctx.of_mut(&mut create);
    rmpc::state.set(context, READY);
    let queue = rmpc::wq.of_mut(context);
    wq::wq_type.set(queue, LINKED_LIST);
    wq::pd.set(queue, firmware.resolve(&config.pd)?.get());
    wq::log_wq_stride.set(queue, geometry.log_stride + 4);
    wq::log_wq_sz.set(queue, geometry.log_size);
    wq::log_wq_pg_sz.set(queue, pages.log_page());
    wq::dbr_addr.set(queue, record.device_address());
    let tail = Tail { count: pages.count(), entry: &|index| pages.entry(index) };
    let mut out = [0; create_rmp_out::SIZE];
    firmware.exec_with(memory, &create, tail, &mut out)?;
    srq.set_number(SrqNumber::new(create_rmp_out::rmpn.get32(&out)));
    Ok(())
}
