//! A guest without a virtual machine: the driver on a served HCA.

use super::client::{CONFIG, Client, NO_REPLY, REGION_WRITE, access};
use driver_mlx::{
    Access, Bar, Base, Config, Cq, CqConfig, DmaBuffer, DmaRegion, DoorbellRegister, Gid, Grh, Hca,
    HcaStorage, HostRegion, InitParams, Instant, Lid, LinkState, MacAddress, MapError, MemoryRegion, Mtu,
    Path, Platform, Psn, Qp, QpConfig, QpNumber, RtrParams, RtsParams, SendFlags, SendOp, ServiceLevel, Sge,
};
use hca_serve::Stepped;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::path::Path as FilePath;
use std::rc::Rc;
use std::time::{Duration, Instant as Clock};

/// Device address of a guest's memory.
pub const DEVICE_BASE: u64 = 0x1_0000_0000;
/// Bytes of a guest's memory.
const MEMORY: usize = 16 << 20;
/// Number of 4 KiB blocks in the driver's storage.
const BLOCKS: usize = MEMORY / 4096;
/// Bytes of a message.
pub const MESSAGE: usize = 16 << 10;

struct Connection {
    client: RefCell<Client>,
    began: Clock,
    /// Clock of a server with counted time.
    counted: Cell<Option<Duration>>,
    /// True once the server or the device is lost.
    failed: Cell<bool>,
}

/// View of BAR0 over a connection, from an offset on.
#[derive(Clone, Copy)]
pub struct RemoteBar {
    connection: &'static Connection,
    start: usize,
    len: usize,
}

impl RemoteBar {
    fn write(&self, offset: usize, data: &[u8]) {
        let mut payload = access(0, (self.start + offset) as u64, data.len());
        payload.extend(data);
        let sent = self.connection.client.borrow_mut().try_post(REGION_WRITE, NO_REPLY, &payload, &[]);
        self.connection.failed.set(self.connection.failed.get() | sent.is_err());
    }
}

/// A register of a queue.
pub struct RemoteRegister {
    bar: RemoteBar,
    offset: usize,
}

impl std::fmt::Debug for RemoteRegister {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.offset)
    }
}

impl DoorbellRegister for RemoteRegister {
    fn ring(&mut self, value: u64) {
        self.write(0, value);
    }

    fn write(&mut self, offset: usize, value: u64) {
        self.bar.write(self.offset + offset, &value.to_be_bytes());
    }
}

impl Bar for RemoteBar {
    type DoorbellRegister = RemoteRegister;

    fn len(&self) -> usize {
        self.len
    }

    fn read32(&self, offset: usize) -> u32 {
        let payload = access(0, (self.start + offset) as u64, 4);
        let answer = self.connection.client.borrow_mut().try_ask(super::client::REGION_READ, &payload, &[]);
        match answer.ok().and_then(|answer| answer.payload.get(16..20)?.try_into().ok()) {
            Some(bytes) => u32::from_be_bytes(bytes),
            None => {
                self.connection.failed.set(true);
                u32::MAX
            }
        }
    }

    unsafe fn write32(&self, offset: usize, value: u32) {
        self.write(offset, &value.to_be_bytes());
    }

    unsafe fn doorbell_register(&self, offset: usize, _: usize) -> RemoteRegister {
        RemoteRegister { bar: *self, offset }
    }
}

/// A driver's platform whose registers are messages of vfio-user. The harness's calls the model.
#[derive(Clone)]
pub struct Remote {
    bar: RemoteBar,
}

impl Platform for Remote {
    type Bar = RemoteBar;

    fn bar(&self) -> RemoteBar {
        self.bar
    }

    fn uar_write_combining(&self, _offset: usize, _len: usize) -> Option<RemoteBar> {
        None
    }

    fn now(&self) -> Instant {
        let connection = self.bar.connection;
        let time = connection.counted.get().unwrap_or_else(|| connection.began.elapsed());
        Instant::from_nanos(time.as_nanos() as u64)
    }

    fn idle(&self, _deadline: Instant) {
        let connection = self.bar.connection;
        connection.counted.set(connection.client.borrow().step());
        if connection.counted.get().is_none() {
            // The device has its own thread, which may share the processor with this one.
            std::thread::yield_now();
        }
    }

    unsafe fn map(&self, _va: usize, _len: usize, _: bool) -> Result<u64, MapError> {
        Err(MapError::Unsupported)
    }

    unsafe fn unmap(&self, _device_address: u64, _len: usize) {}
}

/// Maps a guest's memory permanently, with the same alignment as its device address. The alignment
/// determines the page sizes that the driver registers, and thereby the device's work.
fn mapped(file: &File) -> *mut std::ffi::c_void {
    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses, without access.
    let room = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * MEMORY, ProtFlags::empty(), flags) };
    let room = room.expect("room");
    let aligned = room.wrapping_byte_add(room.align_offset(MEMORY));
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
    // SAFETY: the address range is inside the reservation above, which has no other user.
    unsafe { mmap(aligned, MEMORY, access, flags, file, 0) }.expect("mapped")
}

/// A side of a connection of queue pairs.
struct End {
    qp: Qp<RemoteBar>,
    cq: Cq<RemoteBar>,
    memory: DmaBuffer,
    key: MemoryRegion,
    pd: driver_mlx::Pd,
}

/// Address of a port: of InfiniBand, or of Ethernet with its link-local GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    Lid(Lid),
    Mac(MacAddress),
}

/// A driver on a served HCA.
pub struct Guest {
    hca: Hca<'static, Remote>,
    connection: &'static Connection,
    end: Option<End>,
    /// Its memory.
    pub file: File,
}

impl Guest {
    /// Connects to the socket and brings the HCA up.
    pub fn bring_up(socket: &FilePath) -> Self {
        let file = super::memory(MEMORY as u64);
        let mut client = Client::new(socket);
        let reply = client.map(&file, 0, DEVICE_BASE, MEMORY as u64);
        assert!(!reply.is_error(), "{reply:?}");
        Self::with(client, file)
    }

    /// Connects to a stepped server and brings the HCA up.
    pub fn bring_up_stepping(server: &Rc<RefCell<Stepped>>, index: usize) -> Self {
        let file = super::memory(MEMORY as u64);
        let mut client = Client::stepping(server, index);
        let reply = client.map(&file, 0, DEVICE_BASE, MEMORY as u64);
        assert!(!reply.is_error(), "{reply:?}");
        Self::with(client, file)
    }

    /// Like [`bring_up`](Self::bring_up), with private memory.
    pub fn bring_up_private(socket: &FilePath) -> Self {
        let file = super::memory(MEMORY as u64);
        let mut client = Client::new(socket);
        let reply = client.ask(super::client::DMA_MAP, &super::client::map(3, 0, DEVICE_BASE, MEMORY as u64));
        assert!(!reply.is_error(), "{reply:?}");
        client.lend(file.try_clone().expect("descriptor"), DEVICE_BASE);
        Self::with(client, file)
    }

    fn with(mut client: Client, file: File) -> Self {
        client.write(CONFIG, 4, &6u16.to_le_bytes());
        let counted = Cell::new(client.time());
        let connection = Box::leak(Box::new(Connection {
            client: RefCell::new(client),
            began: Clock::now(),
            counted,
            failed: Cell::new(false),
        }));
        let bar = RemoteBar { connection, start: 0, len: 32 << 20 };
        let va = mapped(&file);
        // SAFETY: the mapping is permanent. Only the driver and the device, which shares it, access
        // it.
        let region = unsafe { DmaRegion::new(va.cast(), DEVICE_BASE, MEMORY) }.expect("a region");
        let words = Box::leak(vec![0; 4 << 20 >> 3].into_boxed_slice());
        let host = HostRegion::from_static(words).expect("large enough");
        let storage = Box::leak(Box::new(HcaStorage::<BLOCKS>::new()));
        let hca = Hca::bring_up(Remote { bar }, region, host, storage.parts(), &Config::DEFAULT);
        Self { hca: hca.expect("comes up"), connection, end: None, file }
    }

    /// Waits until the port is Active. Returns its address.
    pub fn wait_active(&mut self) -> Address {
        let deadline = Clock::now() + Duration::from_secs(30);
        loop {
            let port = self.hca.port().expect("port");
            if port.state == LinkState::Active {
                return port.ethernet().map_or(Address::Lid(port.lid()), |link| Address::Mac(link.mac));
            }
            assert!(Clock::now() < deadline, "the port is {:?}", port.state);
            let now = self.hca.now();
            let _ = self.hca.poll(now);
            self.hca.idle(now);
            if self.connection.counted.get().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Creates a queue pair with registered memory.
    pub fn open(&mut self) -> QpNumber {
        let hca = &mut self.hca;
        let pd = hca.alloc_pd().expect("PD");
        let memory = hca.alloc(2 * MESSAGE, 4096).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let key = hca.register(pd, &memory, access, Base::Virtual).expect("key");
        let cq = hca.create_cq(&CqConfig { entries: 64, eq: 0 }).expect("CQ");
        let sizes = QpConfig { max_send_wr: 32, max_recv_wr: 32, ..QpConfig::rc(pd, cq.number()) };
        let mut qp = hca.create_qp(&sizes).expect("QP");
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        hca.modify_to_init(&mut qp, &InitParams { port: 1, pkey_index: 0, access }).expect("INIT");
        let number = qp.number();
        self.end = Some(End { qp, cq, memory, key, pd });
        number
    }

    /// Returns the path to a port.
    fn path(&mut self, to: Address) -> Path {
        let dmac = match to {
            Address::Lid(dlid) => {
                let sl = ServiceLevel::default();
                return Path::InfiniBand { dlid, sl, src_path_bits: 0, static_rate: 0, grh: None };
            }
            Address::Mac(mac) => mac,
        };
        let port = self.hca.port().expect("port");
        let own = Gid::link_local(port.ethernet().expect("an Ethernet port").mac);
        let source_gid_index = self.hca.add_roce_address(own, None).expect("room");
        let dgid = Gid::link_local(dmac);
        let grh = Grh { dgid, source_gid_index, flow_label: 0, hop_limit: 64, traffic_class: 0 };
        Path::Roce { dmac, priority: 0, grh }
    }

    /// Brings the queue pair to RTS.
    pub fn connect(&mut self, to: Address, peer: QpNumber) {
        let path = self.path(to);
        let mtu = self.hca.port().expect("port").mtu.min(Mtu::B4096);
        let end = self.end.as_mut().expect("open");
        let rtr = RtrParams {
            path,
            mtu,
            remote_qpn: peer,
            rq_psn: Psn::new(7),
            responder_resources: 4,
            min_rnr_timer: 12,
        };
        self.hca.modify_to_rtr(&mut end.qp, &rtr).expect("RTR");
        let rts = RtsParams {
            sq_psn: Psn::new(7),
            ack_timeout: 16,
            retry_count: 7,
            rnr_retry: 7,
            initiator_depth: 4,
        };
        self.hca.modify_to_rts(&mut end.qp, &rts).expect("RTS");
    }

    /// Returns address and key of its memory as numbers, for a peer.
    pub fn target(&self) -> (u64, driver_mlx::RKey) {
        let end = self.end.as_ref().expect("open");
        (end.key.address(), end.key.rkey())
    }

    /// Fills its own memory with `byte`, writes it to the peer's and waits for the completion.
    pub fn write(&mut self, byte: u8, target: (u64, driver_mlx::RKey)) -> Result<(), String> {
        let end = self.end.as_ref().expect("open");
        end.memory.as_slice().write(0, &[byte; MESSAGE]).expect("inside");
        self.post(target)?;
        let deadline = Clock::now() + Duration::from_secs(30);
        loop {
            if let Some(done) = self.completed() {
                return done;
            }
            if Clock::now() > deadline {
                return Err("no completion in 30 s".into());
            }
            self.hca.idle(Instant::ORIGIN);
            let now = self.hca.now();
            let _ = self.hca.poll(now);
        }
    }

    /// Posts a write of its memory to the peer's and rings the doorbell.
    pub fn post(&mut self, (address, rkey): (u64, driver_mlx::RKey)) -> Result<(), String> {
        let end = self.end.as_ref().expect("open");
        let sge = Sge { address: end.key.address(), length: MESSAGE as u32, lkey: end.key.lkey() };
        self.post_from(sge, address + MESSAGE as u64, rkey)
    }

    /// Posts a write between any two memories, and rings the doorbell.
    pub fn post_from(&mut self, from: Sge, raddr: u64, rkey: driver_mlx::RKey) -> Result<(), String> {
        let end = self.end.as_mut().expect("open");
        let op = SendOp::Write { raddr, rkey };
        let doorbell = end.qp.post_send(op, &[from], 0, SendFlags::SIGNALED).map_err(|e| format!("{e:?}"))?;
        end.qp.ring(doorbell);
        Ok(())
    }

    /// Returns the driver.
    pub fn hca(&mut self) -> &mut Hca<'static, Remote> {
        &mut self.hca
    }

    /// Returns the key of its memory.
    pub fn key(&self) -> &MemoryRegion {
        &self.end.as_ref().expect("open").key
    }

    /// Returns the protection domain of its queue pair.
    pub fn pd(&self) -> driver_mlx::Pd {
        self.end.as_ref().expect("open").pd
    }

    /// Returns the next completion, if any.
    pub fn completed(&mut self) -> Option<Result<(), String>> {
        let end = self.end.as_mut().expect("open");
        let taken = end.cq.poll(|cqe| {
            end.qp.retire(cqe);
            cqe.error().map_or(Ok(()), |error| Err(format!("{error:?}")))
        });
        match taken {
            Ok(Some(outcome)) => Some(outcome),
            Ok(None) => None,
            Err(error) => Some(Err(error.to_string())),
        }
    }

    /// Returns the data that a peer wrote.
    pub fn written(&self) -> Vec<u8> {
        let mut bytes = vec![0; MESSAGE];
        let end = self.end.as_ref().expect("open");
        end.memory.as_slice().read(MESSAGE, &mut bytes).expect("inside");
        bytes
    }

    /// Returns whether its server is lost.
    pub fn failed(&self) -> bool {
        self.connection.failed.get()
    }

    /// Returns its connection, for messages that a driver would not send.
    pub fn client(&mut self) -> std::cell::RefMut<'_, Client> {
        self.connection.client.borrow_mut()
    }

    /// Returns its connection and abandons the driver.
    pub fn into_client(self) -> Client {
        let connection = self.connection;
        // Not dropped, because dropping a driver stops its device.
        std::mem::forget(self);
        let stream = connection.client.borrow().stream.try_clone().expect("descriptor");
        connection.client.borrow_mut().stream = std::os::unix::net::UnixStream::pair().expect("a pair").0;
        Client::of(stream)
    }
}

impl Drop for Guest {
    /// Closes the connection, which the leaked registers keep open.
    fn drop(&mut self) {
        let _ = self.client().stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Returns two guests that can write to each other.
pub fn pair(sockets: [&FilePath; 2]) -> [Guest; 2] {
    join(sockets.map(Guest::bring_up))
}

/// Connects two guests whose HCAs are up.
pub fn join(mut guests: [Guest; 2]) -> [Guest; 2] {
    let addresses = guests.each_mut().map(Guest::wait_active);
    let numbers = guests.each_mut().map(Guest::open);
    let [a, b] = &mut guests;
    a.connect(addresses[1], numbers[1]);
    b.connect(addresses[0], numbers[0]);
    guests
}
