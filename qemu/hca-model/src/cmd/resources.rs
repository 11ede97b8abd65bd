//! UAR pages, protection, transport and XRC domains (PRM, command reference).

use super::{Outcome, Refusal};
use crate::hca::Hca;
use crate::object::uar::Uar;
use mlx5_prm::commands::*;
use mlx5_prm::value::ServiceType;

pub(super) fn alloc_uar(hca: &mut Hca, output: &mut [u8]) -> Outcome {
    hca.hold(Uar::MEMORY)?;
    let Some(number) = hca.uars.insert(|_| Uar::default()) else {
        hca.budget.release(Uar::MEMORY);
        return Err(Refusal::full("UAR pages"));
    };
    alloc_uar_out::uar.set(output, number);
    Ok(())
}

pub(super) fn dealloc_uar(hca: &mut Hca, input: &[u8]) -> Outcome {
    let field = "dealloc_uar_in.uar";
    let uar = dealloc_uar_in::uar.get32(input);
    if !hca.uars.contains(uar) {
        return Err(Refusal::missing(field, uar));
    }
    hca.charge_scan();
    if let Some((eqn, _)) = hca.queues.eqs.iter().find(|(_, eq)| eq.uar_page == uar) {
        return Err(Refusal::busy(field, format!("used by EQ {eqn:#x}")));
    }
    if let Some((cqn, _)) = hca.queues.cqs.iter().find(|(_, cq)| cq.uar_page == uar) {
        return Err(Refusal::busy(field, format!("used by CQ {cqn:#x}")));
    }
    if let Some((qpn, _)) = hca.qps.table.iter().find(|(_, qp)| qp.uar_page == uar) {
        return Err(Refusal::busy(field, format!("used by QP {qpn:#x}")));
    }
    hca.uars.remove(uar);
    hca.budget.release(Uar::MEMORY);
    Ok(())
}

pub(super) fn alloc_pd(hca: &mut Hca, output: &mut [u8]) -> Outcome {
    let number = hca.pds.insert(|_| ()).ok_or_else(|| Refusal::full("protection domains"))?;
    alloc_pd_out::pd.set(output, number);
    Ok(())
}

pub(super) fn dealloc_pd(hca: &mut Hca, input: &[u8]) -> Outcome {
    let field = "dealloc_pd_in.pd";
    let pd = dealloc_pd_in::pd.get32(input);
    if !hca.pds.contains(pd) {
        return Err(Refusal::missing(field, pd));
    }
    let keys = hca.mkeys.in_use(pd);
    if keys != 0 {
        return Err(Refusal::busy(field, format!("used by {keys} memory keys")));
    }
    hca.charge_scan();
    if let Some((qpn, _)) = hca.qps.table.iter().find(|(_, qp)| qp.pd == pd) {
        return Err(Refusal::busy(field, format!("used by QP {qpn:#x}")));
    }
    if let Some((srqn, _)) = hca.srqs.iter().find(|(_, srq)| srq.pd == pd) {
        return Err(Refusal::busy(field, format!("used by SRQ {srqn:#x}")));
    }
    hca.pds.remove(pd);
    Ok(())
}

pub(super) fn alloc_transport_domain(hca: &mut Hca, output: &mut [u8]) -> Outcome {
    let number = hca.transport_domains.insert(|_| ()).ok_or_else(|| Refusal::full("transport domains"))?;
    alloc_transport_domain_out::transport_domain.set(output, number);
    Ok(())
}

pub(super) fn dealloc_transport_domain(hca: &mut Hca, input: &[u8]) -> Outcome {
    let number = dealloc_transport_domain_in::transport_domain.get32(input);
    match hca.transport_domains.remove(number) {
        Some(_) => Ok(()),
        None => Err(Refusal::missing("dealloc_transport_domain_in.transport_domain", number)),
    }
}

pub(super) fn alloc_xrcd(hca: &mut Hca, output: &mut [u8]) -> Outcome {
    let number = hca.xrcds.insert(|_| ()).ok_or_else(|| Refusal::full("XRC domains"))?;
    alloc_xrcd_out::xrcd.set(output, number);
    Ok(())
}

pub(super) fn dealloc_xrcd(hca: &mut Hca, input: &[u8]) -> Outcome {
    use crate::object::srq::SrqKind;
    let field = "dealloc_xrcd_in.xrcd";
    let xrcd = dealloc_xrcd_in::xrcd.get32(input);
    if !hca.xrcds.contains(xrcd) {
        return Err(Refusal::missing(field, xrcd));
    }
    hca.charge_scan();
    if let Some((srqn, _)) = hca.srqs.iter().find(|(_, srq)| srq.kind == SrqKind::Xrc && srq.xrcd == xrcd) {
        return Err(Refusal::busy(field, format!("used by XRC SRQ {srqn:#x}")));
    }
    let user = hca.qps.table.iter().find(|(_, qp)| qp.service == ServiceType::XRC && qp.xrcd == xrcd);
    if let Some((qpn, _)) = user {
        return Err(Refusal::busy(field, format!("used by XRC QP {qpn:#x}")));
    }
    hca.xrcds.remove(xrcd);
    Ok(())
}
