//! A small appliance that embeds the stack: it implements [`Platform`](dat_nostd::Platform) and [`Bar`](driver_mlx::Bar), brings an HCA up, opens an adapter on it,
//! connects to itself through the HCA and moves data by RDMA.
//!
//! `appliance` is all that depends on where it runs; here the HCA is the emulated one, polled from [`Platform::idle`](dat_nostd::Platform::idle). On
//! hardware, `Bar` is [`driver_mlx::MmioBar`], `idle` waits for an interrupt, and the region is memory that the device reaches.

mod appliance;

use appliance::Appliance;
use dat_nostd::{
    Adapter, AdapterConfig, CompletionFlags, ConnectFlags, DatReturn, DtoCompletion, DtoStatus, EpAttributes,
    EvdFlags, EvdHandle, Event, EventData, Gid, LmrTriplet, MemPriv, OpenError, ProviderInfo, PspFlags, Qos,
    Registry, RegistryEntry, RmrTriplet, adapter_storage,
};
use driver_mlx::Duration;
use std::net::{IpAddr, Ipv4Addr};

adapter_storage! {
    /// 16 MiB of DMA memory, room for 4 endpoints, 8 event dispatchers, 4 memory regions, 64 queued events, 8 connections.
    struct Tables {
        bar: appliance::Registers, dma_bytes: appliance::MEMORY, eps: 4, evds: 8, lmrs: 4,
        events: 64, connections: 8,
    }
}

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PORT: u64 = 7000;
const LEN: usize = 100_000;

fn main() {
    if let Err(error) = run() {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

/// Everything that can go wrong, as text for whoever starts the appliance.
fn run() -> Result<(), String> {
    let dat = |error: DatReturn| error.to_string();
    let (appliance, region, host) = Appliance::new();
    let mut tables = Box::new(Tables::new());
    // Who has which address; a larger appliance reads it from its configuration.
    let neighbours = [(ADDRESS, Gid::new(Gid::DEFAULT_PREFIX, appliance.port_guid()))];
    let config = AdapterConfig::new("ib0", ADDRESS, &neighbours, appliance.entropy());
    let mut adapter = Adapter::open(appliance, region, host, tables.parts(), &config)
        .map_err(|error: OpenError| error.to_string())?;
    println!("port active, MTU {}", adapter.mtu());
    let mut names = [RegistryEntry::EMPTY];
    Registry::new(&mut names).registry_add_provider(&mut adapter, ProviderInfo::new("ib0")).map_err(dat)?;

    // The objects of a DAT consumer: interface, protection zone, dispatchers, memory, endpoints, a service.
    let (ia, _) = adapter.ia_open("ib0", 8, None).map_err(dat)?;
    let pz = adapter.pz_create(ia).map_err(dat)?;
    let transfers = adapter.evd_create(ia, 8, None, EvdFlags::DTO).map_err(dat)?;
    let connections = adapter.evd_create(ia, 8, None, EvdFlags::CONNECTION).map_err(dat)?;
    let requests = adapter.evd_create(ia, 8, None, EvdFlags::CR).map_err(dat)?;
    let memory = adapter.dma_alloc(2 * LEN, 4096).map_err(dat)?;
    let lmr = adapter.lmr_create(ia, &memory, pz, MemPriv::ALL).map_err(dat)?;
    let attributes = EpAttributes::DEFAULT;
    let mut endpoint = || {
        adapter.ep_create(
            ia,
            Some(pz),
            Some(transfers),
            Some(transfers),
            Some(connections),
            Some(&attributes),
        )
    };
    let (near, far) = (endpoint().map_err(dat)?, endpoint().map_err(dat)?);
    adapter.psp_create(ia, PORT, requests, PspFlags::Consumer).map_err(dat)?;

    // Connect: one endpoint asks, the service accepts with the other.
    adapter
        .ep_connect(near, &ADDRESS, PORT, 10_000_000, b"hello", Qos::BestEffort, ConnectFlags::Default)
        .map_err(dat)?;
    let request = wait(&mut adapter, requests)?;
    let EventData::ConnectionRequest { cr, .. } = request.data else { return Err(format!("{request:?}")) };
    adapter.cr_accept(cr, Some(far), &[]).map_err(dat)?;
    for _ in [near, far] {
        println!("{:?}", wait(&mut adapter, connections)?.number());
    }

    // Write the first half of the memory into the second half, through the HCA.
    let sent: Vec<u8> = (0..LEN).map(|i| (i * 7 + i / 251) as u8).collect();
    memory.write(0, &sent).map_err(|error| error.to_string())?;
    let from = LmrTriplet::new(lmr.lmr_context, memory.va() as u64, LEN as u64);
    let to = RmrTriplet::new(lmr.rmr_context, (memory.va() + LEN) as u64, LEN as u64);
    adapter.ep_post_rdma_write(near, &[from], 42, &to, CompletionFlags::empty()).map_err(dat)?;
    match wait(&mut adapter, transfers)?.data {
        EventData::Dto(DtoCompletion { status: DtoStatus::Success, user_cookie: 42, .. }) => {}
        other => return Err(format!("the write ended with {other:?}")),
    }
    let mut arrived = vec![0; LEN];
    memory.read(LEN, &mut arrived).map_err(|error| error.to_string())?;
    if arrived != sent {
        return Err("wrong data arrived".into());
    }
    println!("{LEN} bytes written and verified");
    adapter.close().map_err(|error| error.to_string())
}

/// The next event of an EVD, within ten seconds.
fn wait(adapter: &mut Adapter<'_, Appliance>, evd: EvdHandle) -> Result<Event, String> {
    adapter.wait(evd, Duration::from_secs(10)).map_err(|error| error.to_string())
}
