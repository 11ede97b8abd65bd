//! The DAT objects of a node.

use dat_nostd::{
    Adapter, DatResult, EvdFlags, EvdHandle, IaHandle, LmrHandle, MemPriv, Platform, PspFlags, PspHandle,
    PzHandle, Region,
};

use crate::limits::Limits;
use crate::socket::Sockets;
use crate::wire::service_port;

pub(crate) struct Objects {
    pub(crate) ia: IaHandle,
    pub(crate) async_evd: EvdHandle,
    pub(crate) pz: PzHandle,
    pub(crate) lmr: LmrHandle,
    pub(crate) lmr_context: u32,
    pub(crate) receive_evd: EvdHandle,
    /// The receive EVD; none while the node stops.
    pub(crate) arrivals_evd: EvdHandle,
    /// That EVD while frames are taken in bursts; none while latencies are measured.
    pub(crate) burst_evd: EvdHandle,
    pub(crate) request_evd: EvdHandle,
    pub(crate) connect_evd: EvdHandle,
    /// Separate from the connection events, so that a peer with too many requests fills only this
    /// EVD.
    pub(crate) demand_evd: EvdHandle,
    pub(crate) psp: PspHandle,
    /// The device has memory windows.
    pub(crate) has_windows: bool,
}

/// Selects whether frames are taken in bursts, or one at a time to measure latencies.
pub(crate) fn choose_burst(objects: &mut Objects, sockets: &Sockets<'_>) {
    let is_timed = sockets.iter().any(|(_, socket)| socket.is_timed());
    objects.burst_evd = if is_timed { EvdHandle::from_bits(0) } else { objects.arrivals_evd };
}

impl Objects {
    /// Creates all objects of a node on `ia`. After a failure the caller closes the IA, which frees
    /// them.
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
        // One more each, for the completion that DAT generates at the end of an endpoint.
        let requests = (u32::from(limits.request_depth) + 1) * connections;
        let receive_evd = adapter.evd_create(ia, receives, None, EvdFlags::DTO)?;
        let has_windows = adapter.rmr_create(pz).is_ok_and(|rmr| adapter.rmr_free(rmr).is_ok());
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
            arrivals_evd: receive_evd,
            burst_evd: receive_evd,
            request_evd,
            connect_evd,
            demand_evd,
            psp,
            has_windows,
        })
    }
}
