//! Memory for firmware: given at start, on request, and taken back at the end.

use super::device_state::health_syndrome;
use super::function::Function;
use super::{Firmware, Memory};
use crate::buddy::BLOCK;
use crate::cmd::{Tail, input};
use crate::error::{Error, Step};
use crate::event::AsyncEvent;
use crate::platform::Platform;
use crate::trace::TraceKind;
use crate::types::Duration;
use mlx5_prm::commands::{manage_pages_in, manage_pages_out, query_pages_in, query_pages_out};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::{ManagePagesOp, QueryPagesOp};

/// log2 of the most pages in one command: what the mailbox of the kept slot holds.
const LOG_MOST: u32 = 9;
/// The most pages in one command.
const MOST: usize = 1 << LOG_MOST;
/// Distance of attempts to get pages back that firmware does not give yet.
const RECLAIM_POLL: Duration = Duration::from_millis(1);

impl<'s, P: Platform> Firmware<'s, P> {
    pub(super) fn pages<'a, 'm>(&'a mut self, memory: &'a mut Memory<'m>) -> Pages<'a, 's, 'm, P> {
        Pages { firmware: self, memory }
    }
}

/// MANAGE_PAGES: blocks of the region for firmware.
pub(super) struct Pages<'a, 's, 'm, P: Platform> {
    firmware: &'a mut Firmware<'s, P>,
    memory: &'a mut Memory<'m>,
}

impl<P: Platform> Pages<'_, '_, '_, P> {
    /// Queries how many pages firmware needs for a stage of bring-up, gives them if there are as
    /// many, and returns the number.
    pub(super) fn supply(&mut self, stage: QueryPagesOp) -> Result<u32, Error> {
        let mut query = input::<{ query_pages_in::SIZE }>(Opcode::QUERY_PAGES, stage.0);
        query_pages_in::embedded_cpu_function.set(&mut query, self.firmware.identity.embedded_cpu);
        let mut out = [0; query_pages_out::SIZE];
        self.firmware.exec(self.memory, &query, &mut out)?;
        let needed = query_pages_out::num_pages.get32(&out) as i32;
        // Firmware's number of this function, which need not be the 0 that the query names.
        let own = Function {
            id: query_pages_out::function_id.get(&out) as u16,
            embedded_cpu: query_pages_out::embedded_cpu_function.is_set(&out),
        };
        // A negative number is an offer to give pages back, which nobody has asked for at this point.
        let needed = u64::try_from(needed).unwrap_or(0);
        let available =
            self.memory.free_pages().saturating_sub(u64::from(self.firmware.config.reserved_pages));
        if needed > available {
            return Err(Error::InsufficientPages { needed, available });
        }
        self.give(own, needed as usize)?;
        Ok(needed as u32)
    }

    /// Gives `count` pages, of which there must be as many.
    fn give(&mut self, function: Function, count: usize) -> Result<(), Error> {
        let mut left = count;
        while left > 0 {
            let run = self
                .memory
                .take_for_firmware(left, LOG_MOST)
                .ok_or(Error::InsufficientPages { needed: left as u64, available: 0 })?;
            let pages = run.len() / BLOCK;
            run.fill(0, run.len(), 0)?;
            let address = run.device_address();
            let mut give = input::<{ manage_pages_in::SIZE }>(Opcode::MANAGE_PAGES, ManagePagesOp::GIVE.0);
            manage_pages_in::embedded_cpu_function.set(&mut give, function.embedded_cpu);
            manage_pages_in::function_id.set(&mut give, function.id);
            manage_pages_in::input_num_entries.set(&mut give, pages as u32);
            let tail = Tail { count: pages, entry: &|index| address + (index * BLOCK) as u64 };
            // From here on firmware may use them, even if the command fails.
            self.memory.give(run, function.tag());
            let mut out = [0; manage_pages_out::SIZE];
            if let Err(error) = self.firmware.exec_pages(self.memory, &give, tail, &mut out) {
                if matches!(error, Error::Command(_)) {
                    (0..pages).for_each(|page| {
                        self.memory.take_back(address + (page * BLOCK) as u64);
                    });
                }
                return Err(error);
            }
            self.firmware.log.counters_mut().pages_given += pages as u64;
            self.firmware.log.trace(self.firmware.platform.now(), TraceKind::Pages(pages as i32));
            left -= pages;
        }
        Ok(())
    }

    /// Takes back up to `count` pages (at most [`MOST`]); gives how many came.
    fn take(&mut self, function: Function, count: usize) -> Result<usize, Error> {
        let count = count.min(MOST);
        let mut take = input::<{ manage_pages_in::SIZE }>(Opcode::MANAGE_PAGES, ManagePagesOp::TAKE.0);
        manage_pages_in::embedded_cpu_function.set(&mut take, function.embedded_cpu);
        manage_pages_in::function_id.set(&mut take, function.id);
        manage_pages_in::input_num_entries.set(&mut take, count as u32);
        let mut out = [0; manage_pages_out::pas.len_with(MOST)];
        let out = &mut out[..manage_pages_out::pas.len_with(count)];
        self.firmware.exec_pages(self.memory, &take, Tail::NONE, out)?;
        let claimed = manage_pages_out::output_num_entries.get32(out) as usize;
        if claimed > count {
            self.firmware.log.counters_mut().bad_pages += 1;
        }
        let mut returned = 0u32;
        for index in 0..claimed.min(count) {
            let address = manage_pages_out::pas.quad(out, index);
            if self.memory.take_back(address) {
                returned += 1;
            } else {
                self.firmware.log.counters_mut().bad_pages += 1;
            }
        }
        self.firmware.log.counters_mut().pages_returned += u64::from(returned);
        self.firmware.log.trace(self.firmware.platform.now(), TraceKind::Pages(-(returned as i32)));
        Ok(returned as usize)
    }

    /// Answers a page request at run time: `pages` more, or, if negative, fewer.
    pub(super) fn serve(&mut self, function: Function, pages: i32) -> Result<(), Error> {
        let wanted = pages.unsigned_abs();
        if pages < 0 {
            let mut left = wanted.min(self.memory.firmware_pages()) as usize;
            while left > 0 {
                match self.take(function, left)? {
                    0 => break,
                    returned => left -= returned.min(left),
                }
            }
            return Ok(());
        }
        let available = self.memory.free_pages();
        if u64::from(wanted) <= available {
            return self.give(function, wanted as usize);
        }
        self.firmware.log.counters_mut().page_requests_refused += 1;
        let available = u32::try_from(available).unwrap_or(u32::MAX);
        self.firmware.log.push_event(AsyncEvent::PagesRefused { needed: wanted, available });
        let mut refuse = input::<{ manage_pages_in::SIZE }>(Opcode::MANAGE_PAGES, ManagePagesOp::CANT_GIVE.0);
        manage_pages_in::embedded_cpu_function.set(&mut refuse, function.embedded_cpu);
        manage_pages_in::function_id.set(&mut refuse, function.id);
        self.firmware.exec_pages(self.memory, &refuse, Tail::NONE, &mut [0; manage_pages_out::SIZE])
    }

    /// A function is gone and with it its use of pages: all of them are free. Those of other functions are not.
    pub(super) fn release_all(&mut self, function: Function) {
        let returned = self.memory.take_back_all(function.tag());
        self.firmware.log.counters_mut().pages_returned += u64::from(returned);
        self.firmware.log.trace(self.firmware.platform.now(), TraceKind::Pages(-(returned as i32)));
    }

    /// Takes everything back, in rounds.
    pub(super) fn reclaim(&mut self) -> Result<(), Error> {
        let mut last_progress = self.firmware.platform.now();
        while let Some(tag) = self.memory.tag_of_some_page() {
            let function = Function::of_tag(tag);
            let returned = self.take(function, self.memory.firmware_pages().max(1) as usize)?;
            let now = self.firmware.platform.now();
            if returned > 0 {
                last_progress = now;
            } else if now - last_progress >= self.firmware.limits.reclaim() {
                let waited_ms = (now - last_progress).as_millis() as u64;
                return Err(Error::Timeout {
                    step: Step::TearDown,
                    opcode: Some(Opcode::MANAGE_PAGES),
                    waited_ms,
                    syndrome: health_syndrome(self.firmware.platform.bar()),
                });
            } else {
                self.firmware.platform.idle(now + RECLAIM_POLL);
            }
        }
        Ok(())
    }
}
