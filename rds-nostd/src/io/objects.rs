//! The DAT objects of a node.

use dat_nostd::{
    Adapter, DatResult, EvdFlags, EvdHandle, IaHandle, LmrHandle, MemPriv, Platform, PspFlags, PspHandle,
    PzHandle, Region,
};

use crate::limits::Limits;
use crate::wire::service_port;

pub(crate) struct Objects {
    pub(crate) ia: IaHandle,
    pub(crate) async_evd: EvdHandle,
    pub(crate) pz: PzHandle,
    pub(crate) lmr: LmrHandle,
    pub(crate) lmr_context: u32,
    pub(crate) receive_evd: EvdHandle,
    /// The same while messages are taken by the burst; none while the time of each is taken.
    pub(crate) burst_evd: EvdHandle,
    pub(crate) request_evd: EvdHandle,
    pub(crate) connect_evd: EvdHandle,
    /// Apart from the connection events: a peer that asks too often fills only this one.
    pub(crate) demand_evd: EvdHandle,
    pub(crate) psp: PspHandle,
    /// The device has memory windows.
    pub(crate) has_windows: bool,
}

impl Objects {
    /// Everything that a node needs on `ia`. What was made before a failure goes with the IA.
    pub(crate) fn create<'m, P: Platform>(
        adapter: &mut Adapter<'_, P>,
        (ia, async_evd): (IaHandle, EvdHandle),
        memory: impl Into<Region<'m>>,
        limits: &Limits,
        connections: u32,
    ) -> DatResult<Self> {
        let pz = adapter.pz_create(ia)?;
        let registered = adapter.lmr_create(ia, memory, pz, MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE)?;
        let receives = u32::from(limits.receive_depth) * connections;
        // One more each: DAT completes an endpoint's requests with one of its own.
        let requests = (u32::from(limits.request_depth) + 1) * connections;
        let receive_evd = adapter.evd_create(ia, receives, None, EvdFlags::DTO)?;
        let has_windows = match adapter.rmr_create(pz) {
            Ok(rmr) => adapter.rmr_free(rmr).is_ok(),
            Err(_) => false,
        };
        let mut of_requests = EvdFlags::DTO;
        of_requests.set(EvdFlags::RMR_BIND, has_windows);
        let request_evd = adapter.evd_create(ia, requests, None, of_requests)?;
        let connect_evd = adapter.evd_create(ia, 4 * connections, None, EvdFlags::CONNECTION)?;
        let demand_evd = adapter.evd_create(ia, connections, None, EvdFlags::CR)?;
        let port = service_port(adapter.address());
        let psp = adapter.psp_create(ia, u64::from(port), demand_evd, PspFlags::Consumer)?;
        Ok(Self {
            ia,
            async_evd,
            pz,
            lmr: registered.lmr,
            lmr_context: registered.lmr_context,
            receive_evd,
            burst_evd: receive_evd,
            request_evd,
            connect_evd,
            demand_evd,
            psp,
            has_windows,
        })
    }
}
