//! Resizing of completion queues.

use crate::buddy::BLOCK;
use crate::cmd::{Tail, input};
use crate::cq::{self, Cq};
use crate::error::Error;
use crate::hca::Hca;
use crate::hca::page_list::PageList;
use crate::platform::Platform;
use mlx5_prm::Field;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::cqc;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::ResizeCqFields;

/// `op_mod` of MODIFY_CQ that gives a queue another ring.
const RESIZE: u16 = 1;
/// `modify_cq_in.resize_field_select`, which shares its place with another field.
const RESIZE_FIELD_SELECT: Field = Field::bits(0x0c, 31, 0);

impl<P: Platform> Hca<'_, P> {
    /// Makes a completion queue hold `entries` completions at once; completions in it and on their way stay. A queue that holds that
    /// many already is left as it is.
    ///
    /// # Errors
    /// Any [`Error`] of a command, [`Error::OutOfMemory`], [`Error::Limit`], [`Error::Stale`]: the queue is as before. [`Error::BadAnswer`] if the device
    /// says that it has changed rings and has not: the queue is of no use any more.
    pub fn resize_cq(&mut self, cq: &mut Cq<P::Bar>, entries: u32) -> Result<(), Error> {
        let number = self.firmware.resolve(cq)?;
        if entries <= cq.capacity() {
            return Ok(());
        }
        let limit = u32::from(self.firmware.caps().log_max_cq_sz).min(22);
        let Some(log_size) = cq::log_size_for(entries).filter(|&log| log <= limit) else {
            return Err(Error::Limit {
                what: "log_max_cq_sz",
                asked: u64::from(entries),
                limit: u64::from(cq::capacity(limit)),
            });
        };
        let ring_bytes = 64usize << log_size;
        let memory = self.memory.take(self.firmware.usable()?, ring_bytes, BLOCK)?;
        // The entry that reports the change counts in both rings, so the new one begins behind it.
        let Some(ring) = cq::empty_ring(memory, cq.ci().wrapping_add(1)) else {
            self.memory.release_unless(&Ok(()), memory);
            return Err(Error::OutOfBounds);
        };
        // The device counts what has been taken.
        cq.acknowledge();
        let pages = PageList::new(memory, ring_bytes);
        let mut modify = input::<{ modify_cq_in::SIZE }>(Opcode::MODIFY_CQ, RESIZE);
        modify_cq_in::cqn.set(&mut modify, number.get());
        let select =
            ResizeCqFields::LOG_CQ_SIZE | ResizeCqFields::PAGE_OFFSET | ResizeCqFields::LOG_PAGE_SIZE;
        RESIZE_FIELD_SELECT.set(&mut modify, select.bits());
        let context = modify_cq_in::cq_context.of_mut(&mut modify);
        cqc::log_cq_size.set(context, log_size);
        cqc::log_page_size.set(context, pages.log_page());
        let tail = Tail { count: pages.count(), entry: &|index| pages.entry(index) };
        let changed = self.firmware.exec_with(&mut self.memory, &modify, tail, &mut [0; modify_cq_out::SIZE]);
        if let Err(error) = changed {
            self.memory.release_unless(&error.not_created(), memory);
            return Err(error);
        }
        let Some(old) = cq.change_ring(ring, memory) else {
            // Either ring may be the device's. The CQ keeps the old one.
            self.memory.quarantine(memory);
            let value = u64::from(number.get());
            return Err(Error::BadAnswer { step: self.firmware.step(), field: "cqe.opcode", value });
        };
        self.memory.release_unless(&Ok(()), old);
        Ok(())
    }
}
