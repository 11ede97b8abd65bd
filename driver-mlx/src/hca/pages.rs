//! Memory for firmware: given at start, on request, and taken back at the end.

use super::Hca;
use super::device_state::health_syndrome;
use super::exec::input;
use super::function::Function;
use crate::buddy::{self, BLOCK};
use crate::cmd::Tail;
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

impl<P: Platform> Hca<'_, P> {
    /// Asks how many pages firmware needs for a stage of bring-up, and gives them if there are as many.
    pub(super) fn supply_pages(&mut self, stage: QueryPagesOp) -> Result<(), Error> {
        let mut query = input::<{ query_pages_in::SIZE }>(Opcode::QUERY_PAGES, stage.0);
        query_pages_in::embedded_cpu_function.set(&mut query, self.embedded_cpu);
        let mut out = [0; query_pages_out::SIZE];
        self.exec(&query, &mut out)?;
        let needed = query_pages_out::num_pages.get32(&out) as i32;
        // The number that firmware knows this function by, which need not be the 0 that it asks by.
        self.own_pages = Function {
            id: query_pages_out::function_id.get(&out) as u16,
            embedded_cpu: query_pages_out::embedded_cpu_function.is_set(&out),
        };
        // A negative number is an offer to give pages back, which nobody has asked for at this point.
        let needed = u64::try_from(needed).unwrap_or(0);
        let available = self.free_pages().saturating_sub(u64::from(self.config.reserved_pages));
        if needed > available {
            return Err(Error::InsufficientPages { needed, available });
        }
        self.give_pages(self.own_pages, needed as usize)
    }

    fn free_pages(&self) -> u64 {
        self.buddy.free_blocks() as u64
    }

    /// Gives `count` pages, of which there must be as many.
    fn give_pages(&mut self, function: Function, count: usize) -> Result<(), Error> {
        let mut left = count;
        while left > 0 {
            // The longest run that fits, shorter ones when the region is fragmented.
            let mut order = buddy::order_within(left).min(LOG_MOST);
            let block = loop {
                match self.buddy.alloc(order) {
                    Some(block) => break block,
                    None if order > 0 => order -= 1,
                    None => return Err(Error::InsufficientPages { needed: left as u64, available: 0 }),
                }
            };
            let pages = 1usize << order;
            let run = self.block_slice(block, pages * BLOCK)?;
            run.fill(0, run.len(), 0)?;
            let address = run.device_address();
            let mut give = input::<{ manage_pages_in::SIZE }>(Opcode::MANAGE_PAGES, ManagePagesOp::GIVE.0);
            manage_pages_in::embedded_cpu_function.set(&mut give, function.embedded_cpu);
            manage_pages_in::function_id.set(&mut give, function.id);
            manage_pages_in::input_num_entries.set(&mut give, pages as u32);
            let tail = Tail { count: pages, entry: &|index| address + (index * BLOCK) as u64 };
            // From here on firmware may use them, whatever comes of the command.
            self.buddy.give(block);
            let mut out = [0; manage_pages_out::SIZE];
            if let Err(error) = self.exec_pages(&give, tail, &mut out) {
                if matches!(error, Error::Command(_)) {
                    (block..block + pages).for_each(|page| {
                        self.buddy.take_back(page);
                    });
                }
                return Err(error);
            }
            for owner in self.users.iter_mut().skip(block).take(pages) {
                *owner = function.tag();
            }
            self.firmware_pages += pages as u32;
            self.counters.pages_given += pages as u64;
            self.trace.push(self.platform.now(), TraceKind::Pages(pages as i32));
            left -= pages;
        }
        Ok(())
    }

    /// Takes back up to `count` pages (at most [`MOST`]); gives how many came.
    fn take_pages(&mut self, function: Function, count: usize) -> Result<usize, Error> {
        let count = count.min(MOST);
        let mut take = input::<{ manage_pages_in::SIZE }>(Opcode::MANAGE_PAGES, ManagePagesOp::TAKE.0);
        manage_pages_in::embedded_cpu_function.set(&mut take, function.embedded_cpu);
        manage_pages_in::function_id.set(&mut take, function.id);
        manage_pages_in::input_num_entries.set(&mut take, count as u32);
        let mut out = [0; manage_pages_out::pas.len_with(MOST)];
        let out = &mut out[..manage_pages_out::pas.len_with(count)];
        self.exec_pages(&take, Tail::NONE, out)?;
        let claimed = manage_pages_out::output_num_entries.get32(out) as usize;
        if claimed > count {
            self.counters.bad_pages += 1;
        }
        let mut returned = 0;
        for index in 0..claimed.min(count) {
            let address = manage_pages_out::pas.quad(out, index);
            let offset = address.wrapping_sub(self.region.device_address());
            let block = usize::try_from(offset / BLOCK as u64).unwrap_or(usize::MAX);
            if address.is_multiple_of(BLOCK as u64) && self.take_back(block) {
                returned += 1;
            } else {
                self.counters.bad_pages += 1;
            }
        }
        self.firmware_pages = self.firmware_pages.saturating_sub(returned);
        self.counters.pages_returned += u64::from(returned);
        self.trace.push(self.platform.now(), TraceKind::Pages(-(returned as i32)));
        Ok(returned as usize)
    }

    /// Answers a page request at run time: `pages` more, or, if negative, fewer.
    pub(super) fn serve_page_request(&mut self, function: Function, pages: i32) -> Result<(), Error> {
        let wanted = pages.unsigned_abs();
        if pages < 0 {
            let mut left = wanted.min(self.firmware_pages) as usize;
            while left > 0 {
                match self.take_pages(function, left)? {
                    0 => break,
                    returned => left -= returned.min(left),
                }
            }
            return Ok(());
        }
        let available = self.free_pages();
        if u64::from(wanted) <= available {
            return self.give_pages(function, wanted as usize);
        }
        self.counters.page_requests_refused += 1;
        let available = u32::try_from(available).unwrap_or(u32::MAX);
        self.push_event(AsyncEvent::PagesRefused { needed: wanted, available });
        let mut refuse = input::<{ manage_pages_in::SIZE }>(Opcode::MANAGE_PAGES, ManagePagesOp::CANT_GIVE.0);
        manage_pages_in::embedded_cpu_function.set(&mut refuse, function.embedded_cpu);
        manage_pages_in::function_id.set(&mut refuse, function.id);
        self.exec_pages(&refuse, Tail::NONE, &mut [0; manage_pages_out::SIZE])
    }

    /// A page is back from firmware. `false` if firmware did not have it.
    fn take_back(&mut self, block: usize) -> bool {
        let returned = self.buddy.take_back(block);
        if returned && let Some(owner) = self.users.get_mut(block) {
            *owner = 0;
        }
        returned
    }

    /// A function is gone and with it its use of pages: all of them are free. Those of other functions are not.
    pub(super) fn release_all_pages(&mut self, function: Function) {
        let mut returned = 0;
        for block in 0..self.users.len() {
            let its = self.users.get(block) == Some(&function.tag()) && self.buddy.is_given(block);
            if its && self.take_back(block) {
                returned += 1;
            }
        }
        self.firmware_pages = self.firmware_pages.saturating_sub(returned);
        self.counters.pages_returned += u64::from(returned);
        self.trace.push(self.platform.now(), TraceKind::Pages(-(returned as i32)));
    }

    /// A function that pages were given for and have not come back.
    fn owner_of_some_page(&self) -> Option<Function> {
        let given = (0..self.users.len()).find(|&block| self.buddy.is_given(block))?;
        self.users.get(given).map(|&tag| Function::of_tag(tag))
    }

    /// Takes everything back, in rounds.
    pub(super) fn reclaim_pages(&mut self) -> Result<(), Error> {
        let mut last_progress = self.platform.now();
        while let Some(function) = self.owner_of_some_page() {
            let returned = self.take_pages(function, self.firmware_pages.max(1) as usize)?;
            let now = self.platform.now();
            if returned > 0 {
                last_progress = now;
            } else if now - last_progress >= self.limits.reclaim {
                let waited_ms = (now - last_progress).as_millis() as u64;
                return Err(Error::Timeout {
                    step: Step::TearDown,
                    opcode: Some(Opcode::MANAGE_PAGES),
                    waited_ms,
                    syndrome: health_syndrome(self.platform.bar()),
                });
            } else {
                self.platform.idle(now + RECLAIM_POLL);
            }
        }
        Ok(())
    }
}
