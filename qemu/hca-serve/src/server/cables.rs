//! Cables of the server: their turns, their share of its time, and their way back after a cut.

use super::event_loop::EventLoop;
use super::uplink::{Cables, Side};
use crate::link::hub::Hub;
use crate::link::netdev::Netdevs;
use crate::link::spoke::Spoke;
use crate::link::stream::{Broken, Stream};
use crate::link::trunk::Trunk;
use rdma_fabric::medium::LinkLayer;
use std::time::Instant;

impl EventLoop {
    /// Serves the cables that have work. Returns whether there is more.
    pub(super) fn serve_cables(&mut self, now: u64) -> bool {
        for port in self.world.take_other_ports(now) {
            if let Some(hub) = &mut self.hub {
                hub.wake_port(port);
            }
            if let Some(netdevs) = &mut self.netdevs {
                netdevs.wake_port(port);
            }
            if let Some(trunk) = &mut self.trunk {
                trunk.wake_port(port);
            }
        }
        let mut instant = self.clock.now();
        self.cable_notices.tick(instant);
        self.netdev_notices.tick(instant);
        let mut ready = self.hub.as_mut().map(|hub| hub.take_ready(instant)).unwrap_or_default();
        ready.extend(self.netdevs.as_mut().map(|netdevs| netdevs.take_ready(instant)).into_iter().flatten());
        ready.extend(self.trunk.as_mut().filter(|trunk| trunk.is_ready(instant)).map(|_| Trunk::TOKEN));
        let contended = self.world.scheduler.has_work();
        let mut more = false;
        for token in ready {
            if contended && self.shares.is_ahead(token) {
                self.wake_cable(token);
                more = true;
                continue;
            }
            let served = self.serve_cable(token, now, instant);
            self.follow_work();
            let end = self.clock.now();
            match served {
                Some(busy) => {
                    more |= busy;
                    self.shares.charge(token, end.saturating_duration_since(instant), contended);
                }
                None => self.shares.forget(token),
            }
            instant = end;
        }
        more
    }

    /// Gives a cable a turn later.
    fn wake_cable(&mut self, token: u64) {
        match self {
            Self { hub: Some(hub), .. } if Hub::owns(token) => hub.wake(token),
            Self { netdevs: Some(netdevs), .. } if Netdevs::owns(token) => netdevs.wake(token),
            Self { trunk: Some(trunk), .. } => trunk.wake(),
            _ => {}
        }
    }

    /// Gives a cable its turn. Returns whether it has more work, or `None` if it is cut.
    fn serve_cable(&mut self, token: u64, now: u64, instant: Instant) -> Option<bool> {
        let Self { world, hub, netdevs, trunk, cable_notices, netdev_notices, .. } = self;
        let medium = &mut world.medium;
        if Hub::owns(token) {
            let tell = |line: String| cable_notices.tell(&line, instant);
            return hub.as_mut()?.turn(token, medium, now, instant, tell);
        }
        if Netdevs::owns(token) {
            let tell = |line: String| netdev_notices.tell(&line, instant);
            return netdevs.as_mut()?.turn(token, medium, now, tell);
        }
        match trunk.as_mut()?.turn(medium, now, instant) {
            Ok(busy) => Some(busy),
            Err(broken) => {
                self.mend(Side::Switch, broken, instant);
                None
            }
        }
    }

    /// Plugs in the cables to a remote fabric, for the first time.
    ///
    /// # Errors
    /// Errors of the system, or the switch has too few ports.
    pub(super) fn plug_all(&mut self, cables: Cables) -> std::io::Result<()> {
        if cables.is_empty() {
            return Ok(());
        }
        self.spokes.resize_with(self.seats.len(), || None);
        let now = self.clock.now();
        for (side, stream, _) in cables {
            match side {
                Side::Hca(index) => {
                    if let Some(spoke) = self.spokes.get_mut(index) {
                        *spoke = Some(Spoke::new());
                    }
                }
                Side::Switch => {
                    let port = self.world.medium.attach("uplink", LinkLayer::Ethernet);
                    self.trunk = Some(Trunk::new(port.map_err(std::io::Error::other)?));
                }
            }
            self.plug(side, stream, now)?;
        }
        Ok(())
    }

    /// Plugs in a cable to a remote fabric.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn plug(&mut self, side: Side, stream: Stream, now: Instant) -> std::io::Result<()> {
        let Self { spokes, trunk, epoll, .. } = self;
        match side {
            Side::Hca(index) => match spokes.get_mut(index) {
                Some(Some(spoke)) => spoke.plug(index, stream, epoll, now),
                _ => Ok(()),
            },
            Side::Switch => trunk.as_mut().map_or(Ok(()), |trunk| trunk.plug(stream, epoll, now)),
        }
    }

    /// Reconnects a cable that was cut.
    pub(super) fn mend(&mut self, side: Side, broken: Broken, instant: Instant) {
        self.cable_notices.tell(&format!("cable of {side} cut: {broken}"), instant);
        if let Some(uplink) = &self.uplink {
            uplink.mend(side);
        }
    }
}
