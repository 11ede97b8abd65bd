//! RDS against a peer that speaks its protocol wrongly: a plain DAT consumer that posts frames of its own making.

use dat_nostd::{
    CompletionFlags, ConnectFlags, ConnectionEvent, EpAttributes, EpHandle, EvdFlags, EvdHandle, EventData,
    IaHandle, LmrCreated, LmrTriplet, MemPriv, PzHandle, Qos,
};
use driver_mlx::DmaSlice;
use rds_nostd::wire::{CONGESTION_MAP_LEN, ConnectData, FRAME_LEN, Flags, Header, REJECT_DATA, SERVICE_PORT};
use rds_nostd::{Counters, Rds, RdsConfig, RdsStorage};
use std::net::SocketAddr;
use std::rc::Rc;
use tests::dat::{self, ModelAdapter, address};
use tests::{World, WorldConfig};

/// Virtual time in which something must happen, in nanoseconds.
const LIMIT: u64 = 30_000_000_000;
const RECEIVES: usize = 16;

struct Hostile {
    world: Rc<World>,
    /// The victim and the hostile node.
    adapters: Vec<ModelAdapter>,
    rds: Rds<'static>,
    ia: IaHandle,
    pz: PzHandle,
    dto: EvdHandle,
    connect: EvdHandle,
    memory: DmaSlice,
    registered: LmrCreated,
}

impl Hostile {
    fn new(seed: u64) -> Self {
        let world = World::new(&WorldConfig::new(seed));
        let mut adapters = dat::open(&world, seed, 2, 16 << 20).expect("opens");
        let storage = Box::leak(Box::new(RdsStorage::<4, 2, 256>::new()));
        let rds = Rds::start(&mut adapters[0], storage.parts(), RdsConfig::default()).expect("starts");
        let peer = &mut adapters[1];
        let (ia, _) = peer.ia_open("ib0", 8, None).expect("opens");
        let pz = peer.pz_create(ia).expect("a zone");
        let dto = peer.evd_create(ia, 64, None, EvdFlags::DTO).expect("an EVD");
        let connect = peer.evd_create(ia, 8, None, EvdFlags::CONNECTION).expect("an EVD");
        let memory = peer.dma_alloc((RECEIVES + 8) * 8192, 4096).expect("memory");
        let registered =
            peer.lmr_create(ia, memory, pz, MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE).expect("registers");
        Self { world, adapters, rds, ia, pz, dto, connect, memory, registered }
    }

    fn step(&mut self) {
        let now = self.world.now();
        let own = self.adapters[0].poll(now);
        let rds = self.rds.poll(&mut self.adapters[0], now);
        let peer = self.adapters[1].poll(now);
        let next = [own, rds, peer].into_iter().flatten().min().unwrap_or(u64::MAX);
        self.world.idle(next.max(now + 1));
    }

    /// The next connection event at the hostile node.
    fn event(&mut self) -> ConnectionEvent {
        let end = self.world.now() + LIMIT;
        loop {
            if let Ok(event) = self.adapters[1].evd_dequeue(self.connect)
                && let EventData::Connection { event, .. } = event.data
            {
                return event;
            }
            assert!(self.world.now() < end, "nothing happened");
            self.step();
        }
    }

    fn segment(&self, slot: usize, len: usize) -> LmrTriplet {
        let address = (self.memory.va() + slot * 8192) as u64;
        LmrTriplet::new(self.registered.lmr_context, address, len as u64)
    }

    /// Asks for a connection with this private data, and what comes of it.
    fn ask(&mut self, data: &[u8]) -> (EpHandle, ConnectionEvent) {
        let attributes = EpAttributes { max_recv_dtos: 32, max_request_dtos: 16, ..EpAttributes::DEFAULT };
        let peer = &mut self.adapters[1];
        let evds = (Some(self.dto), Some(self.dto), Some(self.connect));
        let ep =
            peer.ep_create(self.ia, Some(self.pz), evds.0, evds.1, evds.2, Some(&attributes)).expect("an EP");
        for slot in 0..RECEIVES {
            let segment = self.segment(slot, FRAME_LEN);
            self.adapters[1].ep_post_recv(ep, &[segment], 0, CompletionFlags::empty()).expect("posts");
        }
        let (to, port) = (address(0), u64::from(SERVICE_PORT));
        self.adapters[1]
            .ep_connect(ep, &to, port, 5_000_000, data, Qos::BestEffort, ConnectFlags::Default)
            .expect("asks");
        (ep, self.event())
    }

    fn connect(&mut self) -> EpHandle {
        let (data, len) = GOOD.encode();
        let (ep, event) = self.ask(&data[..len]);
        assert_eq!(event, ConnectionEvent::Established);
        ep
    }

    /// Sends frames: each a header, its checksum spoilt if asked for, and this many bytes behind it.
    fn send(&mut self, ep: EpHandle, frames: &[Frame]) {
        for (i, frame) in frames.iter().enumerate() {
            let slot = RECEIVES + i;
            let mut header = frame.header.encode();
            header[31] ^= u8::from(frame.spoilt);
            self.memory.write(slot * 8192, &header).expect("in range");
            let len = frame.cut.unwrap_or(header.len()) + frame.payload;
            let segment = self.segment(slot, len);
            self.adapters[1].ep_post_send(ep, &[segment], 0, CompletionFlags::empty()).expect("posts");
        }
    }

    fn until(&mut self, what: &str, done: impl Fn(&Counters) -> bool) {
        let end = self.world.now() + LIMIT;
        while !done(self.rds.counters()) {
            assert!(self.world.now() < end, "{what}: {:?}", self.rds.counters());
            self.step();
        }
    }

    fn forget(&mut self, ep: EpHandle) {
        self.adapters[1].ep_free(ep).expect("frees");
        while self.adapters[1].evd_dequeue(self.dto).is_ok() {}
        for _ in 0..200 {
            self.step();
        }
    }
}

const GOOD: ConnectData = ConnectData {
    source: std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)),
    destination: std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)),
    version: (3, 1),
    minor_mask: 3,
    tos: 0,
};

#[derive(Clone, Copy)]
struct Frame {
    header: Header,
    payload: usize,
    spoilt: bool,
    /// Bytes of the header that are sent, if not all.
    cut: Option<usize>,
}

const fn frame(header: Header, payload: usize) -> Frame {
    Frame { header, payload, spoilt: false, cut: None }
}

const fn data(sequence: u64, len: u32) -> Header {
    Header { sequence, len, sport: 4000, dport: 4000, ..Header::acknowledgement(0) }
}

/// Whatever breaks the protocol costs the connection, is counted, and leaves neither frames nor parts of messages behind; the
/// next connection works.
#[test]
fn frames_that_break_the_protocol() {
    let cases: [(&str, &[Frame]); 9] = [
        ("short header", &[Frame { cut: Some(47), ..frame(data(1, 0), 0) }]),
        ("longer than a frame", &[frame(data(1, 8000), 4097)]),
        ("first fragment too short", &[frame(data(1, 8000), 4095)]),
        ("last fragment too long", &[frame(data(1, 100), 101)]),
        ("last fragment too short", &[frame(data(1, 8000), 4096), frame(data(1, 8000), 3000)]),
        ("another message in between", &[frame(data(1, 8000), 4096), frame(data(2, 10), 10)]),
        ("longer than a message", &[frame(data(1, (1 << 20) + 1), 4096)]),
        ("payload of an acknowledgement", &[frame(Header::acknowledgement(0), 5)]),
        ("wrong checksum", &[Frame { spoilt: true, ..frame(data(1, 10), 10) }]),
    ];
    let mut hostile = Hostile::new(1);
    let here = SocketAddr::new(address(0), 4000);
    let socket = hostile.rds.bind(here).expect("binds");
    let mut free = None;
    for (number, (what, frames)) in cases.into_iter().enumerate() {
        let ep = hostile.connect();
        let resets = hostile.rds.counters().conn_reset;
        hostile.send(ep, frames);
        hostile.until(what, |counters| counters.conn_reset > resets);
        assert_ne!(hostile.event(), ConnectionEvent::Established, "{what}: the connection is gone");
        hostile.forget(ep);
        assert_eq!(hostile.rds.connections_up(), 0, "{what}");
        let left = hostile.rds.free_frames();
        assert_eq!(*free.get_or_insert(left), left, "{what}: all frames came back");
        let counters = hostile.rds.counters();
        assert_eq!(counters.recv_queued, number as u64, "{what}: nothing was delivered of it");

        let ep = hostile.connect();
        hostile.send(ep, &[frame(data(100 + number as u64, 10), 10)]);
        hostile.until(what, |counters| counters.recv_queued == number as u64 + 1);
        let mut buffer = [0; 16];
        let received = hostile.rds.recvmsg(&mut hostile.adapters[0], socket, &mut buffer).expect("there");
        assert_eq!(received.len, 10, "{what}");
        hostile.forget(ep);
    }
    let counters = hostile.rds.counters();
    assert_eq!(counters.recv_drop_bad_checksum, 1);
    // Whatever is too long for a posted receive is found by the HCA.
    assert_eq!(counters.recv_protocol_errors, cases.len() as u64 - 1, "{counters:?}");
}

/// What is odd but harmless is passed over.
#[test]
fn odd_frames_are_passed_over() {
    let mut hostile = Hostile::new(2);
    hostile.rds.bind(SocketAddr::new(address(0), 4000)).expect("binds");
    let ep = hostile.connect();
    let map = Header { flags: Flags::CONG_BITMAP, ..Header::acknowledgement(0) };
    let unknown = Header { flags: Flags::from_bits_retain(0xf8), ..data(2, 0) };
    hostile.send(
        ep,
        &[
            frame(Header::acknowledgement(u64::MAX), 0),
            frame(Header { len: 77, ..map }, 77),
            frame(data(1, 4097), 4096),
            // An acknowledgement and a map in the middle of a message.
            frame(Header::acknowledgement(0), 0),
            frame(Header { len: CONGESTION_MAP_LEN as u32, ..map }, 4096),
            frame(Header { len: CONGESTION_MAP_LEN as u32, ..map }, 4096),
            frame(data(1, 4097), 1),
            frame(unknown, 0),
        ],
    );
    hostile.until("two messages", |counters| counters.recv_queued == 2);
    let counters = hostile.rds.counters();
    assert_eq!((counters.ack_beyond, counters.cong_update_received, counters.conn_reset), (1, 1, 0));
    assert_eq!(counters.recv_protocol_errors, 0);
}

/// Requests that do not fit are refused so that a Linux peer understands it, and take nothing.
#[test]
fn requests_that_are_refused() {
    let mut hostile = Hostile::new(3);
    let free = hostile.rds.free_frames();
    let cases = [
        ConnectData { version: (3, 0), ..GOOD },
        ConnectData { version: (2, 1), ..GOOD },
        ConnectData { version: (5, 0), ..GOOD },
        // 4.x, but no minor version in common.
        ConnectData { version: (4, 1), minor_mask: 0xfffc, ..GOOD },
        ConnectData { source: address(7), ..GOOD },
        ConnectData { source: address(0), ..GOOD },
        ConnectData { destination: address(7), ..GOOD },
        ConnectData { version: (0, 0), source: address(7), ..GOOD },
    ];
    for (number, case) in cases.iter().enumerate() {
        let (data, len) = case.encode();
        let (ep, event) = hostile.ask(&data[..len]);
        assert_eq!(event, ConnectionEvent::PeerRejected, "{case:?}");
        let why = hostile.adapters[1].ep_private_data(ep).expect("connected once").to_vec();
        assert_eq!(why.get(..4), Some(&REJECT_DATA[..]), "{case:?}");
        hostile.forget(ep);
        assert_eq!(hostile.rds.counters().connect_refused, number as u64 + 1, "{case:?}");
        assert_eq!(hostile.rds.free_frames(), free, "{case:?}");
    }
    let ep = hostile.connect();
    hostile.forget(ep);
}

/// Whoever pings without acknowledging the answers gets only so many.
#[test]
fn unacknowledged_pongs_are_bounded() {
    let mut hostile = Hostile::new(4);
    let ep = hostile.connect();
    let mut sequence = 0;
    for _ in 0..5 {
        let pings = [(); 8].map(|()| {
            sequence += 1;
            frame(Header { dport: 0, ..data(sequence, 0) }, 0)
        });
        hostile.send(ep, &pings);
        hostile.until("pings", |counters| counters.recv_ping == sequence);
        while hostile.adapters[1].evd_dequeue(hostile.dto).is_ok() {}
    }
    assert_eq!(hostile.rds.counters().send_pong, 16);
}
