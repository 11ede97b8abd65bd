//! Consumer notification objects.

use super::exported::exported;
use crate::args::{need, put};
use crate::handles::{Kinded, NULL, RawHandle};
use crate::layout::{CnoParam, ProxyAgent};
use crate::reach::{control, with};
use crate::waits;
use dat_nostd::{CnoHandle, IaHandle, Subtype};
use std::ptr;

exported! {
    /// `dat_cno_create`.
    checked fn dat_cno_create(ia_handle: RawHandle, agent: ProxyAgent, cno_handle: *mut RawHandle) as cno_create_func {
        need(cno_handle, Subtype::InvalidArg3)?;
        let cno = with(ia_handle, |inner, ia: IaHandle| {
            let agent = inner.agents.enter(agent);
            let made = inner.adapter.cno_create(ia, agent);
            if let (Err(_), Some(agent)) = (&made, agent) {
                inner.agents.take(&agent);
            }
            made
        })?;
        // SAFETY: the caller's.
        unsafe { put(cno_handle, cno.raw()) };
        Ok(())
    }

    /// `dat_cno_modify_agent`.
    checked fn dat_cno_modify_agent(cno_handle: RawHandle, agent: ProxyAgent) as cno_modify_agent_func {
        control(cno_handle, |inner, cno: CnoHandle| {
            let old = inner.adapter.cno_query(cno)?.agent;
            let new = inner.agents.enter(agent);
            inner.adapter.cno_modify_agent(cno, new)?;
            if let Some(old) = old {
                inner.agents.take(&old);
            }
            Ok(())
        })
    }

    /// `dat_cno_query`.
    checked fn dat_cno_query(cno_handle: RawHandle, mask: u32, cno_param: *mut CnoParam) as cno_query_func {
        let param = with(cno_handle, |inner, cno: CnoHandle| {
            let found = inner.adapter.cno_query_masked(cno, mask)?;
            let agent = found.agent.and_then(|agent| inner.agents.get(&agent));
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
    checked fn dat_cno_free(cno_handle: RawHandle) as cno_free_func {
        control(cno_handle, |inner, cno: CnoHandle| {
            let agent = inner.adapter.cno_query(cno)?.agent;
            inner.adapter.cno_free(cno)?;
            if let Some(agent) = agent {
                inner.agents.take(&agent);
            }
            Ok(())
        })
    }

    /// `dat_cno_wait`.
    checked fn dat_cno_wait(cno_handle: RawHandle, timeout: u32, evd_handle: *mut RawHandle) as cno_wait_func {
        need(evd_handle, Subtype::InvalidArg3)?;
        let waited = waits::cno_wait(cno_handle, timeout);
        let evd = waited.map_or(NULL, Kinded::raw_or_null);
        // SAFETY: the caller's.
        unsafe { put(evd_handle, evd) };
        waited.map(drop)
    }
}
