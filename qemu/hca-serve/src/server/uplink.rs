//! Cables to the server that has the fabric, and their mending.

use super::Handle;
use crate::error::{Error, Result};
use crate::link::address::Address;
use crate::link::spoke::{Spoke, introduce};
use crate::link::stream::Stream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Time between two attempts to mend a cable.
const PAUSE: Duration = Duration::from_millis(300);

/// The way to the fabric.
#[derive(Debug)]
pub struct Uplink {
    address: Address,
    guids: Vec<u64>,
    handle: Handle,
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

impl Uplink {
    /// To `address`, with HCAs of these GUIDs, for the server that `handle` leads to.
    pub fn new(address: Address, guids: Vec<u64>, handle: Handle) -> Self {
        Self { address, guids, handle, alive: Arc::new(()) }
    }

    /// Mends the cable of `index`: tries until the other server answers, on a thread of its own.
    pub fn mend(&self, index: usize) {
        let Some(guid) = self.guids.get(index).copied() else { return };
        let (address, handle, alive) =
            (self.address.clone(), self.handle.clone(), Arc::downgrade(&self.alive));
        // Without a thread the cable stays cut.
        let _ = std::thread::Builder::new()
            .name(format!("uplink {index}"))
            .spawn(move || mend(index, guid, &address, &handle, &alive));
    }
}

fn mend(index: usize, guid: u64, address: &Address, handle: &Handle, alive: &Weak<()>) {
    while alive.upgrade().is_some() {
        // A fabric that is made anew does not know the GUID, and takes it; one that knows it gives the port back.
        if let Ok((stream, _)) = introduce(address, guid, &name(index)) {
            let plugged = handle.with_loop(move |event_loop| {
                let now = Instant::now();
                let spoke = event_loop.spokes.get_mut(index);
                let plugged =
                    spoke.map(|spoke: &mut Spoke| spoke.plug(index, stream, &event_loop.epoll, now));
                (event_loop.notices)(&format!("cable of hca {index} plugged in again"));
                matches!(plugged, Some(Ok(())))
            });
            if plugged != Some(false) {
                return;
            }
        }
        std::thread::sleep(PAUSE);
    }
}
