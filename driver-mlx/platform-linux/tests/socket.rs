//! Processes on emulated HCAs, without QEMU: the examples as they are, processes that are killed,
//! and memory of this process's own.

use dat_nostd::*;
use driver_mlx::Config;
use hca_model::Profile;
use hca_model::card::{CONNECTX_5, Card, VIRTUAL_FUNCTION};
use hca_serve::{Options as ServeOptions, Served, serve};
use mlx5_prm::status::HealthSyndrome;
use platform_linux::{DeviceName, LinuxBar, LinuxPlatform, Opened, Options, open};
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// HCAs being served, at sockets in a folder of their own.
struct Fabric {
    served: Served,
    folder: PathBuf,
}

impl Fabric {
    fn new(name: &str, hcas: usize) -> Self {
        Self::of(name, hcas, Vec::new())
    }

    /// The same of these cards, where any are named.
    fn of(name: &str, hcas: usize, profiles: Vec<Profile>) -> Self {
        let folder = std::env::temp_dir().join(format!("platform-linux-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let sockets = (0..hcas).map(|index| folder.join(format!("hca{index}"))).collect();
        let options = ServeOptions { file_io: true, profiles, ..ServeOptions::new(sockets) };
        Self { served: serve(options).expect("served"), folder }
    }

    fn socket(&self, index: usize) -> PathBuf {
        self.folder.join(format!("hca{index}"))
    }

    /// Waits until no HCA holds anything: a connection that ends is a reset.
    fn settle(&self) {
        while self.served.census().expect("runs").iter().any(|census| census.total() != 0) {
            std::thread::yield_now();
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// An example that runs. Killed when dropped.
struct Example(Child);

impl Example {
    fn start(name: &str, socket: &Path, words: &[&str]) -> Self {
        // Beside this test's folder: cargo builds a package's examples with its tests.
        let here = std::env::current_exe().expect("this program's path");
        let profile = here.ancestors().nth(2).expect("target and profile");
        let child = Command::new(profile.join("examples").join(name))
            .arg("--socket")
            .arg(socket)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self(child.unwrap_or_else(|error| panic!("{name}: {error}: cargo test -p platform-linux builds it")))
    }

    /// Waits for a line of its output.
    fn line(&mut self, wanted: &str) {
        let output = self.0.stdout.as_mut().expect("piped");
        let mut line = String::new();
        let mut byte = [0];
        while output.read(&mut byte).expect("readable") == 1 {
            if byte[0] != b'\n' {
                line.push(char::from(byte[0]));
                continue;
            }
            if line == wanted {
                return;
            }
            line.clear();
        }
        let mut errors = String::new();
        let _ = self.0.stderr.as_mut().expect("piped").read_to_string(&mut errors);
        panic!("it ended without {wanted:?}: {errors}");
    }

    /// Returns whether it succeeded, and its further output.
    fn finish(mut self) -> (bool, String) {
        let output = BufReader::new(self.0.stdout.take().expect("piped"));
        let mut text: String =
            output.lines().map_while(Result::ok).flat_map(|line| [line, "\n".into()]).collect();
        let _ = self.0.stderr.take().expect("piped").read_to_string(&mut text);
        (self.0.wait().expect("ends").success(), text)
    }

    fn kill(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SERVER: [&str; 2] = ["--ip", "10.0.0.1"];

fn client(count: &'static str) -> [&'static str; 6] {
    ["--ip", "10.0.0.2", "--peer", "10.0.0.1", "--count", count]
}

#[test]
fn the_self_test_passes_without_a_partner() {
    let fabric = Fabric::new("selftest", 1);
    let (verified, output) = Example::start("selftest", &fabric.socket(0), &["--dma", "128"]).finish();
    assert!(verified, "{output}");
    for level in ["found", "commands", "objects", "nop", "data", "dat", "rds"] {
        assert!(output.contains(&format!("@level name={level} verdict=\"passed\"")), "{output}");
    }
    assert!(output.contains("@done verified=true"), "{output}");
    fabric.settle();
}

#[test]
fn the_examples_ping_each_other() {
    let fabric = Fabric::new("ping", 2);
    for (name, last) in [("dat_ping", "100 messages and answers"), ("rds_ping", "100 sent, 100 answered")] {
        let mut server = Example::start(name, &fabric.socket(0), &SERVER);
        server.line("ready");
        let (success, text) = Example::start(name, &fabric.socket(1), &client("100")).finish();
        assert!(success && text.lines().any(|line| line.starts_with(last)), "{name}: {text}");
        drop(server);
        fabric.settle();
    }
}

#[test]
fn the_demonstration_is_verified_between_two_processes() {
    let fabric = Fabric::new("demo", 2);
    let words = ["--ip", "10.0.0.1", "--peer", "10.0.0.2", "--count", "64"];
    let server = Example::start("demo", &fabric.socket(0), &words);
    let words = ["--ip", "10.0.0.2", "--peer", "10.0.0.1", "--count", "64"];
    for end in [Example::start("demo", &fabric.socket(1), &words), server] {
        let (success, text) = end.finish();
        assert!(success && text.lines().last() == Some("verified"), "{text}");
    }
    fabric.settle();
}

/// Packets that an HCA has sent since it got power.
fn sent(fabric: &Fabric, hca: usize) -> u64 {
    fabric.served.with_world(move |world, _| world.nodes()[hca].hca.counters().packets_sent).expect("served")
}

/// Waits until an HCA has sent so many more packets, or the process on it has ended.
fn traffic(fabric: &Fabric, hca: usize, process: &mut Example, packets: u64) {
    let until = sent(fabric, hca) + packets;
    while sent(fabric, hca) < until && process.0.try_wait().expect("it was started").is_none() {
        std::thread::yield_now();
    }
}

/// The example that goes on: every ping is answered, though its HCA fails and is lost.
#[test]
fn rds_pings_go_on_over_an_hca_that_was_recovered() {
    let fabric = Fabric::new("recovered", 2);
    let mut server = Example::start("rds_ping", &fabric.socket(0), &SERVER);
    server.line("ready");
    let words = [&client("400")[..], &["--grace", "0"]].concat();
    let mut example = Example::start("rds_ping", &fabric.socket(1), &words);
    example.line("ready");
    let hca = |change: fn(&mut hca_model::Hca)| {
        fabric.served.with_world(move |world, _| change(world.hca_mut(1).expect("served"))).expect("served");
    };
    traffic(&fabric, 1, &mut example, 50);
    hca(|hca| hca.fail(HealthSyndrome(1)));
    example.line("recovered");
    traffic(&fabric, 1, &mut example, 50);
    hca(hca_model::Hca::kill);
    std::thread::sleep(std::time::Duration::from_secs(1));
    hca(hca_model::Hca::revive);
    example.line("recovered");
    let (success, text) = example.finish();
    assert!(success && text.contains("400 sent, 400 answered"), "{text}");
}

/// A process is killed at any time, also at its start and in the middle of the demonstration. Its
/// peer survives: a server continues with the next client, and the HCA can be opened again.
#[test]
fn a_process_may_be_killed_at_any_time() {
    let fabric = Fabric::new("any-time", 3);
    let mut server = Example::start("rds_ping", &fabric.socket(0), &SERVER);
    server.line("ready");
    for packets in [0, 1, 5, 30, 200] {
        let mut victim = Example::start("rds_ping", &fabric.socket(1), &client("4000000"));
        traffic(&fabric, 1, &mut victim, packets);
        victim.kill();
    }
    let (success, text) = Example::start("rds_ping", &fabric.socket(1), &client("20")).finish();
    assert!(success && text.contains("20 sent, 20 answered"), "{text}");
    for (round, packets) in [1, 100, 1000, 5000].into_iter().enumerate() {
        let words = |own, peer| ["--ip", own, "--peer", peer, "--count", "64"];
        let mut ends = [
            Example::start("demo", &fabric.socket(1), &words("10.0.0.2", "10.0.0.3")),
            Example::start("demo", &fabric.socket(2), &words("10.0.0.3", "10.0.0.2")),
        ];
        traffic(&fabric, 1, &mut ends[0], packets);
        ends[round % 2].kill();
    }
    let (success, text) = Example::start("rds_ping", &fabric.socket(2), &client("20")).finish();
    assert!(success && text.contains("20 sent, 20 answered"), "{text}");
    drop(server);
    assert!(fabric.served.is_alive());
    fabric.settle();
}

#[test]
fn a_process_that_is_killed_leaves_the_server_and_others_whole() {
    let fabric = Fabric::new("kill", 4);
    // Beside the victims two others go on all the time.
    let mut bystander = Example::start("rds_ping", &fabric.socket(2), &["--ip", "10.0.0.3"]);
    bystander.line("ready");
    let words = ["--ip", "10.0.0.4", "--peer", "10.0.0.3", "--count", "2000"];
    let onlooker = Example::start("rds_ping", &fabric.socket(3), &words);
    for victim in [1, 0, 1, 0] {
        let mut ends = [
            Example::start("dat_ping", &fabric.socket(0), &SERVER),
            Example::start("dat_ping", &fabric.socket(1), &client("4000000")),
        ];
        ends[0].line("connected");
        ends[1].line("connected");
        ends[victim].kill();
        // The peer is killed too, at the end of this round, because it waits for a message that
        // never arrives.
        drop(ends);
    }
    let (success, text) = onlooker.finish();
    assert!(success && text.contains("2000 sent, 2000 answered"), "{text}");
    assert!(fabric.served.is_alive());
}

const MEMORY: usize = 16 << 20;
adapter_storage! {
    struct Tables {
        bar: LinuxBar, dma_bytes: MEMORY, eps: 4, evds: 4, lmrs: 4, events: 64, connections: 8,
    }
}
type Node = Adapter<'static, LinuxPlatform>;

fn node(socket: &Path, number: u8) -> Node {
    node_with(socket, number, Config::DEFAULT)
}

fn node_with(socket: &Path, number: u8, hca: Config) -> Node {
    let options = Options { dma_bytes: MEMORY, ..Options::default() };
    let name = DeviceName::Socket(socket.into());
    let Opened { platform, dma, host, .. } = open(&name, &options).expect("opens");
    let tables = Box::leak(Box::new(Tables::new())).parts();
    let address = IaAddress::V4(Ipv4Addr::new(10, 0, 0, number));
    let config = AdapterConfig { hca, ..AdapterConfig::new("ib0", address, &[], number.into()) };
    let mut adapter = Adapter::open(platform, dma, host, tables, &config).expect("comes up");
    let mut names = [RegistryEntry::EMPTY];
    Registry::new(&mut names).registry_add_provider(&mut adapter, ProviderInfo::new("ib0")).expect("room");
    adapter
}

/// Objects of a node for one connection, and 3 MiB of the heap as a region.
struct End {
    ia: IaHandle,
    pz: PzHandle,
    evd: EvdHandle,
    ep: EpHandle,
    lmr: LmrCreated,
    heap: *mut u8,
}

const BYTES: usize = 3 << 20;

impl End {
    fn new(adapter: &mut Node) -> Self {
        let (ia, _) = adapter.ia_open("ib0", 8, None).expect("IA");
        let pz = adapter.pz_create(ia).expect("PZ");
        // Not at the start of a page.
        let heap = vec![0_u8; BYTES + 4096].leak();
        let heap = heap.as_mut_ptr().wrapping_add(100);
        // SAFETY: the memory is never given back, no reference to it is left, and it is looked at
        // by volatile accesses.
        let lmr = unsafe { adapter.lmr_create_virtual(ia, heap, BYTES, pz, MemPriv::ALL) }.expect("LMR");
        let flags = EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO;
        let evd = adapter.evd_create(ia, 16, None, flags).expect("EVD");
        let ep = adapter.ep_create(ia, Some(pz), Some(evd), Some(evd), Some(evd), None).expect("EP");
        Self { ia, pz, evd, ep, lmr, heap }
    }
}

/// The next event of one node; the other gets its turn.
fn event(nodes: &mut [Node; 2], at: usize, evd: EvdHandle) -> EventData {
    loop {
        if let Ok(event) = nodes[at].evd_dequeue(evd) {
            return event.data;
        }
        let now = nodes[1 - at].now();
        let _ = nodes[1 - at].poll(now);
    }
}

/// Connects the EPs of both ends.
fn connect(nodes: &mut [Node; 2], ends: &[End; 2]) {
    let (to, flags) = (nodes[1].address(), ConnectFlags::Default);
    nodes[1].psp_create(ends[1].ia, 7000, ends[1].evd, PspFlags::Consumer).expect("PSP");
    nodes[0].ep_connect(ends[0].ep, &to, 7000, TIMEOUT_INFINITE, b"", Qos::BestEffort, flags).expect("asks");
    let EventData::ConnectionRequest { cr, .. } = event(nodes, 1, ends[1].evd) else { panic!("a request") };
    nodes[1].cr_accept(cr, Some(ends[1].ep), b"").expect("accepts");
    for at in [0, 1] {
        let EventData::Connection { event: ConnectionEvent::Established, .. } =
            event(nodes, at, ends[at].evd)
        else {
            panic!("not connected")
        };
    }
}

/// Writes all of a region of one node to memory of the other's.
fn write(nodes: &mut [Node; 2], from: (&End, LmrCreated, usize), to: LmrCreated) {
    let (end, lmr, len) = from;
    let local = LmrTriplet::new(lmr.lmr_context, lmr.registered_address, len as u64);
    let remote = RmrTriplet::new(to.rmr_context, to.registered_address, len as u64);
    nodes[0].ep_post_rdma_write(end.ep, &[local], 1, &remote, CompletionFlags::empty()).expect("posts");
    let EventData::Dto(done) = event(nodes, 0, end.evd) else { panic!("a completion") };
    assert_eq!((done.status, done.transferred_length), (DtoStatus::Success, len as u64));
}

#[test]
fn memory_of_the_heap_is_written_and_read() {
    let fabric = Fabric::new("heap", 2);
    let mut nodes = [node(&fabric.socket(0), 1), node(&fabric.socket(1), 2)];
    let ends = nodes.each_mut().map(End::new);
    connect(&mut nodes, &ends);
    let pattern = |index: usize| (index * 7 + index / 4096) as u8;
    for index in 0..BYTES {
        // SAFETY: inside the allocation.
        unsafe { ends[0].heap.add(index).write_volatile(pattern(index)) };
    }
    write(&mut nodes, (&ends[0], ends[0].lmr, BYTES), ends[1].lmr);
    for index in 0..BYTES {
        // SAFETY: inside the allocation.
        let byte = unsafe { ends[1].heap.add(index).read_volatile() };
        assert_eq!(byte, pattern(index), "byte {index}");
    }
    for (node, end) in nodes.iter_mut().zip(&ends) {
        let nowhere = std::ptr::without_provenance_mut(4096);
        // SAFETY: nothing is mapped there, so that there is nothing to be careful about.
        let error =
            unsafe { node.lmr_create_virtual(end.ia, nowhere, 4096, end.pz, MemPriv::ALL) }.unwrap_err();
        assert!(error.is(ReturnType::InvalidParameter), "{error}");
        node.lmr_free(end.lmr.lmr).expect("nothing uses it");
    }
    for node in nodes {
        node.close().expect("closes");
    }
    fabric.settle();
}

/// An IOMMU pins memory for writing only if the device is to write it, and refuses that for memory
/// which this process may only read.
#[test]
fn read_only_memory_is_registered_for_reading_only() {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
    let fabric = Fabric::new("readonly", 2);
    let mut nodes = [node(&fabric.socket(0), 1), node(&fabric.socket(1), 2)];
    let ends = nodes.each_mut().map(End::new);
    connect(&mut nodes, &ends);
    // SAFETY: a new mapping at a place of the kernel's choice; it stays.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE) }
        .expect("memory");
    let register = |nodes: &mut [Node; 2], rights| {
        // SAFETY: the page stays mapped, and is accessed by volatile accesses.
        unsafe { nodes[0].lmr_create_virtual(ends[0].ia, page.cast(), 4096, ends[0].pz, rights) }
    };
    let refused = register(&mut nodes, MemPriv::ALL).unwrap_err();
    assert!(refused.is(ReturnType::InvalidParameter), "{refused}");
    let readable = register(&mut nodes, MemPriv::LOCAL_READ).expect("it is only read");
    write(&mut nodes, (&ends[0], readable, 4096), ends[1].lmr);
    // The same page once more, for writing, while the first region is there.
    // SAFETY: the page is this test's.
    unsafe { mprotect(page, 4096, MprotectFlags::READ | MprotectFlags::WRITE) }.expect("allowed");
    let writable = register(&mut nodes, MemPriv::ALL).expect("it may be written now");
    // SAFETY: inside the mapping.
    unsafe { page.cast::<u8>().write_volatile(7) };
    write(&mut nodes, (&ends[0], readable, 4096), ends[1].lmr);
    // SAFETY: inside the allocation.
    assert_eq!(unsafe { ends[1].heap.read_volatile() }, 7);
    // The other node writes there.
    // SAFETY: inside the allocation.
    unsafe { ends[1].heap.write_volatile(9) };
    nodes.swap(0, 1);
    write(&mut nodes, (&ends[1], ends[1].lmr, 4096), writable);
    nodes.swap(0, 1);
    // SAFETY: inside the mapping.
    assert_eq!(unsafe { page.cast::<u8>().read_volatile() }, 9);
    for lmr in [readable, writable] {
        nodes[0].lmr_free(lmr.lmr).expect("nothing uses it");
    }
    for node in nodes {
        node.close().expect("closes");
    }
    fabric.settle();
}

/// The HCA falls off the bus, fails, or is reset by another owner. The process recovers it through
/// its configuration space, and gets its own memory back only once the HCA cannot access it.
#[test]
fn a_process_recovers_its_hca() {
    let fabric = Fabric::new("recover", 1);
    let hca = |change: fn(&mut hca_model::Hca)| {
        fabric.served.with_world(move |world, _| change(world.hca_mut(0).expect("served"))).expect("served");
    };
    let config = Config { recovery_grace: Duration::ZERO, ..Config::DEFAULT };
    let mut node = node_with(&fabric.socket(0), 1, config);
    for round in 0..3 {
        let end = End::new(&mut node);
        match round {
            0 => hca(hca_model::Hca::kill),
            1 => hca(|hca| hca.fail(HealthSyndrome(1))),
            _ => hca(hca_model::Hca::reset),
        }
        while !node.is_dead() {
            let now = node.now();
            let _ = node.poll(now);
            node.idle(now + Duration::from_millis(10));
        }
        let freed = node.lmr_free(end.lmr.lmr);
        if round == 0 {
            assert!(freed.unwrap_err().is(ReturnType::InvalidState), "it may still be written to");
            hca(hca_model::Hca::revive);
        } else {
            freed.expect("bus mastering is off");
        }
        node.recover(Duration::from_secs(60)).expect("recovers");
        assert!(node.is_up() && node.census().lmrs == 0);
        // Interrupts come again: one ends the wait, and not the time.
        let now = node.now();
        let limit = now + Duration::from_secs(60);
        while !node.prepare_idle(node.now()) {}
        fabric.served.set_cable(0, false).expect("served");
        while node.is_up() {
            node.idle(limit);
            let now = node.now();
            assert!(now < limit, "no interrupt");
            let _ = node.poll(now);
        }
        fabric.served.set_cable(0, true).expect("served");
        while !node.is_up() {
            let now = node.now();
            let _ = node.poll(now);
            node.idle(now + Duration::from_millis(10));
        }
    }
    node.close().expect("closes");
    fabric.settle();
}

#[test]
fn what_is_no_hca_is_refused_with_a_hint() {
    let says =
        |name: &str| open(&name.parse().expect("a name"), &Options::default()).unwrap_err().to_string();
    assert!(says("/no/such/socket").contains("start the server"), "{}", says("/no/such/socket"));
    assert!(says("ffff:00:00.0").contains("lspci"), "{}", says("ffff:00:00.0"));
    let fabric = Fabric::new("refused", 1);
    let name = DeviceName::Socket(fabric.socket(0));
    for vectors in [0, 33] {
        assert!(open(&name, &Options { vectors, ..Options::default() }).is_err());
    }
    let first = open(&name, &Options { dma_bytes: 1 << 20, ..Options::default() }).expect("opens");
    drop(first);
    open(&name, &Options { dma_bytes: 1 << 20, ..Options::default() }).expect("opens again");
}

/// The identity selects the permitted commands. A device without firmware is not brought up.
#[test]
fn an_open_device_is_known_for_what_it_is() {
    static RECOVERING: Card = Card { device_id: 0x020d, ..CONNECTX_5 };
    let cards = [(&CONNECTX_5, 0), (&VIRTUAL_FUNCTION, 1), (&RECOVERING, 2)];
    let fabric = Fabric::of("kinds", 3, cards.map(|(card, node)| Profile::of(card, node)).to_vec());
    let kind = |node: usize| {
        let options = Options { dma_bytes: MEMORY, ..Options::default() };
        let opened = open(&DeviceName::Socket(fabric.socket(node)), &options);
        opened.map(|opened| opened.platform.is_physical()).map_err(|error| error.to_string())
    };
    assert_eq!((kind(0), kind(1)), (Ok(true), Ok(false)));
    let error = kind(2).expect_err("its firmware is missing");
    assert!(error.contains("15b3:020d") && error.contains("flash recovery"), "{error}");
}
