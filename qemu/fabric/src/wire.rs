//! The cable of an adapter, as the adapter and its scheduler use it.

use crate::counters::Traffic;
use crate::ethernet::RocePath;
use crate::infiniband::Destination;
use crate::packet::Packet;
use crate::ports::PortIndex;

/// Addresses of a connection's requests.
#[derive(Clone, Copy, Debug)]
pub enum Way<'a> {
    /// On an InfiniBand port.
    InfiniBand(&'a Destination),
    /// On an Ethernet port.
    Roce(&'a RocePath),
}

/// An adapter's end of its cable. At the other end is a port of a switch, here or in another server.
///
/// The defaults are those of a cable that nothing is at the other end of.
pub trait Wire {
    /// Puts a packet on the wire.
    fn send(&mut self, packet: Packet);

    /// Returns the next packet that has arrived.
    fn receive(&mut self) -> Option<Packet> {
        None
    }

    /// Returns whether the port has credit. Without it, packets of the data path wait.
    fn has_credit(&self) -> bool {
        true
    }

    /// Returns a buffer for a packet, with any content.
    fn take_buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes back the buffer of a packet that was received.
    fn give_buffer(&mut self, _buffer: Vec<u8>) {}

    /// Returns whether the port at the other end is enabled.
    fn is_enabled(&self) -> bool {
        false
    }

    /// Returns whether the port at the other end has its link up.
    fn is_up(&self) -> bool {
        false
    }

    /// Brings the link up or down for the port at the other end. A port that is not enabled stays
    /// down.
    fn set_up(&mut self, _up: bool) {}

    /// Returns the steps of work that the switch did for the adapter's packets, which the adapter
    /// thereby pays.
    fn take_owed(&mut self) -> u64 {
        0
    }

    /// Returns the port that packets of a connection reach at once and unchanged, if no capture
    /// records them.
    fn direct(&self, _way: Way<'_>) -> Option<PortIndex> {
        None
    }

    /// Counts `traffic` as if its packets had gone along `way` to port `to` and back.
    fn count_direct(&mut self, _way: Way<'_>, _to: PortIndex, _traffic: &Traffic) {}
}

/// A cable that is not plugged in: every packet is lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unplugged;

impl Wire for Unplugged {
    fn send(&mut self, _: Packet) {}
}
