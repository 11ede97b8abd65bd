//! RoCE v1 and v2 (IBTA annexes A16 and A17) up to the BTH.

use super::ip::{IPV4_LEN, IPV6_LEN, Transport, UDP_LEN, Version};
use super::{Frame, Network};
use crate::infiniband::packet::{Bth, Grh, ICRC_LEN, icrc_roce_v1, icrc_roce_v2};

/// UDP destination port of RoCE v2.
pub const UDP_PORT: u16 = 4791;

/// Positions in a RoCE packet whose lengths agree with one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roce {
    bth: Bth,
    is_v2: bool,
    /// Offset of the GRH or IP header in the frame.
    network: usize,
    /// Offset of the first byte after the BTH.
    body: usize,
    /// Offset of the ICRC.
    icrc: usize,
}

impl Roce {
    /// Returns the base transport header.
    #[must_use]
    pub const fn bth(&self) -> &Bth {
        &self.bth
    }

    /// Returns whether the packet is of RoCE v2: in UDP.
    #[must_use]
    pub const fn is_v2(&self) -> bool {
        self.is_v2
    }

    /// Returns the offset in the frame of the first byte after the BTH.
    #[must_use]
    pub const fn body(&self) -> usize {
        self.body
    }

    /// Returns the offset in the frame of the first byte after the payload. Up to 3 bytes of padding
    /// and the ICRC follow.
    #[must_use]
    pub fn end(&self) -> usize {
        self.icrc - usize::from(self.bth.pad_count)
    }

    /// Returns extended headers and payload: the bytes between BTH and padding of the frame that it
    /// was parsed from.
    #[must_use]
    pub fn content<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame.get(self.body..self.end()).unwrap_or_default()
    }

    /// Returns whether the ICRC is right in the frame that it was parsed from.
    #[must_use]
    pub fn icrc_is_right(&self, frame: &[u8]) -> bool {
        let found = frame.get(self.icrc..self.icrc + ICRC_LEN);
        self.compute_icrc(frame).is_some_and(|icrc| found == Some(&icrc))
    }

    fn compute_icrc(&self, frame: &[u8]) -> Option<[u8; ICRC_LEN]> {
        let covered = frame.get(self.network..self.icrc)?;
        if self.is_v2 { icrc_roce_v2(covered) } else { icrc_roce_v1(covered) }
    }
}

impl Frame<'_> {
    /// Returns the positions of a RoCE packet, or `None` for a frame that is not RoCE or malformed.
    /// The ICRC is not checked.
    ///
    /// A packet with IPv4 options or IPv6 extension headers is not RoCE: its ICRC is not defined.
    #[must_use]
    #[inline]
    pub fn roce(&self) -> Option<Roce> {
        let (network, transport, end) = match self.network() {
            Network::Grh(grh) => {
                let network = self.header().start();
                let start = network + Grh::LEN;
                (network, start, start + usize::from(grh.payload_len))
            }
            Network::Ip(ip) if ip.is_cut() => return None,
            Network::Ip(ip) => {
                let Transport::Udp { destination: UDP_PORT, end, .. } = ip.transport() else { return None };
                let header_len = match ip.version() {
                    Version::V4 => IPV4_LEN,
                    Version::V6 => IPV6_LEN,
                };
                if ip.transport_start() != ip.start() + header_len {
                    return None;
                }
                (ip.start(), ip.transport_start() + UDP_LEN, end)
            }
            Network::Arp | Network::Other => return None,
        };
        let icrc = end.checked_sub(ICRC_LEN)?;
        let bth = Bth::parse(self.between(transport, icrc)).ok()?;
        let body = transport + Bth::LEN;
        let is_v2 = self.ip().is_some();
        (body + usize::from(bth.pad_count) <= icrc).then_some(Roce { bth, is_v2, network, body, icrc })
    }
}

/// Writes the ICRC of a RoCE frame. Leaves all other frames as is.
pub fn write_icrc(frame: &mut [u8]) {
    let Some(roce) = Frame::parse(frame).and_then(|parsed| parsed.roce()) else { return };
    if let Some(icrc) = roce.compute_icrc(frame)
        && let Some(place) = frame.get_mut(roce.icrc..roce.icrc + ICRC_LEN)
    {
        place.copy_from_slice(&icrc);
    }
}
