//! The end of cables that is the fabric's: ports of the switch whose HCAs other servers run.

use super::address::Listener;
use super::stream::{Broken, Kind, Link, MAGIC};
use hca_model::Packet;
use hca_model::Profile;
use hca_model::fabric::{Fabric, PortIndex};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Packets taken from a cable, and given to it, in one turn.
const PACKETS: usize = 64;
/// Connections that have not introduced themselves.
const STRANGERS: usize = 64;

/// A cable.
#[derive(Debug)]
struct Cable {
    link: Link,
    /// The port and its GUID, once the other end has introduced itself.
    port: Option<(PortIndex, u64)>,
    /// The other end's port is up.
    up: bool,
    /// Whether the other end knows that the switch's port is enabled; `None` before it was told.
    told: Option<bool>,
    /// Its socket has something.
    readable: bool,
    /// Nothing more is to be said but this.
    ending: bool,
}

/// Where cables come in.
#[derive(Debug)]
pub struct Hub {
    listener: Listener,
    /// By number.
    cables: BTreeMap<u64, Cable>,
    next: u64,
    /// Ports by GUID: who comes again gets its own, and its LID.
    known: BTreeMap<u64, PortIndex>,
    guid_base: u64,
    /// When a connection is taken again.
    closed_until: Option<Instant>,
    listening: bool,
}

/// A cable, as who asks is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CableState {
    /// GUID of the port at its other end.
    pub port_guid: u64,
    /// Number of the switch's port.
    pub switch_port: u32,
    /// Whether the other end's port is up.
    pub up: bool,
}

/// Tokens of cables begin here; the listener's comes before.
const FIRST_TOKEN: u64 = 1 << 32;

impl Hub {
    /// Takes cables at `listener`. `guids` are those of the ports that are there already, `guid_base` that of the first.
    ///
    /// # Errors
    /// The system's.
    pub fn new(
        listener: Listener,
        guids: impl IntoIterator<Item = (u64, PortIndex)>,
        guid_base: u64,
        epoll: &OwnedFd,
    ) -> Result<Self, rustix::io::Errno> {
        epoll::add(epoll, listener.as_fd(), EventData::new_u64(FIRST_TOKEN), EventFlags::IN)?;
        let known = guids.into_iter().collect();
        let (cables, closed_until) = (BTreeMap::new(), None);
        Ok(Self { listener, cables, next: FIRST_TOKEN + 1, known, guid_base, closed_until, listening: true })
    }

    /// Whether the token is of this.
    pub fn owns(token: u64) -> bool {
        (FIRST_TOKEN..FIRST_TOKEN << 1).contains(&token)
    }

    /// The socket of `token` has something.
    pub fn event(&mut self, token: u64, epoll: &OwnedFd, now: Instant) {
        if token != FIRST_TOKEN {
            if let Some(cable) = self.cables.get_mut(&token) {
                cable.readable = true;
            }
            return;
        }
        let strangers = self.cables.values().filter(|cable| cable.port.is_none()).count();
        let accepted = match self.listener.accept() {
            Ok(stream) if strangers < STRANGERS => Link::new(stream, now),
            // Dropped.
            Ok(_) => return,
            Err(error) => Err(error),
        };
        let Ok(link) = accepted else {
            self.closed_until = Some(now + Duration::from_millis(200));
            return;
        };
        let number = self.next;
        if epoll::add(epoll, link.socket(), EventData::new_u64(number), EventFlags::empty()).is_ok() {
            self.next += 1;
            let cable = Cable { link, port: None, up: false, told: None, readable: true, ending: false };
            self.cables.insert(number, cable);
        }
    }

    /// Moves packets both ways. `tell` gets lines for the user. Answers whether more could be done at once.
    pub fn turn(
        &mut self,
        fabric: &mut Fabric,
        now: u64,
        instant: Instant,
        mut tell: impl FnMut(String),
    ) -> bool {
        let mut more = false;
        let numbers: Vec<u64> = self.cables.keys().copied().collect();
        for number in numbers {
            match self.serve(number, fabric, now, instant, &mut tell) {
                Ok(busy) => more |= busy,
                Err(broken) => {
                    let Some(cable) = self.cables.remove(&number) else { continue };
                    if let Some((port, guid)) = cable.port {
                        fabric.set_link(port, false, now);
                        tell(format!("cable of {guid:#018x} cut: {broken}"));
                    }
                }
            }
        }
        more
    }

    fn serve(
        &mut self,
        number: u64,
        fabric: &mut Fabric,
        now: u64,
        instant: Instant,
        tell: &mut impl FnMut(String),
    ) -> Result<bool, Broken> {
        let Some(mut cable) = self.cables.remove(&number) else { return Ok(false) };
        let outcome = self.serve_cable(&mut cable, fabric, now, instant, tell);
        self.cables.insert(number, cable);
        outcome
    }

    fn serve_cable(
        &mut self,
        cable: &mut Cable,
        fabric: &mut Fabric,
        now: u64,
        instant: Instant,
        tell: &mut impl FnMut(String),
    ) -> Result<bool, Broken> {
        if std::mem::take(&mut cable.readable) && !cable.link.paused {
            cable.link.read(instant)?;
        }
        let mut more = false;
        cable.link.paused = false;
        if cable.port.is_some_and(|(port, _)| !fabric.pay_turn(port)) {
            // What it has sent before cost the fabric more than a turn.
            cable.link.paused = true;
            more = true;
        }
        for taken in 0.. {
            if cable.link.paused {
                break;
            }
            if cable.port.is_some_and(|(port, _)| !fabric.ready(port)) {
                // Its peers first have to take what is on its way.
                cable.link.paused = true;
                break;
            }
            if taken == PACKETS {
                more = true;
                break;
            }
            let Some((kind, content)) = cable.link.next()? else { break };
            match (kind, cable.port) {
                (Kind::Hello, None) => {
                    let content = content.to_vec();
                    self.welcome(cable, &content, fabric, instant, tell);
                }
                (Kind::Packet, Some((port, _))) => {
                    let mut bytes = fabric.take_buffer();
                    bytes.clear();
                    bytes.extend_from_slice(content);
                    fabric.send(port, Packet::new(bytes), now);
                }
                (Kind::Up, Some(_)) => cable.up = content == [1],
                (Kind::Reset, Some((port, _))) => fabric.set_link(port, false, now),
                (Kind::Alive, _) => {}
                _ => return Err(Broken::Malformed),
            }
        }
        if let Some((port, _)) = cable.port {
            fabric.set_link(port, cable.up, now);
            let enabled = fabric.port_is_enabled(port);
            if cable.told != Some(enabled) {
                cable.told = Some(enabled);
                cable.link.send(Kind::Up, &[enabled.into()], instant);
            }
            for taken in 0.. {
                if cable.link.is_congested() {
                    break;
                }
                if taken == PACKETS {
                    more = true;
                    break;
                }
                let Some(mut packet) = fabric.receive(port, now) else { break };
                cable.link.send(Kind::Packet, packet.sealed_bytes(), instant);
                fabric.give_buffer(packet.into_buffer());
            }
        }
        cable.link.keep_alive(instant)?;
        cable.link.flush(instant)?;
        if cable.ending {
            return Err(Broken::Closed);
        }
        Ok(more)
    }

    /// Somebody introduces itself: it gets its port, or a reason.
    fn welcome(
        &mut self,
        cable: &mut Cable,
        hello: &[u8],
        fabric: &mut Fabric,
        instant: Instant,
        tell: &mut impl FnMut(String),
    ) {
        let fields = hello.strip_prefix(&MAGIC).and_then(<[u8]>::split_first_chunk::<8>);
        let outcome = match fields {
            Some((guid, name)) => self.port_for(u64::from_le_bytes(*guid), name, fabric),
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

    fn port_for(&mut self, guid: u64, name: &[u8], fabric: &mut Fabric) -> Result<(PortIndex, u64), String> {
        let plugged = |port: &PortIndex| {
            let mut others = self.cables.values().filter_map(|cable| cable.port);
            others.any(|(other, _)| other == *port)
        };
        if let Some(port) = self.known.get(&guid) {
            // Ports of this server's own HCAs have no cable here.
            let own = fabric.port_record(*port).is_some_and(|record| !record.name.starts_with(REMOTE));
            return match own || plugged(port) {
                true => Err(format!(
                    "port GUID {guid:#018x} is on this fabric already: give the other server another --guid-base"
                )),
                false => Ok((*port, guid)),
            };
        }
        let name: String = String::from_utf8_lossy(name).chars().filter(|c| !c.is_control()).collect();
        let port = fabric.attach(&format!("{REMOTE}{name}")).map_err(|error| error.to_string())?;
        let mut chosen = guid;
        let mut step = u64::from(port.0);
        while chosen == 0 || (guid == 0 && self.known.contains_key(&chosen)) {
            chosen = self.guid_base.wrapping_add(step * Profile::GUID_STEP);
            step += 1;
        }
        self.known.insert(chosen, port);
        Ok((port, chosen))
    }

    /// The cables that are plugged in.
    pub fn states(&self) -> Vec<CableState> {
        let plugged = self.cables.values().filter_map(|cable| cable.port.map(|port| (cable.up, port)));
        plugged
            .map(|(up, (port, guid))| CableState { port_guid: guid, switch_port: port.0 + 1, up })
            .collect()
    }

    /// When something has to be done although nothing comes.
    pub fn deadline(&self) -> Option<Instant> {
        self.cables.values().map(|cable| cable.link.deadline()).chain(self.closed_until).min()
    }

    /// Tells the system what is waited for, where that changed.
    pub fn follow_interests(&mut self, epoll: &OwnedFd, now: Instant) {
        if self.closed_until.is_some_and(|until| until <= now) {
            self.closed_until = None;
        }
        let listening = self.closed_until.is_none();
        if listening != self.listening {
            let flags = if listening { EventFlags::IN } else { EventFlags::empty() };
            let token = EventData::new_u64(FIRST_TOKEN);
            if epoll::modify(epoll, self.listener.as_fd(), token, flags).is_ok() {
                self.listening = listening;
            }
        }
        for (number, cable) in &mut self.cables {
            follow(&mut cable.link, *number, epoll);
        }
    }
}

/// Tells the system what a cable's socket is waited for, if that changed.
pub fn follow(link: &mut Link, token: u64, epoll: &OwnedFd) {
    let wanted = link.wanted();
    if wanted != link.interest
        && epoll::modify(epoll, link.socket(), EventData::new_u64(token), wanted).is_ok()
    {
        link.interest = wanted;
    }
}

/// Ports of other servers' HCAs are named so.
const REMOTE: &str = "remote ";
