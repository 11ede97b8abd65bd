//! Switch ports of guests' ordinary network devices, by QEMU's network sockets.
//!
//! Each connection of `-netdev stream`, and each pair of addresses of `-netdev dgram`, is the cable of
//! one port. Frames have neither checksum offloads nor a frame check sequence.
//!
//! | module | subject |
//! |---|---|
//! | `socket` | frames in a stream or in datagrams |
//! | `datagram` | datagram sockets and their addresses |

mod datagram;
mod socket;
#[cfg(test)]
mod tests;

pub use datagram::{Datagrams, Ends};

use super::address::Listener;
use super::buffers::{Buffers, CableWork};
use super::cable::{Served, unplug};
use super::door::Door;
use super::roster::Roster;
use super::stream::Broken;
use crate::planted::{self, Place};
use rdma_fabric::ethernet::frame::{Frame, HEADER_LEN};
use rdma_fabric::medium::{LinkLayer, Medium};
use rdma_fabric::packet::Packet;
use rdma_fabric::ports::{PortIndex, SwitchFull};
use rdma_fabric::work::STEPS_PER_CALL;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use socket::Socket;

/// Frames received and sent on a cable in one iteration.
const FRAMES: usize = 64;
/// Shortest frame of Ethernet without its check sequence, in bytes.
const SHORTEST: usize = 60;
/// Token of the listener. Tokens of cables follow.
const FIRST_TOKEN: u64 = 1 << 34;
/// Names of the ports begin with this.
const NAME: &str = "netdev ";

/// Cable of a guest.
#[derive(Debug)]
struct Cable {
    socket: Socket,
    port: PortIndex,
}

/// Listener for network devices of guests, with their cables.
#[derive(Debug)]
pub struct Netdevs {
    door: Option<Door>,
    /// Cables by token.
    cables: BTreeMap<u64, Cable>,
    roster: Roster,
    next: u64,
    /// Ports whose guests have left.
    free: Vec<PortIndex>,
    ports: usize,
    /// A refusal was reported since the last device was plugged in.
    refused: bool,
    work: CableWork,
}

impl Netdevs {
    /// Accepts cables at `listener`, if there is one. Each of `datagrams` gets a port.
    ///
    /// # Errors
    /// Errors of the system, or the switch has too few ports.
    pub fn new(
        listener: Option<Listener>,
        datagrams: Vec<Datagrams>,
        medium: &mut Medium,
        epoll: &OwnedFd,
    ) -> std::io::Result<Self> {
        let door = listener.map(|listener| Door::new(listener, FIRST_TOKEN, epoll)).transpose()?;
        let mut netdevs = Self {
            door,
            cables: BTreeMap::new(),
            roster: Roster::default(),
            next: FIRST_TOKEN + 1,
            free: Vec::new(),
            ports: 0,
            refused: false,
            work: CableWork::default(),
        };
        for datagrams in datagrams {
            let port = netdevs.attach(medium).map_err(std::io::Error::other)?;
            netdevs.plug(Socket::Datagrams(datagrams), port, epoll)?;
        }
        Ok(netdevs)
    }

    /// Returns the work for cables so far.
    pub const fn work(&self) -> CableWork {
        self.work
    }

    /// Returns whether the token belongs to a network device.
    pub fn owns(token: u64) -> bool {
        (FIRST_TOKEN..FIRST_TOKEN << 1).contains(&token)
    }

    /// Handles readiness of the socket of `token`.
    pub fn event(
        &mut self,
        token: u64,
        epoll: &OwnedFd,
        medium: &mut Medium,
        now: Instant,
        tell: impl FnMut(String),
    ) {
        if let Some(cable) = self.cables.get_mut(&token) {
            cable.socket.event();
            self.roster.wake(token);
        } else if token == FIRST_TOKEN
            && self.accept(epoll, medium, tell).is_err()
            && let Some(door) = &mut self.door
        {
            door.rest(now);
        }
    }

    fn accept(
        &mut self,
        epoll: &OwnedFd,
        medium: &mut Medium,
        mut tell: impl FnMut(String),
    ) -> std::io::Result<()> {
        let Some(door) = &self.door else { return Ok(()) };
        let buffers = Buffers::new(door.accept()?)?;
        match self.attach(medium) {
            Ok(port) => {
                self.plug(Socket::stream(buffers), port, epoll)?;
                self.refused = false;
                tell(format!("{} plugged in", medium.name(port).unwrap_or(NAME)));
            }
            Err(error) => {
                // QEMU reconnects every second.
                if !std::mem::replace(&mut self.refused, true) {
                    tell(format!("network device refused: {error}"));
                }
            }
        }
        Ok(())
    }

    /// Returns a port without a cable.
    fn attach(&mut self, medium: &mut Medium) -> Result<PortIndex, SwitchFull> {
        if let Some(port) = self.free.pop() {
            return Ok(port);
        }
        let port = medium.attach(&format!("{NAME}{}", self.ports), LinkLayer::Ethernet)?;
        self.ports += 1;
        Ok(port)
    }

    fn plug(&mut self, socket: Socket, port: PortIndex, epoll: &OwnedFd) -> std::io::Result<()> {
        let token = self.next;
        if let Err(error) = socket.add_to(token, epoll) {
            self.free.push(port);
            return Err(error.into());
        }
        self.next += 1;
        self.cables.insert(token, Cable { socket, port });
        self.roster.plug(token, port);
        self.roster.wake(token);
        Ok(())
    }

    /// A packet has arrived at `port`, or its link or credit has changed.
    pub fn wake_port(&mut self, port: PortIndex) {
        self.roster.wake_port(port);
    }

    /// Takes the cables that have work.
    pub fn take_ready(&mut self, instant: Instant) -> BTreeSet<u64> {
        self.roster.take_ready(instant)
    }

    /// Gives a cable a turn later.
    pub fn wake(&mut self, token: u64) {
        self.roster.wake(token);
    }

    /// Moves frames of a cable in both directions. `tell` gets lines for the user. Returns whether there is
    /// more work, or `None` if the cable is cut.
    pub fn turn(
        &mut self,
        token: u64,
        medium: &mut Medium,
        now: u64,
        tell: impl FnMut(String),
    ) -> Option<bool> {
        let cable = self.cables.get_mut(&token)?;
        // A panic must not reach other cables and HCAs.
        let served = catch_unwind(AssertUnwindSafe(|| {
            planted::here(Place::Cable(token));
            cable.serve(medium, now, &mut self.work)
        }));
        match served.unwrap_or(Err(Broken::Panicked)) {
            Ok(Served { busy, owes }) => {
                if busy || owes {
                    self.roster.wake(token);
                }
                Some(busy)
            }
            Err(reason) => {
                self.cut(token, reason, medium, now, tell);
                None
            }
        }
    }

    /// Cuts the cable of `token`.
    pub fn cut(
        &mut self,
        token: u64,
        reason: Broken,
        medium: &mut Medium,
        now: u64,
        mut tell: impl FnMut(String),
    ) {
        // Closing the socket removes it from the epoll set.
        let Some(Cable { port, .. }) = self.cables.remove(&token) else { return };
        self.roster.forget(token);
        unplug(port, medium, now);
        self.free.push(port);
        tell(format!("{} unplugged: {reason}", medium.name(port).unwrap_or(NAME)));
    }

    /// Returns the time at which work is due without an event.
    pub fn deadline(&self) -> Option<Instant> {
        self.door.as_ref().and_then(Door::deadline)
    }

    /// Updates the socket events to wait for.
    pub fn follow_interests(&mut self, epoll: &OwnedFd, now: Instant) {
        if let Some(door) = &mut self.door {
            door.follow(epoll, now);
        }
        for token in self.roster.take_touched() {
            if let Some(cable) = self.cables.get_mut(&token) {
                cable.socket.follow(token, epoll);
            }
        }
    }
}

impl Cable {
    fn serve(&mut self, medium: &mut Medium, now: u64, work: &mut CableWork) -> Result<Served, Broken> {
        self.socket.read(work)?;
        let mut wire = medium.cable(self.port, now);
        // A link that a fault cut comes up again.
        wire.set_up(self.socket.has_peer());
        // Its previous frames may have cost the switch more than one iteration.
        let paid = wire.pay_turn();
        work.steps += paid;
        let mut busy = paid == STEPS_PER_CALL;
        self.socket.set_paused(busy);
        let mut owes = busy;
        for taken in 0.. {
            if self.socket.is_paused() {
                break;
            }
            if !wire.has_credit() {
                // The receivers must first take the frames in flight.
                self.socket.set_paused(true);
                break;
            }
            if taken == FRAMES {
                busy = true;
                break;
            }
            let mut bytes = wire.take_buffer();
            bytes.clear();
            if !self.socket.next(&mut bytes, work)? {
                wire.give_buffer(bytes);
                break;
            }
            if bytes.len() >= HEADER_LEN {
                bytes.resize(bytes.len().max(SHORTEST), 0);
            }
            // The first frame of a peer brings the link up.
            wire.set_up(true);
            wire.send(Packet::frame(bytes));
            owes = true;
            work.frames += 1;
        }
        // First: a socket with space again raises no further event.
        self.socket.flush()?;
        for taken in 0.. {
            let congested = self.socket.is_congested();
            wire.set_congested(congested);
            if congested {
                break;
            }
            if taken == FRAMES {
                busy = true;
                break;
            }
            let Some(mut packet) = wire.receive() else { break };
            let bytes = packet.sealed_bytes();
            if !is_undefined(bytes) {
                self.socket.send(bytes);
            }
            work.frames += 1;
            wire.give_buffer(packet.into_buffer());
        }
        self.socket.flush()?;
        if !self.socket.has_peer() {
            wire.set_up(false);
        }
        Ok(Served { busy, owes })
    }
}

/// Returns whether a frame is a congestion notification (CNP) or has an undefined RoCE opcode. Linux's
/// `rdma_rxe` reports both as errors, and reads out of bounds in kernels without the check of `rxe_rcv`.
fn is_undefined(frame: &[u8]) -> bool {
    let roce = Frame::parse(frame).and_then(|frame| frame.roce());
    roce.is_some_and(|roce| roce.bth().opcode.operation().is_none())
}
