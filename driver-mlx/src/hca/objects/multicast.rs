//! Multicast groups of datagram QPs.

use crate::cmd::input;
use crate::config::Service;
use crate::error::Error;
use crate::hca::Hca;
use crate::platform::Platform;
use crate::qp::Qp;
use crate::types::Gid;
use mlx5_prm::commands::*;
use mlx5_prm::opcode::Opcode;

impl<P: Platform> Hca<'_, P> {
    /// Lets a datagram QP receive what is sent to a multicast group. That the subnet brings it here takes a join by the subnet
    /// administrator besides.
    ///
    /// # Errors
    /// Any [`Error`] of a command: firmware refuses what is attached already, and more members than `max_qp_mcg`.
    /// [`Error::InvalidArgument`] for another service or an address that is no group's; [`Error::Stale`].
    pub fn attach_multicast(&mut self, qp: &Qp<P::Bar>, group: Gid) -> Result<(), Error> {
        check(qp, group)?;
        let mut attach = input::<{ attach_to_mcg_in::SIZE }>(Opcode::ATTACH_TO_MCG, 0);
        attach_to_mcg_in::qpn.set(&mut attach, self.firmware.resolve(qp)?.get());
        let to = attach_to_mcg_in::multicast_gid.of_mut(&mut attach);
        to.iter_mut().zip(group.0).for_each(|(to, from)| *to = from);
        self.exec(&attach, &mut [0; attach_to_mcg_out::SIZE])
    }

    /// Ends what [`Hca::attach_multicast`] began. Destroying the QP does so too.
    ///
    /// # Errors
    /// As for [`Hca::attach_multicast`].
    pub fn detach_multicast(&mut self, qp: &Qp<P::Bar>, group: Gid) -> Result<(), Error> {
        check(qp, group)?;
        let mut detach = input::<{ detach_from_mcg_in::SIZE }>(Opcode::DETACH_FROM_MCG, 0);
        detach_from_mcg_in::qpn.set(&mut detach, self.firmware.resolve(qp)?.get());
        let to = detach_from_mcg_in::multicast_gid.of_mut(&mut detach);
        to.iter_mut().zip(group.0).for_each(|(to, from)| *to = from);
        self.exec(&detach, &mut [0; detach_from_mcg_out::SIZE])
    }
}

fn check<B: crate::platform::Bar>(qp: &Qp<B>, group: Gid) -> Result<(), Error> {
    if !matches!(qp.service(), Service::Ud { .. }) {
        return Err(Error::InvalidArgument("service"));
    }
    if !group.is_multicast() {
        return Err(Error::InvalidArgument("group"));
    }
    Ok(())
}
