//! The hostile peer and its victim.

use dat_nostd::{
    CompletionFlags, ConnectFlags, ConnectionEvent, DtoOperation, DtoStatus, EpAttributes, EpHandle,
    EvdFlags, EvdHandle, EventData, IaHandle, LmrCreated, LmrTriplet, MemPriv, PzHandle, Qos, RmrTriplet,
};
use driver_mlx::{DmaBuffer, Instant};
use harness::dat::{self, ModelAdapter, address, due};
use harness::rds::GENERATION;
use harness::{World, WorldConfig};
use rds_nostd::wire::{
    ConnectData, FRAME_LEN, Flags, HEADER_LEN, Header, MAX_MESSAGE_LEN, SERVICE_PORT, VERSION,
};
use rds_nostd::{Arrival, Counters, Msg, MsgFlags, Rds, RdsConfig, RdsStorage, SocketHandle};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

/// Virtual time in which something must happen, in nanoseconds.
const LIMIT: u64 = 30_000_000_000;
const RECEIVES: usize = 16;
const SLOT: usize = 8192;
/// What cookies of sends and RDMA operations have.
const OWN: u64 = 1 << 32;

/// The victim is node 0, the hostile peer node 1.
pub struct Hostile {
    world: Rc<World>,
    pub adapters: Vec<ModelAdapter>,
    pub rds: Rds<'static>,
    /// The victim's, on port 4000.
    pub socket: SocketHandle,
    ia: IaHandle,
    pz: PzHandle,
    dto: EvdHandle,
    connect: EvdHandle,
    memory: DmaBuffer,
    registered: LmrCreated,
    /// Frames that came, and ends of RDMA operations.
    frames: VecDeque<(Header, usize)>,
    ends: VecDeque<DtoStatus>,
}

/// What a peer of the victim says of itself.
pub const GOOD: ConnectData = ConnectData {
    source: std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)),
    destination: std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)),
    version: VERSION,
    minor_mask: 3,
    tos: 0,
    expects: 0,
    longest: MAX_MESSAGE_LEN as u32,
};

/// A frame to send.
#[derive(Clone, Copy)]
pub struct Frame {
    pub header: Header,
    pub payload: usize,
    pub spoilt: bool,
    /// Bytes of the header that are sent, if not all.
    pub cut: Option<usize>,
}

pub const fn frame(header: Header, payload: usize) -> Frame {
    Frame { header, payload, spoilt: false, cut: None }
}

/// The header of a message to the victim's socket.
pub const fn data(sequence: u64, len: u32) -> Header {
    Header { sequence, len, sport: 4000, dport: 4000, ..Header::acknowledgement(0) }
}

pub const fn flagged(header: Header, flags: Flags) -> Header {
    Header { flags, ..header }
}

impl Hostile {
    pub fn new(seed: u64) -> Self {
        Self::with(seed, RdsConfig::new(GENERATION))
    }

    pub fn with(seed: u64, config: RdsConfig) -> Self {
        let world = World::new(&WorldConfig::new(seed));
        let mut adapters = dat::open(&world, seed, 2, 16 << 20).expect("opens");
        let storage = Box::leak(Box::new(RdsStorage::<4, 2, 256>::new()));
        let mut rds = Rds::start(&mut adapters[0], storage.parts(), config).expect("starts");
        let socket = rds.bind(SocketAddr::new(address(0), 4000)).expect("binds");
        let peer = &mut adapters[1];
        let (ia, _) = peer.ia_open("ib0", 8, None).expect("opens");
        let pz = peer.pz_create(ia).expect("a zone");
        let dto = peer.evd_create(ia, 64, None, EvdFlags::DTO).expect("an EVD");
        let connect = peer.evd_create(ia, 8, None, EvdFlags::CONNECTION).expect("an EVD");
        let memory = peer.dma_alloc((RECEIVES + 8) * SLOT, 4096).expect("memory");
        let registered = peer.lmr_create(ia, &memory, pz, MemPriv::ALL).expect("registers");
        let (frames, ends) = (VecDeque::new(), VecDeque::new());
        Self { world, adapters, rds, socket, ia, pz, dto, connect, memory, registered, frames, ends }
    }

    pub fn step(&mut self) {
        let now = self.world.now();
        let own = due(self.adapters[0].poll(Instant::from_nanos(now)));
        let rds = due(self.rds.poll(&mut self.adapters[0], Instant::from_nanos(now)));
        let peer = due(self.adapters[1].poll(Instant::from_nanos(now)));
        self.drain();
        let next = [own, rds, peer].into_iter().flatten().min().unwrap_or(u64::MAX);
        self.world.idle(next.clamp(now + 1, now + 1_000_000));
    }

    /// Takes what the hostile peer's endpoints completed.
    fn drain(&mut self) {
        while let Ok(event) = self.adapters[1].evd_dequeue(self.dto) {
            let EventData::Dto(done) = event.data else { continue };
            if done.operation == DtoOperation::Receive {
                if done.status != DtoStatus::Success {
                    continue;
                }
                let slot = done.user_cookie as usize;
                let mut header = [0; HEADER_LEN];
                self.memory.read(slot * SLOT, &mut header).expect("in range");
                let header = Header::decode(&header).expect("the victim's checksums are right");
                self.frames.push_back((header, done.transferred_length as usize - HEADER_LEN));
                let segment = self.segment(slot, FRAME_LEN);
                let cookie = slot as u64;
                let _ = self.adapters[1].ep_post_recv(done.ep, &[segment], cookie, CompletionFlags::empty());
            } else if done.operation != DtoOperation::Send {
                self.ends.push_back(done.status);
            }
        }
    }

    /// Runs both until there is something.
    pub fn wait<T>(&mut self, what: &str, mut find: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = self.world.now() + LIMIT;
        loop {
            if let Some(found) = find(self) {
                return found;
            }
            assert!(self.world.now() < end, "{what}: {:#?}", self.rds.counters());
            self.step();
        }
    }

    pub fn until(&mut self, what: &str, done: impl Fn(&Counters) -> bool) {
        self.wait(what, |hostile| done(hostile.rds.counters()).then_some(()));
    }

    /// Runs both for this many milliseconds.
    pub fn pass(&mut self, milliseconds: u64) {
        let end = self.world.now() + milliseconds * 1_000_000;
        while self.world.now() < end {
            self.step();
        }
    }

    /// The HCAs run for this many milliseconds, and nobody looks at what they do.
    pub fn let_time_pass(&mut self, milliseconds: u64) {
        let end = self.world.now() + milliseconds * 1_000_000;
        while self.world.now() < end {
            self.world.idle(end);
        }
    }

    /// The victim looks at what there is; how many nanoseconds that takes.
    pub fn victim_looks(&mut self) -> u64 {
        let before = self.world.now();
        let _ = self.rds.poll(&mut self.adapters[0], Instant::from_nanos(before));
        self.world.now() - before
    }

    /// The next connection event at the hostile node.
    pub fn event(&mut self) -> ConnectionEvent {
        self.wait("a connection event", |hostile| {
            match hostile.adapters[1].evd_dequeue(hostile.connect).ok()?.data {
                EventData::Connection { event, .. } => Some(event),
                _ => None,
            }
        })
    }

    /// The next frame from the victim that is one of those wanted, and the bytes of its payload.
    pub fn frame(&mut self, what: &str, wanted: impl Fn(&Header) -> bool) -> (Header, usize) {
        self.wait(what, |hostile| {
            let next = hostile.frames.pop_front()?;
            wanted(&next.0).then_some(next)
        })
    }

    /// All frames that came and were not looked at.
    pub fn frames(&mut self) -> Vec<Header> {
        self.frames.drain(..).map(|(header, _)| header).collect()
    }

    fn segment(&self, slot: usize, len: usize) -> LmrTriplet {
        let address = (self.memory.va() + slot * SLOT) as u64;
        LmrTriplet::new(self.registered.lmr_context, address, len as u64)
    }

    /// Asks for a connection with this private data, and what comes of it.
    pub fn ask(&mut self, data: &[u8]) -> (EpHandle, ConnectionEvent) {
        let attributes = EpAttributes { max_recv_dtos: 32, max_request_dtos: 16, ..EpAttributes::DEFAULT };
        let peer = &mut self.adapters[1];
        let evds = (Some(self.dto), Some(self.dto), Some(self.connect));
        let ep =
            peer.ep_create(self.ia, Some(self.pz), evds.0, evds.1, evds.2, Some(&attributes)).expect("an EP");
        for slot in 0..RECEIVES {
            let segment = self.segment(slot, FRAME_LEN);
            let cookie = slot as u64;
            self.adapters[1].ep_post_recv(ep, &[segment], cookie, CompletionFlags::empty()).expect("posts");
        }
        let (to, port) = (address(0), u64::from(SERVICE_PORT));
        self.adapters[1]
            .ep_connect(ep, &to, port, 5_000_000, data, Qos::BestEffort, ConnectFlags::Default)
            .expect("asks");
        let event = self.wait("an answer", |hostile| {
            match hostile.adapters[1].evd_dequeue(hostile.connect).ok()?.data {
                EventData::Connection { event, ep: of, .. } if of == ep => Some(event),
                _ => None,
            }
        });
        (ep, event)
    }

    pub fn connect(&mut self) -> EpHandle {
        let (data, len) = GOOD.encode();
        let (ep, event) = self.ask(&data[..len]);
        assert_eq!(event, ConnectionEvent::Established);
        ep
    }

    /// Sends frames: each a header, its checksum spoilt if asked for, and this many bytes behind it.
    pub fn send(&mut self, ep: EpHandle, frames: &[Frame]) {
        for (i, frame) in frames.iter().enumerate() {
            let slot = RECEIVES + i;
            let mut header = frame.header.encode();
            header[31] ^= u8::from(frame.spoilt);
            self.memory.write(slot * SLOT, &header).expect("in range");
            let len = frame.cut.unwrap_or(header.len()) + frame.payload;
            let segment = self.segment(slot, len);
            self.adapters[1].ep_post_send(ep, &[segment], OWN, CompletionFlags::empty()).expect("posts");
        }
    }

    /// As [`send`](Self::send), unless the queue has no room for all of them.
    pub fn try_send(&mut self, ep: EpHandle, frames: &[Frame]) -> bool {
        let room = self.adapters[1].ep_get_status(ep).is_ok_and(|status| status.request_idle);
        if room {
            self.send(ep, frames);
        }
        room
    }

    /// What the payload of frames consists of from now on.
    pub fn fill(&mut self, byte: u8) {
        self.memory.fill(RECEIVES * SLOT, 8 * SLOT, byte).expect("inside");
    }

    /// Sends one message that fits into a frame.
    pub fn say(&mut self, ep: EpHandle, header: Header) {
        self.send(ep, &[frame(header, header.len as usize)]);
        self.pass(1);
    }

    /// Reads or writes memory of the victim, and how that ends.
    pub fn reach(&mut self, ep: EpHandle, key: u32, at: u64, len: u64, write: bool) -> DtoStatus {
        let remote = RmrTriplet::new(key, at, len);
        let segment = [self.segment(RECEIVES, len as usize)];
        let (peer, none) = (&mut self.adapters[1], CompletionFlags::empty());
        self.ends.clear();
        if write {
            peer.ep_post_rdma_write(ep, &segment, OWN, &remote, none).expect("posts");
        } else {
            peer.ep_post_rdma_read(ep, &segment, OWN, &remote, none).expect("posts");
        }
        self.wait("the operation ends", |hostile| hostile.ends.pop_front())
    }

    /// The victim's frames that are free or posted as receives.
    pub fn unused_frames(&self) -> usize {
        let posted = self.rds.ib_connections_info(&self.adapters[0]).map(|info| info.cache_allocs as usize);
        self.rds.free_frames() + posted.sum::<usize>()
    }

    /// Lengths of the messages that the victim's socket has.
    pub fn received(&mut self) -> Vec<usize> {
        let mut buffer = [0; 1 << 16];
        let mut lengths = Vec::new();
        while let Ok(Arrival::Message(message)) =
            self.rds.recvmsg(&mut self.adapters[0], self.socket, &mut buffer, MsgFlags::empty())
        {
            lengths.push(message.message_len);
        }
        lengths
    }

    /// The victim sends to the hostile peer's port 4000.
    pub fn victim_sends(&mut self, payload: &[u8]) {
        let to = SocketAddr::new(address(1), 4000);
        self.rds.sendmsg(&mut self.adapters[0], self.socket, Msg::to(&to, payload)).expect("accepted");
    }

    /// The hostile peer's end of a connection goes.
    pub fn forget(&mut self, ep: EpHandle) {
        self.adapters[1].ep_free(ep).expect("frees");
        self.pass(20);
        self.drain();
        self.frames.clear();
        while self.adapters[1].evd_dequeue(self.connect).is_ok() {}
    }
}
