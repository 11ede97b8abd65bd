//! The end of a cable that is an HCA's whose fabric another server runs.

use super::address::Address;
use super::hub::follow;
use super::stream::{Broken, Kind, Link, Stream};
use hca_model::world::NodePort;
use hca_model::{Hca, Packet};
use mlx5_prm::value::PortPhysicalState;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Packets taken in one turn.
const PACKETS: usize = 64;
/// Packet buffers kept for reuse.
const BUFFERS: usize = 256;
/// Tokens of spokes begin here.
const FIRST_TOKEN: u64 = 1 << 33;

/// One HCA's cable.
#[derive(Debug)]
pub struct Spoke {
    /// `None` while it is cut.
    link: Option<Link>,
    /// The switch's port is enabled.
    enabled: bool,
    /// What the other end knows of this one's port.
    told: bool,
    readable: bool,
    /// Buffers for packets.
    buffers: Vec<Vec<u8>>,
}

/// The device's side of it.
struct Wire<'a> {
    link: &'a mut Link,
    buffers: &'a mut Vec<Vec<u8>>,
    now: Instant,
}

impl hca_model::Link for Wire<'_> {
    fn send(&mut self, mut packet: Packet) {
        self.link.send(Kind::Packet, packet.sealed_bytes(), self.now);
        self.give_buffer(packet.into_buffer());
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

/// The device's side of a cable that is cut.
struct Nowhere;

impl hca_model::Link for Nowhere {
    fn send(&mut self, _packet: Packet) {}
}

impl Spoke {
    /// A cable that is not plugged in yet.
    pub fn new() -> Self {
        Self { link: None, enabled: false, told: false, readable: false, buffers: Vec::new() }
    }

    /// The HCA of `token`, if it is of a spoke.
    pub fn index(token: u64) -> Option<usize> {
        token.checked_sub(FIRST_TOKEN).and_then(|index| usize::try_from(index).ok())
    }

    /// The cable of HCA `index` is plugged in.
    ///
    /// # Errors
    /// The system's.
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

    /// The socket has something.
    pub fn event(&mut self) {
        self.readable = true;
    }

    /// One turn of the HCA and its cable: [`World::poll_node`](hca_model::world::World::poll_node) with the fabric elsewhere.
    /// Answers whether more could be done at once; and why the cable is cut, if it just was.
    pub fn turn(
        &mut self,
        hca: &mut Hca,
        guest: &mut impl NodePort,
        now: u64,
        instant: Instant,
    ) -> (bool, Option<Broken>) {
        let mut more = false;
        let outcome = self.receive(hca, instant, &mut more);
        let cut = outcome.err();
        if cut.is_some() {
            *self = Self::new();
        }
        hca.port_mut().set_far_end(self.enabled && self.link.is_some());
        let (memory, interrupts) = guest.parts();
        match &mut self.link {
            // The other server first has to take what is on its way.
            Some(link) if link.is_congested() => hca.port_mut().counters.xmit_wait += 1,
            Some(link) => {
                more |= hca.poll(
                    now,
                    memory,
                    interrupts,
                    &mut Wire { link, buffers: &mut self.buffers, now: instant },
                )
            }
            None => more |= hca.poll(now, memory, interrupts, &mut Nowhere),
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

    /// Tells the other end what became of the port, and sends what waits.
    fn report(&mut self, hca: &mut Hca, instant: Instant) -> Result<(), Broken> {
        let Some(link) = &mut self.link else { return Ok(()) };
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

    /// When something has to be done although nothing comes.
    pub fn deadline(&self) -> Option<Instant> {
        self.link.as_ref().map(Link::deadline)
    }

    /// Tells the system what is waited for, if that changed.
    pub fn follow_interests(&mut self, index: usize, epoll: &OwnedFd) {
        if let Some(link) = &mut self.link {
            follow(link, FIRST_TOKEN + index as u64, epoll);
        }
    }
}

/// Connects and introduces an HCA; answers with the GUID that its port is to have.
///
/// # Errors
/// In words.
pub fn introduce(address: &Address, guid: u64, name: &str) -> Result<(Stream, u64), String> {
    let mut stream = address.connect().map_err(|error| error.to_string())?;
    let guid = stream.introduce(guid, name).map_err(|error| format!("{address}: {error}"))?;
    Ok((stream, guid))
}
