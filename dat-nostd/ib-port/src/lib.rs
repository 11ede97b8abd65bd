//! One InfiniBand port: QP1, dispatch of management datagrams, subnet administration client, connection manager.
//!
//! | layer | subject |
//! |---|---|
//! | `gsi` | QP1: datagrams in and out |
//! | `path` | paths to other ports, remembered |
//! | [`Port`] | dispatch by class, port state, timers |
//!
//! The protocols themselves are `ib-mgmt`'s. The port's owner calls [`Port::poll`] with the time, and takes the connection
//! manager's events from [`Port::cm`].
//!
//! Not supported yet: IPoIB, P_Keys other than the one at index 0, answers to performance management queries (they are
//! counted).
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod gsi;
mod path;
mod storage;

/// The management protocols, for who stands above the port.
pub use ib_mgmt;

pub use gsi::GsiCounters;
pub use path::{PathEntry, Resolution};
pub use storage::{LISTENERS, PATHS, PortParts, PortStorage, QUERIES};

use driver_mlx::{Bar, CqNumber, Error, Grh, Hca, Lid, Mtu, Platform};
use gsi::Gsi;
use ib_mgmt::Gid;
use ib_mgmt::cm::{Cm, CmConfig};
use ib_mgmt::mad::{MadAddress, QP1, class};
use ib_mgmt::path::Path;
use ib_mgmt::sa::{Action, Client, ClientConfig, ClientCounters, PathQuery, QueryError};
use path::{Lookup, PathCache};

/// Datagrams handled in one call of [`Port::poll`].
const BATCH: usize = 64;

/// What the owner of a port chooses.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Makes communication and transaction ids differ from those of earlier lives of the node.
    pub seed: u64,
    /// Questions to the subnet administrator.
    pub sa: ClientConfig,
}

/// How the port stands; read again after every port event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Data may flow, and the subnet manager has given a LID.
    pub active: bool,
    /// Own LID.
    pub lid: Lid,
    /// The subnet manager's LID.
    pub sm_lid: Lid,
    /// Service level to it.
    pub sm_sl: u8,
    /// MTU of the link.
    pub mtu: Mtu,
    /// GID 0.
    pub gid: Gid,
    /// P_Key at index 0.
    pub pkey: u16,
    /// GUID of the HCA, which names it in connection management.
    pub node_guid: u64,
    /// Capability mask (IBTA 1.3, table 156).
    pub capability_mask: u32,
}

/// What went by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// QP1.
    pub gsi: GsiCounters,
    /// Subnet administration.
    pub sa: ClientCounters,
    /// Received datagrams of other management classes; they are not answered.
    pub other_class: u64,
    /// Port events seen.
    pub events: u64,
    /// Changes of LID, GID or subnet manager, each of which makes all paths unknown.
    pub moves: u64,
}

/// A port in operation.
#[derive(Debug)]
pub struct Port<'s, B: Bar> {
    gsi: Gsi<B>,
    sa: Client<'s>,
    cm: Cm<'s>,
    paths: PathCache<'s>,
    info: PortInfo,
    other_class: u64,
    events: u64,
    moves: u64,
}

impl<'s, B: Bar> Port<'s, B> {
    /// Starts QP1 of port 1. The port need not be active yet.
    ///
    /// # Errors
    /// The driver's; what was begun is undone.
    pub fn open<P: Platform<Bar = B>>(
        hca: &mut Hca<'_, P>,
        parts: PortParts<'s>,
        config: &PortConfig,
    ) -> Result<Self, Error> {
        let info = read_info(hca)?;
        let gsi = Gsi::open(hca)?;
        let mut cm_config = CmConfig::new(info.node_guid, config.seed);
        cm_config.ca_ack_delay = hca.caps().local_ca_ack_delay.min(31);
        Ok(Self {
            gsi,
            sa: Client::new(parts.queries, config.sa, config.seed),
            cm: Cm::new(parts.connections, parts.listeners, cm_config),
            paths: PathCache::new(parts.paths),
            info,
            other_class: 0,
            events: 0,
            moves: 0,
        })
    }

    /// Destroys QP1 and what belongs to it.
    ///
    /// # Errors
    /// The driver's first; the rest is done all the same.
    pub fn close<P: Platform<Bar = B>>(self, hca: &mut Hca<'_, P>) -> Result<(), Error> {
        self.gsi.close(hca)
    }

    /// How the port stands.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// The connection manager: connect, listen, take its events.
    pub fn cm(&mut self) -> &mut Cm<'s> {
        &mut self.cm
    }

    /// The connection manager, to look at.
    pub fn cm_ref(&self) -> &Cm<'s> {
        &self.cm
    }

    /// Counters since the start.
    pub fn counters(&self) -> PortCounters {
        PortCounters {
            gsi: self.gsi.counters,
            sa: self.sa.counters(),
            other_class: self.other_class,
            events: self.events,
            moves: self.moves,
        }
    }

    /// A port event arrived: reads everything again. Paths are forgotten if the port or the subnet manager moved, or the
    /// subnet manager asks for it (`reregister`).
    ///
    /// # Errors
    /// The driver's; the old state stays.
    pub fn refresh<P: Platform<Bar = B>>(
        &mut self,
        hca: &mut Hca<'_, P>,
        reregister: bool,
    ) -> Result<(), Error> {
        self.events += 1;
        let info = read_info(hca)?;
        let moved = (info.lid, info.sm_lid, info.gid, info.pkey)
            != (self.info.lid, self.info.sm_lid, self.info.gid, self.info.pkey);
        if moved || reregister {
            self.moves += 1;
            self.paths.clear();
        }
        self.info = info;
        Ok(())
    }

    /// The path to a port, or the way there: the subnet administrator is asked if need be.
    pub fn resolve(&mut self, now: u64, dgid: Gid) -> Resolution {
        match self.paths.lookup(now, dgid) {
            Lookup::Found(resolution) => resolution,
            Lookup::Full => Resolution::Pending,
            Lookup::Ask(index) => {
                let query = PathQuery {
                    sgid: self.info.gid,
                    dgid,
                    pkey: self.info.pkey,
                    sl: None,
                    traffic_class: None,
                    service_id: None,
                };
                if self.sa.query_path(now, &query, index).is_err() {
                    // All slots of the client are taken: the next call tries again.
                    self.paths.unask(index);
                }
                Resolution::Pending
            }
        }
    }

    /// Forgets the path to a port, because it did not lead there.
    pub fn forget_path(&mut self, dgid: Gid) {
        self.paths.forget(dgid);
    }

    /// Takes what has arrived, runs the timers, sends what is due. Gives the next deadline (nanoseconds; at or before `now`
    /// if there is more to do at once), None if nothing is timed.
    pub fn poll(&mut self, now: u64) -> Option<u64> {
        let mut left = BATCH;
        while left > 0
            && let Some((mad, from)) = self.gsi.receive()
        {
            left -= 1;
            match mad.mgmt_class() {
                class::CM => self.cm.process(now, &from, &mad),
                class::SUBN_ADM if mad.is_response() => {
                    if let Some(response) = self.sa.input(&mad) {
                        let result = response.path().map(|record| Path::from_record(&record));
                        self.paths.answer(now, response.owner, result.and_then(check_path));
                    }
                }
                _ => self.other_class += 1,
            }
        }
        let mut sa_deadline = None;
        for _ in 0..BATCH {
            match self.sa.poll(now) {
                Action::Send { mad, .. } => {
                    let to = MadAddress {
                        lid: self.info.sm_lid.get(),
                        qpn: QP1,
                        sl: self.info.sm_sl,
                        path_bits: 0,
                        pkey: self.info.pkey,
                        grh: None,
                    };
                    self.gsi.send(&mad, &to);
                }
                Action::Failed { owner, error, .. } => self.paths.answer(now, owner, Err(error)),
                Action::Idle { deadline } => {
                    sa_deadline = deadline;
                    break;
                }
            }
        }
        for _ in 0..BATCH {
            let Some(outgoing) = self.cm.dispatch(now) else { break };
            self.gsi.send(&outgoing.mad, &outgoing.dest);
        }
        let more = (left == 0).then_some(now);
        [more, sa_deadline, self.cm.poll_at()].into_iter().flatten().min()
    }

    /// The number of QP1's CQ, to tell whose completion event it is.
    pub fn cq_number(&self) -> CqNumber {
        self.gsi.cq_number()
    }

    /// A completion event of QP1's CQ arrived.
    pub fn notified(&mut self) {
        self.gsi.notified();
    }

    /// Asks for an interrupt at the next datagram. Poll once more afterwards.
    pub fn arm(&mut self) {
        self.gsi.arm();
    }

    /// Whether a datagram waits to be taken.
    pub fn has_work(&self) -> bool {
        self.gsi.has_work()
    }
}

/// An answer that leads nowhere is refused: LID 0, a multicast LID, or no MTU.
fn check_path(path: Path) -> Result<Path, QueryError> {
    let usable = path.dlid != 0 && path.dlid < 0xc000 && (1..=5).contains(&path.mtu);
    if usable { Ok(path) } else { Err(QueryError::Mismatch) }
}

fn read_info<P: Platform>(hca: &mut Hca<'_, P>) -> Result<PortInfo, Error> {
    let port = hca.port()?;
    let gid = Gid(hca.gid(0)?.0);
    let pkey = hca.pkey(0)?.get();
    let active = port.state == driver_mlx::LinkState::Active && port.lid != Lid::new(0);
    Ok(PortInfo {
        active,
        lid: port.lid,
        sm_lid: port.sm_lid,
        sm_sl: port.sm_sl,
        mtu: port.mtu,
        gid,
        pkey,
        node_guid: port.node_guid,
        capability_mask: port.capability_mask,
    })
}

/// A path in the driver's form, with another service level or traffic class if given.
pub fn driver_path(path: &Path, sl: Option<u8>, traffic_class: u8) -> driver_mlx::Path {
    let grh = path.is_routed().then_some(Grh {
        dgid: driver_mlx::Gid(path.dgid.0),
        source_gid_index: 0,
        flow_label: path.flow_label,
        hop_limit: path.hop_limit,
        traffic_class: if traffic_class == 0 { path.traffic_class } else { traffic_class },
    });
    driver_mlx::Path::InfiniBand {
        dlid: Lid::new(path.dlid),
        sl: sl.unwrap_or(path.sl),
        src_path_bits: 0,
        static_rate: path.rate,
        grh,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_nowhere_are_refused() {
        let good = Path { dlid: 3, mtu: 5, ..Path::ZERO };
        assert_eq!(check_path(good), Ok(good));
        for bad in [
            Path { dlid: 0, ..good },
            Path { dlid: 0xc000, ..good },
            Path { mtu: 0, ..good },
            Path { mtu: 6, ..good },
        ] {
            assert_eq!(check_path(bad), Err(QueryError::Mismatch));
        }
    }

    #[test]
    fn routed_paths_carry_a_grh() {
        let local = Path { dlid: 3, sl: 2, rate: 16, mtu: 5, ..Path::ZERO };
        let driver_mlx::Path::InfiniBand { dlid, sl, grh, .. } = driver_path(&local, None, 9) else {
            panic!()
        };
        assert_eq!((dlid.get(), sl, grh), (3, 2, None));
        let routed = Path { hop_limit: 64, dgid: Gid::new(1, 2), traffic_class: 5, ..local };
        let driver_mlx::Path::InfiniBand { sl, grh, .. } = driver_path(&routed, Some(7), 9) else { panic!() };
        assert_eq!(sl, 7);
        assert_eq!(grh.map(|grh| (grh.traffic_class, grh.hop_limit, grh.dgid.guid())), Some((9, 64, 2)));
    }
}
