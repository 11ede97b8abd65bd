//! Flows of frames: addresses, destination QP and transport.

use ib_types::MacAddress;

use super::frame::{Frame, Roce};
use crate::losses::{FlowKey, Kind};

/// Frames that count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// Address of the sender.
    pub source: MacAddress,
    /// Address of the destination, or of the group.
    pub destination: MacAddress,
    /// QP number of the destination of a RoCE packet, 0 for all other frames.
    pub dest_qpn: u32,
    /// Transport of a RoCE packet, `Other` for all other frames.
    pub kind: Kind,
}

impl FlowKey for Flow {
    const REST: Self =
        Self { source: MacAddress([0; 6]), destination: MacAddress([0; 6]), dest_qpn: 0, kind: Kind::Other };

    fn of(packet: &[u8]) -> Self {
        let Some(frame) = Frame::parse(packet) else { return Self::REST };
        let (source, destination) = (frame.header().source(), frame.header().destination());
        let roce = frame.roce();
        let bth = roce.as_ref().map(Roce::bth);
        let transport = bth.map(|bth| bth.opcode.transport());
        let kind = transport.map_or(Kind::Other, |transport| Kind::of(transport, destination.is_multicast()));
        Self { source, destination, dest_qpn: bth.map_or(0, |bth| bth.dest_qpn), kind }
    }
}
