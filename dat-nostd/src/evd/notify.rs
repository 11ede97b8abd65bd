//! Consumer notification: create, modify, wait, upcalls. DAT 1.2, CNO management.

use driver_mlx::{Instant, Platform, Wake};

use crate::adapter::Adapter;
use crate::base::attr::CnoParameters;
use crate::base::event::Event;
use crate::base::handle::{CnoHandle, EpHandle, EvdHandle, IaHandle, RmrHandle, SrqHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::{CompletionFlags, LmrTriplet, MemPriv, RmrTriplet, deadline_of};
use crate::evd::cno::Cno;
use crate::evd::upcall::{AgentCalls, ProxyAgent, Upcall};
use crate::evd::waiter::{CnoWait, CnoWaiter};

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_cno_create`.
    ///
    /// # Errors
    /// INVALID_HANDLE; INSUFFICIENT_RESOURCES.
    pub fn cno_create(&mut self, ia: IaHandle, agent: Option<ProxyAgent>) -> DatResult<CnoHandle> {
        self.objects.ias.get(ia)?;
        self.device.usable()?;
        let cno = self.objects.cnos.insert(Cno::new(ia, agent));
        cno.map_err(|_| DatReturn::new(ReturnType::InsufficientResources))
    }

    /// `dat_cno_modify_agent`. The new agent also gets the call that the old one is still owed.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn cno_modify_agent(&mut self, cno: CnoHandle, agent: Option<ProxyAgent>) -> DatResult<()> {
        self.objects.cnos.get_mut(cno)?.agent = agent;
        Ok(())
    }

    /// `dat_cno_query`. An agent that has been called is none any more.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn cno_query(&self, cno: CnoHandle) -> DatResult<CnoParameters> {
        let cno = self.objects.cnos.get(cno)?;
        Ok(CnoParameters { ia: cno.ia, agent: cno.agent })
    }

    /// `dat_cno_free`.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (CNO_IN_USE) while an EVD feeds it or a wait is open.
    pub fn cno_free(&mut self, cno: CnoHandle) -> DatResult<()> {
        if self.objects.cnos.get(cno)?.users > 0 || self.progress.waits.cno_waiters(cno) > 0 {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateCnoInUse));
        }
        // Its agent hears nothing: the consumer ended it.
        self.objects.cnos.get_mut(cno)?.agent = None;
        self.delivery().drop_cno(cno);
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
        let (deadline, releases) = (deadline_of(now, timeout_us), self.objects.cnos.get(cno)?.releases);
        let waiter = self.progress.waits.begin_cno(cno, deadline, releases);
        let waiter = waiter.ok_or(DatReturn::new(ReturnType::InsufficientResources))?;
        self.delivery().note_cno_wait(cno, deadline);
        Ok(waiter)
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
        let released = |cno: &Cno, waiter: &CnoWaiter<'_>| cno.releases != waiter.releases;
        match self.objects.cnos.get(handle) {
            Ok(cno) if cno.triggered.is_none() && !released(cno, waiter) => {
                let _ = self.poll(now);
            }
            Ok(_) => {}
            Err(_) if self.objects.cnos.is_past(handle) => {
                waiter.end();
                return Ok(CnoWait::Triggered(None));
            }
            Err(error) => return Err(error),
        }
        let cno = self.objects.cnos.get_mut(handle)?;
        let answer = match cno.triggered.take() {
            Some(evd) => Ok(CnoWait::Triggered(self.objects.evds.get(evd).is_ok().then_some(evd))),
            None if released(cno, waiter) => Ok(CnoWait::Triggered(None)),
            None if now >= waiter.deadline => Err(DatReturn::QUEUE_EMPTY),
            None => {
                let deadline = waiter.deadline;
                self.delivery().note_cno_wait(handle, deadline);
                return Ok(CnoWait::Pending(Wake::by(deadline)));
            }
        };
        waiter.end();
        self.delivery().cno_wait_ended(handle);
        answer
    }

    /// Gives up a wait; a trigger stays for others. So does dropping the waiter.
    ///
    /// # Errors
    /// INVALID_HANDLE if the CNO is gone; INVALID_STATE (CNO_DEAD) if the wait has ended.
    pub fn cno_wait_end(&mut self, mut waiter: CnoWaiter<'s>) -> DatResult<()> {
        self.objects.cnos.get(waiter.cno())?;
        if !waiter.is_open() {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateCnoDead));
        }
        waiter.end();
        self.delivery().cno_wait_ended(waiter.cno());
        Ok(())
    }

    /// The next call of an agent that is due, to be made with [`Upcall::run`] outside any other call. Whoever gives CNOs agents asks
    /// for these after every [`Adapter::poll`]; a CNO has at most one call due, so none is lost if that is late.
    pub fn next_upcall(&mut self) -> Option<Upcall> {
        self.delivery().next_upcall()
    }

    /// Returns whether [`Adapter::next_upcall`] has an upcall.
    pub fn has_upcalls(&self) -> bool {
        !self.progress.upcalls.is_empty()
    }

    /// Extension: whether agents of CNOs of this IA that have gone, as all of one that was closed abruptly have, are still to be called for
    /// the last time.
    pub fn owes_upcalls(&self, ia: IaHandle) -> bool {
        let is_owed = |slot| self.objects.cnos.at(slot).is_some_and(|cno| cno.ia == ia && cno.gone.is_some());
        self.objects.cnos.slots().any(is_owed)
    }

    /// Makes the calls of agents that are due; those that these cause come the next time.
    pub fn deliver_upcalls(&mut self) {
        for _ in 0..self.progress.upcalls.len() {
            let Some(upcall) = self.next_upcall() else { return };
            upcall.run(self);
        }
    }
}

impl<P: Platform> AgentCalls for Adapter<'_, P> {
    fn ep_post_send(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        Adapter::ep_post_send(self, ep, iov, user_cookie, flags)
    }

    fn ep_post_recv(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        Adapter::ep_post_recv(self, ep, iov, user_cookie, flags)
    }

    fn ep_post_rdma_read(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        Adapter::ep_post_rdma_read(self, ep, iov, user_cookie, remote, flags)
    }

    fn ep_post_rdma_write(
        &mut self,
        ep: EpHandle,
        iov: &[LmrTriplet],
        user_cookie: u64,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        Adapter::ep_post_rdma_write(self, ep, iov, user_cookie, remote, flags)
    }

    fn rmr_bind(
        &mut self,
        rmr: RmrHandle,
        triplet: &LmrTriplet,
        mem_priv: MemPriv,
        ep: EpHandle,
        user_cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<u32> {
        Adapter::rmr_bind(self, rmr, triplet, mem_priv, ep, user_cookie, flags)
    }

    fn srq_post_recv(&mut self, srq: SrqHandle, iov: &[LmrTriplet], user_cookie: u64) -> DatResult<()> {
        Adapter::srq_post_recv(self, srq, iov, user_cookie)
    }

    fn evd_dequeue(&mut self, evd: EvdHandle) -> DatResult<Event> {
        Adapter::evd_dequeue(self, evd)
    }

    fn evd_post_se(&mut self, evd: EvdHandle, value: u64) -> DatResult<()> {
        Adapter::evd_post_se(self, evd, value)
    }

    fn cno_modify_agent(&mut self, cno: CnoHandle, agent: Option<ProxyAgent>) -> DatResult<()> {
        Adapter::cno_modify_agent(self, cno, agent)
    }
}
