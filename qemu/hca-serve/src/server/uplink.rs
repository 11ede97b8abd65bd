//! Connects cables to the server that has the fabric, and reconnects broken ones.

use crate::error::{Error, Result};
use crate::link::address::Address;
use crate::link::spoke::introduce;
use crate::link::stream::Stream;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two attempts to reconnect a cable.
const PAUSE: Duration = Duration::from_millis(300);

/// Plugs in a cable again, in the server's thread. Returns whether that succeeded, or `None` if the
/// thread has exited.
pub type Plug = Arc<dyn Fn(usize, Stream) -> Option<bool> + Send + Sync>;

/// Connection to the fabric.
pub struct Uplink {
    address: Address,
    guids: Vec<u64>,
    plug: Plug,
    /// Dropped with this value, which stops all reconnecting threads.
    alive: Arc<()>,
}

/// Returns the name of an HCA of this server in the fabric's captures.
fn name(index: usize) -> String {
    format!("hca {index} of process {}", std::process::id())
}

/// Connects `guids.len()` HCAs before they are created. The fabric chooses the GUID for each 0.
/// Returns the cables and the GUIDs.
///
/// # Errors
/// The remote server is unreachable or refuses.
pub fn connect(address: &Address, guids: &[u64]) -> Result<Vec<(Stream, u64)>> {
    let introduced = guids.iter().enumerate().map(|(index, guid)| introduce(address, *guid, &name(index)));
    introduced.map(|outcome| outcome.map_err(|error| Error::Serve(format!("--uplink: {error}")))).collect()
}

impl fmt::Debug for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uplink")
            .field("address", &self.address)
            .field("guids", &self.guids)
            .finish_non_exhaustive()
    }
}

impl Uplink {
    /// Creates the uplink to `address` for HCAs with these GUIDs. `plug` plugs cables into the
    /// server.
    pub fn new(address: Address, guids: Vec<u64>, plug: Plug) -> Self {
        Self { address, guids, plug, alive: Arc::new(()) }
    }

    /// Reconnects the cable of `index` on a separate thread, which retries until the remote server
    /// accepts.
    pub fn mend(&self, index: usize) {
        let Some(guid) = self.guids.get(index).copied() else { return };
        let (address, plug, alive) =
            (self.address.clone(), Arc::clone(&self.plug), Arc::downgrade(&self.alive));
        // Without a thread the cable remains cut.
        let _ = std::thread::Builder::new()
            .name(format!("uplink {index}"))
            .spawn(move || mend(index, guid, &address, &*plug, &alive));
    }
}

fn mend(
    index: usize,
    guid: u64,
    address: &Address,
    plug: &dyn Fn(usize, Stream) -> Option<bool>,
    alive: &Weak<()>,
) {
    while alive.upgrade().is_some() {
        // A restarted fabric does not have the GUID and accepts it. A fabric that has it returns
        // the same port.
        if let Ok((stream, _)) = introduce(address, guid, &name(index))
            && plug(index, stream) != Some(false)
        {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}
