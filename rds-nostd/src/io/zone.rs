//! Protection zones: one for all peers, or one per peer.
//!
//! A remote key works for every queue pair of its zone.
//! [`RdsConfig::isolate_peers`](crate::RdsConfig::isolate_peers) creates a zone for each peer's
//! connections, in which the frames are registered again and memory is offered. A key is then
//! useless to all other peers.

use dat_nostd::{DatResult, DatReturn, LmrHandle, MemPriv, Platform, PzHandle, ReturnType};

use crate::connection::Objects;
use crate::ids::ConnectionId;
use crate::io::Node;

impl<P: Platform> Node<'_, '_, '_, P> {
    /// Returns the zone of a connection: its peer's, which is created if necessary.
    ///
    /// # Errors
    /// DAT's.
    pub(crate) fn zone_of(&mut self, id: ConnectionId) -> DatResult<PzHandle> {
        if !self.protocol.config.isolate_peers {
            self.protocol.connections.at_mut(id).objects.lmr_context = self.objects.lmr_context;
            return Ok(self.objects.pz);
        }
        let connection = self.protocol.connection(id);
        let (own, foreign) = (connection.objects.zone, connection.peer.foreign);
        // This zone may belong to an earlier peer of the entry, if another connection of the
        // current peer has a zone.
        let others = self.protocol.connections.of_peer(foreign).filter(|(other, _)| *other != id);
        let theirs = others.map(|(_, other)| other.objects).find(|objects| objects.zone != 0);
        let (zone, zone_lmr, lmr_context) = match theirs {
            Some(Objects { zone, zone_lmr, lmr_context, .. }) => {
                if own != zone {
                    self.free_zone_of(id)?;
                }
                (zone, zone_lmr, lmr_context)
            }
            None if own != 0 => return Ok(PzHandle::from_bits(own)),
            None => self.create_zone()?,
        };
        let objects = &mut self.protocol.connections.at_mut(id).objects;
        (objects.zone, objects.zone_lmr, objects.lmr_context) = (zone, zone_lmr, lmr_context);
        Ok(PzHandle::from_bits(zone))
    }

    fn create_zone(&mut self) -> DatResult<(u64, u64, u32)> {
        let memory = self.protocol.frames.memory().ok_or(DatReturn::new(ReturnType::InternalError))?;
        let pz = self.adapter.pz_create(self.objects.ia)?;
        match self.adapter.lmr_create(self.objects.ia, memory, pz, MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE)
        {
            Ok(created) => Ok((pz.bits(), created.lmr.bits(), created.lmr_context)),
            Err(error) => {
                let _ = self.adapter.pz_free(pz);
                Err(error)
            }
        }
    }

    /// Frees the zone of a connection without an endpoint, unless another connection of the peer
    /// uses it.
    ///
    /// # Errors
    /// DAT's: regions are still offered in it.
    pub(crate) fn free_zone_of(&mut self, id: ConnectionId) -> DatResult<()> {
        let objects = &mut self.protocol.connections.at_mut(id).objects;
        let Objects { zone, zone_lmr, .. } = *objects;
        (objects.zone, objects.zone_lmr, objects.lmr_context) = (0, 0, 0);
        if zone == 0 || self.protocol.zone_is_shared(zone) {
            return Ok(());
        }
        self.free_windows(|window| window.zone == zone)?;
        self.adapter.lmr_free(LmrHandle::from_bits(zone_lmr))?;
        self.adapter.pz_free(PzHandle::from_bits(zone))
    }
}
