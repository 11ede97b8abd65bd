//! Fabric side of cables: switch ports whose HCAs, or Ethernet switches, are in other servers.

use super::address::Listener;
use super::buffers::CableWork;
use super::cable::{Cable, PACKETS, Served, unplug};
use super::door::Door;
use super::roster::Roster;
use super::stream::{Broken, HANDSHAKE, Kind, Link, MAGIC};
use crate::planted::{self, Place};
use hca_model::Profile;
use rdma_fabric::medium::{LinkLayer, Medium};
use rdma_fabric::ports::PortIndex;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Limit of connections without a handshake.
const STRANGERS: usize = 64;

/// A connection: a cable, once its handshake is made.
#[derive(Debug)]
struct Connection {
    cable: Cable,
    /// Port and its GUID, set by the handshake.
    port: Option<(PortIndex, u64)>,
    /// True if the connection closes after the queued output.
    ending: bool,
    /// Time at which it closes without a handshake.
    handshake_until: Instant,
}

/// Listener for cables, with all its cables.
#[derive(Debug)]
pub struct Hub {
    door: Door,
    /// Connections by number.
    cables: BTreeMap<u64, Connection>,
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
    /// GUID of the port at the remote end, or the first of its Ethernet switch.
    pub port_guid: u64,
    /// Kind of the link.
    pub layer: LinkLayer,
    /// Number of the switch's port, of the switch of this kind.
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
                cable.cable.readable = true;
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
            let cable = Cable::new(link);
            let connection =
                Connection { cable, port: None, ending: false, handshake_until: now + HANDSHAKE };
            self.cables.insert(number, connection);
            self.roster.wake(number);
        }
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

    /// Moves packets of a cable in both directions. `tell` gets lines for the user. Returns whether there
    /// is more work, or `None` if the cable is cut.
    pub fn turn(
        &mut self,
        token: u64,
        medium: &mut Medium,
        now: u64,
        instant: Instant,
        mut tell: impl FnMut(String),
    ) -> Option<bool> {
        let mut cable = self.cables.remove(&token)?;
        // A panic must not reach other cables and HCAs.
        let served = catch_unwind(AssertUnwindSafe(|| {
            planted::here(Place::Cable(token));
            self.serve_cable(&mut cable, medium, now, instant, &mut tell)
        }));
        match served.unwrap_or(Err(Broken::Panicked)) {
            Ok(Served { busy, owes }) => {
                if busy || owes {
                    self.roster.wake(token);
                }
                if let Some((port, _)) = cable.port {
                    self.roster.plug(token, port);
                }
                self.roster.set_deadline(token, Some(cable.deadline()));
                self.cables.insert(token, cable);
                Some(busy)
            }
            Err(broken) => {
                self.roster.forget(token);
                cut(&mut cable, medium, now, instant, broken, &mut tell);
                None
            }
        }
    }

    /// Cuts the cable of `token`.
    pub fn cut(
        &mut self,
        token: u64,
        medium: &mut Medium,
        now: u64,
        instant: Instant,
        mut tell: impl FnMut(String),
    ) {
        if let Some(mut cable) = self.cables.remove(&token) {
            self.roster.forget(token);
            cut(&mut cable, medium, now, instant, Broken::Panicked, &mut tell);
        }
    }

    fn serve_cable(
        &mut self,
        cable: &mut Connection,
        medium: &mut Medium,
        now: u64,
        instant: Instant,
        tell: &mut impl FnMut(String),
    ) -> Result<Served, Broken> {
        cable.cable.read(instant, &mut self.work)?;
        if cable.port.is_none() && !self.handshake(cable, medium, instant, tell)? {
            // The peer waits for a reply, or this server for its handshake.
            if instant >= cable.handshake_until {
                return Err(Broken::Silent);
            }
            cable.cable.flush(instant)?;
            if cable.ending {
                return Err(Broken::Closed);
            }
            return Ok(Served { busy: cable.cable.link.has_frame(), owes: false });
        }
        let mut served = Served::default();
        if let Some((port, _)) = cable.port {
            served = cable.cable.exchange(port, medium, now, instant, &mut self.work)?;
        }
        cable.cable.flush(instant)?;
        Ok(served)
    }

    /// Handles the frames before a handshake, and the handshake. Returns whether it is made.
    fn handshake(
        &mut self,
        cable: &mut Connection,
        medium: &mut Medium,
        instant: Instant,
        tell: &mut impl FnMut(String),
    ) -> Result<bool, Broken> {
        // A peer cannot extend its time by keep-alives, nor this turn by more than so many.
        for _ in 0..PACKETS {
            if cable.ending {
                break;
            }
            let Some((kind, content)) = cable.cable.link.next()? else { break };
            self.work.frames += 1;
            match kind {
                Kind::Hello => {
                    let content = content.to_vec();
                    self.welcome(cable, &content, medium, instant, tell);
                    return Ok(cable.port.is_some());
                }
                Kind::Alive => {}
                other => return Err(Broken::Unexpected(other)),
            }
        }
        Ok(false)
    }

    /// Handles a handshake: replies with a port, or with the reason of a refusal.
    fn welcome(
        &mut self,
        cable: &mut Connection,
        hello: &[u8],
        medium: &mut Medium,
        instant: Instant,
        tell: &mut impl FnMut(String),
    ) {
        let hello = hello.strip_prefix(&MAGIC).and_then(<[u8]>::split_first);
        let hello = hello.and_then(|(layer, rest)| Some((layer, rest.split_first_chunk::<8>()?)));
        let outcome = match hello {
            Some((0, (guid, name))) => self.port_for(LinkLayer::InfiniBand, *guid, name, medium),
            Some((1, (guid, name))) => self.port_for(LinkLayer::Ethernet, *guid, name, medium),
            Some((layer, _)) => {
                Err(format!("unknown kind of link {layer}: use the same release on both sides"))
            }
            None => Err("malformed or foreign handshake: use the same release on both sides".to_owned()),
        };
        match outcome {
            Ok((port, guid)) => {
                cable.port = Some((port, guid));
                cable.cable.link.send(Kind::Welcome, &guid.to_le_bytes(), instant);
                let (layer, number) = Medium::local(port);
                tell(format!("cable of {guid:#018x} plugged in at {layer:?} port {}", number.0 + 1));
            }
            Err(reason) => {
                cable.ending = true;
                cable.cable.link.send(Kind::Refused, reason.as_bytes(), instant);
                tell(format!("cable refused: {reason}"));
            }
        }
    }

    fn port_for(
        &mut self,
        layer: LinkLayer,
        guid: [u8; 8],
        name: &[u8],
        medium: &mut Medium,
    ) -> Result<(PortIndex, u64), String> {
        let guid = u64::from_le_bytes(guid);
        let plugged = |port: &PortIndex| {
            let mut others = self.cables.values().filter_map(|cable| cable.port);
            others.any(|(other, _)| other == *port)
        };
        let is_of_layer = |port: &PortIndex| Medium::local(*port).0 == layer;
        if let Some(port) = self.known.get(&guid) {
            // Ports of this server's own HCAs have no cable here.
            let own = medium.name(*port).is_some_and(|name| !name.starts_with(REMOTE));
            return match own || plugged(port) || !is_of_layer(port) {
                true => Err(format!(
                    "port GUID {guid:#018x} is on this fabric already: give the other server another --guid-base"
                )),
                false => Ok((*port, guid)),
            };
        }
        let name: String = String::from_utf8_lossy(name).chars().filter(|c| !c.is_control()).collect();
        let port = match medium.attach(&format!("{REMOTE}{name}"), layer) {
            Ok(port) => port,
            // Another GUID had it, whose cable is unplugged.
            Err(error) => {
                let remote =
                    |port: &PortIndex| medium.name(*port).is_some_and(|name| name.starts_with(REMOTE));
                let mut known = self.known.iter().filter(|(_, port)| is_of_layer(port) && remote(port));
                let unused = known.find(|(_, port)| !plugged(port));
                let (forgotten, port) = unused.ok_or_else(|| error.to_string()).map(|(g, p)| (*g, *p))?;
                self.known.remove(&forgotten);
                port
            }
        };
        let mut chosen = guid;
        let mut number = u64::from(Medium::local(port).1.0);
        while chosen == 0 || (guid == 0 && self.known.contains_key(&chosen)) {
            chosen = self.guid_base.wrapping_add(match layer {
                LinkLayer::InfiniBand => number * Profile::GUID_STEP,
                // The GUIDs of its HCAs follow.
                LinkLayer::Ethernet => (number + 1) * SWITCH_STEP,
            });
            number += 1;
        }
        self.known.insert(chosen, port);
        Ok((port, chosen))
    }

    /// Returns the states of the plugged cables.
    pub fn states(&self) -> Vec<CableState> {
        let plugged = self.cables.values().filter_map(|cable| cable.port.map(|port| (cable.cable.up, port)));
        plugged
            .map(|(up, (port, port_guid))| {
                let (layer, number) = Medium::local(port);
                CableState { port_guid, layer, switch_port: number.0 + 1, up }
            })
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
                cable.cable.link.follow(number, epoll);
            }
        }
    }
}

impl Connection {
    /// Returns the time at which it has work without an event.
    fn deadline(&self) -> Instant {
        let deadline = self.cable.link.deadline();
        if self.port.is_none() { deadline.min(self.handshake_until) } else { deadline }
    }
}

/// Takes the port of a broken connection down, or sends a peer without a port the reason.
fn cut(
    connection: &mut Connection,
    medium: &mut Medium,
    now: u64,
    instant: Instant,
    broken: Broken,
    tell: &mut impl FnMut(String),
) {
    if let Some((port, guid)) = connection.port {
        unplug(port, medium, now);
        tell(format!("cable of {guid:#018x} cut: {broken}"));
    } else if matches!(broken, Broken::Length { .. } | Broken::Kind(_) | Broken::Unexpected(_)) {
        let link = &mut connection.cable.link;
        link.send(Kind::Refused, format!("{broken}, before a handshake").as_bytes(), instant);
        // The peer may read it or not.
        let _ = link.flush(instant);
        tell(format!("cable refused: {broken}, before a handshake"));
    }
}

/// Distance of the GUIDs of two switches: those of the HCAs at a switch are between.
const SWITCH_STEP: u64 = 0x1_0000;
/// Name prefix of ports whose HCAs are in other servers.
const REMOTE: &str = "remote ";
