//! Cables to the server that has the fabric, and their mending.

use crate::error::{Error, Result};
use crate::link::address::Address;
use crate::link::spoke::introduce;
use crate::link::stream::Stream;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two attempts to mend a cable.
const PAUSE: Duration = Duration::from_millis(300);

/// Has the thread that runs everything plug a cable in again. Answers whether that went well; `None` when it has ended.
pub type Plug = Arc<dyn Fn(usize, Stream) -> Option<bool> + Send + Sync>;

/// The way to the fabric.
pub struct Uplink {
    address: Address,
    guids: Vec<u64>,
    plug: Plug,
    /// Gone when this is: nobody mends any more.
    alive: Arc<()>,
}

/// What one of this server's HCAs is called where captures are made.
fn name(index: usize) -> String {
    format!("hca {index} of process {}", std::process::id())
}

/// Connects `guids.len()` HCAs, before they are made; a GUID of 0 is chosen by the fabric. Answers with the cables and the GUIDs.
///
/// # Errors
/// The other server is not there, or refuses.
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
    /// To `address`, with HCAs of these GUIDs, for the server that plugs cables in by `plug`.
    pub fn new(address: Address, guids: Vec<u64>, plug: Plug) -> Self {
        Self { address, guids, plug, alive: Arc::new(()) }
    }

    /// Mends the cable of `index`: tries until the other server answers, on a thread of its own.
    pub fn mend(&self, index: usize) {
        let Some(guid) = self.guids.get(index).copied() else { return };
        let (address, plug, alive) =
            (self.address.clone(), Arc::clone(&self.plug), Arc::downgrade(&self.alive));
        // Without a thread the cable stays cut.
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
        // A fabric that is made anew does not know the GUID, and takes it; one that knows it gives the port back.
        if let Ok((stream, _)) = introduce(address, guid, &name(index))
            && plug(index, stream) != Some(false)
        {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}
