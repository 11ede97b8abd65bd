//! What is to be served.

use hca_model::Profile;
use hca_model::fabric::Faults;
use hca_model::log::{Entry, Level};
use std::path::PathBuf;
use std::sync::Arc;

/// Receives what a device logs, with its number. It is called by the thread that runs all devices: it must not wait.
pub type LogSink = Arc<dyn Fn(usize, &Entry) + Send + Sync>;

/// What is served.
#[derive(Clone)]
pub struct Options {
    /// One HCA each.
    pub sockets: Vec<PathBuf>,
    /// The HCAs' profiles; where there is none, that of the node's number.
    pub profiles: Vec<Profile>,
    /// The port GUID of the first HCA; the others follow at a distance of 16. For profiles that are not given.
    pub guid_base: u64,
    /// A file for all packets, in pcapng; `-` is standard output. A pipe whose reader is slow loses packets, which are counted.
    pub capture: Option<PathBuf>,
    /// What goes wrong with packets.
    pub faults: Faults,
    /// The seed of what goes wrong.
    pub seed: u64,
    /// Clients may hand over files that cannot be mapped, such as `/proc/self/mem`. Only for clients that are trusted: a file can
    /// make who reads it wait.
    pub file_io: bool,
    /// Who is told what the devices log.
    pub log: LogSink,
}

impl Options {
    /// One HCA for each of `sockets`, without faults, logging warnings and refusals to standard error.
    #[must_use]
    pub fn new(sockets: Vec<PathBuf>) -> Self {
        Self {
            sockets,
            profiles: Vec::new(),
            guid_base: Profile::GUID_BASE,
            capture: None,
            faults: Faults::default(),
            seed: 1,
            file_io: false,
            log: to_stderr(),
        }
    }

    /// The profile of node `index`.
    pub(crate) fn profile(&self, index: usize) -> Profile {
        if let Some(profile) = self.profiles.get(index) {
            return profile.clone();
        }
        let number = u16::try_from(index).unwrap_or(u16::MAX);
        let guid = self.guid_base.wrapping_add(u64::from(number) * Profile::GUID_STEP);
        Profile { node_guid: guid, port_guid: guid, system_image_guid: guid, ..Profile::node(number) }
    }
}

/// Prints warnings and refusals to standard error, as long as somebody reads it.
#[must_use]
pub fn to_stderr() -> LogSink {
    let lines = crate::product::output::Lines::stderr();
    Arc::new(move |node, entry| {
        if entry.level >= Level::Warning {
            lines.print(format!("hca {node}: {:.6} s: {entry}", entry.at as f64 / 1e9));
        }
    })
}
