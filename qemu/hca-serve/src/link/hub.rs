//! Fabric side of cables: switch ports whose HCAs are in other servers.

use super::address::Listener;
use super::buffers::CableWork;
use super::door::Door;
use super::roster::Roster;
use super::stream::{Broken, HANDSHAKE, Kind, Link, MAGIC};
use crate::planted::{self, Place};
use hca_model::Profile;
use rdma_fabric::medium::{LinkLayer, Medium};
use rdma_fabric::packet::Packet;
use rdma_fabric::ports::PortIndex;
use rdma_fabric::work::STEPS_PER_CALL;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Packets received and sent on a cable in one iteration.
const PACKETS: usize = 64;
/// Limit of connections without a handshake.
const STRANGERS: usize = 64;

/// A cable.
#[derive(Debug)]
struct Cable {
    link: Link,
    /// Port and its GUID, set by the handshake.
    port: Option<(PortIndex, u64)>,
    /// True if the remote port is up.
    up: bool,
    /// State of the switch's port last reported to the peer: true for enabled, `None` before the
    /// first report.
    told: Option<bool>,
    /// True if the socket is readable.
    readable: bool,
    /// True if the connection closes after the queued output.
    ending: bool,
    /// Time at which it closes without a handshake.
    handshake_until: Instant,
}

/// Listener for cables, with all its cables.
#[derive(Debug)]
pub struct Hub {
    door: Door,
    /// Cables by number.
    cables: BTreeMap<u64, Cable>,
    roster: Roster,
    next: u64,
    /// Ports by GUID, so that a peer that reconnects gets its own port and LID.
    known: BTreeMap<u64, PortIndex>,
    guid_base: u64,
    work: CableWork,
}

/// State of a cable, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CableState {
    /// GUID of the port at the remote end.
    pub port_guid: u64,
    /// Number of the switch's port.
    pub switch_port: u32,
    /// True if the remote port is up.
    pub up: bool,
}

/// First token of cables. The listener's token precedes it.
const FIRST_TOKEN: u64 = 1 << 32;

impl Hub {
    /// Accepts cables at `listener`. `guids` are those of existing ports; `guid_base` is the GUID
    /// of the first.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(
        listener: Listener,
        guids: impl IntoIterator<Item = (u64, PortIndex)>,
        guid_base: u64,
        epoll: &OwnedFd,
    ) -> Result<Self, rustix::io::Errno> {
        let known = guids.into_iter().collect();
        Ok(Self {
            door: Door::new(listener, FIRST_TOKEN, epoll)?,
            cables: BTreeMap::new(),
            roster: Roster::default(),
            next: FIRST_TOKEN + 1,
            known,
            guid_base,
            work: CableWork::default(),
        })
    }

    /// Returns the work for cables so far.
    pub const fn work(&self) -> CableWork {
        self.work
    }

    /// Returns whether the token belongs to a hub.
    pub fn owns(token: u64) -> bool {
        (FIRST_TOKEN..FIRST_TOKEN << 1).contains(&token)
    }

    /// Handles readiness of the socket of `token`.
    pub fn event(&mut self, token: u64, epoll: &OwnedFd, now: Instant) {
        if token != FIRST_TOKEN {
            if let Some(cable) = self.cables.get_mut(&token) {
                cable.readable = true;
                self.roster.wake(token);
            }
            return;
        }
        let strangers = self.cables.values().filter(|cable| cable.port.is_none()).count();
        let accepted = match self.door.accept() {
            Ok(stream) if strangers < STRANGERS => Link::new(stream, now),
            // Drop the stream: too many connections without a handshake.
            Ok(_) => return,
            Err(error) => Err(error),
        };
        let Ok(link) = accepted else {
            self.door.rest(now);
            return;
        };
        let number = self.next;
        if epoll::add(epoll, link.socket(), EventData::new_u64(number), EventFlags::empty()).is_ok() {
            self.next += 1;
            let handshake_until = now + HANDSHAKE;
            let (up, readable, ending) = (false, true, false);
            let cable = Cable { link, port: None, up, told: None, readable, ending, handshake_until };
            self.cables.insert(number, cable);
            self.roster.wake(number);
        }
    }

    /// A packet has arrived at `port`, or its link or credit has changed.
    pub fn wake_port(&mut self, port: PortIndex) {
        self.roster.wake_port(port);
    }

    /// Moves packets in both directions. `tell` gets lines for the user. Returns whether there is
    /// more work.
    pub fn turn(
        &mut self,
        medium: &mut Medium,
        now: u64,
        instant: Instant,
        mut tell: impl FnMut(String),
    ) -> bool {
        let mut more = false;
        for number in self.roster.take_ready(instant) {
            let Some(mut cable) = self.cables.remove(&number) else { continue };
            // A panic must not reach other cables and HCAs.
            let served = catch_unwind(AssertUnwindSafe(|| {
                planted::here(Place::Cable(number));
                self.serve_cable(&mut cable, medium, now, instant, &mut tell)
            }));
            match served.unwrap_or(Err(Broken::Panicked)) {
                Ok(Served { busy, owes }) => {
                    more |= busy;
                    if busy || owes {
                        self.roster.wake(number);
                    }
                    if let Some((port, _)) = cable.port {
                        self.roster.plug(number, port);
                    }
                    self.roster.set_deadline(number, Some(cable.deadline()));
                    self.cables.insert(number, cable);
                }
                Err(broken) => {
                    self.roster.forget(number);
                    cut(&cable, medium, now, broken, &mut tell);
                }
            }
        }
        more
    }

    /// Cuts the cable of `token`.
    pub fn cut(&mut self, token: u64, medium: &mut Medium, now: u64, mut tell: impl FnMut(String)) {
        if let Some(cable) = self.cables.remove(&token) {
            self.roster.forget(token);
            cut(&cable, medium, now, Broken::Panicked, &mut tell);
        }
    }

    fn serve_cable(
        &mut self,
        cable: &mut Cable,
        medium: &mut Medium,
        now: u64,
        instant: Instant,
        tell: &mut impl FnMut(String),
    ) -> Result<Served, Broken> {
        if std::mem::take(&mut cable.readable) && !cable.link.paused {
            self.work.reads += 1;
            cable.link.read(instant)?;
        }
        let paid = cable.port.map_or(0, |(port, _)| medium.cable(port, now).pay_turn());
        self.work.steps += paid;
        // Its previous packets cost the fabric more than one iteration.
        let mut more = paid == STEPS_PER_CALL;
        cable.link.paused = more;
        let mut owes = more;
        for taken in 0.. {
            if cable.link.paused {
                break;
            }
            if cable.port.is_some_and(|(port, _)| !medium.cable(port, now).has_credit()) {
                // Its peers must first receive the packets in flight.
                cable.link.paused = true;
                break;
            }
            if taken == PACKETS {
                more = true;
                break;
            }
            let Some((kind, content)) = cable.link.next()? else { break };
            self.work.frames += 1;
            match (kind, cable.port) {
                (Kind::Hello, None) => {
                    let content = content.to_vec();
                    self.welcome(cable, &content, medium, instant, tell);
                }
                (Kind::Packet, Some((port, _))) => {
                    let mut wire = medium.cable(port, now);
                    let mut bytes = wire.take_buffer();
                    bytes.clear();
                    bytes.extend_from_slice(content);
                    wire.send(Packet::new(bytes));
                    owes = true;
                }
                (Kind::Up, Some((port, _))) => {
                    cable.up = content == [1];
                    medium.cable(port, now).set_up(cable.up);
                }
                (Kind::Alive, _) => {}
                _ => return Err(Broken::Malformed),
            }
        }
        if let Some((port, _)) = cable.port {
            let mut wire = medium.cable(port, now);
            // The link of a port that was disabled comes up again.
            wire.set_up(cable.up);
            let enabled = wire.is_enabled();
            if cable.told != Some(enabled) {
                cable.told = Some(enabled);
                cable.link.send(Kind::Up, &[enabled.into()], instant);
            }
            for taken in 0.. {
                let congested = cable.link.is_congested();
                wire.set_congested(congested);
                if congested {
                    break;
                }
                if taken == PACKETS {
                    more = true;
                    break;
                }
                let Some(mut packet) = wire.receive() else { break };
                self.work.frames += 1;
                cable.link.send(Kind::Packet, packet.sealed_bytes(), instant);
                wire.give_buffer(packet.into_buffer());
            }
        }
        if cable.port.is_none() && instant >= cable.handshake_until {
            return Err(Broken::Silent);
        }
        cable.link.keep_alive(instant)?;
        cable.link.flush(instant)?;
        if cable.ending {
            return Err(Broken::Closed);
        }
        Ok(Served { busy: more, owes })
    }

    /// Handles a handshake: replies with a port, or with the reason of a refusal.
    fn welcome(
        &mut self,
        cable: &mut Cable,
        hello: &[u8],
        medium: &mut Medium,
        instant: Instant,
        tell: &mut impl FnMut(String),
    ) {
        let fields = hello.strip_prefix(&MAGIC).and_then(<[u8]>::split_first_chunk::<8>);
        let outcome = match fields {
            Some((guid, name)) => self.port_for(u64::from_le_bytes(*guid), name, medium),
            None => Err("this server speaks another version".to_owned()),
        };
        match outcome {
            Ok((port, guid)) => {
                cable.port = Some((port, guid));
                cable.link.send(Kind::Welcome, &guid.to_le_bytes(), instant);
                tell(format!("cable of {guid:#018x} plugged in at port {}", port.0 + 1));
            }
            Err(reason) => {
                cable.ending = true;
                cable.link.send(Kind::Refused, reason.as_bytes(), instant);
                tell(format!("cable refused: {reason}"));
            }
        }
    }

    fn port_for(&mut self, guid: u64, name: &[u8], medium: &mut Medium) -> Result<(PortIndex, u64), String> {
        let plugged = |port: &PortIndex| {
            let mut others = self.cables.values().filter_map(|cable| cable.port);
            others.any(|(other, _)| other == *port)
        };
        if let Some(port) = self.known.get(&guid) {
            // Ports of this server's own HCAs have no cable here.
            let own = medium.name(*port).is_some_and(|name| !name.starts_with(REMOTE));
            return match own || plugged(port) {
                true => Err(format!(
                    "port GUID {guid:#018x} is on this fabric already: give the other server another --guid-base"
                )),
                false => Ok((*port, guid)),
            };
        }
        let name: String = String::from_utf8_lossy(name).chars().filter(|c| !c.is_control()).collect();
        let port = match medium.attach(&format!("{REMOTE}{name}"), LinkLayer::InfiniBand) {
            Ok(port) => port,
            // Another GUID had it, whose cable is unplugged.
            Err(error) => {
                let remote =
                    |port: &PortIndex| medium.name(*port).is_some_and(|name| name.starts_with(REMOTE));
                let unused = self.known.iter().find(|(_, port)| remote(port) && !plugged(port));
                let (forgotten, port) = unused.ok_or_else(|| error.to_string()).map(|(g, p)| (*g, *p))?;
                self.known.remove(&forgotten);
                port
            }
        };
        let mut chosen = guid;
        let mut step = u64::from(port.0);
        while chosen == 0 || (guid == 0 && self.known.contains_key(&chosen)) {
            chosen = self.guid_base.wrapping_add(step * Profile::GUID_STEP);
            step += 1;
        }
        self.known.insert(chosen, port);
        Ok((port, chosen))
    }

    /// Returns the states of the plugged cables.
    pub fn states(&self) -> Vec<CableState> {
        let plugged = self.cables.values().filter_map(|cable| cable.port.map(|port| (cable.up, port)));
        plugged
            .map(|(up, (port, guid))| CableState { port_guid: guid, switch_port: port.0 + 1, up })
            .collect()
    }

    /// Returns the time at which work is due without an event.
    pub fn deadline(&self) -> Option<Instant> {
        self.roster.deadline().into_iter().chain(self.door.deadline()).min()
    }

    /// Updates the socket events to wait for.
    pub fn follow_interests(&mut self, epoll: &OwnedFd, now: Instant) {
        self.door.follow(epoll, now);
        for number in self.roster.take_touched() {
            if let Some(cable) = self.cables.get_mut(&number) {
                cable.link.follow(number, epoll);
            }
        }
    }
}

/// Result of a cable's turn.
struct Served {
    /// True if more work is left.
    busy: bool,
    /// Its packets may cost the fabric work that the next turn pays for.
    owes: bool,
}

impl Cable {
    /// Returns the time at which it has work without an event.
    fn deadline(&self) -> Instant {
        let deadline = self.link.deadline();
        if self.port.is_none() { deadline.min(self.handshake_until) } else { deadline }
    }
}

/// Takes the port of a cable that is cut down.
fn cut(cable: &Cable, medium: &mut Medium, now: u64, broken: Broken, tell: &mut impl FnMut(String)) {
    if let Some((port, guid)) = cable.port {
        medium.cable(port, now).set_up(false);
        tell(format!("cable of {guid:#018x} cut: {broken}"));
    }
}

/// Name prefix of ports whose HCAs are in other servers.
const REMOTE: &str = "remote ";
