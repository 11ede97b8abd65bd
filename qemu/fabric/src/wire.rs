//! The cable of an adapter, as the adapter uses it.

use crate::infiniband::packet::Packet;

/// An adapter's end of its cable.
pub trait Wire {
    /// Puts a packet on the wire.
    fn send(&mut self, packet: Packet);

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
}

/// A cable that is not plugged in: every packet is lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unplugged;

impl Wire for Unplugged {
    fn send(&mut self, _: Packet) {}
}
