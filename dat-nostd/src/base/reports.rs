//! Reports to the consumer about the objects of a table: those that became ready, and those with an open wait.

use driver_mlx::Instant;

use crate::base::handle::Typed;
use crate::base::list::{Linked, List};
use crate::base::table::Table;

/// The list of objects that became ready since the consumer's last report.
#[derive(Debug)]
pub(crate) struct Ready;

/// The list of objects on which a wait is open.
#[derive(Debug)]
pub(crate) struct Waited;

/// Objects of one table to report, and the time-outs of the waits on them.
#[derive(Debug)]
pub(crate) struct Reports {
    ready: List<Ready>,
    waited: List<Waited>,
    /// The earliest time-out of a wait; may be that of one that is over. `Instant::MAX` for none.
    deadline: Instant,
    /// Something happened since [`Reports::take_happened`].
    happened: bool,
}

impl Default for Reports {
    fn default() -> Self {
        Self { ready: List::default(), waited: List::default(), deadline: Instant::MAX, happened: false }
    }
}

impl Reports {
    /// Returns whether something happened since the last call.
    pub(crate) fn take_happened(&mut self) -> bool {
        core::mem::take(&mut self.happened)
    }

    /// Records that something happened without an object to report.
    pub(crate) fn set_happened(&mut self) {
        self.happened = true;
    }

    /// Adds an object to those to report.
    pub(crate) fn push<H: Typed, T: Linked<Ready>>(&mut self, table: &mut Table<'_, H, T>, slot: u16) {
        self.happened = true;
        self.ready.push(table, slot);
    }

    /// Takes the next object to report.
    pub(crate) fn next<H: Typed, T: Linked<Ready>>(&mut self, table: &mut Table<'_, H, T>) -> Option<H> {
        let slot = self.ready.pop(table)?;
        table.handle_at(slot)
    }

    /// Removes an object, which is about to go.
    pub(crate) fn remove<H: Typed, T>(&mut self, table: &mut Table<'_, H, T>, slot: u16)
    where
        T: Linked<Ready> + Linked<Waited>,
    {
        self.ready.remove(table, slot);
        self.wait_ended(table, slot);
    }

    /// A wait on an object goes on until `deadline`.
    pub(crate) fn wait<H: Typed, T: Linked<Waited>>(
        &mut self,
        table: &mut Table<'_, H, T>,
        slot: u16,
        deadline: Instant,
    ) {
        self.waited.push(table, slot);
        self.deadline = self.deadline.min(deadline);
    }

    /// No wait is open on an object any more.
    pub(crate) fn wait_ended<H: Typed, T: Linked<Waited>>(&mut self, table: &mut Table<'_, H, T>, slot: u16) {
        self.waited.remove(table, slot);
        if self.waited.is_empty() {
            self.deadline = Instant::MAX;
        }
    }

    /// Reports all objects on which a wait is open.
    pub(crate) fn push_waited<H: Typed, T>(&mut self, table: &mut Table<'_, H, T>)
    where
        T: Linked<Ready> + Linked<Waited>,
    {
        for _ in 0..self.waited.len() {
            let Some(slot) = self.waited.rotate(table) else { return };
            self.push(table, slot);
        }
    }

    /// Reports the objects whose wait has timed out, and removes those whose wait is over. `deadline_of` returns the time-out of an
    /// object. Calls `visit` for each object. Returns the next time-out.
    pub(crate) fn expire<H: Typed, T>(
        &mut self,
        table: &mut Table<'_, H, T>,
        now: Instant,
        mut visit: impl FnMut(),
        mut deadline_of: impl FnMut(H, &mut T) -> Option<Instant>,
    ) -> Instant
    where
        T: Linked<Ready> + Linked<Waited>,
    {
        if now < self.deadline {
            return self.deadline;
        }
        let mut next = Instant::MAX;
        for _ in 0..self.waited.len() {
            let Some(slot) = self.waited.rotate(table) else { break };
            visit();
            let deadline =
                table.entry_mut(slot).and_then(|(handle, object)| deadline_of(handle.get(), object));
            match deadline {
                Some(deadline) if deadline > now => {
                    next = next.min(deadline);
                    continue;
                }
                Some(_) => self.push(table, slot),
                None => {}
            }
            self.waited.remove(table, slot);
        }
        self.deadline = next;
        next
    }
}
