//! Multicast groups of QPs (PRM, command reference).

use super::refusal::{Outcome, Refusal};
use crate::device::Device;
use crate::object::qps::Qps;
use ib_types::Gid;
use mlx5_prm::commands::*;
use mlx5_prm::value::ServiceType;

impl Device {
    /// A group and the QP of a multicast command; only datagram QPs can be attached.
    fn multicast_member(&self, input: &[u8]) -> Result<([u8; 16], u32), Refusal> {
        let qpn = attach_to_mcg_in::qpn.get32(input);
        let mut group = [0; 16];
        for (to, from) in group.iter_mut().zip(attach_to_mcg_in::multicast_gid.of(input)) {
            *to = *from;
        }
        match self.objects.qps.get(qpn) {
            None => Err(Refusal::missing("attach_to_mcg_in.qpn", qpn)),
            Some(qp) if qp.service() != ServiceType::UD => {
                Err(Refusal::param("attach_to_mcg_in.qpn", format!("{} cannot be attached", qp.service())))
            }
            Some(_) => Ok((group, qpn)),
        }
    }

    pub(super) fn attach_to_mcg(&mut self, input: &[u8]) -> Outcome {
        let entry = self.multicast_member(input)?;
        let gid = Gid(entry.0);
        let is_group = gid.is_multicast() || (self.port.ethernet.is_some() && gid.is_ipv4_multicast());
        if !is_group {
            return Err(Refusal::param("attach_to_mcg_in.multicast_gid", "not a multicast address"));
        }
        let (group, qpn) = entry;
        let members = self.objects.qps.members(&group);
        if members.contains(&qpn) {
            return Err(Refusal::param("attach_to_mcg_in.multicast_gid", "attached already"));
        }
        if members.len() >= self.caps.current(mlx5_prm::caps::cmd_hca_cap::max_qp_mcg) as usize {
            return Err(Refusal::full("QPs in this group"));
        }
        self.hold(Qps::ATTACHMENT_MEMORY)?;
        self.objects.qps.attach(group, qpn);
        Ok(())
    }

    pub(super) fn detach_from_mcg(&mut self, input: &[u8]) -> Outcome {
        let entry = self.multicast_member(input)?;
        let (group, qpn) = entry;
        if !self.objects.qps.detach(group, qpn) {
            return Err(Refusal::param("detach_from_mcg_in.multicast_gid", "not attached"));
        }
        self.budget.release(Qps::ATTACHMENT_MEMORY);
        Ok(())
    }
}
