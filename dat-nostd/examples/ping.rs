//! Ping between two nodes: one connects and sends, the other listens and sends back. Each has an adapter on an emulated HCA in this
//! process; on hardware, only [`nodes`] is other.

use core::time::Duration;
use dat_nostd::*;
use harness::{ModelBar, ModelPlatform, World, WorldConfig, host_region};
use hca_model::Profile;

type Outcome<T> = Result<T, Box<dyn core::error::Error>>;
const PORT: u64 = 7000;
const ROUNDS: u64 = 4;
const NONE: CompletionFlags = CompletionFlags::empty();
const LINES: [&[u8]; 2] = [b"are you there?", b"yes, I am here"];

adapter_storage! {
    struct Tables {
        bar: ModelBar, dma_bytes: 16 << 20, eps: 4, evds: 4, lmrs: 4, events: 64, connections: 8,
    }
}

/// A node: its adapter, and what it needs for one connection.
struct Node {
    adapter: Adapter<'static, ModelPlatform>,
    ia: IaHandle,
    evd: EvdHandle,
    ep: EpHandle,
    memory: DmaBuffer,
    /// The message that is sent, and the place for the one that comes.
    send: LmrTriplet,
    receive: LmrTriplet,
}

/// Two HCAs on one fabric, each with an adapter.
fn nodes() -> Outcome<[Node; 2]> {
    let world = World::new(&WorldConfig::new(1));
    let address = |node: u8| IaAddress::from([10, 0, 0, 1 + node]);
    let gid = |node: u8| Gid::new(Gid::DEFAULT_PREFIX, Profile::port_guid_of(u16::from(node)));
    let neighbours = [0, 1].map(|node| (address(node), gid(node)));
    let attached = [0, 1].map(|node| world.attach(Profile::node(node), 16 << 20));
    let mut made = Vec::new();
    for (node, (platform, region)) in (0..).zip(attached) {
        let config = AdapterConfig::new("ib0", address(node), Box::leak(Box::new(neighbours)), node.into());
        let tables = Box::leak(Box::new(Tables::new())).parts();
        let mut adapter = Adapter::open(platform, region, host_region(), tables, &config)?;
        // The names under which programs on this node open IAs.
        let mut names = [RegistryEntry::EMPTY];
        Registry::new(&mut names).registry_add_provider(&mut adapter, ProviderInfo::new("ib0"))?;
        made.push(node_on(adapter, LINES[usize::from(node)])?);
    }
    made.try_into().map_err(|_| "two nodes".into())
}

/// Opens an IA and makes what a connection needs; `line` is what the node will say.
fn node_on(mut adapter: Adapter<'static, ModelPlatform>, line: &[u8]) -> Outcome<Node> {
    let (ia, _) = adapter.ia_open("ib0", 8, None)?;
    let (pz, memory) = (adapter.pz_create(ia)?, adapter.dma_alloc(4096, 4096)?);
    memory.write(0, line)?;
    let lmr = adapter.lmr_create(ia, &memory, pz, MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE)?;
    let evd = adapter.evd_create(ia, 16, None, EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO)?;
    let ep = adapter.ep_create(ia, Some(pz), Some(evd), Some(evd), Some(evd), None)?;
    let send = LmrTriplet::new(lmr.lmr_context, lmr.registered_address, line.len() as u64);
    let receive = LmrTriplet::new(lmr.lmr_context, lmr.registered_address + 2048, 2048);
    adapter.ep_post_recv(ep, &[receive], 0, NONE)?;
    Ok(Node { adapter, ia, evd, ep, memory, send, receive })
}

/// The next event of a node. The other one is in this process too, so it gets its turn.
fn event(nodes: &mut [Node; 2], at: usize) -> DatResult<EventData> {
    loop {
        let Node { adapter, evd, .. } = &mut nodes[at];
        match adapter.wait(*evd, Duration::from_millis(1)) {
            Err(error) if error.is(ReturnType::TimeoutExpired) => {}
            event => return event.map(|event| event.data),
        }
        let now = nodes[1 - at].adapter.now();
        let _ = nodes[1 - at].adapter.poll(now);
    }
}

/// Sends a node's line.
fn say(node: &mut Node) -> DatResult<()> {
    node.adapter.ep_post_send(node.ep, &[node.send], 1, CompletionFlags::SUPPRESS)
}

/// Waits for a message, and posts its place again.
fn hear(nodes: &mut [Node; 2], at: usize) -> Outcome<String> {
    loop {
        let EventData::Dto(done) = event(nodes, at)? else { continue };
        let Node { adapter, ep, memory, receive, .. } = &mut nodes[at];
        let mut line = vec![0; done.transferred_length.min(receive.segment_length) as usize];
        memory.read(2048, &mut line)?;
        adapter.ep_post_recv(*ep, &[*receive], 0, NONE)?;
        return Ok(String::from_utf8_lossy(&line).into_owned());
    }
}

/// Connects, sends, answers, and closes.
pub fn main() -> Outcome<()> {
    let mut nodes = nodes()?;
    let [client, server] = &mut nodes;
    let psp = server.adapter.psp_create(server.ia, PORT, server.evd, PspFlags::Consumer)?;
    let (to, flags) = (server.adapter.address(), ConnectFlags::Default);
    client.adapter.ep_connect(client.ep, &to, PORT, TIMEOUT_INFINITE, b"ping", Qos::BestEffort, flags)?;
    let EventData::ConnectionRequest { cr, .. } = event(&mut nodes, 1)? else {
        return Err("a request".into());
    };
    let server = &mut nodes[1];
    server.adapter.cr_accept(cr, Some(server.ep), b"")?;
    for (at, name) in ["client", "server"].iter().enumerate() {
        println!("{name}: {:?}", event(&mut nodes, at)?);
    }
    for round in 1..=ROUNDS {
        say(&mut nodes[0])?;
        println!("{round}: server heard {:?}", hear(&mut nodes, 1)?);
        say(&mut nodes[1])?;
        println!("{round}: client heard {:?}", hear(&mut nodes, 0)?);
    }
    nodes[0].adapter.ep_disconnect(nodes[0].ep, CloseFlags::Graceful)?;
    nodes[1].adapter.psp_free(psp)?;
    for node in nodes {
        node.adapter.close()?;
    }
    Ok(())
}
