//! What is to be served.

use crate::link::Address;
use crate::product::output::Lines;
use hca_model::fabric::Faults;
use hca_model::log::{Entry, Level};
use hca_model::profile::Strictness;
use hca_model::{DeviceSpec, Profile};
use std::path::PathBuf;
use std::sync::Arc;

/// Receives what a device logs, with its number. It is called by the thread that runs all devices: it must not wait.
pub type LogSink = Arc<dyn Fn(usize, &Entry) + Send + Sync>;

/// Receives lines about the server itself. It must not wait either.
pub type NoticeSink = Arc<dyn Fn(&str) + Send + Sync>;

/// What is served.
#[derive(Clone)]
pub struct Options {
    /// One HCA each.
    pub sockets: Vec<PathBuf>,
    /// The HCAs' profiles; where there is none, that of the node's number and kind.
    pub profiles: Vec<Profile>,
    /// The HCAs' kinds; where there is none, a ConnectX-5.
    pub kinds: Vec<DeviceSpec>,
    /// The port GUID of the first HCA; the others follow at a distance of 16. For profiles that are not given. `None`: the usual
    /// one, or with an uplink what the fabric chooses.
    pub guid_base: Option<u64>,
    /// Other servers' HCAs may have their cables here.
    pub listen: Option<Address>,
    /// So may those of other machines' servers: nobody is asked who he is.
    pub listen_anywhere: bool,
    /// The fabric is another server's.
    pub uplink: Option<Address>,
    /// A file for all packets, in pcapng; `-` is standard output. A pipe whose reader is slow loses packets, which are counted.
    pub capture: Option<PathBuf>,
    /// What goes wrong with packets.
    pub faults: Faults,
    /// The seed of what goes wrong.
    pub seed: u64,
    /// RC requests between the HCAs go as packets also where nobody watches them.
    pub packets_only: bool,
    /// HCAs stay as they are when a client resets its device or leaves: restarts of their machines are warm.
    pub warm: bool,
    /// Memory of clients may be in files of any file system, and in files that cannot be mapped,
    /// such as `/proc/self/mem`. Otherwise only memfd, tmpfs, hugetlbfs and ramfs are taken.
    ///
    /// Only for clients that are trusted: an access to any other file can stop all HCAs for ever,
    /// and then not even SIGKILL ends the process.
    pub file_io: bool,
    /// Whatever the PRM calls reserved or illegal is refused, for tests of drivers. Otherwise what firmware is known to take is
    /// taken, with a warning. For profiles that are not given.
    pub strict: bool,
    /// No subnet manager in the fabric: one of the guests has to run one.
    pub no_subnet_manager: bool,
    /// The fabric's own subnet manager guards nothing: every client may configure the switch and everybody's port, and send under any LID and
    /// P_Key. Otherwise a key is drawn for each run ([`FabricConfig::m_key`](hca_model::fabric::FabricConfig::m_key)).
    pub open_fabric: bool,
    /// Who is told what the devices log.
    pub log: LogSink,
    /// Who is told what happens to the server itself: cables of other servers, failures.
    pub notices: NoticeSink,
}

impl Options {
    /// One HCA for each of `sockets`, without faults, logging warnings and refusals to standard error.
    #[must_use]
    pub fn new(sockets: Vec<PathBuf>) -> Self {
        Self {
            sockets,
            profiles: Vec::new(),
            kinds: Vec::new(),
            guid_base: None,
            listen: None,
            listen_anywhere: false,
            uplink: None,
            capture: None,
            faults: Faults::default(),
            seed: 1,
            packets_only: false,
            warm: false,
            file_io: false,
            strict: false,
            no_subnet_manager: false,
            open_fabric: false,
            log: to_stderr(),
            notices: notices_to_stderr(),
        }
    }

    /// The profile of node `index`.
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

/// `profile`, of a node whose GUIDs are all `guid`.
pub(super) fn with_guid(profile: Profile, guid: u64) -> Profile {
    Profile { node_guid: guid, port_guid: guid, system_image_guid: guid, ..profile }
}

fn notices_to_stderr() -> NoticeSink {
    let lines = Lines::stderr();
    Arc::new(move |line| lines.print(format!("hca-serve: {line}")))
}

/// Prints warnings and refusals to standard error, as long as somebody reads it.
#[must_use]
pub fn to_stderr() -> LogSink {
    let lines = Lines::stderr();
    Arc::new(move |node, entry| {
        if entry.level >= Level::Warning {
            lines.print(format!("hca {node}: {:.6} s: {entry}", entry.at as f64 / 1e9));
        }
    })
}
