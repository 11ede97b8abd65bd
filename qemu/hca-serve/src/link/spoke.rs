//! HCA side of a cable to a fabric in a remote server.

use super::address::Address;
use super::stream::{Broken, Kind, Link, Stream};
use hca_model::Hca;
use hca_model::turn::turn;
use rdma_fabric::medium::LinkLayer;
use rdma_fabric::packet::Packet;
use rdma_fabric::wire::{Unplugged, Wire};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::os::fd::OwnedFd;
use std::time::Instant;

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
struct Cable<'a> {
    link: &'a mut Link,
    buffers: &'a mut Vec<Vec<u8>>,
    enabled: &'a mut bool,
    told: &'a mut bool,
    now: Instant,
    /// Reason to cut the cable.
    broken: Option<Broken>,
}

impl Wire for Cable<'_> {
    fn send(&mut self, mut packet: Packet) {
        // Replies to management datagrams need no credit, so their number has a separate limit.
        if !self.link.is_full() {
            self.link.send(Kind::Packet, packet.sealed_bytes(), self.now);
        }
        self.give_buffer(packet.into_buffer());
    }

    fn receive(&mut self) -> Option<Packet> {
        while self.broken.is_none() {
            match self.link.next() {
                Ok(Some((Kind::Packet, content))) => {
                    let mut bytes = self.buffers.pop().unwrap_or_default();
                    bytes.clear();
                    bytes.extend_from_slice(content);
                    return Some(Packet::new(bytes));
                }
                Ok(Some((Kind::Up, content))) => *self.enabled = content == [1],
                Ok(Some((Kind::Alive, _))) => {}
                Ok(Some((kind, _))) => self.broken = Some(Broken::Unexpected(kind)),
                Ok(None) => break,
                Err(broken) => self.broken = Some(broken),
            }
        }
        None
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

    fn is_enabled(&self) -> bool {
        *self.enabled
    }

    fn is_up(&self) -> bool {
        *self.told
    }

    fn set_up(&mut self, up: bool) {
        *self.told = up;
        self.link.send(Kind::Up, &[up.into()], self.now);
    }
}

impl Spoke {
    /// Creates an unplugged cable.
    pub fn new() -> Self {
        Self { link: None, enabled: false, told: false, readable: false, buffers: Vec::new() }
    }

    /// Returns the HCA of `token`, if the token belongs to a spoke.
    pub fn index(token: u64) -> Option<usize> {
        (FIRST_TOKEN..FIRST_TOKEN << 1).contains(&token).then(|| (token - FIRST_TOKEN) as usize)
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

    /// Runs one iteration of the HCA and its cable. `poll` polls an HCA that has work. Returns its result, whether
    /// the cable has more work, and the reason if the cable was just cut.
    pub fn turn<T>(
        &mut self,
        hca: &mut Hca,
        now: u64,
        instant: Instant,
        poll: impl FnOnce(&mut Hca, &mut dyn Wire) -> T,
    ) -> (Option<T>, bool, Option<Broken>) {
        let Self { link, enabled, told, readable, buffers } = self;
        let Some(link) = link else {
            let (polled, more) = turn(hca, &mut Unplugged, now, |hca, wire| poll(hca, wire));
            return (polled, more, None);
        };
        let was_enabled = *enabled;
        let broken = if std::mem::take(readable) { link.read(instant).err() } else { None };
        let mut cable = Cable { link, buffers, enabled, told, now: instant, broken };
        let (polled, _) = turn(hca, &mut cable, now, |hca, cable| poll(hca, cable));
        let broken = cable.broken;
        let broken = broken.or_else(|| link.keep_alive(instant).and_then(|()| link.flush(instant)).err());
        let more = broken.is_some() || link.has_frame() || *enabled != was_enabled;
        if broken.is_some() {
            *self = Self::new();
        }
        (polled, more, broken)
    }

    /// Returns the time at which work is due without an event.
    pub fn deadline(&self) -> Option<Instant> {
        self.link.as_ref().map(Link::deadline)
    }

    /// Updates the socket events to wait for.
    pub fn follow_interests(&mut self, index: usize, epoll: &OwnedFd) {
        if let Some(link) = &mut self.link {
            link.follow(FIRST_TOKEN + index as u64, epoll);
        }
    }
}

/// Connects and makes the handshake of an HCA, or of an Ethernet switch. Returns the stream and the GUID
/// for the port.
///
/// # Errors
/// A message for the user.
pub fn introduce(
    address: &Address,
    layer: LinkLayer,
    guid: u64,
    name: &str,
) -> Result<(Stream, u64), String> {
    let mut stream = address.connect().map_err(|error| error.to_string())?;
    let guid = stream.introduce(layer, guid, name).map_err(|error| format!("{address}: {error}"))?;
    Ok((stream, guid))
}
