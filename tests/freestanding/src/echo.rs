//! The program: what arrives by RDS or by a DAT connection goes back to its sender.

use crate::board::{Board, DMA_LEN};
use core::net::{Ipv4Addr, SocketAddr};
use dat_nostd::{
    Adapter, AdapterConfig, CompletionFlags, ConnectionEvent, DatReturn, DtoCompletion, DtoOperation,
    DtoStatus, EpAttributes, EpHandle, EvdFlags, EvdHandle, EventData, LmrTriplet, MemPriv, OpenError,
    Platform, ProviderInfo, PspFlags, Registry, RegistryEntry, adapter_storage,
};
use driver_mlx::MmioBar;
use rds_nostd::{Arrival, Generation, Msg, MsgFlags, Rds, RdsConfig, RdsError, RdsStorage};

const RDS_PORT: u16 = 4000;
const DAT_PORT: u64 = 4001;
const LEN: usize = 4096;
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

adapter_storage! {
    struct Tables {
        bar: MmioBar, dma_bytes: DMA_LEN, eps: 4, evds: 8, lmrs: 8, events: 64, connections: 8,
    }
}

/// Why the service ended.
pub enum Error {
    NoMemory,
    Open(OpenError),
    Dat(DatReturn),
    Rds(RdsError),
}

impl Error {
    /// A number for each: DAT's own codes, small numbers for the others.
    pub fn code(&self) -> u32 {
        match self {
            Self::NoMemory => 1,
            Self::Open(OpenError::PortNotActive { .. }) => 2,
            Self::Open(OpenError::Hca(_)) => 3,
            Self::Dat(error) | Self::Rds(RdsError::Dat(error)) => error.0,
            Self::Rds(_) => 4,
        }
    }
}

impl From<DatReturn> for Error {
    fn from(error: DatReturn) -> Self {
        Self::Dat(error)
    }
}

impl From<RdsError> for Error {
    fn from(error: RdsError) -> Self {
        Self::Rds(error)
    }
}

/// Serves until something fails.
pub fn serve(board: Board) -> Result<(), Error> {
    let mut tables = Tables::new();
    let mut sockets = RdsStorage::<2, 4, 256>::new();
    let (region, host) = board.memory().ok_or(Error::NoMemory)?;
    let config = AdapterConfig::new("ib0", ADDRESS.into(), &[], u128::from(board.now().as_nanos()));
    let mut adapter = Adapter::open(board, region, host, tables.parts(), &config).map_err(Error::Open)?;
    let mut names = [RegistryEntry::EMPTY];
    Registry::new(&mut names).registry_add_provider(&mut adapter, ProviderInfo::new("ib0"))?;
    let mut rds = Rds::start(&mut adapter, sockets.parts(), RdsConfig::new(Generation::UNKNOWN))?;
    let socket = rds.bind(SocketAddr::new(ADDRESS.into(), RDS_PORT))?;

    let (ia, _) = adapter.ia_open("ib0", 8, None)?;
    let pz = adapter.pz_create(ia)?;
    let transfers = adapter.evd_create(ia, 8, None, EvdFlags::DTO)?;
    let connections = adapter.evd_create(ia, 8, None, EvdFlags::CONNECTION)?;
    let requests = adapter.evd_create(ia, 8, None, EvdFlags::CR)?;
    adapter.psp_create(ia, DAT_PORT, requests, PspFlags::Consumer)?;
    let memory = adapter.dma_alloc(LEN, 4096)?;
    let lmr = adapter.lmr_create(ia, &memory, pz, MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE)?;
    let ep = adapter.ep_create(
        ia,
        Some(pz),
        Some(transfers),
        Some(transfers),
        Some(connections),
        Some(&EpAttributes::DEFAULT),
    )?;
    let buffer = |len| LmrTriplet::new(lmr.lmr_context, memory.va() as u64, len);
    adapter.ep_post_recv(ep, &[buffer(LEN as u64)], 0, CompletionFlags::empty())?;

    let mut datagram = [0; LEN];
    loop {
        let now = adapter.now();
        let _ = adapter.poll(now);
        let _ = rds.poll(&mut adapter, now);
        match rds.recvmsg(&mut adapter, socket, &mut datagram, MsgFlags::empty()) {
            // What comes from port 0 answers a ping.
            Ok(Arrival::Message(message)) if message.from.port() == 0 => {}
            Ok(Arrival::Message(message)) => {
                let bytes = datagram.get(..message.len).unwrap_or_default();
                match rds.sendmsg(&mut adapter, socket, Msg::to(&message.from, bytes)) {
                    // Who takes no answers gets none: others are not to wait for it.
                    Ok(_) | Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(_) | Err(RdsError::Again) => {}
            Err(error) => return Err(error.into()),
        }
        if let Ok(event) = adapter.evd_dequeue(requests)
            && let EventData::ConnectionRequest { cr, .. } = event.data
            && adapter.cr_accept(cr, Some(ep), &[]).is_err()
        {
            adapter.cr_reject(cr)?;
        }
        if let Ok(event) = adapter.evd_dequeue(connections)
            && let EventData::Connection { event: ConnectionEvent::Disconnected, .. } = event.data
        {
            adapter.ep_reset(ep)?;
            adapter.ep_post_recv(ep, &[buffer(LEN as u64)], 0, CompletionFlags::empty())?;
        }
        echo(&mut adapter, transfers, ep, buffer)?;
    }
}

/// Sends back what was received, and receives again once it is sent.
fn echo(
    adapter: &mut Adapter<'_, Board>,
    transfers: EvdHandle,
    ep: EpHandle,
    buffer: impl Fn(u64) -> LmrTriplet,
) -> Result<(), DatReturn> {
    let Ok(event) = adapter.evd_dequeue(transfers) else { return Ok(()) };
    let EventData::Dto(DtoCompletion { status: DtoStatus::Success, operation, transferred_length, .. }) =
        event.data
    else {
        return Ok(());
    };
    match operation {
        DtoOperation::Receive => {
            adapter.ep_post_send(ep, &[buffer(transferred_length)], 0, CompletionFlags::empty())
        }
        _ => adapter.ep_post_recv(ep, &[buffer(LEN as u64)], 0, CompletionFlags::empty()),
    }
}
