//! UAR pages, protection, transport and XRC domains (PRM, command reference).

use super::refusal::{Outcome, Refusal};
use crate::device::Device;
use mlx5_prm::commands::*;

impl Device {
    pub(super) fn alloc_uar(&mut self, output: &mut [u8]) -> Outcome {
        let memory = self.objects.uars.page_memory();
        self.hold(memory)?;
        let Some(number) = self.objects.uars.allocate() else {
            self.budget.release(memory);
            return Err(Refusal::full("UAR pages"));
        };
        alloc_uar_out::uar.set(output, number);
        Ok(())
    }

    pub(super) fn dealloc_uar(&mut self, input: &[u8]) -> Outcome {
        let field = "dealloc_uar_in.uar";
        let uar = dealloc_uar_in::uar.get32(input);
        let place = self.objects.uars.release(uar).ok_or_else(|| Refusal::missing(field, uar))?;
        self.end_released_uar(place);
        Ok(())
    }

    /// The place of the UAR that a context names.
    pub(super) fn uar_place(&self, field: &str, number: u32) -> Result<u32, Refusal> {
        self.objects.uars.place(number).ok_or_else(|| Refusal::missing(field, number))
    }

    /// Ends the UAR page around `place` if it was given back and no queue uses it any more. A driver gives one back before a program's
    /// CQs are destroyed, where the program did not do that itself.
    pub(super) fn end_released_uar(&mut self, place: u32) {
        if !self.objects.uars.is_released(place) {
            return;
        }
        self.charge_scan();
        let objects = &mut self.objects;
        let here = |used: u32| objects.uars.same_page(used, place);
        let used = objects.queues.eqs.iter().any(|(_, eq)| here(eq.uar_page))
            || objects.queues.cqs.iter().any(|(_, cq)| here(cq.uar_page))
            || objects.qps.user(|qp| here(qp.uar_page())).is_some()
            || objects.nic.user(|queue| queue.uar_page.is_some_and(here)).is_some();
        if !used {
            objects.uars.remove(place);
            self.budget.release(objects.uars.page_memory());
        }
    }

    pub(super) fn alloc_pd(&mut self, output: &mut [u8]) -> Outcome {
        let number = self.objects.pds.insert(|_| ()).ok_or_else(|| Refusal::full("protection domains"))?;
        alloc_pd_out::pd.set(output, number);
        Ok(())
    }

    pub(super) fn dealloc_pd(&mut self, input: &[u8]) -> Outcome {
        let field = "dealloc_pd_in.pd";
        let pd = dealloc_pd_in::pd.get32(input);
        if !self.objects.pds.contains(pd) {
            return Err(Refusal::missing(field, pd));
        }
        let keys = self.objects.mkeys.in_use(pd);
        if keys != 0 {
            return Err(Refusal::busy(field, format!("used by {keys} memory keys")));
        }
        self.charge_scan();
        if let Some(qpn) = self.objects.qps.user(|qp| qp.user().pd == pd) {
            return Err(Refusal::busy(field, format!("used by QP {qpn:#x}")));
        }
        if let Some((srqn, _)) = self.objects.srqs.iter().find(|(_, srq)| srq.pd == pd) {
            return Err(Refusal::busy(field, format!("used by SRQ {srqn:#x}")));
        }
        if let Some(user) = self.objects.nic.user(|queue| queue.pd == pd) {
            return Err(Refusal::busy(field, user));
        }
        self.objects.pds.remove(pd);
        Ok(())
    }

    pub(super) fn alloc_transport_domain(&mut self, output: &mut [u8]) -> Outcome {
        let number = self
            .objects
            .transport_domains
            .insert(|_| ())
            .ok_or_else(|| Refusal::full("transport domains"))?;
        alloc_transport_domain_out::transport_domain.set(output, number);
        Ok(())
    }

    pub(super) fn dealloc_transport_domain(&mut self, input: &[u8]) -> Outcome {
        let number = dealloc_transport_domain_in::transport_domain.get32(input);
        self.charge_scan();
        if let Some(user) = self.objects.nic.user_of_domain(number) {
            return Err(Refusal::busy("dealloc_transport_domain_in.transport_domain", user));
        }
        match self.objects.transport_domains.remove(number) {
            Some(_) => Ok(()),
            None => Err(Refusal::missing("dealloc_transport_domain_in.transport_domain", number)),
        }
    }

    pub(super) fn alloc_xrcd(&mut self, output: &mut [u8]) -> Outcome {
        let number = self.objects.xrcds.insert(|_| ()).ok_or_else(|| Refusal::full("XRC domains"))?;
        alloc_xrcd_out::xrcd.set(output, number);
        Ok(())
    }

    pub(super) fn dealloc_xrcd(&mut self, input: &[u8]) -> Outcome {
        use crate::object::srq::SrqKind;
        let field = "dealloc_xrcd_in.xrcd";
        let xrcd = dealloc_xrcd_in::xrcd.get32(input);
        if !self.objects.xrcds.contains(xrcd) {
            return Err(Refusal::missing(field, xrcd));
        }
        self.charge_scan();
        if let Some((srqn, _)) =
            self.objects.srqs.iter().find(|(_, srq)| srq.kind == SrqKind::Xrc && srq.xrcd == xrcd)
        {
            return Err(Refusal::busy(field, format!("used by XRC SRQ {srqn:#x}")));
        }
        if let Some(qpn) = self.objects.qps.user(|qp| qp.uses_xrcd(xrcd)) {
            return Err(Refusal::busy(field, format!("used by XRC QP {qpn:#x}")));
        }
        self.objects.xrcds.remove(xrcd);
        Ok(())
    }
}
