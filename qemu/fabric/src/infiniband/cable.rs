//! Cables of the switch's ports.

use super::Fabric;
use super::packet::Packet;
use crate::ports::PortIndex;
use crate::wire::Wire;

/// The cable of a port, at a time.
#[derive(Debug)]
pub struct Cable<'a> {
    fabric: &'a mut Fabric,
    port: PortIndex,
    now: u64,
}

impl Fabric {
    /// Returns the cable of a port at time `now`, in nanoseconds.
    #[inline]
    pub fn cable(&mut self, port: PortIndex, now: u64) -> Cable<'_> {
        Cable { fabric: self, port, now }
    }
}

impl Wire for Cable<'_> {
    #[inline]
    fn send(&mut self, packet: Packet) {
        self.fabric.send(self.port, packet, self.now);
    }

    #[inline]
    fn has_credit(&self) -> bool {
        self.fabric.ready(self.port)
    }

    #[inline]
    fn take_buffer(&mut self) -> Vec<u8> {
        self.fabric.take_buffer()
    }

    #[inline]
    fn give_buffer(&mut self, buffer: Vec<u8>) {
        self.fabric.give_buffer(buffer);
    }
}
