//! The raw-packet QP as an HCA's owner starts it, and its groups.

use crate::config::Service;
use crate::error::Error;
use crate::hca::Hca;
use crate::hca::objects::raw_packet::start_queues;
use crate::platform::Platform;
use crate::qp::{Qp, QpState};
use crate::types::MacAddress;

impl<P: Platform> Hca<'_, P> {
    /// Lets a raw-packet QP in [`QpState::Reset`] send, and receive the frames to the own MAC address, broadcasts, and
    /// the groups of [`Hca::join_ethernet_group`]. Frames of RoCE go to their QPs. After a recovery the next QP that is
    /// started receives from the same groups.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::InvalidArgument`] for another service; [`Error::WrongState`] for a QP that was
    /// started; [`Error::Stale`].
    pub fn start_raw_packet(&mut self, qp: &mut Qp<P::Bar>) -> Result<(), Error> {
        if qp.service() != Service::RawPacket {
            return Err(Error::InvalidArgument("service"));
        }
        let Self { firmware, memory, objects, port, .. } = self;
        firmware.resolve(qp)?;
        if qp.state() != QpState::Reset || port.frames.is_started() {
            return Err(Error::WrongState);
        }
        let raw = objects.raw_packet(firmware, qp);
        let raw = raw.and_then(|raw| Some((raw.transport_domain?, raw.sqn?, raw.rqn?)));
        let Some((domain, sqn, rqn)) = raw else { return Err(Error::WrongState) };
        let started = port.frames.start(firmware, memory, port.mac, (domain, rqn));
        let started = started.and_then(|()| start_queues(firmware, memory, sqn, rqn));
        if let Err(error) = started {
            // Return the first error.
            let _ = port.frames.stop(firmware, memory, qp);
            return Err(error);
        }
        qp.set_state(QpState::ReadyToSend);
        Ok(())
    }

    /// Receives frames to a group address. Returns whether it was not joined before. Groups outlive a recovery.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::Limit`] if 32 groups are joined; [`Error::InvalidArgument`] for an address
    /// that is no group's, and for broadcast, which is always received.
    pub fn join_ethernet_group(&mut self, group: MacAddress) -> Result<bool, Error> {
        if !group.is_multicast() || group == MacAddress::BROADCAST {
            return Err(Error::InvalidArgument("group"));
        }
        let Self { firmware, memory, port, .. } = self;
        port.frames.join(firmware, memory, group)
    }

    /// Ends what [`Hca::join_ethernet_group`] began. Returns whether the group was joined.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn leave_ethernet_group(&mut self, group: MacAddress) -> Result<bool, Error> {
        let Self { firmware, memory, port, .. } = self;
        port.frames.leave(firmware, memory, group)
    }
}
