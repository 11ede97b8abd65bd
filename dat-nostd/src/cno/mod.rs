//! Consumer notification objects. DAT 1.2, CNO management.

pub(crate) mod calls;
pub(crate) mod upcall;
pub(crate) mod waiter;

use core::sync::atomic::AtomicU32;

use driver_mlx::Instant;

use crate::base::handle::{CnoHandle, EvdHandle, HandleType, IaHandle, Typed};
use crate::base::list::{Link, List, linked};
use crate::base::reports::{Ready, Reports, Waited};
use crate::base::ret::DatResult;
use crate::base::table::{Slot, Table, of_ia};
use crate::base::users::Users;
use crate::base::waiter::Cells;
use crate::cno::upcall::{ProxyAgent, Upcall};

/// The list of CNOs whose agent must be called.
#[derive(Debug)]
struct Called;

/// A consumer notification object.
#[derive(Debug)]
pub struct Cno {
    ia: IaHandle,
    agent: Option<ProxyAgent>,
    /// The EVD that triggered first since the last wait took it.
    triggered: Option<EvdHandle>,
    /// The EVD that triggered first since the agent was last called; one call stands for all triggers till then.
    call: Option<EvdHandle>,
    /// The consumer's former handle of a freed CNO, which remains until the last call of its agent.
    gone: Option<CnoHandle>,
    /// Number of times that the last EVD was detached, which releases all waiters; circular.
    releases: u32,
    /// The earliest time-out of its waiters, nanoseconds; may be that of one that waits no more.
    deadline: Instant,
    /// EVDs that feed it.
    users: Users,
    called: Link<Called>,
    ready: Link<Ready>,
    waited: Link<Waited>,
}

of_ia! { Cno }
linked! { Cno, Called, called }
linked! { Cno, Ready, ready }
linked! { Cno, Waited, waited }

impl Cno {
    fn new(ia: IaHandle, agent: Option<ProxyAgent>) -> Self {
        Self {
            ia,
            agent,
            triggered: None,
            call: None,
            gone: None,
            releases: 0,
            deadline: Instant::MAX,
            users: Users::default(),
            called: Link::OUT,
            ready: Link::OUT,
            waited: Link::OUT,
        }
    }

    /// Records a trigger by an EVD, unless one is pending. Returns whether the CNO has an agent.
    fn trigger(&mut self, evd: EvdHandle) -> bool {
        self.triggered.get_or_insert(evd);
        if self.agent.is_some() {
            self.call.get_or_insert(evd);
        }
        self.agent.is_some()
    }

    /// Detaches an EVD. Releases all waiters with the last one, because no event can follow. Returns whether it was the last.
    fn detach(&mut self) -> bool {
        self.users.detach();
        let is_last = !self.users.is_any();
        self.releases = self.releases.wrapping_add(is_last.into());
        is_last
    }
}

/// The CNOs of an adapter: who waits on them, and which are due.
pub(crate) struct Cnos<'s> {
    table: Table<'s, CnoHandle, Cno>,
    cells: Cells<'s>,
    reports: Reports,
    /// CNOs whose agents are to be called.
    called: List<Called>,
    /// CNOs of these that are gone for their consumers.
    dead: usize,
}

impl<'s> Cnos<'s> {
    /// Without any, over these places, with a cell for each.
    pub(crate) fn new(slots: &'s mut [Slot<Cno>], cells: &'s [AtomicU32]) -> Self {
        Self {
            table: Table::new(slots),
            cells: Cells::new(cells),
            reports: Reports::default(),
            called: List::default(),
            dead: 0,
        }
    }

    /// The CNOs, and those whose agents are owed their last call.
    pub(crate) fn table(&self) -> &Table<'s, CnoHandle, Cno> {
        &self.table
    }

    pub(crate) fn table_mut(&mut self) -> &mut Table<'s, CnoHandle, Cno> {
        &mut self.table
    }

    /// Returns the number of CNOs that consumers have.
    pub(crate) fn len(&self) -> usize {
        self.table.len().saturating_sub(self.dead)
    }

    /// Checks that a CNO, if there is one, is of this IA.
    pub(crate) fn check(&self, cno: Option<CnoHandle>, ia: IaHandle) -> DatResult<()> {
        cno.map_or(Ok(()), |cno| self.table.get(cno)?.ia.check(ia, HandleType::Cno))
    }

    /// Returns whether something happened since the last call.
    pub(crate) fn take_happened(&mut self) -> bool {
        self.reports.take_happened()
    }

    fn ready(&mut self, slot: u16) {
        self.reports.push(&mut self.table, slot);
    }

    /// An EVD triggers.
    pub(crate) fn trigger(&mut self, cno: CnoHandle, evd: EvdHandle) {
        let Ok(state) = self.table.get_mut(cno) else { return };
        if state.trigger(evd) {
            self.called.push(&mut self.table, cno.any().slot());
        }
        self.ready(cno.any().slot());
    }

    /// Attaches an EVD to a CNO, if there is one.
    pub(crate) fn attach(&mut self, cno: Option<CnoHandle>) {
        if let Some(Ok(cno)) = cno.map(|cno| self.table.get_mut(cno)) {
            cno.users.attach();
        }
    }

    /// Detaches an EVD from a CNO, if there is one.
    pub(crate) fn detach(&mut self, cno: Option<CnoHandle>) {
        if let Some(cno) = cno
            && self.table.get_mut(cno).is_ok_and(Cno::detach)
        {
            self.ready(cno.any().slot());
        }
    }

    /// CNOs whose wait has timed out become ready. Calls `visit` for each wait that is looked at. Returns the next time-out.
    pub(crate) fn expire(&mut self, now: Instant, visit: impl FnMut()) -> Instant {
        self.reports.expire(&mut self.table, now, visit, |_, cno| {
            // A waiter with a later deadline finds nothing and re-registers it when it is polled.
            let later = if cno.deadline <= now { Instant::MAX } else { cno.deadline };
            Some(core::mem::replace(&mut cno.deadline, later))
        })
    }

    /// A wait on a CNO goes on until then.
    fn note_wait(&mut self, cno: CnoHandle, deadline: Instant) {
        let Ok(state) = self.table.get_mut(cno) else { return };
        if deadline == Instant::MAX {
            return;
        }
        state.deadline = state.deadline.min(deadline);
        self.reports.wait(&mut self.table, cno.any().slot(), deadline);
    }

    /// Ends a wait on a CNO. The time-outs of other waits are not stored, so the CNO's is cleared with its last wait only.
    fn wait_ended(&mut self, cno: CnoHandle) {
        if self.cells.waiters(cno) > 0 {
            return;
        }
        if let Ok(state) = self.table.get_mut(cno) {
            state.deadline = Instant::MAX;
            self.reports.wait_ended(&mut self.table, cno.any().slot());
        }
    }

    /// Removes a CNO even if objects refer to it: releases its waiters and queues the last call of its agent. Until that call the CNO
    /// keeps its slot, under a handle that no consumer has.
    fn drop(&mut self, cno: CnoHandle) {
        let slot = cno.any().slot();
        if self.table.get(cno).is_err() {
            return;
        }
        self.reports.remove(&mut self.table, slot);
        self.called.remove(&mut self.table, slot);
        let Ok(gone) = self.table.remove(cno) else { return };
        if gone.agent.is_none() {
            return;
        }
        // A place has just become free.
        let last_call = Cno { gone: Some(cno), ..Cno::new(gone.ia, gone.agent) };
        if let Ok(cno) = self.table.insert(last_call) {
            self.dead += 1;
            self.called.push(&mut self.table, cno.any().slot());
            self.reports.set_happened();
        }
    }

    /// Drops the CNOs of an IA.
    pub(crate) fn drop_of(&mut self, ia: IaHandle) {
        for slot in self.table.slots() {
            if self.table.at(slot).is_some_and(|cno| cno.ia == ia && cno.gone.is_none())
                && let Some(cno) = self.table.handle_at(slot)
            {
                self.drop(cno);
            }
        }
    }

    /// The CNO that became ready next.
    pub(crate) fn next_ready(&mut self) -> Option<CnoHandle> {
        self.reports.next(&mut self.table)
    }

    /// The next agent to call.
    fn next_upcall(&mut self) -> Option<Upcall> {
        loop {
            let slot = self.called.pop(&mut self.table)?;
            let Some((handle, state)) = self.table.entry_mut(slot) else { continue };
            let handle = handle.get();
            let (agent, evd, ia) = (state.agent.take(), state.call.take(), state.ia);
            let cno = state.gone.unwrap_or(handle);
            if state.gone.is_some() {
                self.dead = self.dead.saturating_sub(1);
                // Cannot fail: the CNO was looked up above.
                let _ = self.table.remove(handle);
            }
            // The consumer may have taken the agent away meanwhile.
            if let Some(agent) = agent {
                return Some(Upcall { cno, ia, agent, evd });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(_: &mut dyn crate::cno::upcall::AgentCalls, _: u64, _: Option<EvdHandle>) {}

    #[test]
    fn triggers_are_absorbed_until_they_are_taken() {
        let [a, b] = [3, 4].map(EvdHandle::from_bits);
        let mut cno = Cno::new(IaHandle::from_bits(1), None);
        assert!(!cno.trigger(a) && !cno.trigger(b));
        assert_eq!((cno.triggered.take(), cno.call), (Some(a), None));
        cno.agent = Some(ProxyAgent { function: agent, instance_data: 0 });
        assert!(cno.trigger(b) && cno.trigger(a));
        assert_eq!((cno.triggered, cno.call), (Some(b), Some(b)));
    }

    #[test]
    fn the_last_evd_releases() {
        let mut cno = Cno::new(IaHandle::from_bits(1), None);
        cno.users.attach();
        cno.users.attach();
        assert!(!cno.detach());
        assert_eq!(cno.releases, 0);
        assert!(cno.detach());
        assert_eq!(cno.releases, 1);
    }
}
