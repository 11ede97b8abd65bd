//! Packets between a link to another server and a port of this server's network.

use super::buffers::CableWork;
use super::stream::{Broken, Kind, Link};
use rdma_fabric::medium::{LinkLayer, Medium};
use rdma_fabric::packet::Packet;
use rdma_fabric::ports::PortIndex;
use rdma_fabric::work::STEPS_PER_CALL;
use std::time::Instant;

/// Packets received and sent on a cable in one iteration.
pub const PACKETS: usize = 64;

/// Result of a cable's turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// True if more work is left.
    pub busy: bool,
    /// Its packets may cost the network work that the next turn pays for.
    pub owes: bool,
}

/// An end of a cable whose port is in this server.
#[derive(Debug)]
pub struct Cable {
    pub link: Link,
    /// True if the remote port is up.
    pub up: bool,
    /// State of the local port last reported to the peer: true for enabled, `None` before the first
    /// report.
    told: Option<bool>,
    /// True if the socket is readable.
    pub readable: bool,
}

impl Cable {
    /// Makes a cable of a connected link.
    pub const fn new(link: Link) -> Self {
        Self { link, up: false, told: None, readable: true }
    }

    /// Reads once if the socket is readable.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn read(&mut self, instant: Instant, work: &mut CableWork) -> Result<(), Broken> {
        if std::mem::take(&mut self.readable) && !self.link.paused {
            work.reads += 1;
            self.link.read(instant)?;
        }
        Ok(())
    }

    /// Moves packets in both directions, at most [`PACKETS`] in each. A port pays for its packets.
    ///
    /// # Errors
    /// [`Broken`]: the peer sent what no server sends.
    pub fn exchange(
        &mut self,
        port: PortIndex,
        medium: &mut Medium,
        now: u64,
        instant: Instant,
        work: &mut CableWork,
    ) -> Result<Served, Broken> {
        let (layer, _) = Medium::local(port);
        let mut wire = medium.cable(port, now);
        let paid = wire.pay_turn();
        work.steps += paid;
        // Its previous packets cost the network more than one iteration.
        let mut busy = paid == STEPS_PER_CALL;
        self.link.paused = busy;
        let mut owes = busy;
        for taken in 0.. {
            if self.link.paused {
                break;
            }
            if !wire.has_credit() {
                // Its peers must first receive the packets in flight.
                self.link.paused = true;
                break;
            }
            if taken == PACKETS {
                busy = true;
                break;
            }
            let Some((kind, content)) = self.link.next()? else { break };
            work.frames += 1;
            match kind {
                Kind::Packet => {
                    let mut bytes = wire.take_buffer();
                    bytes.clear();
                    bytes.extend_from_slice(content);
                    wire.send(match layer {
                        LinkLayer::InfiniBand => Packet::new(bytes),
                        LinkLayer::Ethernet => Packet::frame(bytes),
                    });
                    owes = true;
                }
                Kind::Up => {
                    self.up = content == [1];
                    wire.set_up(self.up);
                }
                Kind::Alive => {}
                other => return Err(Broken::Unexpected(other)),
            }
        }
        // The link of a port that was disabled comes up again.
        wire.set_up(self.up);
        let enabled = wire.is_enabled();
        if self.told != Some(enabled) {
            self.told = Some(enabled);
            self.link.send(Kind::Up, &[enabled.into()], instant);
        }
        for taken in 0.. {
            let congested = self.link.is_congested();
            wire.set_congested(congested);
            if congested {
                break;
            }
            if taken == PACKETS {
                busy = true;
                break;
            }
            let Some(mut packet) = wire.receive() else { break };
            work.frames += 1;
            self.link.send(Kind::Packet, packet.sealed_bytes(), instant);
            wire.give_buffer(packet.into_buffer());
        }
        Ok(Served { busy, owes })
    }

    /// Sends what is queued, and a keep-alive if due.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn flush(&mut self, instant: Instant) -> Result<(), Broken> {
        self.link.keep_alive(instant)?;
        self.link.flush(instant)
    }
}

/// Takes the link of a cable's port down. Frames to it are lost.
pub fn unplug(port: PortIndex, medium: &mut Medium, now: u64) {
    let mut wire = medium.cable(port, now);
    wire.set_congested(false);
    wire.set_up(false);
}
