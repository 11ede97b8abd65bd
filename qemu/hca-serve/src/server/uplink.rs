//! Connects cables to the server that has the fabric, and reconnects broken ones.

use crate::error::Error;
use crate::link::address::Address;
use crate::link::spoke::introduce;
use crate::link::stream::Stream;
use rdma_fabric::medium::LinkLayer;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two attempts to reconnect a cable.
const PAUSE: Duration = Duration::from_millis(300);

/// This server's side of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The InfiniBand port of an HCA, by its index.
    Hca(usize),
    /// The Ethernet switch.
    Switch,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hca(index) => write!(f, "hca {index}"),
            Self::Switch => f.write_str("the Ethernet switch"),
        }
    }
}

impl Side {
    const fn layer(self) -> LinkLayer {
        match self {
            Self::Hca(_) => LinkLayer::InfiniBand,
            Self::Switch => LinkLayer::Ethernet,
        }
    }

    /// Connects to the fabric, with the GUID of the port there, or 0. Returns the cable and the GUID.
    ///
    /// # Errors
    /// A message for the user.
    fn introduce(self, address: &Address, guid: u64) -> Result<(Stream, u64), String> {
        introduce(address, self.layer(), guid, &format!("{self} of process {}", std::process::id()))
    }
}

/// Plugs in a cable again, in the server's thread. Returns whether that succeeded, or `None` if the
/// thread has exited.
pub type Plug = Arc<dyn Fn(Side, Stream) -> Option<bool> + Send + Sync>;

/// Connection to the fabric.
pub struct Uplink {
    address: Address,
    /// GUIDs of the cables at the fabric.
    guids: Vec<(Side, u64)>,
    plug: Plug,
    /// Dropped with this value, which stops all reconnecting threads.
    alive: Arc<()>,
}

/// Cables of this server before it serves, with their GUIDs.
pub type Cables = Vec<(Side, Stream, u64)>;

/// Connects these sides. The fabric chooses the GUID for each 0.
///
/// # Errors
/// The remote server is unreachable or refuses.
pub fn connect(address: &Address, sides: &[(Side, u64)]) -> crate::error::Result<Cables> {
    let connected = sides.iter().map(|(side, guid)| {
        let (stream, guid) = side.introduce(address, *guid)?;
        Ok((*side, stream, guid))
    });
    connected
        .map(|outcome: Result<_, String>| outcome.map_err(|text| Error::Serve(format!("--uplink: {text}"))))
        .collect()
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
    /// Creates the uplink to `address` for cables with these GUIDs. `plug` plugs cables into the
    /// server.
    pub fn new(address: Address, guids: Vec<(Side, u64)>, plug: Plug) -> Self {
        Self { address, guids, plug, alive: Arc::new(()) }
    }

    /// Reconnects a cable on a separate thread, which retries until the remote server accepts.
    pub fn mend(&self, side: Side) {
        let Some((_, guid)) = self.guids.iter().find(|(known, _)| *known == side).copied() else { return };
        let (address, plug, alive) =
            (self.address.clone(), Arc::clone(&self.plug), Arc::downgrade(&self.alive));
        // Without a thread the cable remains cut.
        let _ = std::thread::Builder::new()
            .name("uplink".into())
            .spawn(move || mend(side, guid, &address, &*plug, &alive));
    }
}

fn mend(
    side: Side,
    guid: u64,
    address: &Address,
    plug: &dyn Fn(Side, Stream) -> Option<bool>,
    alive: &Weak<()>,
) {
    while alive.upgrade().is_some() {
        // A restarted fabric does not have the GUID and accepts it. A fabric that has it returns
        // the same port.
        if let Ok((stream, _)) = side.introduce(address, guid)
            && plug(side, stream) != Some(false)
        {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}
