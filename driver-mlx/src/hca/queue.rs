//! Making and destroying completion queues.

use super::event_room::{EVENTS_OF_CQ, eq_with_room};
use super::exec::input;
use super::{Hca, page_list};
use crate::buddy::BLOCK;
use crate::cmd::Tail;
use crate::config::CqConfig;
use crate::control;
use crate::cq::{self, Cq};
use crate::dma::DmaMemory;
use crate::eq::Eq;
use crate::error::Error;
use crate::platform::Platform;
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
        self.expecting(EVENTS_OF_CQ, |hca| hca.make_cq(config))
    }

    fn make_cq(&mut self, config: &CqConfig) -> Result<Cq<P::Bar>, Error> {
        let eqn = eq_with_room(&mut self.completion_eqs, config.eq)?.get();
        let page = self.uar.ok_or(Error::WrongState)?.get();
        let log_size = cq::log_size_for(config.entries);
        let limit = u32::from(self.caps.log_max_cq_sz).min(22);
        let Some(log_size) = log_size.filter(|&log| log <= limit) else {
            return Err(Error::Limit {
                what: "log_max_cq_sz",
                asked: u64::from(config.entries),
                limit: u64::from(cq::capacity(limit)),
            });
        };
        let ring = self.take_memory(64 << log_size, BLOCK)?;
        let record = match self.take_record() {
            Ok(record) => record,
            Err(error) => {
                self.free_unless(&Ok(()), ring);
                return Err(error);
            }
        };
        let mut made = self.create_cq_over([ring, record], log_size, page, eqn);
        match &mut made {
            Ok(cq) => {
                cq.eq = config.eq;
                if let Some(eq) = self.eq_of(cq.eq) {
                    eq.cqs += 1;
                }
            }
            Err(error) => self.free_cq(&super::not_created(error), [ring, record]),
        }
        made
    }

    fn eq_of(&mut self, index: u8) -> Option<&mut Eq> {
        self.completion_eqs.get_mut(usize::from(index)).and_then(Option::as_mut)
    }

    fn free_cq(&mut self, destroyed: &Result<(), Error>, [ring, record]: [DmaMemory; 2]) {
        self.free_unless(destroyed, ring);
        self.give_record_unless(destroyed, record);
    }

    fn create_cq_over(
        &mut self,
        [ring, record]: [DmaMemory; 2],
        log_size: u32,
        page: u32,
        eqn: u8,
    ) -> Result<Cq<P::Bar>, Error> {
        let offset = page as usize * uar::PAGE_SIZE + uar::CQ_DOORBELL;
        let register = control::doorbell_register(self.platform.bar(), offset, 8);
        let mut cq = Cq::new(ring, record, register).ok_or(Error::OutOfBounds)?;
        let (log_page, pages) = page_list(ring, ring.len());
        let mut create = input::<{ create_cq_in::SIZE }>(Opcode::CREATE_CQ, 0);
        let context = create_cq_in::cq_context.of_mut(&mut create);
        cqc::log_cq_size.set(context, log_size);
        cqc::uar_page.set(context, page);
        cqc::c_eqn_or_apu_element.set(context, eqn);
        cqc::log_page_size.set(context, log_page);
        cqc::dbr_addr.set(context, record.device_address());
        let address = ring.device_address();
        let tail = Tail { count: pages, entry: &|index| address + ((index as u64) << (log_page + 12)) };
        let mut out = [0; create_cq_out::SIZE];
        self.exec_with(&create, tail, &mut out)?;
        cq.set_number(CqNumber::new(create_cq_out::cqn.get32(&out)));
        cq.life = self.life;
        Ok(cq)
    }

    /// Destroys a completion queue that no QP uses any more.
    ///
    /// # Errors
    /// Any [`Error`] of a command. The queue's memory then stays taken, as the device may still write there.
    pub fn destroy_cq(&mut self, cq: Cq<P::Bar>) -> Result<(), Error> {
        let mut destroy = input::<{ destroy_cq_in::SIZE }>(Opcode::DESTROY_CQ, 0);
        destroy_cq_in::cqn.set(&mut destroy, cq.number().get());
        let result = self.end(&cq, &destroy, &mut [0; destroy_cq_out::SIZE]);
        // A CQ of an earlier life is not counted at the EQ of this one.
        if result.is_ok()
            && cq.life == self.life
            && let Some(eq) = self.eq_of(cq.eq)
        {
            eq.remove_cq();
        }
        self.free_cq(&result, cq.memory);
        self.expect_no_more(EVENTS_OF_CQ, &result);
        result
    }
}
