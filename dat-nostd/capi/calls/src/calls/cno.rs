//! Consumer notification objects.

use super::exported::calls;
use crate::args::{need, put};
use crate::handles::{Kinded, NULL, RawHandle};
use crate::layout::{CnoParam, ProxyAgent};
use crate::node::{Node, Sleep};
use crate::reach::{replace_agent, with};
use crate::waits::{CnoWaitBegun, Turn, WaitCall, sleep_through};
use core::ptr;
use dat_nostd::{CnoHandle, DatResult, EvdHandle, IaHandle, Subtype};

/// The arguments of `dat_cno_wait`.
#[derive(Clone, Copy)]
pub struct CnoWaitCall {
    cno_handle: RawHandle,
    timeout: u32,
    evd_handle: *mut RawHandle,
}

/// `dat_cno_wait`, not yet made.
pub fn cno_wait_call(cno_handle: RawHandle, timeout: u32, evd_handle: *mut RawHandle) -> CnoWaitCall {
    CnoWaitCall { cno_handle, timeout, evd_handle }
}

impl CnoWaitCall {
    /// # Safety
    /// The pointer is as the header says.
    unsafe fn store(&self, evd: RawHandle) {
        // SAFETY: this function's contract.
        unsafe { put(self.evd_handle, evd) };
    }
}

impl<N: Node> WaitCall<N> for CnoWaitCall {
    type Wait = CnoWaitBegun;

    unsafe fn begin(&self) -> DatResult<Turn<N, CnoWaitBegun>> {
        need(self.evd_handle, Subtype::InvalidArg3)?;
        CnoWaitBegun::begin(self.cno_handle, self.timeout).inspect_err(|_| {
            // SAFETY: this function's contract.
            unsafe { self.store(NULL) };
        })
    }

    unsafe fn finish(&self, waited: DatResult<Option<EvdHandle>>) -> DatResult<()> {
        let evd = waited.map_or(NULL, Kinded::raw_or_null);
        // SAFETY: this function's contract.
        unsafe { self.store(evd) };
        waited.map(drop)
    }
}

/// `dat_cno_wait`, where threads sleep within it.
///
/// # Errors
/// The call's errors in the specification.
pub unsafe fn dat_cno_wait<N: Sleep>(
    cno_handle: RawHandle,
    timeout: u32,
    evd_handle: *mut RawHandle,
) -> DatResult<()> {
    // SAFETY: the caller's.
    unsafe { sleep_through::<N, _>(&cno_wait_call(cno_handle, timeout, evd_handle)) }
}

calls! {
    /// `dat_cno_create`.
    fn dat_cno_create(ia_handle: RawHandle, agent: ProxyAgent, cno_handle: *mut RawHandle) {
        need(cno_handle, Subtype::InvalidArg3)?;
        let cno = with::<N, _, _>(ia_handle, |inner, ia: IaHandle| {
            let agent = inner.beside.agents.enter(agent)?;
            let made = inner.adapter.cno_create(ia, agent);
            if let (Err(_), Some(agent)) = (&made, agent) {
                inner.beside.agents.take(&agent);
            }
            made
        })?;
        // SAFETY: the caller's.
        unsafe { put(cno_handle, cno.raw()) };
        Ok(())
    }

    /// `dat_cno_modify_agent`.
    fn dat_cno_modify_agent(cno_handle: RawHandle, agent: ProxyAgent) {
        replace_agent::<N>(cno_handle, |inner, cno| {
            let old = inner.adapter.cno_query(cno)?.agent;
            let new = inner.beside.agents.enter(agent)?;
            inner.adapter.cno_modify_agent(cno, new)?;
            if let Some(old) = old {
                inner.beside.agents.take(&old);
            }
            Ok(agent.function.map(|_| agent.instance_data.addr()))
        })
    }

    /// `dat_cno_query`.
    fn dat_cno_query(cno_handle: RawHandle, mask: u32, cno_param: *mut CnoParam) {
        let param = with::<N, _, _>(cno_handle, |inner, cno: CnoHandle| {
            let found = inner.adapter.cno_query_masked(cno, mask)?;
            let agent = found.agent.and_then(|agent| inner.beside.agents.get(&agent));
            Ok(CnoParam {
                ia_handle: found.ia.raw(),
                agent: ProxyAgent {
                    instance_data: agent
                        .map_or(ptr::null_mut(), |agent| ptr::with_exposed_provenance_mut(agent.instance_data)),
                    function: agent.map(|agent| agent.function),
                },
            })
        })?;
        need(cno_param, Subtype::InvalidArg3)?;
        // SAFETY: the caller's.
        unsafe { put(cno_param, param) };
        Ok(())
    }

    /// `dat_cno_free`.
    fn dat_cno_free(cno_handle: RawHandle) {
        replace_agent::<N>(cno_handle, |inner, cno| {
            let agent = inner.adapter.cno_query(cno)?.agent;
            inner.adapter.cno_free(cno)?;
            if let Some(agent) = agent {
                inner.beside.agents.take(&agent);
            }
            Ok(None)
        })
    }
}
