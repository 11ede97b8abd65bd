//! Making, arming, asking and destroying shared receive queues.
//!
//! With interface step sequence 1 a shared receive queue is a receive memory pool (RMP) with a linked list; completions go to the CQ of
//! the QP that took the receive. The device cannot resize one.

use super::event_room::EVENTS_OF_SRQ;
use super::exec::input;
use super::{Hca, page_list};
use crate::buddy::BLOCK;
use crate::cmd::Tail;
use crate::config::SrqConfig;
use crate::error::Error;
use crate::platform::Platform;
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
        self.expecting(EVENTS_OF_SRQ, |hca| hca.make_srq(config))
    }

    fn make_srq(&mut self, config: &SrqConfig) -> Result<Srq, Error> {
        if self.issi == 0 {
            return Err(Error::MissingCapability("supported_issi_dw0"));
        }
        if config.max_wr == 0 {
            return Err(Error::InvalidArgument("max_wr"));
        }
        let most_sges = u64::from(self.caps.max_wqe_sz_rq / 16).saturating_sub(1).min(127);
        if u64::from(config.max_sge) > most_sges {
            return Err(Error::Limit {
                what: "max_wqe_sz_rq",
                asked: config.max_sge.into(),
                limit: most_sges,
            });
        }
        let log_limit = u32::from(self.caps.log_max_srq_sz.min(15));
        let geometry = SrqGeometry::new(config.max_wr, config.max_sge)
            .filter(|geometry| geometry.log_size <= log_limit)
            .ok_or(Error::Limit {
                what: "log_max_srq_sz",
                asked: config.max_wr.into(),
                limit: (1u64 << log_limit) - 1,
            })?;
        let ring = self.take_memory(geometry.ring_bytes, BLOCK)?;
        let record = match self.take_record() {
            Ok(record) => record,
            Err(error) => {
                self.free_unless(&Ok(()), ring);
                return Err(error);
            }
        };
        let made = match self.host.alloc(geometry.slots()) {
            Some(slots) => Srq::new([ring, record], slots, &geometry, config.max_sge as u8, self.terminator),
            None => {
                self.free_unless(&Ok(()), ring);
                self.give_record_unless(&Ok(()), record);
                return Err(Error::OutOfHostMemory { bytes: geometry.slots() * 16 });
            }
        };
        let mut srq = made.ok_or(Error::OutOfBounds)?;
        if let Err(error) = self.create_srq_over(&mut srq, &geometry, config) {
            self.free_srq(&super::not_created(&error), srq);
            return Err(error);
        }
        Ok(srq)
    }

    fn free_srq(&mut self, destroyed: &Result<(), Error>, srq: Srq) {
        let [ring, record] = srq.memory;
        self.free_unless(destroyed, ring);
        self.give_record_unless(destroyed, record);
        // The device has no part in these.
        self.host.free(srq.slots);
    }

    fn create_srq_over(
        &mut self,
        srq: &mut Srq,
        geometry: &SrqGeometry,
        config: &SrqConfig,
    ) -> Result<(), Error> {
        let [ring, record] = srq.memory;
        let (log_page, pages) = page_list(ring, geometry.ring_bytes);
        let mut create = input::<{ create_rmp_in::SIZE }>(Opcode::CREATE_RMP, 0);
        let context = create_rmp_in::ctx.of_mut(&mut create);
        rmpc::state.set(context, READY);
        let queue = rmpc::wq.of_mut(context);
        wq::wq_type.set(queue, LINKED_LIST);
        wq::pd.set(queue, self.named(&config.pd)?.get());
        wq::log_wq_stride.set(queue, geometry.log_stride + 4);
        wq::log_wq_sz.set(queue, geometry.log_size);
        wq::log_wq_pg_sz.set(queue, log_page);
        wq::dbr_addr.set(queue, record.device_address());
        let address = ring.device_address();
        let tail = Tail { count: pages, entry: &|index| address + ((index as u64) << (log_page + 12)) };
        let mut out = [0; create_rmp_out::SIZE];
        self.exec_with(&create, tail, &mut out)?;
        srq.set_number(SrqNumber::new(create_rmp_out::rmpn.get32(&out)));
        srq.life = self.life;
        Ok(())
    }

    /// Destroys a shared receive queue that no QP uses any more.
    ///
    /// # Errors
    /// Any [`Error`] of a command; firmware refuses while a QP uses it. The queue's memory then stays taken, as the device may still
    /// read there.
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), Error> {
        let mut destroy = input::<{ destroy_rmp_in::SIZE }>(Opcode::DESTROY_RMP, 0);
        destroy_rmp_in::rmpn.set(&mut destroy, srq.number().get());
        let result = self.end(&srq, &destroy, &mut [0; destroy_rmp_out::SIZE]);
        self.free_srq(&result, srq);
        self.expect_no_more(EVENTS_OF_SRQ, &result);
        result
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
        modify_rmp_in::rmpn.set(&mut modify, self.named(srq)?.get());
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
        query_rmp_in::rmpn.set(&mut query, self.named(srq)?.get());
        let mut out = [0; query_rmp_out::SIZE];
        self.exec(&query, &mut out)?;
        let context = query_rmp_out::rmp_context.of(&out);
        let failed = match rmpc::state.get(context) {
            READY => false,
            FAILED => true,
            value => return Err(Error::BadAnswer { step: self.step, field: "rmpc.state", value }),
        };
        Ok(SrqState { failed, limit: wq::lwm.get(rmpc::wq.of(context)) as u16 })
    }
}
