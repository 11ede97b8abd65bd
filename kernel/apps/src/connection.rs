//! One DAT endpoint with its objects and its one connection, and registered buffers: what programs that talk to one peer at a time
//! have in common.

use core::net::IpAddr;

use dat_nostd::{
    Adapter, CloseFlags, CompletionFlags, ConnectFlags, ConnectionEvent, DatReturn, DmaBuffer, Duration,
    EpAttributes, EpHandle, EvdFlags, EvdHandle, Event, EventData, IaHandle, Instant, LmrCreated, LmrTriplet,
    MemPriv, Platform, PspFlags, PspHandle, PzHandle, Qos, ReturnType,
};

use crate::Role;

/// Between connection attempts.
const RETRY: Duration = Duration::from_millis(200);
/// For one attempt, microseconds.
const ATTEMPT_US: u32 = 10_000_000;

/// A DAT call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallError {
    /// Which call.
    pub call: &'static str,
    /// Its answer.
    pub error: DatReturn,
}

/// Names the call in an error.
pub trait InCall<T> {
    /// The same result with the call's name.
    ///
    /// # Errors
    /// That of the call.
    fn in_call(self, call: &'static str) -> Result<T, CallError>;
}

impl<T> InCall<T> for Result<T, DatReturn> {
    fn in_call(self, call: &'static str) -> Result<T, CallError> {
        self.map_err(|error| CallError { call, error })
    }
}

/// A registered buffer.
#[derive(Debug)]
pub struct Buffer {
    /// Its memory.
    pub memory: DmaBuffer,
    /// Its region.
    pub registered: LmrCreated,
}

impl Buffer {
    /// Carves `len` bytes and registers them.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn new<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        ia: IaHandle,
        pz: PzHandle,
        len: usize,
        rights: MemPriv,
    ) -> Result<Self, CallError> {
        let memory = adapter.dma_alloc(len, 4096).in_call("dma_alloc")?;
        let registered = adapter.lmr_create(ia, &memory, pz, rights).in_call("lmr_create")?;
        Ok(Self { memory, registered })
    }

    /// `len` bytes from `offset` on, as a DTO names them.
    #[must_use]
    pub fn triplet(&self, offset: usize, len: usize) -> LmrTriplet {
        LmrTriplet::new(self.registered.lmr_context, (self.memory.va() + offset) as u64, len as u64)
    }

    /// Gives everything back.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn free<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), CallError> {
        adapter.lmr_free(self.registered.lmr).in_call("lmr_free")?;
        adapter.dma_free(self.memory).map_err(DatReturn::from).in_call("dma_free")
    }
}

/// How the connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Not yet connected.
    Connecting,
    /// Connected.
    Up,
    /// Over.
    Ended(ConnectionEvent),
}

/// What a connection is made with.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionConfig {
    /// Who connects.
    pub role: Role,
    /// The IA's name.
    pub ia: &'static str,
    /// Whom the client connects to.
    pub peer: IpAddr,
    /// The service's port.
    pub port: u16,
    /// Receives and requests that may be outstanding.
    pub receives: usize,
    /// See above.
    pub requests: usize,
    /// RDMA reads that may be outstanding, each way.
    pub reads: u32,
}

/// What [`Connection::poll`] met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing that the owner has to act on.
    None,
    /// The connection is there.
    Established,
    /// An attempt failed and everything posted was flushed: receives have to be posted again.
    Reset,
}

/// The objects of a node and its one connection.
#[derive(Debug)]
pub struct Connection {
    config: ConnectionConfig,
    /// The IA.
    pub ia: IaHandle,
    /// The protection zone.
    pub pz: PzHandle,
    receive_evd: EvdHandle,
    request_evd: EvdHandle,
    connect_evd: EvdHandle,
    cr_evd: EvdHandle,
    psp: Option<PspHandle>,
    /// The endpoint.
    pub ep: EpHandle,
    state: LinkState,
    retry_at: Option<Instant>,
    last_failure: Option<ConnectionEvent>,
    failures: u32,
}

impl Connection {
    /// Makes the objects; the server listens from here on.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn open<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        config: &ConnectionConfig,
    ) -> Result<Self, CallError> {
        let (ia, _) = adapter.ia_open(config.ia, 8, None).in_call("ia_open")?;
        let pz = adapter.pz_create(ia).in_call("pz_create")?;
        let mut evd =
            |len: usize, flags| adapter.evd_create(ia, len as u32, None, flags).in_call("evd_create");
        let receive_evd = evd(config.receives, EvdFlags::DTO)?;
        let request_evd = evd(config.requests, EvdFlags::DTO)?;
        let connect_evd = evd(8, EvdFlags::CONNECTION)?;
        let cr_evd = evd(4, EvdFlags::CR)?;
        let attributes = EpAttributes {
            max_recv_dtos: config.receives as u32,
            max_request_dtos: config.requests as u32,
            max_recv_iov: 1,
            max_request_iov: 1,
            max_rdma_read_in: config.reads,
            max_rdma_read_out: config.reads,
            ..EpAttributes::DEFAULT
        };
        let evds = (Some(receive_evd), Some(request_evd), Some(connect_evd));
        let ep = adapter
            .ep_create(ia, Some(pz), evds.0, evds.1, evds.2, Some(&attributes))
            .in_call("ep_create")?;
        let port = u64::from(config.port);
        let psp = match config.role {
            Role::Server => {
                Some(adapter.psp_create(ia, port, cr_evd, PspFlags::Consumer).in_call("psp_create")?)
            }
            Role::Client => None,
        };
        Ok(Self {
            config: *config,
            ia,
            pz,
            receive_evd,
            request_evd,
            connect_evd,
            cr_evd,
            psp,
            ep,
            state: LinkState::Connecting,
            retry_at: (config.role == Role::Client).then_some(Instant::ORIGIN),
            last_failure: None,
            failures: 0,
        })
    }

    /// How it is doing.
    #[must_use]
    pub fn state(&self) -> LinkState {
        self.state
    }

    /// What the last attempt that failed ended with.
    #[must_use]
    pub fn last_failure(&self) -> Option<ConnectionEvent> {
        self.last_failure
    }

    /// How many attempts have failed.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The time of the next attempt, if one is due.
    #[must_use]
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Runs connection events, up to one that the owner has to act on; call until that is [`Change::None`]. The server accepts
    /// with `greeting`.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        greeting: &[u8],
        now: Instant,
    ) -> Result<Change, CallError> {
        while let Some(event) = dequeue(adapter, self.cr_evd)? {
            let EventData::ConnectionRequest { cr, .. } = event.data else { continue };
            // One peer at a time; whoever else asks is told so.
            let accepted =
                self.state == LinkState::Connecting && adapter.cr_accept(cr, Some(self.ep), greeting).is_ok();
            if !accepted {
                let _ = adapter.cr_reject(cr);
            }
        }
        while let Some(event) = dequeue(adapter, self.connect_evd)? {
            let EventData::Connection { event, .. } = event.data else { continue };
            if event == ConnectionEvent::Established {
                self.state = LinkState::Up;
                return Ok(Change::Established);
            }
            if self.state != LinkState::Connecting {
                self.state = LinkState::Ended(event);
                continue;
            }
            // The peer is not there yet: everything posted was flushed; begin anew.
            self.last_failure = Some(event);
            self.failures = self.failures.saturating_add(1);
            while dequeue(adapter, self.receive_evd)?.is_some() {}
            adapter.ep_reset(self.ep).in_call("ep_reset")?;
            if self.config.role == Role::Client {
                self.retry_at = Some(now + RETRY);
            }
            return Ok(Change::Reset);
        }
        if self.retry_at.is_some_and(|at| now >= at) {
            self.retry_at = None;
            let (peer, port) = (self.config.peer, u64::from(self.config.port));
            adapter
                .ep_connect(self.ep, &peer, port, ATTEMPT_US, &[], Qos::BestEffort, ConnectFlags::Default)
                .in_call("ep_connect")?;
        }
        Ok(Change::None)
    }

    /// The next event of a DTO. Requests first: what arrives is answered by requests, and those need the room of the completed
    /// ones.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn completion<P: Platform>(&self, adapter: &mut Adapter<'_, P>) -> Result<Option<Event>, CallError> {
        match dequeue(adapter, self.request_evd)? {
            Some(event) => Ok(Some(event)),
            None => dequeue(adapter, self.receive_evd),
        }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn post_recv<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        segment: LmrTriplet,
        cookie: u64,
    ) -> Result<(), CallError> {
        adapter.ep_post_recv(self.ep, &[segment], cookie, CompletionFlags::empty()).in_call("ep_post_recv")
    }

    /// Posts a send; none of a segment without bytes.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn post_send<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        segment: LmrTriplet,
        cookie: u64,
    ) -> Result<(), CallError> {
        adapter
            .ep_post_send(self.ep, some(&segment), cookie, CompletionFlags::empty())
            .in_call("ep_post_send")
    }

    /// Posts an RDMA write.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn post_write<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        segment: LmrTriplet,
        remote: &dat_nostd::RmrTriplet,
        cookie: u64,
    ) -> Result<(), CallError> {
        adapter
            .ep_post_rdma_write(self.ep, some(&segment), cookie, remote, CompletionFlags::empty())
            .in_call("ep_post_rdma_write")
    }

    /// Posts an RDMA read.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn post_read<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        segment: LmrTriplet,
        remote: &dat_nostd::RmrTriplet,
        cookie: u64,
    ) -> Result<(), CallError> {
        adapter
            .ep_post_rdma_read(self.ep, some(&segment), cookie, remote, CompletionFlags::empty())
            .in_call("ep_post_rdma_read")
    }

    /// Begins the connection's end.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn disconnect<P: Platform>(&self, adapter: &mut Adapter<'_, P>) -> Result<(), CallError> {
        adapter.ep_disconnect(self.ep, CloseFlags::Graceful).in_call("ep_disconnect")
    }

    /// Listens no more. A connection that is there stays.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn stop_listening<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), CallError> {
        self.psp.take().map_or(Ok(()), |psp| adapter.psp_free(psp).in_call("psp_free"))
    }

    /// Frees everything, `buffers` included; the graceful close at the end is refused if anything was left.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn close<P: Platform, const N: usize>(
        mut self,
        adapter: &mut Adapter<'_, P>,
        buffers: [Buffer; N],
    ) -> Result<(), CallError> {
        self.stop_listening(adapter)?;
        adapter.ep_free(self.ep).in_call("ep_free")?;
        for buffer in buffers {
            buffer.free(adapter)?;
        }
        for evd in [self.receive_evd, self.request_evd, self.connect_evd, self.cr_evd] {
            adapter.evd_free(evd).in_call("evd_free")?;
        }
        adapter.pz_free(self.pz).in_call("pz_free")?;
        adapter.ia_close(self.ia, CloseFlags::Graceful).in_call("ia_close")
    }
}

/// No segment for no bytes.
fn some(segment: &LmrTriplet) -> &[LmrTriplet] {
    if segment.segment_length == 0 { &[] } else { core::slice::from_ref(segment) }
}

fn dequeue<P: Platform>(adapter: &mut Adapter<'_, P>, evd: EvdHandle) -> Result<Option<Event>, CallError> {
    match adapter.evd_dequeue(evd) {
        Ok(event) => Ok(Some(event)),
        Err(error) if error.is(ReturnType::QueueEmpty) => Ok(None),
        Err(error) => Err(CallError { call: "evd_dequeue", error }),
    }
}
