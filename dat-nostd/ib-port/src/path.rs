//! Paths to other ports. On InfiniBand the subnet administrator is asked, and its answers are
//! remembered for a while. Paths on Ethernet need no query.

use driver_mlx::{Grh, MacAddress, PortType, ServiceLevel};
use ib_mgmt::sa::{Client, PathQuery, PathRecord, QueryError};
use ib_types::{Duration, Gid, Instant};

use crate::info::{HOP_LIMIT, PortInfo};

/// Packet life time of paths on Ethernet, as Linux assumes it (drivers/infiniband/core/cma.c,
/// CMA_IBOE_PACKET_LIFETIME): 268 ms.
const ETHERNET_LIFE_TIME: u8 = 16;

/// How long a path is believed before it is asked for again. A change of LID or subnet manager ends it earlier.
const KNOWN: Duration = Duration::from_secs(300);
/// How long a path is believed once more when nobody confirms it.
const UNCONFIRMED: Duration = Duration::from_secs(30);
/// A path this young is valid: another query would return the same.
const FRESH: Duration = Duration::from_secs(1);
/// How long a failure is remembered, so that everybody who waits hears of it.
const FAILED: Duration = Duration::from_millis(100);

/// What is known about the way to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a path that is asked for is not known yet"]
pub enum Resolution {
    /// The path.
    Known(PathRecord),
    /// The subnet administrator was asked; ask again when [`Port::poll`](crate::Port::poll) has run.
    Pending,
    /// It does not know, or does not answer.
    Failed(QueryError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    Empty = 0,
    Asked,
    Known(PathRecord),
    /// Known for long, and asked for again; the old path serves until the answer comes.
    Refreshing(PathRecord),
    Failed(QueryError),
}

/// Room for one path.
#[derive(Clone, Copy, Debug)]
pub struct PathEntry {
    dgid: Gid,
    /// End of what is remembered.
    until: Instant,
    state: State,
}

impl PathEntry {
    /// A free entry.
    pub const EMPTY: PathEntry = PathEntry { dgid: Gid::ZERO, until: Instant::ORIGIN, state: State::Empty };
}

/// The remembered paths.
#[derive(Debug)]
pub(crate) struct PathCache<'s> {
    entries: &'s mut [PathEntry],
}

/// The cache, and whom to ask.
#[derive(Debug)]
pub(crate) struct Resolver<'a, 's> {
    pub(crate) paths: &'a mut PathCache<'s>,
    pub(crate) sa: &'a mut Client<'s>,
}

impl Resolver<'_, '_> {
    /// The path to a port, or the way there.
    pub(crate) fn resolve(&mut self, now: Instant, info: &PortInfo, dgid: Gid) -> Resolution {
        let (index, resolution) = match self.paths.lookup(now, dgid) {
            Lookup::Found(resolution) => return resolution,
            Lookup::Full => return Resolution::Pending,
            Lookup::Refresh(index, path) => (index, Resolution::Known(path)),
            Lookup::Ask(index) => (index, Resolution::Pending),
        };
        let query = PathQuery {
            sgid: info.gid,
            dgid,
            pkey: info.pkey,
            sl: None,
            traffic_class: None,
            service_id: None,
        };
        if self.sa.query_path(now, &query, index).is_err() {
            // All slots of the client are taken: the next call tries again.
            self.paths.unask(index);
        }
        resolution
    }
}

/// What a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    Found(Resolution),
    /// Nothing; this entry is reserved for the answer.
    Ask(u32),
    /// A path that should be asked for again, in this entry, and serves meanwhile.
    Refresh(u32, PathRecord),
    /// Nothing, and every entry waits for an answer.
    Full,
}

impl<'s> PathCache<'s> {
    pub(crate) fn new(entries: &'s mut [PathEntry]) -> Self {
        entries.fill(PathEntry::EMPTY);
        Self { entries }
    }

    pub(crate) fn lookup(&mut self, now: Instant, dgid: Gid) -> Lookup {
        let live = |entry: &PathEntry| {
            entry.dgid == dgid
                && match entry.state {
                    State::Empty => false,
                    State::Failed(_) => entry.until > now,
                    State::Asked | State::Known(_) | State::Refreshing(_) => true,
                }
        };
        if let Some((index, entry)) = self.entries.iter_mut().enumerate().find(|(_, entry)| live(entry)) {
            return match entry.state {
                State::Known(path) if entry.until <= now => {
                    entry.state = State::Refreshing(path);
                    Lookup::Refresh(index as u32, path)
                }
                State::Known(path) | State::Refreshing(path) => Lookup::Found(Resolution::Known(path)),
                State::Failed(error) => Lookup::Found(Resolution::Failed(error)),
                State::Asked | State::Empty => Lookup::Found(Resolution::Pending),
            };
        }
        // The entry whose content ends first makes room.
        let oldest =
            self.entries.iter_mut().enumerate().filter(|(_, entry)| !entry.is_asked()).min_by_key(
                |(_, entry)| if entry.state == State::Empty { Instant::ORIGIN } else { entry.until },
            );
        match oldest {
            Some((index, entry)) => {
                *entry = PathEntry { dgid, until: Instant::ORIGIN, state: State::Asked };
                Lookup::Ask(index as u32)
            }
            None => Lookup::Full,
        }
    }

    /// The answer for an entry that was asked for.
    pub(crate) fn answer(&mut self, now: Instant, index: u32, result: Result<PathRecord, QueryError>) {
        let Some(entry) = self.entries.get_mut(index as usize) else { return };
        if !entry.is_asked() {
            return;
        }
        match (result, entry.state) {
            (Ok(path), _) => (entry.state, entry.until) = (State::Known(path), now + KNOWN),
            // Nobody says that the old path is wrong.
            (Err(QueryError::Timeout), State::Refreshing(path)) => {
                (entry.state, entry.until) = (State::Known(path), now + UNCONFIRMED);
            }
            (Err(error), _) => (entry.state, entry.until) = (State::Failed(error), now + FAILED),
        }
    }

    /// Nothing was asked after all.
    pub(crate) fn unask(&mut self, index: u32) {
        let Some(entry) = self.entries.get_mut(index as usize) else { return };
        match entry.state {
            State::Refreshing(path) => entry.state = State::Known(path),
            _ => *entry = PathEntry::EMPTY,
        }
    }

    /// Forgets what is known; questions under way stay.
    pub(crate) fn clear(&mut self) {
        self.entries.iter_mut().for_each(PathEntry::forget);
    }

    /// Forgets all of them, and that some were asked for: nobody will answer.
    pub(crate) fn restart(&mut self) {
        self.entries.fill(PathEntry::EMPTY);
    }

    /// Forgets one path, because it did not lead anywhere.
    pub(crate) fn forget(&mut self, dgid: Gid) {
        self.entries.iter_mut().filter(|entry| entry.dgid == dgid).for_each(PathEntry::forget);
    }

    /// Forgets one path, unless it is fresh. Returns whether it did.
    pub(crate) fn doubt(&mut self, now: Instant, dgid: Gid) -> bool {
        let known = |entry: &&mut PathEntry| {
            entry.dgid == dgid && matches!(entry.state, State::Known(_) | State::Refreshing(_))
        };
        let Some(entry) = self.entries.iter_mut().find(known) else { return false };
        let fresh = matches!(entry.state, State::Known(_)) && entry.until + FRESH > now + KNOWN;
        if !fresh {
            entry.forget();
        }
        !fresh
    }
}

impl PathEntry {
    fn is_asked(&self) -> bool {
        matches!(self.state, State::Asked | State::Refreshing(_))
    }

    fn forget(&mut self) {
        if self.is_asked() {
            self.state = State::Asked;
        } else {
            *self = PathEntry::EMPTY;
        }
    }
}

/// Returns the path of an Ethernet port to an address.
pub(crate) fn local_path(info: &PortInfo, dgid: Gid) -> PathRecord {
    let mut path = PathRecord::zeroed();
    path.set_sgid(info.source_gid(dgid)).set_dgid(dgid).set_pkey(info.pkey).set_mtu(info.mtu.code());
    path.set_hop_limit(HOP_LIMIT).set_packet_life_time(ETHERNET_LIFE_TIME).set_reversible(true);
    path
}

/// Returns a path of port `info` in the driver's form, with another service level or traffic class
/// if given. On Ethernet the low bits of the service level are the priority, and `mac` is the address
/// of the next hop; `None` there without it, and for a source that is not the port's.
pub(crate) fn driver_path(
    info: &PortInfo,
    path: &PathRecord,
    sl: Option<ServiceLevel>,
    traffic_class: u8,
    mac: Option<MacAddress>,
) -> Option<driver_mlx::Path> {
    // By value, because addresses come and go.
    let source_gid_index = match info.port_type {
        PortType::InfiniBand => info.gid_index,
        PortType::Ethernet => info.gid_index_of(path.sgid())?,
    };
    let grh = Grh {
        dgid: path.dgid(),
        source_gid_index,
        flow_label: path.flow_label(),
        hop_limit: path.hop_limit(),
        traffic_class: if traffic_class == 0 { path.traffic_class() } else { traffic_class },
    };
    let sl = sl.unwrap_or(path.sl());
    Some(match info.port_type {
        PortType::InfiniBand => driver_mlx::Path::InfiniBand {
            dlid: path.dlid(),
            sl,
            src_path_bits: (path.slid().get() & ((1 << info.lmc.min(7)) - 1)) as u8,
            static_rate: info.static_rate(path.rate()),
            grh: path.is_routed().then_some(grh),
        },
        PortType::Ethernet => driver_mlx::Path::Roce { dmac: mac?, priority: sl.get() & 7, grh },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_types::Lid;

    fn gid(number: u64) -> Gid {
        Gid::new(Gid::DEFAULT_PREFIX, number)
    }

    #[test]
    fn asks_once_remembers_and_forgets() {
        let mut entries = [PathEntry::EMPTY; 2];
        let mut cache = PathCache::new(&mut entries);
        assert_eq!(cache.lookup(Instant::ORIGIN, gid(1)), Lookup::Ask(0));
        assert_eq!(cache.lookup(Instant::ORIGIN, gid(1)), Lookup::Found(Resolution::Pending));
        assert_eq!(cache.lookup(Instant::ORIGIN, gid(2)), Lookup::Ask(1));
        assert_eq!(cache.lookup(Instant::ORIGIN, gid(3)), Lookup::Full);
        let path = *PathRecord::zeroed().set_dlid(Lid::new(7));
        cache.answer(Instant::from_nanos(10), 0, Ok(path));
        assert_eq!(cache.lookup(Instant::from_nanos(11), gid(1)), Lookup::Found(Resolution::Known(path)));
        // After a while it is asked for again, and serves meanwhile; silence is no reason to give it up.
        let later = Instant::from_nanos(11) + KNOWN;
        assert_eq!(cache.lookup(later, gid(1)), Lookup::Refresh(0, path));
        assert_eq!(cache.lookup(later, gid(1)), Lookup::Found(Resolution::Known(path)));
        cache.answer(later, 0, Err(QueryError::Timeout));
        assert_eq!(
            cache.lookup(later + Duration::from_nanos(1), gid(1)),
            Lookup::Found(Resolution::Known(path))
        );
        assert_eq!(cache.lookup(later + UNCONFIRMED, gid(1)), Lookup::Refresh(0, path));
        cache.answer(later, 0, Err(QueryError::Status(0x0300)));
        assert_eq!(cache.lookup(later + FAILED, gid(1)), Lookup::Ask(0));
        cache.answer(Instant::from_nanos(12), 1, Err(QueryError::Timeout));
        assert_eq!(
            cache.lookup(Instant::from_nanos(13), gid(2)),
            Lookup::Found(Resolution::Failed(QueryError::Timeout))
        );
        assert_eq!(cache.lookup(Instant::from_nanos(13) + FAILED, gid(2)), Lookup::Ask(1));
        cache.answer(Instant::from_nanos(20), 1, Ok(path));
        cache.clear();
        assert_eq!(cache.lookup(Instant::from_nanos(21), gid(2)), Lookup::Ask(1));
        assert_eq!(cache.lookup(Instant::from_nanos(21), gid(1)), Lookup::Found(Resolution::Pending));
    }

    #[test]
    fn doubt_ends_old_paths_only() {
        let mut entries = [PathEntry::EMPTY; 1];
        let mut cache = PathCache::new(&mut entries);
        let now = Instant::ORIGIN + FRESH;
        assert!(!cache.doubt(now, gid(1)), "nothing is known");
        assert_eq!(cache.lookup(now, gid(1)), Lookup::Ask(0));
        cache.answer(now, 0, Ok(PathRecord::zeroed()));
        assert!(!cache.doubt(now + FRESH / 2, gid(1)), "just answered");
        assert!(cache.doubt(now + FRESH, gid(1)));
        assert_eq!(cache.lookup(now + FRESH, gid(1)), Lookup::Ask(0));
    }

    #[test]
    fn the_entry_that_ends_first_makes_room() {
        let mut entries = [PathEntry::EMPTY; 2];
        let mut cache = PathCache::new(&mut entries);
        for (number, now) in [(1, 0), (2, 5)] {
            let Lookup::Ask(index) = cache.lookup(Instant::from_nanos(now), gid(number)) else { panic!() };
            cache.answer(Instant::from_nanos(now), index, Ok(PathRecord::zeroed()));
        }
        assert_eq!(cache.lookup(Instant::from_nanos(6), gid(3)), Lookup::Ask(0));
        assert_eq!(
            cache.lookup(Instant::from_nanos(6), gid(2)),
            Lookup::Found(Resolution::Known(PathRecord::zeroed()))
        );
    }

    #[test]
    fn only_a_path_slower_than_the_link_limits_the_rate() {
        let limit = |speed, rate| {
            let path = *PathRecord::zeroed().set_rate(rate);
            let Some(driver_mlx::Path::InfiniBand { static_rate, .. }) =
                driver_path(&PortInfo::example(speed), &path, None, 0, None)
            else {
                panic!()
            };
            static_rate
        };
        // HDR 200 Gb/s on links of 100, 200 and 400 Gb/s, and of unknown speed.
        assert_eq!([100_000, 200_000, 400_000, 0].map(|speed| limit(speed, 17)), [0, 0, 17, 17]);
        assert_eq!((limit(40_000, 4), limit(40_000, 5)), (4, 5));
        assert_eq!((limit(0, 0), limit(100_000, 63)), (0, 0), "no rate");
    }

    #[test]
    fn routed_paths_carry_a_grh() {
        let mut path = PathRecord::zeroed();
        path.set_dlid(Lid::new(3)).set_sl(ServiceLevel::new(2)).set_rate(16).set_mtu(5);
        let Some(driver_mlx::Path::InfiniBand { dlid, sl, grh, .. }) =
            driver_path(&PortInfo::example(0), &path, None, 9, None)
        else {
            panic!()
        };
        assert_eq!((dlid.get(), sl.get(), grh), (3, 2, None));
        path.set_hop_limit(64).set_dgid(Gid::new(1, 2)).set_traffic_class(5);
        let Some(driver_mlx::Path::InfiniBand { sl, grh, .. }) =
            driver_path(&PortInfo::example(0), &path, Some(ServiceLevel::new(7)), 9, None)
        else {
            panic!()
        };
        assert_eq!(sl.get(), 7);
        assert_eq!(
            grh.map(|grh| (grh.traffic_class, grh.hop_limit, grh.dgid.interface_id())),
            Some((9, 64, 2))
        );
    }

    #[test]
    fn ethernet_paths_are_made_without_an_administrator() {
        let (own, index) = (Gid::from_ipv4([10, 0, 0, 1]), 7);
        let info = PortInfo {
            port_type: PortType::Ethernet,
            gid_index: 5,
            address: Some((own, index)),
            ..PortInfo::example(0)
        };
        let mac = MacAddress([2, 0, 0, 0, 0, 9]);
        for (dgid, source, source_index) in
            [(Gid::link_local(mac), info.gid, 5), (Gid::from_ipv4([10, 0, 0, 2]), own, index)]
        {
            let path = local_path(&info, dgid);
            assert!(path.is_routed() && path.dlid() == Lid::new(0) && path.sgid() == source);
            assert_eq!((path.mtu(), path.packet_life_time()), (info.mtu.code(), 16));
            let driver = |info, mac| driver_path(info, &path, Some(ServiceLevel::new(0xd)), 0x20, mac);
            let Some(driver_mlx::Path::Roce { dmac, priority, grh }) = driver(&info, Some(mac)) else {
                panic!()
            };
            assert_eq!((dmac, priority, grh.source_gid_index), (mac, 5, source_index));
            assert_eq!((grh.dgid, grh.hop_limit, grh.traffic_class), (dgid, 64, 0x20));
            assert_eq!(driver(&info, None), None, "no MAC address");
            // The address has another index meanwhile, or is gone.
            let moved = PortInfo { address: Some((own, 2)), gid_index: 3, ..info };
            let Some(driver_mlx::Path::Roce { grh, .. }) = driver(&moved, Some(mac)) else { panic!() };
            assert_eq!(grh.source_gid_index, if source == own { 2 } else { 3 });
            let gone = PortInfo { address: None, gid: own, ..info };
            assert_eq!(driver(&gone, Some(mac)).is_some(), source == own);
        }
    }

    /// The record's source LID says by which of its LIDs the port sends.
    #[test]
    fn a_path_begins_at_its_source_lid() {
        let path = *PathRecord::zeroed().set_slid(Lid::new(0x1a)).set_dlid(Lid::new(3));
        for (lmc, bits) in [(0, 0), (1, 0), (2, 2), (4, 10), (7, 0x1a), (9, 0x1a)] {
            let info = PortInfo { lmc, ..PortInfo::example(0) };
            let Some(driver_mlx::Path::InfiniBand { src_path_bits, .. }) =
                driver_path(&info, &path, None, 0, None)
            else {
                panic!()
            };
            assert_eq!(src_path_bits, bits, "LMC {lmc}");
        }
    }
}
