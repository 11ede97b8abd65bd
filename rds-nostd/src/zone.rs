//! Protection zones: one for all peers, or one for each.
//!
//! A remote key works for every queue pair of its zone. With [`RdsConfig::isolate_peers`](crate::RdsConfig::isolate_peers) each
//! peer's connections have a zone of their own, in which the frames are registered again and which memory is offered in for that
//! peer alone: a key is of no use to anybody else, whoever learns it.

use dat_nostd::{Adapter, DatResult, DatReturn, LmrHandle, MemPriv, Platform, PzHandle, ReturnType};

use crate::connection::Connection;
use crate::node::Rds;

impl Rds<'_> {
    /// The zone of a connection: the one of its peer, made if it has none yet.
    ///
    /// # Errors
    /// DAT's.
    pub(crate) fn zone_of<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        connection: usize,
    ) -> DatResult<PzHandle> {
        if !self.config.isolate_peers {
            return Ok(self.dat.pz);
        }
        let (foreign, own) = self.connections.get(connection).map_or((0, 0), |c| (c.foreign, c.zone));
        let is_of_peer = |c: &Connection| c.foreign == foreign && c.zone != 0;
        let of_peer = self
            .connections
            .iter()
            .enumerate()
            .find(|&(index, other)| index != connection && is_of_peer(other))
            .map(|(_, other)| (other.zone, other.zone_lmr, other.lmr_context));
        let (zone, zone_lmr, lmr_context) = match of_peer {
            Some(theirs) => {
                // What is here is left over from an entry's former peer.
                if own != theirs.0 {
                    self.free_zone_of(adapter, connection)?;
                }
                theirs
            }
            None if own != 0 => return Ok(PzHandle::from_bits(own)),
            None => self.create_zone(adapter)?,
        };
        if let Some(state) = self.connections.get_mut(connection) {
            (state.zone, state.zone_lmr, state.lmr_context) = (zone, zone_lmr, lmr_context);
        }
        Ok(PzHandle::from_bits(zone))
    }

    fn create_zone<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> DatResult<(u64, u64, u32)> {
        let memory = self.frames.memory().ok_or(DatReturn::new(ReturnType::InternalError))?;
        let pz = adapter.pz_create(self.dat.ia)?;
        match adapter.lmr_create(self.dat.ia, memory, pz, MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE) {
            Ok(created) => Ok((pz.bits(), created.lmr.bits(), created.lmr_context)),
            Err(error) => {
                let _ = adapter.pz_free(pz);
                Err(error)
            }
        }
    }

    /// Frees the zone of a connection without an endpoint, unless another connection is of the same peer.
    ///
    /// # Errors
    /// DAT's: regions are still offered in it.
    pub(crate) fn free_zone_of<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        connection: usize,
    ) -> DatResult<()> {
        let Some(state) = self.connections.get_mut(connection) else { return Ok(()) };
        let (zone, zone_lmr) = (core::mem::take(&mut state.zone), core::mem::take(&mut state.zone_lmr));
        state.lmr_context = 0;
        if zone == 0 || self.connections.iter().any(|other| other.zone == zone) {
            return Ok(());
        }
        adapter.lmr_free(LmrHandle::from_bits(zone_lmr))?;
        adapter.pz_free(PzHandle::from_bits(zone))
    }

    /// Whether the entry of a connection may be another peer's: nothing is offered in its zone.
    pub(crate) fn zone_is_unused(&self, connection: usize) -> bool {
        let zone = self.connections.get(connection).map_or(0, |state| state.zone);
        zone == 0 || !self.regions.iter().any(|region| region.is_in(zone))
    }

    /// What an entry keeps of its zone when it becomes another peer's: all of it, unless another connection of the former peer has
    /// it, too.
    pub(crate) fn kept_zone(&self, connection: usize) -> (u64, u64, u32) {
        let common = (0, 0, self.dat.lmr_context);
        let Some(state) = self.connections.get(connection).filter(|state| state.zone != 0) else {
            return common;
        };
        let is_shared = self
            .connections
            .iter()
            .enumerate()
            .any(|(index, other)| index != connection && other.zone == state.zone);
        if is_shared { common } else { (state.zone, state.zone_lmr, state.lmr_context) }
    }
}
