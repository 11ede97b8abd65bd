//! Where IP packets come from and go to.

use dat_nostd::{Adapter, Platform};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use super::host::{MAX_PACKET, PacketBuffers};

/// What moves whole IP packets to and from an IP host.
pub trait PacketLink {
    /// The longest packet, bytes.
    fn mtu(&mut self) -> usize;
    /// Takes the next packet into `buffer` and gives its length; one longer than the buffer is dropped.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize>;
    /// Whether a packet can be sent now.
    fn can_send(&mut self) -> bool;
    /// Sends a packet. One that cannot be sent is lost, as on any network.
    fn send(&mut self, packet: &[u8]);
}

/// The adapter's IP over InfiniBand.
pub struct AdapterLink<'a, 's, P: Platform>(pub &'a mut Adapter<'s, P>);

impl<P: Platform> AdapterLink<'_, '_, P> {
    /// Whether packets move: the broadcast group is joined.
    pub fn is_up(&mut self) -> bool {
        self.0.ip().is_some_and(|ip| ip.is_up())
    }
}

impl<P: Platform> PacketLink for AdapterLink<'_, '_, P> {
    fn mtu(&mut self) -> usize {
        self.0.ip().map_or(MAX_PACKET, |ip| ip.mtu())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let mut ip = self.0.ip()?;
        loop {
            let packet = ip.rx()?;
            if let Some(room) = buffer.get_mut(..packet.len()) {
                room.copy_from_slice(packet);
                return Some(packet.len());
            }
        }
    }

    fn can_send(&mut self) -> bool {
        self.0.ip().is_some_and(|ip| ip.can_tx())
    }

    fn send(&mut self, packet: &[u8]) {
        if let Some(mut ip) = self.0.ip() {
            // Counted by the adapter.
            let _ = ip.send(packet);
        }
    }
}

/// A link as smoltcp sees it.
pub(super) struct Phy<'a, L> {
    link: &'a mut L,
    buffers: &'a mut PacketBuffers,
    mtu: usize,
}

impl<'a, L: PacketLink> Phy<'a, L> {
    pub(super) fn new(link: &'a mut L, buffers: &'a mut PacketBuffers) -> Self {
        let mtu = link.mtu().min(MAX_PACKET);
        Self { link, buffers, mtu }
    }
}

impl<L: PacketLink> Device for Phy<'_, L> {
    type RxToken<'t>
        = Received<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Sender<'t, L>
    where
        Self: 't;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Sender<'_, L>)> {
        // A packet is taken only when it can be answered.
        if !self.link.can_send() {
            return None;
        }
        let len = self.link.receive(&mut self.buffers.received)?;
        let packet = self.buffers.received.get(..len)?;
        Some((Received(packet), Sender { link: self.link, buffer: &mut self.buffers.sent }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sender<'_, L>> {
        self.link.can_send().then_some(Sender { link: self.link, buffer: &mut self.buffers.sent })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

pub(super) struct Received<'t>(&'t [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(super) struct Sender<'t, L> {
    link: &'t mut L,
    buffer: &'t mut [u8; MAX_PACKET],
}

impl<L: PacketLink> TxToken for Sender<'_, L> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        // smoltcp keeps to the MTU, which is at most this long.
        let packet = &mut self.buffer[..len];
        let result = f(packet);
        self.link.send(packet);
        result
    }
}
