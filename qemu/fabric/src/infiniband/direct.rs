//! Requests that adapters pass to one another without packets, where packets would arrive at once
//! and unchanged.

use super::Fabric;
use super::packet::Grh;
use crate::counters::Traffic;
use crate::ports::PortIndex;

/// Addresses of request packets, as their LRH, GRH and BTH would contain them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Source LID.
    pub slid: u16,
    /// Destination LID.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// P_Key.
    pub pkey: u16,
    /// Destination QP.
    pub qpn: u32,
    /// Global route header, if the path has one.
    pub grh: Option<Grh>,
}

impl Fabric {
    /// Returns the port that packets of a connection reach at once and unchanged, if no capture
    /// records them.
    #[must_use]
    #[inline]
    pub fn unwatched(&self, from: PortIndex, way: &Destination) -> Option<PortIndex> {
        if self.capture.is_some() || !self.config.faults.is_none() || self.config.latency != 0 {
            return None;
        }
        let to = match &self.switch.program {
            Some(program) if program.carries(from) => {
                self.port_of(way.dlid).filter(|to| program.carries(*to))?
            }
            Some(_) => return None,
            None => self.port_of(way.dlid)?,
        };
        let reached = to != from && self.link_is_up(from) && self.link_is_up(to);
        (reached && self.may_talk(from, to, way)).then_some(to)
    }

    /// Counts `traffic` as if its packets had crossed the switch from one port to another and back.
    #[inline]
    pub(crate) fn count_copied(&mut self, from: PortIndex, to: PortIndex, traffic: &Traffic) {
        self.links.count_copied(traffic);
        if let Some(counters) = self.switch.counters(Some(from)) {
            counters.add_received(traffic.requests, traffic.request_bytes);
            counters.add_sent(traffic.responses, traffic.response_bytes);
        }
        if let Some(counters) = self.switch.counters(Some(to)) {
            counters.add_sent(traffic.requests, traffic.request_bytes);
            counters.add_received(traffic.responses, traffic.response_bytes);
        }
    }
}
