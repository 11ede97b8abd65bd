//! What the objects of every step have in common: an IA with a zone, memory, and one EVD for all that may share one.

use core::net::IpAddr;

use apps::connection::Buffer;
use dat_nostd::{
    Adapter, CloseFlags, CompletionFlags, ConnectFlags, CrHandle, DatResult, DatReturn, DmaSlice,
    EpAttributes, EpHandle, EvdFlags, EvdHandle, EventData, IaHandle, LmrTriplet, MemPriv, Platform,
    PspFlags, PspHandle, PzHandle, Qos, ReturnType, TIMEOUT_INFINITE,
};

use crate::Config;
use crate::error::{DemoError, InCall};
use crate::parts::{check, fill};
use crate::pattern::Stream;

pub(super) const NONE: CompletionFlags = CompletionFlags::empty();
/// Bytes of memory of a side.
const MEMORY: usize = 128 << 10;
/// Length asked for the EVD; it grows with its endpoints.
const EVENTS: u32 = 64;

/// One side's objects.
pub(super) struct Party {
    pub(super) ia: IaHandle,
    pub(super) pz: PzHandle,
    /// Takes every stream, except asynchronous errors.
    pub(super) evd: EvdHandle,
    asynchronous: EvdHandle,
    pub(super) memory: Buffer,
    peer: IpAddr,
    /// The first qualifier that the step may listen on.
    pub(super) qualifier: u64,
}

impl Party {
    pub(super) fn open<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        config: &Config,
    ) -> Result<Self, DemoError> {
        let (ia, asynchronous) = adapter.ia_open("ib0", 8, None).in_call("ia_open")?;
        let pz = adapter.pz_create(ia).in_call("pz_create")?;
        let streams = EvdFlags::DTO | EvdFlags::RMR_BIND | EvdFlags::CONNECTION | EvdFlags::CR;
        let evd = adapter.evd_create(ia, EVENTS, None, streams).in_call("evd_create")?;
        let memory = Buffer::new(adapter, ia, pz, MEMORY, MemPriv::ALL)?;
        let qualifier = u64::from(config.port) + 1;
        Ok(Self { ia, pz, evd, asynchronous, memory, peer: config.peer, qualifier })
    }

    /// An endpoint whose streams all come to the one EVD.
    pub(super) fn endpoint<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        attributes: &EpAttributes,
    ) -> Result<EpHandle, DemoError> {
        let evd = Some(self.evd);
        adapter.ep_create(self.ia, Some(self.pz), evd, evd, evd, Some(attributes)).in_call("ep_create")
    }

    /// Listens on the `n`th qualifier.
    pub(super) fn listen<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        n: u64,
    ) -> Result<PspHandle, DemoError> {
        adapter.psp_create(self.ia, self.qualifier + n, self.evd, PspFlags::Consumer).in_call("psp_create")
    }

    /// Asks the peer's first qualifier for a connection.
    pub(super) fn connect<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        ep: EpHandle,
        private_data: &[u8],
    ) -> Result<(), DemoError> {
        let (peer, qos, flags) = (self.peer, Qos::BestEffort, ConnectFlags::Default);
        adapter
            .ep_connect(ep, &peer, self.qualifier, TIMEOUT_INFINITE, private_data, qos, flags)
            .in_call("ep_connect")
    }

    pub(super) fn accept<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        cr: CrHandle,
        ep: EpHandle,
        private_data: &[u8],
    ) -> Result<(), DemoError> {
        adapter.cr_accept(cr, Some(ep), private_data).in_call("cr_accept")
    }

    /// A segment of the memory.
    pub(super) fn segment(&self, offset: usize, len: usize) -> LmrTriplet {
        self.memory.triplet(offset, len)
    }

    pub(super) fn slice(&self, offset: usize, len: usize) -> Option<DmaSlice<'_>> {
        self.memory.memory.slice(offset, len)
    }

    /// Where the peer finds a byte of the memory.
    pub(super) fn address(&self, offset: usize) -> u64 {
        self.memory.registered.registered_address + offset as u64
    }

    /// Puts a message's bytes into the memory.
    pub(super) fn fill(&self, offset: usize, len: usize, stream: Stream, sequence: u64) {
        if let Some(memory) = self.slice(offset, len) {
            fill(memory, stream, sequence, len);
        }
    }

    /// Whether a message's bytes are there.
    pub(super) fn holds(&self, offset: usize, len: usize, stream: Stream, sequence: u64) -> bool {
        self.slice(offset, len).is_some_and(|memory| check(memory, stream, sequence, len).is_none())
    }

    pub(super) fn post_recv<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        ep: EpHandle,
        (offset, len): (usize, usize),
        cookie: u64,
    ) -> Result<(), DemoError> {
        adapter.ep_post_recv(ep, &[self.segment(offset, len)], cookie, NONE).in_call("ep_post_recv")
    }

    pub(super) fn post_send<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        ep: EpHandle,
        (offset, len): (usize, usize),
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<(), DemoError> {
        let segment = [self.segment(offset, len)];
        let iov = if len == 0 { &[][..] } else { &segment };
        adapter.ep_post_send(ep, iov, cookie, flags).in_call("ep_post_send")
    }

    /// The next event, asynchronous ones included.
    pub(super) fn next<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
    ) -> Result<Option<EventData>, DemoError> {
        match take(adapter.evd_dequeue(self.evd).map(|event| event.data))? {
            None => take(adapter.evd_dequeue(self.asynchronous).map(|event| event.data)),
            some => Ok(some),
        }
    }

    pub(super) fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), DemoError> {
        adapter.ia_close(self.ia, CloseFlags::Abrupt).in_call("ia_close")?;
        adapter.dma_free(self.memory.memory).map_err(DatReturn::from).in_call("dma_free")
    }
}

/// What `evd_dequeue` answers, an empty queue being nothing.
pub(super) fn take<T>(answer: DatResult<T>) -> Result<Option<T>, DemoError> {
    match answer {
        Ok(event) => Ok(Some(event)),
        Err(error) if error.is(ReturnType::QueueEmpty) => Ok(None),
        Err(error) => Err(DemoError::Dat { call: "evd_dequeue", error }),
    }
}
