//! DAT messages between two processes: one connects and sends, the other listens and sends back.

mod node;

use dat_nostd::*;
use node::{Arguments, Node, Outcome, run};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const PORT: u64 = 7000;
const BYTES: u64 = 64;
const PATIENCE: Duration = Duration::from_secs(30);
const NONE: CompletionFlags = CompletionFlags::empty();

/// An end of a connection: source and destination of messages.
struct End {
    ia: IaHandle,
    evd: EvdHandle,
    ep: EpHandle,
    memory: DmaBuffer,
    out: LmrTriplet,
    into: LmrTriplet,
}

impl End {
    fn new(adapter: &mut Node) -> DatResult<Self> {
        let (ia, _) = adapter.ia_open("ib0", 8, None)?;
        let pz = adapter.pz_create(ia)?;
        let memory = adapter.dma_alloc(4096, 4096)?;
        let lmr = adapter.lmr_create(ia, &memory, pz, MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE)?;
        let evd = adapter.evd_create(ia, 16, None, EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO)?;
        let ep = adapter.ep_create(ia, Some(pz), Some(evd), Some(evd), Some(evd), None)?;
        let out = LmrTriplet::new(lmr.lmr_context, lmr.registered_address, BYTES);
        let into = LmrTriplet::new(lmr.lmr_context, lmr.registered_address + 2048, BYTES);
        adapter.ep_post_recv(ep, &[into], 0, NONE)?;
        Ok(Self { ia, evd, ep, memory, out, into })
    }

    fn event(&self, adapter: &mut Node) -> DatResult<EventData> {
        adapter.wait(self.evd, PATIENCE).map(|event| event.data)
    }

    fn established(&self, adapter: &mut Node) -> Outcome<()> {
        match self.event(adapter)? {
            EventData::Connection { event: ConnectionEvent::Established, .. } => {
                println!("connected");
                Ok(())
            }
            other => Err(format!("not connected: {other:?}").into()),
        }
    }

    /// Sends a number.
    fn say(&self, adapter: &mut Node, number: u64) -> Outcome<()> {
        self.memory.store_be64(0, number)?;
        Ok(adapter.ep_post_send(self.ep, &[self.out], number, CompletionFlags::SUPPRESS)?)
    }

    /// The next number, or None at the connection's end.
    fn hear(&self, adapter: &mut Node) -> Outcome<Option<u64>> {
        match self.event(adapter)? {
            EventData::Dto(done) if done.status == DtoStatus::Success => {
                let number = self.memory.load_be64(2048)?;
                adapter.ep_post_recv(self.ep, &[self.into], 0, NONE)?;
                Ok(Some(number))
            }
            EventData::Dto(_) | EventData::Connection { event: ConnectionEvent::Disconnected, .. } => {
                Ok(None)
            }
            other => Err(format!("unexpected: {other:?}").into()),
        }
    }
}

fn client(adapter: &mut Node, peer: IpAddr, count: u64) -> Outcome<()> {
    let end = End::new(adapter)?;
    let (qos, flags) = (Qos::BestEffort, ConnectFlags::Default);
    adapter.ep_connect(end.ep, &peer, PORT, TIMEOUT_INFINITE, b"", qos, flags)?;
    end.established(adapter)?;
    let begun = Instant::now();
    for number in 0..count {
        end.say(adapter, number)?;
        let heard = end.hear(adapter)?;
        if heard != Some(number + 1) {
            return Err(format!("{heard:?} in answer to {number}").into());
        }
    }
    println!(
        "{count} messages and answers, {} us each",
        begun.elapsed().as_micros() / u128::from(count.max(1))
    );
    adapter.ep_disconnect(end.ep, CloseFlags::Graceful)?;
    while end.hear(adapter)?.is_some() {}
    Ok(())
}

fn server(adapter: &mut Node) -> Outcome<()> {
    let end = End::new(adapter)?;
    adapter.psp_create(end.ia, PORT, end.evd, PspFlags::Consumer)?;
    println!("ready");
    let cr = loop {
        match end.event(adapter) {
            Ok(EventData::ConnectionRequest { cr, .. }) => break cr,
            Ok(other) => return Err(format!("no request: {other:?}").into()),
            Err(error) if error.is(ReturnType::TimeoutExpired) => {}
            Err(error) => return Err(error.into()),
        }
    };
    adapter.cr_accept(cr, Some(end.ep), b"")?;
    end.established(adapter)?;
    let mut answered = 0;
    while let Some(number) = end.hear(adapter)? {
        end.say(adapter, number + 1)?;
        answered += 1;
    }
    println!("{answered} messages answered");
    Ok(())
}

fn main() -> ExitCode {
    node::end(work())
}

fn work() -> Outcome<()> {
    let arguments =
        Arguments::read("DAT messages there and back: with --peer N of them, without the other side", 1000)?;
    run(&arguments, |adapter| match arguments.peer {
        Some(peer) => client(adapter, peer.into(), arguments.count.into()),
        None => server(adapter),
    })
}
