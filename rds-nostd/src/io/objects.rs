//! The DAT objects of a node: made at start, freed at the end.

use dat_nostd::{
    Adapter, CloseFlags, DatResult, DatReturn, DmaBuffer, EpHandle, EvdFlags, EvdHandle, IaHandle, LmrHandle,
    MemPriv, Platform, PspFlags, PspHandle, PzHandle,
};

use crate::connection::Connections;
use crate::error::RdsError;
use crate::frames::Frames;
use crate::io::Held;
use crate::io::rdma::free_pieces;
use crate::limits::Limits;
use crate::node::Rds;
use crate::protocol::{Protocol, Tables};
use crate::rdma::{Operations, Regions};
use crate::socket::{Sockets, key};
use crate::storage::{RdsConfig, RdsParts, dma_len};
use crate::wire::SERVICE_PORT;

pub(crate) struct Objects {
    pub(crate) ia: IaHandle,
    pub(crate) async_evd: EvdHandle,
    pub(crate) pz: PzHandle,
    pub(crate) lmr: LmrHandle,
    pub(crate) lmr_context: u32,
    pub(crate) receive_evd: EvdHandle,
    pub(crate) request_evd: EvdHandle,
    pub(crate) connect_evd: EvdHandle,
    /// Apart from the connection events: a peer that asks too often fills only this one.
    pub(crate) demand_evd: EvdHandle,
    pub(crate) psp: PspHandle,
}

impl Objects {
    /// Everything that a node needs on `ia`. What was made before a failure goes with the IA.
    fn create<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        (ia, async_evd): (IaHandle, EvdHandle),
        memory: &DmaBuffer,
        limits: &Limits,
        connections: u32,
    ) -> DatResult<Self> {
        let pz = adapter.pz_create(ia)?;
        let registered = adapter.lmr_create(ia, memory, pz, MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE)?;
        let receives = u32::from(limits.receive_depth) * connections;
        // One more each: DAT completes an endpoint's requests with one of its own.
        let requests = (u32::from(limits.send_depth) + 1) * connections;
        let receive_evd = adapter.evd_create(ia, receives, None, EvdFlags::DTO)?;
        let request_evd = adapter.evd_create(ia, requests, None, EvdFlags::DTO)?;
        let connect_evd = adapter.evd_create(ia, 4 * connections, None, EvdFlags::CONNECTION)?;
        let demand_evd = adapter.evd_create(ia, connections, None, EvdFlags::CR)?;
        let psp = adapter.psp_create(ia, u64::from(SERVICE_PORT), demand_evd, PspFlags::Consumer)?;
        Ok(Self {
            ia,
            async_evd,
            pz,
            lmr: registered.lmr,
            lmr_context: registered.lmr_context,
            receive_evd,
            request_evd,
            connect_evd,
            demand_evd,
            psp,
        })
    }
}

impl<'s> Rds<'s> {
    /// Opens the adapter's interface `ib0`, registers the frames and listens for peers.
    ///
    /// # Errors
    /// [`RdsError::Dat`]: the adapter lacks memory or objects, or somebody else listens on port 18634.
    /// [`RdsError::InvalidArgument`]: too few frames for so many connections, or a depth that is too small.
    pub fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        parts: RdsParts<'s>,
        config: RdsConfig,
    ) -> Result<Self, RdsError> {
        let connections = Connections::new(parts.connections, parts.buckets, parts.heap, config.seed);
        let count = connections.len();
        let limits = Limits::new(&config, parts.frames.len().min(crate::ids::FrameId::MOST), count)?;
        let memory = adapter.dma_alloc(dma_len(parts.frames.len(), count), 4096)?;
        let opened = adapter.ia_open("ib0", 16, None).and_then(|(ia, async_evd)| {
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
        let tables = Tables {
            sockets: Sockets::new(parts.sockets),
            connections,
            frames: Frames::new(parts.frames, memory),
            operations: Operations::new(parts.operations),
            regions: Regions::new(parts.regions),
            maps: parts.maps,
            remembered: parts.remembered,
        };
        let (local, now) = (key(adapter.address()), adapter.platform().now());
        Ok(Self { protocol: Protocol::new(tables, config, limits, local, now), objects, held: Held::EMPTY })
    }

    /// Ends everything: connections are dropped, whatever was not acknowledged is lost, all DAT objects are freed.
    ///
    /// # Errors
    /// [`RdsError::Dat`] if an object could not be freed; the others are freed all the same.
    pub fn stop<P: Platform>(mut self, adapter: &mut Adapter<'_, P>) -> Result<(), RdsError> {
        let mut result = Ok(());
        let mut note = |outcome: Result<(), DatReturn>| {
            if let Err(error) = outcome {
                result = Err(RdsError::Dat(error));
            }
        };
        note(adapter.psp_free(self.objects.psp));
        for id in self.protocol.connections.ids() {
            let ep = core::mem::take(&mut self.protocol.connections.at_mut(id).objects.ep);
            if ep != 0 {
                let _ = adapter.ep_disconnect(EpHandle::from_bits(ep), CloseFlags::Abrupt);
                note(adapter.ep_free(EpHandle::from_bits(ep)));
            }
        }
        for id in self.protocol.operations.ids() {
            let operation = self.protocol.operations.remove(id);
            free_pieces(adapter, &operation.pieces);
        }
        self.free_all_regions(adapter);
        for id in self.protocol.connections.ids() {
            note(self.free_zone_of(adapter, id));
        }
        let Objects { receive_evd, request_evd, connect_evd, demand_evd, .. } = self.objects;
        for evd in [receive_evd, request_evd, connect_evd, demand_evd] {
            note(adapter.evd_free(evd));
        }
        note(adapter.lmr_free(self.objects.lmr));
        note(adapter.pz_free(self.objects.pz));
        if let Some(memory) = self.protocol.frames.take_memory() {
            note(adapter.dma_free(memory).map_err(DatReturn::from));
        }
        note(adapter.ia_close(self.objects.ia, CloseFlags::Abrupt));
        result
    }
}
