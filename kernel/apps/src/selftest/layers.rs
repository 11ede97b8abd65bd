//! The layers above the driver, over the card: DAT connects it to itself, RDS starts on it.

use super::halves::{self, HALF};
use super::report::{Level, Out, Summary, Verdict, step};
use super::stage::Stage;
use super::steps::MEMORY_WANTED;
use super::storage::{RdsTables, Storage};
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use dat_nostd::{
    Adapter, AdapterConfig, CloseFlags, CompletionFlags, ConnectFlags, ConnectionEvent, DmaBuffer, DtoStatus,
    EpHandle, EvdFlags, EvdHandle, EventData, LmrCreated, LmrTriplet, MemPriv, OpenError, ProviderInfo,
    PspFlags, Qos, Registry, RegistryEntry, ReturnType, RmrTriplet,
};
use driver_mlx::{Config, DmaRegion, HostRegion, Platform};
use rds_nostd::{Arrival, Generation, Msg, MsgFlags, Rds, RdsConfig};

/// The node's address; nobody else hears of it.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const NAME: &str = "ib0";
/// The service that the card offers itself, and RDS's ports.
const SERVICE: u64 = 7471;
const PORTS: [u16; 2] = [4000, 4001];
/// Bytes of each half of the memory, as work requests count.
const BYTES: u64 = HALF as u64;
/// How long one event may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Brings the HCA up once more, without a reset, and tries the layers above the driver. `generation` grows from boot to boot.
pub fn layers<P: Platform + Copy>(
    platform: P,
    memory: Option<(DmaRegion, HostRegion)>,
    storage: &mut Storage<P::Bar>,
    (hca, generation): (&Config, Generation),
    summary: &mut Summary,
    out: Out<'_>,
) {
    if summary.has_failed() {
        return;
    }
    let Some((region, host)) = memory else {
        out(format_args!("a second bring-up, DAT and RDS are not tried: {MEMORY_WANTED}"));
        return;
    };
    let Storage { adapter: tables, rds, buffer } = storage;
    // A port that was not Active in time is not waited for again.
    let config = AdapterConfig {
        hca: *hca,
        ip: None,
        activation_timeout: Duration::from_secs(summary.patience()),
        ..AdapterConfig::new(NAME, ADDRESS, &[], 1)
    };
    let began = platform.now();
    let mut level = Level::Dat;
    let ended = match Adapter::open(platform, region, host, tables.parts(), &config) {
        Ok(mut adapter) => {
            step(out, "bring_up", began, platform.now(), format_args!("round=2"));
            let tried = try_layers(&mut adapter, (rds, buffer), generation, (&mut level, summary), out);
            // Before the commands that end everything take the place of those that led here.
            if let Err(stage) = &tried {
                summary.told(level, stage, platform.bar(), adapter.hca().trace().history(), out);
            }
            adapter.close().map_err(Stage::Hca)
        }
        Err(error @ OpenError::PortNotActive { .. }) => {
            step(out, "bring_up", began, platform.now(), format_args!("round=2"));
            out(format_args!("{error}"));
            Ok(())
        }
        Err(OpenError::Hca(error)) => Err(Stage::Hca(error)),
    };
    if let Err(stage) = ended {
        summary.told(Level::Commands, &stage, platform.bar(), storage.adapter.history(), out);
    }
}

fn try_layers<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    storage: (&mut RdsTables, &mut [u8]),
    generation: Generation,
    (level, summary): (&mut Level, &mut Summary),
    out: Out<'_>,
) -> Result<(), Stage> {
    if !adapter.is_up() {
        return Err(Stage::Missing("the port is not Active"));
    }
    dat(adapter, out)?;
    summary.set(Level::Dat, Verdict::Passed);
    *level = Level::Rds;
    datagrams(adapter, storage, generation, out)?;
    summary.set(Level::Rds, Verdict::Passed);
    Ok(())
}

/// What the connection of the card with itself consists of.
struct Link<'a, 's, P: Platform> {
    adapter: &'a mut Adapter<'s, P>,
    evd: EvdHandle,
    memory: &'a DmaBuffer,
    lmr: LmrCreated,
}

fn dat<P: Platform>(adapter: &mut Adapter<'_, P>, out: Out<'_>) -> Result<(), Stage> {
    let mut names = [RegistryEntry::EMPTY];
    Registry::new(&mut names).registry_add_provider(adapter, ProviderInfo::new(NAME))?;
    let (ia, _) = adapter.ia_open(NAME, 8, None)?;
    let pz = adapter.pz_create(ia)?;
    let memory = adapter.dma_alloc(2 * HALF, 4096)?;
    let lmr = adapter.lmr_create(ia, &memory, pz, MemPriv::ALL)?;
    let evd = adapter.evd_create(ia, 32, None, EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO)?;
    let mut ends = [EpHandle::from_bits(0); 2];
    for end in &mut ends {
        *end = adapter.ep_create(ia, Some(pz), Some(evd), Some(evd), Some(evd), None)?;
    }
    let psp = adapter.psp_create(ia, SERVICE, evd, PspFlags::Consumer)?;
    let mut link = Link { adapter: &mut *adapter, evd, memory: &memory, lmr };
    link.connect(ends, out)?;
    link.transfer(ends, out)?;
    adapter.ep_disconnect(ends[0], CloseFlags::Abrupt)?;
    adapter.psp_free(psp)?;
    adapter.ia_close(ia, CloseFlags::Abrupt)?;
    adapter.dma_free(memory).map_err(|kept| Stage::Dat(kept.reason))
}

impl<P: Platform> Link<'_, '_, P> {
    fn event(&mut self) -> Result<EventData, Stage> {
        match self.adapter.wait(self.evd, LIMIT) {
            Ok(event) => Ok(event.data),
            Err(error) if error.is(ReturnType::TimeoutExpired) => Err(Stage::Wrong(
                "DAT: no event in 10 s: the subnet administrator, or datagrams to the own port",
            )),
            Err(error) => Err(error.into()),
        }
    }

    fn connect(&mut self, [active, passive]: [EpHandle; 2], out: Out<'_>) -> Result<(), Stage> {
        let began = self.adapter.now();
        let own = self.adapter.address();
        let patience = LIMIT.as_micros() as u32;
        self.adapter.ep_connect(
            active,
            &own,
            SERVICE,
            patience,
            b"",
            Qos::BestEffort,
            ConnectFlags::Default,
        )?;
        let mut established = 0;
        while established < 2 {
            match self.event()? {
                EventData::ConnectionRequest { cr, .. } => self.adapter.cr_accept(cr, Some(passive), b"")?,
                EventData::Connection { event: ConnectionEvent::Established, .. } => established += 1,
                EventData::Connection { event, .. } => return Err(Stage::NotConnected(event)),
                _ => {
                    return Err(Stage::Wrong(
                        "DAT: an event of no connection, though only that was asked for",
                    ));
                }
            }
        }
        step(out, "dat_connection", began, self.adapter.now(), format_args!("service={SERVICE}"));
        Ok(())
    }

    fn half(&self, index: u64) -> LmrTriplet {
        LmrTriplet::new(self.lmr.lmr_context, self.lmr.registered_address + index * BYTES, BYTES)
    }

    fn remote(&self, index: u64) -> RmrTriplet {
        RmrTriplet {
            rmr_context: self.lmr.rmr_context,
            pad: 0,
            target_address: self.lmr.registered_address + index * BYTES,
            segment_length: BYTES,
        }
    }

    /// Sends, writes, reads, and compares.
    fn transfer(&mut self, [active, passive]: [EpHandle; 2], out: Out<'_>) -> Result<(), Stage> {
        const NONE: CompletionFlags = CompletionFlags::empty();
        for (round, name) in ["dat_send", "dat_rdma_write", "dat_rdma_read"].into_iter().enumerate() {
            let began = self.adapter.now();
            let pattern = |at: usize| (at as u8).wrapping_mul(29).wrapping_add(round as u8 + 1);
            halves::fill(self.memory, pattern)?;
            let (from, to) = (self.half(0), self.half(1));
            let completions = match round {
                0 => {
                    self.adapter.ep_post_recv(passive, &[to], 1, NONE)?;
                    self.adapter.ep_post_send(active, &[from], 2, NONE)?;
                    2
                }
                1 => {
                    let remote = self.remote(1);
                    self.adapter.ep_post_rdma_write(active, &[from], 2, &remote, NONE)?;
                    1
                }
                _ => {
                    let remote = self.remote(0);
                    self.adapter.ep_post_rdma_read(active, &[to], 2, &remote, NONE)?;
                    1
                }
            };
            for _ in 0..completions {
                match self.event()? {
                    EventData::Dto(done) if done.status == DtoStatus::Success => {}
                    _ => return Err(Stage::Wrong("DAT: a transfer to the own port failed")),
                }
            }
            halves::compare(self.memory, pattern)?;
            step(out, name, began, self.adapter.now(), format_args!("bytes={HALF}"));
        }
        Ok(())
    }
}

/// A node of RDS: its objects on the card, and a message of several fragments between two of its own sockets, which does not leave it.
fn datagrams<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    (storage, buffer): (&mut RdsTables, &mut [u8]),
    generation: Generation,
    out: Out<'_>,
) -> Result<(), Stage> {
    let began = adapter.now();
    let config = RdsConfig { send_buffer: 1 << 20, ..RdsConfig::new(generation) };
    let mut rds = Rds::start(adapter, storage.parts(), config)?;
    let [from, to] = [rds.bind((ADDRESS, PORTS[0]).into())?, rds.bind((ADDRESS, PORTS[1]).into())?];
    let pattern = |at: usize| (at as u8).wrapping_mul(37).wrapping_add(5);
    buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
    rds.sendmsg(adapter, from, Msg::to(&(ADDRESS, PORTS[1]).into(), buffer))?;
    buffer.fill(0);
    let Arrival::Message(message) = rds.recvmsg(adapter, to, buffer, MsgFlags::empty())? else {
        return Err(Stage::Wrong("RDS: something else came than the message"));
    };
    let right = buffer.iter().enumerate().all(|(at, byte)| *byte == pattern(at));
    if message.message_len != buffer.len() || !right {
        return Err(Stage::Wrong("RDS: what arrived is not what was sent"));
    }
    rds.close(adapter, from)?;
    rds.close(adapter, to)?;
    crate::rds::stop(rds, adapter)?;
    step(out, "rds_message", began, adapter.now(), format_args!("bytes={}", buffer.len()));
    Ok(())
}
