//! Start and stop of a node.

use core::net::IpAddr;

use dat_nostd::{Adapter, CloseFlags, DatReturn, Duration, EpHandle, EvdHandle, Platform};

use crate::config::RdsConfig;
use crate::error::RdsError;
use crate::frames::Memory;
use crate::ids::{ConnectionId, FrameId};
use crate::io::rdma::free_iovs;
use crate::io::{Held, Objects};
use crate::io::{Node, Rds};
use crate::limits::Limits;
use crate::protocol::Protocol;
use crate::socket::{address, key};
use crate::storage::{RdsParts, dma_len};

/// Limit of a graceful stop.
const STOP_LIMIT: Duration = Duration::from_millis(50);

impl<'s> Rds<'s> {
    /// Opens an IA with RDMA-CM framing, registers the frames and listens for peers.
    ///
    /// # Errors
    /// [`RdsError::Dat`]: the adapter lacks memory or objects, or another program listens on port
    /// 18634. [`RdsError::InvalidArgument`]: too few frames for the connections, or a depth that is
    /// too small.
    pub fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        parts: RdsParts<'s>,
        config: RdsConfig,
    ) -> Result<Self, RdsError> {
        let count = parts.connections.len().min(ConnectionId::MOST);
        let limits = Limits::new(&config, parts.frames.len().min(FrameId::MOST), count)?;
        let memory = adapter.dma_alloc(dma_len(parts.frames.len(), count), 4096)?;
        let opened = adapter.ia_open(adapter.name(), 16, None).and_then(|(ia, async_evd)| {
            let objects = Objects::create(adapter, (ia, async_evd), &memory, &limits, count as u32);
            if objects.is_err() {
                let _ = adapter.ia_close(ia, CloseFlags::Abrupt);
            }
            objects
        });
        let objects = match opened {
            Ok(objects) => objects,
            Err(error) => {
                let _ = adapter.dma_free(memory);
                return Err(error.into());
            }
        };
        let (local, now) = (key(adapter.address()), adapter.now());
        let protocol = Protocol::new(parts, Memory::new(memory), config, limits, local, now);
        Ok(Self { protocol, objects, held: Held::EMPTY })
    }

    /// Stops the node: breaks connections, drops unacknowledged messages, and frees all DAT objects.
    /// Afterwards the node can only be dropped.
    ///
    /// A graceful stop first sends final acknowledgements to peers that lack them: otherwise such a
    /// peer retransmits messages that were read to the next program at this address. An abrupt one
    /// acts at once. Calls `unreached` for each peer that may lack an acknowledgement, once per type
    /// of service. A graceful stop without faults leaves no such peer.
    ///
    /// # Errors
    /// - [`RdsError::Again`]: an acknowledgement is in flight, for at most 50 ms.
    ///   [`Poll`](Self::poll), which takes no more messages from now on, and stop again.
    /// - [`RdsError::Dat`]: an object could not be freed; all others are freed.
    pub fn stop<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        flags: CloseFlags,
        mut unreached: impl FnMut(IpAddr),
    ) -> Result<(), RdsError> {
        let now = adapter.now();
        let stops_at = *self.protocol.stops_at.get_or_insert(now + STOP_LIMIT);
        let mut node = self.node(adapter);
        // Nothing would read what arrives from now on.
        node.objects.arrivals_evd = EvdHandle::from_bits(0);
        node.objects.burst_evd = node.objects.arrivals_evd;
        let waits = flags == CloseFlags::Graceful && now < stops_at;
        if let Some(id) = waits.then(|| node.acknowledge_all()).flatten() {
            node.protocol.connections.arm(id, stops_at);
            return Err(RdsError::Again);
        }
        let mut result = Ok(());
        let mut note = |outcome: Result<(), DatReturn>| {
            if let Err(error) = outcome {
                result = Err(RdsError::Dat(error));
            }
        };
        note(node.adapter.psp_free(node.objects.psp));
        node.protocol.unsettled_peers().for_each(|peer| unreached(address(peer)));
        for id in node.protocol.connections.ids() {
            let ep = core::mem::take(&mut node.protocol.connections.at_mut(id).objects.ep);
            if ep != 0 {
                let _ = node.adapter.ep_disconnect(EpHandle::from_bits(ep), CloseFlags::Abrupt);
                note(node.adapter.ep_free(EpHandle::from_bits(ep)));
            }
        }
        for id in node.protocol.operations.ids() {
            note(free_iovs(node.adapter, &mut node.protocol.operations, id));
        }
        note(node.free_windows(|_| true));
        note(node.free_regions(None));
        note(node.unregister_all(None));
        for id in node.protocol.connections.ids() {
            note(node.free_zone_of(id));
        }
        let Objects { receive_evd, request_evd, connect_evd, demand_evd, .. } = *node.objects;
        for evd in [receive_evd, request_evd, connect_evd, demand_evd] {
            note(node.adapter.evd_free(evd));
        }
        note(node.adapter.lmr_free(node.objects.lmr));
        note(node.adapter.pz_free(node.objects.pz));
        if let Some(memory) = node.protocol.frames.take_memory() {
            note(node.adapter.dma_free(memory).map_err(DatReturn::from));
        }
        note(node.adapter.ia_close(node.objects.ia, CloseFlags::Abrupt));
        result
    }
}

impl<P: Platform> Node<'_, '_, '_, P> {
    /// Sends final acknowledgements to peers that lack them. Returns a connection that has one in
    /// flight.
    pub(crate) fn acknowledge_all(&mut self) -> Option<ConnectionId> {
        let mut in_flight = None;
        for id in self.protocol.connections.ids() {
            let connection = self.protocol.connections.at_mut(id);
            if connection.can_settle() && !self.adapter.is_dead() {
                let rx = &mut connection.rx;
                rx.ack_wanted |= rx.is_unsaid || !rx.ack_in_flight;
                in_flight = Some(id);
                self.flush(id);
            }
        }
        in_flight
    }
}
