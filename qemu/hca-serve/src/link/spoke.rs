//! HCA side of a cable to a fabric in a remote server.

use super::address::Address;
use super::hub::follow;
use super::stream::{Broken, Kind, Link, Stream};
use hca_model::Hca;
use mlx5_prm::value::PortPhysicalState;
use rdma_fabric::infiniband::packet::Packet;
use rdma_fabric::wire::Unplugged;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Packets received in one iteration.
const PACKETS: usize = 64;
/// Packet buffers retained for reuse.
const BUFFERS: usize = 256;
/// First token of spokes.
const FIRST_TOKEN: u64 = 1 << 33;

/// Cable of one HCA.
#[derive(Debug)]
pub struct Spoke {
    /// `None` while the cable is cut.
    link: Option<Link>,
    /// True if the switch's port is enabled.
    enabled: bool,
    /// Port state last reported to the peer.
    told: bool,
    readable: bool,
    /// Packet buffers for reuse.
    buffers: Vec<Vec<u8>>,
}

/// Device side of a connected cable.
struct Wire<'a> {
    link: &'a mut Link,
    buffers: &'a mut Vec<Vec<u8>>,
    now: Instant,
}

impl rdma_fabric::wire::Wire for Wire<'_> {
    fn send(&mut self, mut packet: Packet) {
        // Replies to management datagrams need no credit, so their number has a separate limit.
        if !self.link.is_full() {
            self.link.send(Kind::Packet, packet.sealed_bytes(), self.now);
        }
        self.give_buffer(packet.into_buffer());
    }

    /// Without credit, the peer server must first receive the packets in flight.
    fn has_credit(&self) -> bool {
        !self.link.is_congested()
    }

    fn take_buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    fn give_buffer(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < BUFFERS {
            self.buffers.push(buffer);
        }
    }
}

impl hca_model::Link for Wire<'_> {}

impl Spoke {
    /// Creates an unplugged cable.
    pub fn new() -> Self {
        Self { link: None, enabled: false, told: false, readable: false, buffers: Vec::new() }
    }

    /// Returns the HCA of `token`, if the token belongs to a spoke.
    pub fn index(token: u64) -> Option<usize> {
        token.checked_sub(FIRST_TOKEN).and_then(|index| usize::try_from(index).ok())
    }

    /// Plugs in the cable of HCA `index`.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn plug(
        &mut self,
        index: usize,
        stream: Stream,
        epoll: &OwnedFd,
        now: Instant,
    ) -> std::io::Result<()> {
        let link = Link::new(stream, now)?;
        let token = EventData::new_u64(FIRST_TOKEN + index as u64);
        epoll::add(epoll, link.socket(), token, EventFlags::empty())?;
        *self = Self { link: Some(link), ..Self::new() };
        Ok(())
    }

    /// Handles readiness of the socket.
    pub fn event(&mut self) {
        self.readable = true;
    }

    /// Runs one iteration of the HCA and its cable, like
    /// [`World::poll_node`](hca_model::world::World::poll_node) with a remote fabric. `poll` polls
    /// the HCA. Returns whether there is more work, and the reason if the cable was just cut.
    pub fn turn(
        &mut self,
        hca: &mut Hca,
        instant: Instant,
        poll: impl FnOnce(&mut Hca, &mut dyn hca_model::Link) -> bool,
    ) -> (bool, Option<Broken>) {
        let mut more = false;
        let outcome = self.receive(hca, instant, &mut more);
        let cut = outcome.err();
        if cut.is_some() {
            *self = Self::new();
        }
        hca.port_mut().set_far_end(self.enabled && self.link.is_some());
        match &mut self.link {
            Some(link) => {
                more |= poll(hca, &mut Wire { link, buffers: &mut self.buffers, now: instant });
            }
            None => more |= poll(hca, &mut Unplugged),
        }
        let broken = self.report(hca, instant).err();
        if broken.is_some() {
            *self = Self::new();
        }
        (more, cut.or(broken))
    }

    fn receive(&mut self, hca: &mut Hca, instant: Instant, more: &mut bool) -> Result<(), Broken> {
        let Some(link) = &mut self.link else { return Ok(()) };
        if std::mem::take(&mut self.readable) {
            link.read(instant)?;
        }
        for taken in 0.. {
            if taken == PACKETS {
                *more = true;
                break;
            }
            let Some((kind, content)) = link.next()? else { break };
            match kind {
                Kind::Packet => {
                    let mut bytes = self.buffers.pop().unwrap_or_default();
                    bytes.clear();
                    bytes.extend_from_slice(content);
                    hca.receive(Packet::new(bytes));
                }
                Kind::Up => self.enabled = content == [1],
                Kind::Alive => {}
                _ => return Err(Broken::Malformed),
            }
        }
        Ok(())
    }

    /// Reports the port's state to the peer and sends queued output.
    fn report(&mut self, hca: &mut Hca, instant: Instant) -> Result<(), Broken> {
        let Some(link) = &mut self.link else { return Ok(()) };
        if hca.is_lent() {
            // Its port is reported after the poll.
            link.keep_alive(instant)?;
            return link.flush(instant);
        }
        let up = !hca.is_killed() && hca.port().physical_state == PortPhysicalState::LINK_UP;
        if up != self.told {
            self.told = up;
            link.send(Kind::Up, &[up.into()], instant);
        }
        if hca.take_link_loss() {
            link.send(Kind::Reset, &[], instant);
        }
        link.keep_alive(instant)?;
        link.flush(instant)
    }

    /// Returns the time at which work is due without an event.
    pub fn deadline(&self) -> Option<Instant> {
        self.link.as_ref().map(Link::deadline)
    }

    /// Updates the socket events to wait for.
    pub fn follow_interests(&mut self, index: usize, epoll: &OwnedFd) {
        if let Some(link) = &mut self.link {
            follow(link, FIRST_TOKEN + index as u64, epoll);
        }
    }
}

/// Connects and makes the handshake of an HCA. Returns the stream and the GUID for the HCA's port.
///
/// # Errors
/// A message for the user.
pub fn introduce(address: &Address, guid: u64, name: &str) -> Result<(Stream, u64), String> {
    let mut stream = address.connect().map_err(|error| error.to_string())?;
    let guid = stream.introduce(guid, name).map_err(|error| format!("{address}: {error}"))?;
    Ok((stream, guid))
}
