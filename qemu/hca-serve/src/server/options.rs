//! Options of the server.

use crate::link::{Address, Ends};
use crate::product::output::Lines;
use hca_model::log::{Entry, Level};
use hca_model::profile::Strictness;
use hca_model::{DeviceSpec, Profile};
use rdma_fabric::faults::Faults;
use rdma_fabric::infiniband::FabricConfig;
use std::path::PathBuf;
use std::sync::Arc;

/// Receives a device's log entries, with the device's number. Must not block, because the thread
/// that runs all devices calls it.
pub type LogSink = Arc<dyn Fn(usize, &Entry) + Send + Sync>;

/// Receives lines about the server itself. Must not block either.
pub type NoticeSink = Arc<dyn Fn(&str) + Send + Sync>;

/// Options of the server.
#[derive(Clone)]
pub struct Options {
    /// Sockets, one for each HCA.
    pub sockets: Vec<PathBuf>,
    /// Profiles of the HCAs. A missing one is derived from the node's number and kind.
    pub profiles: Vec<Profile>,
    /// Kinds of the HCAs. A missing one is a ConnectX-5.
    pub kinds: Vec<DeviceSpec>,
    /// Port GUID of the first HCA. The GUIDs of the others follow at a distance of 16. Applies to
    /// HCAs without an entry in `profiles`. `None` selects the default or, with an uplink, the
    /// choice of the fabric.
    pub guid_base: Option<u64>,
    /// Address at which remote HCAs connect their cables.
    pub listen: Option<Address>,
    /// Address at which network devices of guests connect to the Ethernet switch.
    pub netdev: Option<Address>,
    /// Addresses of network devices of guests that exchange datagrams with the Ethernet switch, one
    /// port for each.
    pub netdev_datagrams: Vec<Ends>,
    /// Permits connections from other machines. Peers are not authenticated.
    pub listen_anywhere: bool,
    /// Address of the remote server that has the fabric.
    pub uplink: Option<Address>,
    /// File for all packets, in pcapng; `-` is standard output. A pipe with a slow reader loses
    /// packets, which are counted.
    pub capture: Option<PathBuf>,
    /// Packet faults to inject.
    pub faults: Faults,
    /// Seed of the faults.
    pub seed: u64,
    /// Packet lifetime of path records: 4.096 us times two to its power.
    pub packet_life_time: u8,
    /// Sends RC requests between the HCAs as packets even if no packets are observed.
    pub packets_only: bool,
    /// Keeps the state of an HCA when a client resets its device or disconnects, so that restarts
    /// of its machine are warm.
    pub warm: bool,
    /// Permits client memory in files of any file system, and in files that cannot be mapped, such
    /// as `/proc/self/mem`. Otherwise only memfd, tmpfs, hugetlbfs and ramfs are accepted.
    ///
    /// Only for trusted clients: an access to any other file can block all HCAs permanently, and
    /// then even SIGKILL does not terminate the process.
    pub file_io: bool,
    /// Limit of mapped memory for each client, in bytes. A page of a sparse file is charged to
    /// the process that touches it first, which may be this one.
    pub memory_limit: u64,
    /// Rejects everything that the PRM calls reserved or illegal, for tests of drivers. Otherwise
    /// values that firmware is proven to accept are accepted with a warning. Applies to HCAs
    /// without an entry in `profiles`.
    pub strict: bool,
    /// Starts no subnet manager in the fabric, so that a guest must run one.
    pub no_subnet_manager: bool,
    /// Disables the protection by the fabric's own subnet manager. Every client may then configure
    /// the switch and all ports, and send under any LID and P_Key. Otherwise each run has a random
    /// key ([`FabricConfig::m_key`](rdma_fabric::infiniband::FabricConfig::m_key)).
    pub open_fabric: bool,
    /// Sink of the devices' log.
    pub log: LogSink,
    /// Sink of events of the server itself: cables of remote servers, failures.
    pub notices: NoticeSink,
}

impl Options {
    /// Returns options with one HCA for each of `sockets`. No faults are injected; warnings and
    /// refusals go to standard error.
    #[must_use]
    pub fn new(sockets: Vec<PathBuf>) -> Self {
        Self {
            sockets,
            profiles: Vec::new(),
            kinds: Vec::new(),
            guid_base: None,
            listen: None,
            netdev: None,
            netdev_datagrams: Vec::new(),
            listen_anywhere: false,
            uplink: None,
            capture: None,
            faults: Faults::default(),
            seed: 1,
            packet_life_time: FabricConfig::default().packet_life_time,
            packets_only: false,
            warm: false,
            file_io: false,
            memory_limit: machine_memory(),
            strict: false,
            no_subnet_manager: false,
            open_fabric: false,
            log: to_stderr(),
            notices: notices_to_stderr(),
        }
    }

    /// Returns whether network devices of guests join the Ethernet switch.
    #[must_use]
    pub(crate) fn has_netdevs(&self) -> bool {
        self.netdev.is_some() || !self.netdev_datagrams.is_empty()
    }

    /// Returns whether the Ethernet switch has ports.
    #[must_use]
    pub(crate) fn has_ethernet(&self) -> bool {
        self.has_netdevs() || (0..self.sockets.len()).any(|index| self.profile(index).card.is_ethernet())
    }

    /// Returns the profile of node `index`.
    pub(crate) fn profile(&self, index: usize) -> Profile {
        if let Some(profile) = self.profiles.get(index) {
            return profile.clone();
        }
        let number = u16::try_from(index).unwrap_or(u16::MAX);
        let base = self.guid_base.unwrap_or(Profile::GUID_BASE);
        let strictness = if self.strict { Strictness::Strict } else { Strictness::Lenient };
        let spec = self.kinds.get(index).cloned().unwrap_or_default().seeded(self.seed);
        let profile = Profile { strictness, ..spec.profile(number) };
        with_guid(profile, base.wrapping_add(u64::from(number) * Profile::GUID_STEP))
    }
}

/// Returns the RAM of this machine in bytes, or the largest number if it is unknown.
fn machine_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kibibytes = text.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    kibibytes.map_or(u64::MAX, |kibibytes| kibibytes << 10)
}

/// Returns `profile` with the GUID `guid` for node, system and port.
pub(super) fn with_guid(profile: Profile, guid: u64) -> Profile {
    Profile { node_guid: guid, port_guid: guid, system_image_guid: guid, ..profile }
}

fn notices_to_stderr() -> NoticeSink {
    let lines = Lines::stderr();
    Arc::new(move |line| lines.print(format!("hca-serve: {line}")))
}

/// Returns a sink that prints warnings and refusals to standard error, as long as it is open.
#[must_use]
pub fn to_stderr() -> LogSink {
    let lines = Lines::stderr();
    Arc::new(move |node, entry| {
        if entry.level >= Level::Warning {
            lines.print(format!("hca {node}: {:.6} s: {entry}", entry.at as f64 / 1e9));
        }
    })
}
