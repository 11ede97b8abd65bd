//! Creation and destruction of completion queues.

use super::Objects;
use super::event_room::{EVENTS_OF_CQ, eq_with_room};
use crate::cmd::{Tail, input};
use crate::config::CqConfig;
use crate::control;
use crate::cq::{self, Cq};
use crate::dma::DmaMemory;
use crate::eq::Eq;
use crate::error::Error;
use crate::hca::Hca;
use crate::hca::firmware::Firmware;
use crate::hca::memory::Memory;
use crate::hca::page_list::PageList;
use crate::platform::{Bar, Platform};
use crate::types::CqNumber;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::cqc;
use mlx5_prm::init_seg::uar;
use mlx5_prm::opcode::Opcode;

impl<P: Platform> Hca<'_, P> {
    /// Makes a completion queue.
    ///
    /// # Errors
    /// Any [`Error`] of a command, [`Error::OutOfMemory`]; [`Error::Limit`], also if the event
    /// queue has no entry left for one more CQ
    /// ([`Config::log_eq_size`](crate::Config::log_eq_size)); [`Error::InvalidArgument`] if there
    /// is no such event queue.
    pub fn create_cq(&mut self, config: &CqConfig) -> Result<Cq<P::Bar>, Error> {
        let Self { firmware, memory, objects, .. } = self;
        objects.create_cq(firmware, memory, config)
    }

    /// Destroys a completion queue that no QP uses any more.
    ///
    /// # Errors
    /// Any [`Error`] of a command. The queue's memory then stays taken, as the device may still write there.
    pub fn destroy_cq(&mut self, cq: Cq<P::Bar>) -> Result<(), Error> {
        let Self { firmware, memory, objects, .. } = self;
        objects.destroy_cq(firmware, memory, cq)
    }
}

impl<B: Bar> Objects<B> {
    fn create_cq<P: Platform<Bar = B>>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        config: &CqConfig,
    ) -> Result<Cq<B>, Error> {
        self.room.check(EVENTS_OF_CQ)?;
        let eqn = eq_with_room(&mut self.completion_eqs, config.eq)?.get();
        let page = self.uar.ok_or(Error::WrongState)?.get();
        let log_size = cq::log_size_for(config.entries);
        let limit = u32::from(firmware.caps().log_max_cq_sz).min(22);
        let Some(log_size) = log_size.filter(|&log| log <= limit) else {
            return Err(Error::Limit {
                what: "log_max_cq_sz",
                asked: u64::from(config.entries),
                limit: u64::from(cq::capacity(limit)),
            });
        };
        let rings = memory.take_ring(firmware.usable()?, 64 << log_size)?;
        let made = create_cq_over(firmware, memory, rings, log_size, page, (config.eq, eqn));
        match &made {
            Ok(_) => {
                if let Some(eq) = self.eq_of(config.eq) {
                    eq.add_cq();
                }
                self.room.add(EVENTS_OF_CQ);
            }
            Err(error) => memory.release_ring_unless(&error.not_created(), rings),
        }
        made
    }

    fn eq_of(&mut self, index: u8) -> Option<&mut Eq> {
        self.completion_eqs.get_mut(usize::from(index)).and_then(Option::as_mut)
    }

    fn destroy_cq<P: Platform<Bar = B>>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        cq: Cq<B>,
    ) -> Result<(), Error> {
        let mut destroy = input::<{ destroy_cq_in::SIZE }>(Opcode::DESTROY_CQ, 0);
        destroy_cq_in::cqn.set(&mut destroy, cq.number().get());
        let result = firmware.destroy(memory, &cq, &destroy, &mut [0; destroy_cq_out::SIZE]);
        // The EQ of this generation does not count a CQ of an earlier one.
        if result.is_ok()
            && firmware.resolve(&cq).is_ok()
            && let Some(eq) = self.eq_of(cq.eq())
        {
            eq.remove_cq();
        }
        memory.release_ring_unless(&result, cq.memory());
        self.forget_events(firmware, memory, EVENTS_OF_CQ, &result);
        result
    }
}

fn create_cq_over<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    [ring, record]: [DmaMemory; 2],
    log_size: u32,
    page: u32,
    (eq, eqn): (u8, u8),
) -> Result<Cq<P::Bar>, Error> {
    let offset = page as usize * uar::PAGE_SIZE + uar::CQ_DOORBELL;
    let register = control::doorbell_register(firmware.bar(), offset, 8);
    let mut cq = Cq::new([ring, record], register, eq, firmware.generation()).ok_or(Error::OutOfBounds)?;
    let pages = PageList::new(ring, ring.len());
    let mut create = input::<{ create_cq_in::SIZE }>(Opcode::CREATE_CQ, 0);
    let context = create_cq_in::cq_context.of_mut(&mut create);
    cqc::log_cq_size.set(context, log_size);
    cqc::uar_page.set(context, page);
    cqc::c_eqn_or_apu_element.set(context, eqn);
    cqc::log_page_size.set(context, pages.log_page());
    cqc::dbr_addr.set(context, record.device_address());
    let tail = Tail { count: pages.count(), entry: &|index| pages.entry(index) };
    let mut out = [0; create_cq_out::SIZE];
    firmware.exec_with(memory, &create, tail, &mut out)?;
    cq.set_number(CqNumber::new(create_cq_out::cqn.get32(&out)));
    Ok(cq)
}
