//! Consumer notification: create, modify, wait, trigger. DAT 1.2, CNO management.

use driver_mlx::{Instant, Platform, Wake};

use crate::adapter::Adapter;
use crate::base::attr::CnoParameters;
use crate::base::handle::{CnoHandle, EvdHandle, IaHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::states::triggers;
use crate::base::types::deadline_of;
use crate::evd::cno::{Cno, CnoWait, ProxyAgent};

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_cno_create`.
    ///
    /// # Errors
    /// INVALID_HANDLE; INSUFFICIENT_RESOURCES.
    pub fn cno_create(&mut self, ia: IaHandle, agent: Option<ProxyAgent>) -> DatResult<CnoHandle> {
        self.objects.ias.get(ia)?;
        self.usable()?;
        let cno = Cno { ia, agent, triggered: None, released: false, wait: None, users: 0 };
        self.objects.cnos.insert(cno).map_err(|_| DatReturn::new(ReturnType::InsufficientResources))
    }

    /// `dat_cno_modify_agent`.
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
        let state = self.objects.cnos.get(cno)?;
        if state.users > 0 || state.wait.is_some() {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateCnoInUse));
        }
        self.objects.cnos.remove(cno).map(|_| ())
    }

    /// Removes a CNO whatever refers to it; its agent learns that there will be no more.
    pub(crate) fn drop_cno(&mut self, cno: CnoHandle) {
        if let Ok(cno) = self.objects.cnos.remove(cno)
            && let Some(agent) = cno.agent
        {
            (agent.function)(agent.instance_data, None);
        }
    }

    /// Begins `dat_cno_wait`: one at a time.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (CNO_IN_USE) if a wait is open.
    pub fn cno_wait_begin(&mut self, cno: CnoHandle, now: Instant, timeout_us: u32) -> DatResult<()> {
        let cno = self.objects.cnos.get_mut(cno)?;
        if cno.wait.is_some() {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateCnoInUse));
        }
        cno.released = false;
        cno.wait = Some(deadline_of(now, timeout_us));
        Ok(())
    }

    /// Whether the wait is over; it has ended when this answers anything but `Pending`.
    ///
    /// # Errors
    /// QUEUE_EMPTY if the time-out passed; INVALID_HANDLE; INVALID_STATE (CNO_DEAD) if the CNO went away under the wait, or
    /// no wait is open.
    pub fn cno_wait_poll(&mut self, handle: CnoHandle, now: Instant) -> DatResult<CnoWait> {
        const DEAD: DatReturn = DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateCnoDead);
        match self.objects.cnos.get(handle) {
            Ok(cno) if cno.wait.is_none() => return Err(DEAD),
            Ok(cno) if cno.triggered.is_none() && !cno.released => {
                let _ = self.poll(now);
            }
            Ok(_) => {}
            Err(_) if self.objects.cnos.is_past(handle) => return Err(DEAD),
            Err(error) => return Err(error),
        }
        let cno = self.objects.cnos.get_mut(handle)?;
        let Some(deadline) = cno.wait else { return Err(DEAD) };
        if let Some(evd) = cno.triggered.take() {
            cno.wait = None;
            return Ok(CnoWait::Triggered(self.objects.evds.get(evd).is_ok().then_some(evd)));
        }
        if cno.released {
            cno.wait = None;
            return Ok(CnoWait::Triggered(None));
        }
        if now >= deadline {
            cno.wait = None;
            return Err(DatReturn::QUEUE_EMPTY);
        }
        Ok(CnoWait::Pending(Wake::by(deadline)))
    }

    /// Gives up a wait. A trigger stays for the next.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE if no wait is open.
    pub fn cno_wait_end(&mut self, cno: CnoHandle) -> DatResult<()> {
        match self.objects.cnos.get_mut(cno)?.wait.take() {
            Some(_) => Ok(()),
            None => Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateCnoDead)),
        }
    }

    /// An event that notifies has arrived on an EVD.
    pub(crate) fn arrived(&mut self, evd: EvdHandle) {
        let Ok(state) = self.objects.evds.get(evd) else { return };
        let Some(cno) = state.cno else { return };
        if !triggers(state.enabled, state.condition()) {
            return;
        }
        let Ok(cno) = self.objects.cnos.get_mut(cno) else { return };
        if cno.triggered.is_none() {
            cno.triggered = Some(evd);
        }
        if let Some(agent) = cno.agent.take() {
            (agent.function)(agent.instance_data, Some(evd));
        }
    }

    /// An EVD feeds a CNO no more. With the last one, nothing can come.
    pub(crate) fn detach_from_cno(&mut self, cno: CnoHandle) {
        let Ok(cno) = self.objects.cnos.get_mut(cno) else { return };
        cno.users = cno.users.saturating_sub(1);
        if cno.users == 0 && cno.wait.is_some() {
            cno.released = true;
        }
    }

    /// Drops the CNOs of an IA.
    pub(crate) fn close_cnos(&mut self, ia: IaHandle) {
        for slot in 0..self.objects.cnos.end() {
            if self.objects.cnos.at(slot).is_some_and(|cno| cno.ia == ia)
                && let Some(cno) = self.objects.cnos.handle_at(slot)
            {
                self.drop_cno(cno);
            }
        }
    }
}
