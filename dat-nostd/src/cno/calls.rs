//! Calls on CNOs: create, modify, wait; upcalls.

use driver_mlx::{Instant, Platform, Wake};

use crate::adapter::Adapter;
use crate::base::attr::CnoParameters;
use crate::base::event::Event;
use crate::base::handle::{CnoHandle, EpHandle, EvdHandle, IaHandle, RmrHandle, SrqHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::{CompletionFlags, LmrTriplet, MemPriv, RmrTriplet, deadline_of};
use crate::cno::Cno;
use crate::cno::upcall::{AgentCalls, ProxyAgent, Upcall, agent_calls};
use crate::cno::waiter::{CnoWait, CnoWaiter};

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_cno_create`.
    ///
    /// # Errors
    /// INVALID_HANDLE; INSUFFICIENT_RESOURCES.
    pub fn cno_create(&mut self, ia: IaHandle, agent: Option<ProxyAgent>) -> DatResult<CnoHandle> {
        self.objects().get(ia)?;
        self.device().usable()?;
        let cno = self.objects_mut().table_mut::<CnoHandle>().insert(Cno::new(ia, agent));
        cno.map_err(|_| DatReturn::new(ReturnType::InsufficientResources))
    }

    /// `dat_cno_modify_agent`. The new agent also gets the call that the old one is still owed.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn cno_modify_agent(&mut self, cno: CnoHandle, agent: Option<ProxyAgent>) -> DatResult<()> {
        self.objects_mut().get_mut(cno)?.agent = agent;
        Ok(())
    }

    /// `dat_cno_query`. An agent that has been called is none any more.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn cno_query(&self, cno: CnoHandle) -> DatResult<CnoParameters> {
        let cno = self.objects().get(cno)?;
        Ok(CnoParameters { ia: cno.ia, agent: cno.agent })
    }

    /// `dat_cno_free`.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (CNO_IN_USE) while an EVD feeds it or a wait is open.
    pub fn cno_free(&mut self, cno: CnoHandle) -> DatResult<()> {
        if self.objects().get(cno)?.users.is_any() || self.objects().cnos().cells.waiters(cno) > 0 {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateCnoInUse));
        }
        // Its agent hears nothing: the consumer ended it.
        self.objects_mut().get_mut(cno)?.agent = None;
        self.objects_mut().cnos_mut().drop(cno);
        Ok(())
    }

    /// Begins `dat_cno_wait`. Several may be open on one CNO; a trigger ends the one that is polled first.
    ///
    /// # Errors
    /// INVALID_HANDLE; INSUFFICIENT_RESOURCES from 65,535 waits on one CNO.
    pub fn cno_wait_begin(
        &mut self,
        cno: CnoHandle,
        now: Instant,
        timeout_us: u32,
    ) -> DatResult<CnoWaiter<'s>> {
        let cnos = self.objects_mut().cnos_mut();
        let (deadline, releases) = (deadline_of(now, timeout_us), cnos.table.get(cno)?.releases);
        let token = cnos.cells.begin(cno).ok_or(DatReturn::new(ReturnType::InsufficientResources))?;
        cnos.note_wait(cno, deadline);
        Ok(CnoWaiter::new(token, deadline, releases))
    }

    /// Whether the wait is over; it has ended when this answers anything but `Pending`. When the last EVD leaves the CNO, or the CNO
    /// goes with its IA, all its waiters are released, without an EVD.
    ///
    /// # Errors
    /// QUEUE_EMPTY if the time-out passed; INVALID_HANDLE if the CNO is another adapter's; INVALID_STATE (CNO_DEAD) if the wait has
    /// ended.
    pub fn cno_wait_poll(&mut self, waiter: &mut CnoWaiter<'s>, now: Instant) -> DatResult<CnoWait> {
        let handle = waiter.cno();
        if !waiter.is_open() {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateCnoDead));
        }
        let released = |cno: &Cno, waiter: &CnoWaiter<'_>| cno.releases != waiter.releases();
        match self.objects().get(handle) {
            Ok(cno) if cno.triggered.is_none() && !released(cno, waiter) => {
                let _ = self.poll(now);
            }
            Ok(_) => {}
            Err(_) if self.objects().table().is_past(handle) => {
                waiter.end();
                return Ok(CnoWait::Triggered(None));
            }
            Err(error) => return Err(error),
        }
        let cno = self.objects_mut().get_mut(handle)?;
        let answer = match cno.triggered.take() {
            Some(evd) => Ok(CnoWait::Triggered(self.objects().get(evd).is_ok().then_some(evd))),
            None if released(cno, waiter) => Ok(CnoWait::Triggered(None)),
            None if now >= waiter.deadline() => Err(DatReturn::QUEUE_EMPTY),
            None => {
                let deadline = waiter.deadline();
                self.objects_mut().cnos_mut().note_wait(handle, deadline);
                return Ok(CnoWait::Pending(Wake::by(deadline)));
            }
        };
        waiter.end();
        self.objects_mut().cnos_mut().wait_ended(handle);
        answer
    }

    /// Gives up a wait; a trigger stays for others. So does dropping the waiter.
    ///
    /// # Errors
    /// INVALID_HANDLE if the CNO is gone; INVALID_STATE (CNO_DEAD) if the wait has ended.
    pub fn cno_wait_end(&mut self, mut waiter: CnoWaiter<'s>) -> DatResult<()> {
        self.objects().get(waiter.cno())?;
        if !waiter.is_open() {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateCnoDead));
        }
        waiter.end();
        self.objects_mut().cnos_mut().wait_ended(waiter.cno());
        Ok(())
    }

    /// The next call of an agent that is due, to be made with [`Upcall::run`] outside any other call. Whoever gives CNOs agents asks
    /// for these after every [`Adapter::poll`]; a CNO has at most one call due, so none is lost if that is late.
    pub fn next_upcall(&mut self) -> Option<Upcall> {
        self.objects_mut().cnos_mut().next_upcall()
    }

    /// Returns whether [`Adapter::next_upcall`] has an upcall.
    pub fn has_upcalls(&self) -> bool {
        !self.objects().cnos().called.is_empty()
    }

    /// Extension: whether agents of CNOs of this IA that have gone, as all of one that was closed abruptly have, are still to be called for
    /// the last time.
    pub fn owes_upcalls(&self, ia: IaHandle) -> bool {
        self.objects().table::<CnoHandle>().iter().any(|(_, cno)| cno.ia == ia && cno.gone.is_some())
    }

    /// Makes the calls of agents that are due; those that these cause come the next time.
    pub fn deliver_upcalls(&mut self) {
        for _ in 0..self.objects().cnos().called.len() {
            let Some(upcall) = self.next_upcall() else { return };
            upcall.run(self);
        }
    }
}

macro_rules! delegate {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl<P: Platform> AgentCalls for Adapter<'_, P> { $(
            fn $name(&mut self, $($argument: $type),*) -> $result {
                Adapter::$name(self, $($argument),*)
            }
        )* }
    };
}
agent_calls! { delegate }
