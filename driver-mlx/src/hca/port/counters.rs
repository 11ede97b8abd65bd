//! Counters of the port's traffic.

use crate::cmd::input;
use crate::error::Error;
use crate::hca::Hca;
use crate::platform::Platform;
use mlx5_prm::commands::*;
use mlx5_prm::opcode::Opcode;

/// Packets, and bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Traffic of the port. On Ethernet, unicasts and multicasts are those of RoCE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PortCounters {
    /// Unicasts received.
    pub received: Traffic,
    /// Unicasts transmitted.
    pub transmitted: Traffic,
    /// Multicasts received.
    pub received_multicast: Traffic,
    /// Multicasts transmitted.
    pub transmitted_multicast: Traffic,
    /// Frames received besides RoCE, of all kinds of destinations.
    pub received_frames: Traffic,
    /// Frames transmitted besides RoCE.
    pub transmitted_frames: Traffic,
    /// Received with an error.
    pub received_errors: Traffic,
    /// Not transmitted.
    pub transmit_errors: Traffic,
}

impl<P: Platform> Hca<'_, P> {
    /// Returns the traffic of port 1 since the device started.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::MissingCapability`].
    pub fn port_counters(&mut self) -> Result<PortCounters, Error> {
        use query_vport_counter_out as q;
        if !self.firmware.caps().vport_counters {
            return Err(Error::MissingCapability("vport_counters"));
        }
        let mut query = input::<{ query_vport_counter_in::SIZE }>(Opcode::QUERY_VPORT_COUNTER, 0);
        if self.firmware.caps().num_ports == 2 {
            query_vport_counter_in::port_num.set(&mut query, 1u32);
        }
        let mut out = [0; q::SIZE];
        self.exec(&query, &mut out)?;
        let traffic = |counter: &[u8]| Traffic {
            packets: traffic_counter::packets.get(counter),
            bytes: traffic_counter::octets.get(counter),
        };
        let frames = |kinds: [&[u8]; 3]| {
            kinds.into_iter().map(traffic).fold(Traffic::default(), |sum, more| Traffic {
                packets: sum.packets.wrapping_add(more.packets),
                bytes: sum.bytes.wrapping_add(more.bytes),
            })
        };
        Ok(PortCounters {
            received_frames: frames([
                q::received_eth_unicast.of(&out),
                q::received_eth_multicast.of(&out),
                q::received_eth_broadcast.of(&out),
            ]),
            transmitted_frames: frames([
                q::transmitted_eth_unicast.of(&out),
                q::transmitted_eth_multicast.of(&out),
                q::transmitted_eth_broadcast.of(&out),
            ]),
            received: traffic(q::received_ib_unicast.of(&out)),
            transmitted: traffic(q::transmitted_ib_unicast.of(&out)),
            received_multicast: traffic(q::received_ib_multicast.of(&out)),
            transmitted_multicast: traffic(q::transmitted_ib_multicast.of(&out)),
            received_errors: traffic(q::received_errors.of(&out)),
            transmit_errors: traffic(q::transmit_errors.of(&out)),
        })
    }
}
