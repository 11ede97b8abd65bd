//! What a device's lock is for.

use crate::beside::{Agent, Beside};
use crate::convert::close_flags;
use crate::handles::{Kinded, NULL, RawHandle};
use crate::node::Node;
use core::ptr;
use dat_nostd::{Adapter, DatResult, IaHandle, Instant};

/// An adapter, and what goes with it.
pub struct State<N: Node> {
    /// The adapter.
    pub adapter: Adapter<'static, N::Platform>,
    /// What is known of its objects.
    pub beside: Beside,
    /// Who waits.
    pub waiting: N::Waiting,
}

/// An upcall that is due: to be called without the lock.
#[derive(Clone, Copy)]
pub struct Call {
    agent: Agent,
    evd: RawHandle,
    cno: RawHandle,
    ia: RawHandle,
}

impl Call {
    /// Whether it is of this CNO, or of one of this IA's.
    #[must_use]
    pub fn is_of(&self, owner: RawHandle) -> bool {
        self.cno == owner || self.ia == owner
    }

    /// What the agent is given.
    #[must_use]
    pub fn instance_data(&self) -> usize {
        self.agent.instance_data
    }

    /// Calls the program's agent.
    pub fn run(&self) {
        // SAFETY: the program gave this function to be called with this value.
        unsafe {
            (self.agent.function)(ptr::with_exposed_provenance_mut(self.agent.instance_data), self.evd);
        }
    }
}

impl<N: Node> State<N> {
    /// Polls the adapter and arms its interrupts. Returns until when the thread may sleep, or `None`
    /// if something has happened. Upcalls are for another thread.
    pub fn work(&mut self) -> Option<Instant> {
        // Takes the interrupts and does not wait.
        self.adapter.idle(Instant::ORIGIN);
        let now = self.adapter.now();
        let _ = self.adapter.poll(now);
        self.adapter.rest_besides_upcalls(now)
    }

    /// The next upcall that is due.
    pub fn next_call(&mut self) -> Option<Call> {
        while let Some(upcall) = self.adapter.next_upcall() {
            if let Some(agent) = self.beside.agents.take(&upcall.agent) {
                return Some(Call {
                    agent,
                    evd: upcall.evd.map_or(NULL, Kinded::raw),
                    cno: upcall.cno.raw(),
                    ia: upcall.ia.raw(),
                });
            }
        }
        None
    }

    /// Closes an IA.
    ///
    /// # Errors
    /// Those of `dat_ia_close`.
    pub fn close_ia(&mut self, ia: IaHandle, flags: u32) -> DatResult<()> {
        self.adapter.ia_query(ia)?;
        self.adapter.ia_close(ia, close_flags(flags)?)
    }
}
