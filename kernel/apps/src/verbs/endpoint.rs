//! Queues and memory of one side, posting and completions.

use driver_mlx::{
    Access, Base, Completion, CompletionError, Cq, CqConfig, DmaBuffer, DmaSlice, Hca, InitParams,
    MemoryRegion, Path, Pd, Platform, Psn, Qp, QpConfig, RtrParams, RtsParams, SendFlags, SendOp,
    ServiceLevel, Sge,
};

use super::address::Address;
use super::agreement::{CONTROL_LEN, Control, EXPOSED_LEN, MAX_MESSAGE, SOURCE, WORD};
use super::error::VerbsError;

/// Receives posted at any time.
const RECEIVES: usize = 8;
/// Work requests that may be under way.
const SENDS: usize = 32;
/// Reads and atomics under way, each way.
const READS: u8 = 4;

// The private memory's layout.
const SEND: usize = RECEIVES * MAX_MESSAGE;
const READ: usize = SEND + MAX_MESSAGE;
const CONTROLS: usize = READ + MAX_MESSAGE;
const FETCHED: usize = CONTROLS + SENDS * CONTROL_LEN;
const PRIVATE_LEN: usize = FETCHED + 4096;

/// Local ACK time-out, about 1.07 s: long enough for a peer whose numbers travel by hand.
const ACK_TIMEOUT: u8 = 18;

const RIGHTS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// A receive that was filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) buffer: usize,
    pub(crate) len: usize,
}

pub(crate) struct Endpoint<P: Platform> {
    pd: Pd,
    exposed: DmaBuffer,
    exposed_key: MemoryRegion,
    private: DmaBuffer,
    private_key: MemoryRegion,
    send_cq: Cq<P::Bar>,
    recv_cq: Cq<P::Bar>,
    qp: Qp<P::Bar>,
    peer: Option<Address>,
    controls: usize,
    /// Work requests posted and not yet completed.
    under_way: usize,
    armed: [bool; 2],
}

impl<P: Platform> Endpoint<P> {
    /// Makes everything; the QP is in INIT with its receives posted.
    pub(crate) fn new(hca: &mut Hca<'_, P>) -> Result<Self, VerbsError> {
        let pd = hca.alloc_pd()?;
        let exposed = hca.alloc(EXPOSED_LEN, 4096)?;
        exposed.fill(0, EXPOSED_LEN, 0).map_err(out_of_bounds)?;
        let exposed_key = hca.register(pd, &exposed, Access::LOCAL_WRITE | RIGHTS, Base::Virtual)?;
        let private = hca.alloc(PRIVATE_LEN, 4096)?;
        let private_key = hca.register(pd, &private, Access::LOCAL_WRITE, Base::Virtual)?;
        let send_cq = hca.create_cq(&CqConfig { entries: SENDS as u32, eq: 0 })?;
        let recv_cq = hca.create_cq(&CqConfig { entries: RECEIVES as u32, eq: 0 })?;
        let config = QpConfig {
            recv_cq: recv_cq.number(),
            max_send_wr: SENDS as u32,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpConfig::rc(pd, send_cq.number())
        };
        let mut qp = hca.create_qp(&config)?;
        hca.modify_to_init(&mut qp, &InitParams { port: 1, pkey_index: 0, access: RIGHTS })?;
        let mut endpoint = Self {
            pd,
            exposed,
            exposed_key,
            private,
            private_key,
            send_cq,
            recv_cq,
            qp,
            peer: None,
            controls: 0,
            under_way: 0,
            armed: [false; 2],
        };
        (0..RECEIVES).try_for_each(|buffer| endpoint.repost(buffer))?;
        Ok(endpoint)
    }

    pub(crate) fn address(&self, hca: &mut Hca<'_, P>, psn: Psn) -> Result<Address, VerbsError> {
        Ok(Address {
            qpn: self.qp.number(),
            psn,
            lid: hca.port()?.lid,
            gid: Some(hca.gid(0)?),
            rkey: self.exposed_key.rkey(),
            addr: self.exposed_key.address(),
        })
    }

    /// Brings the QP to RTS towards `peer`.
    pub(crate) fn connect(
        &mut self,
        hca: &mut Hca<'_, P>,
        peer: &Address,
        psn: Psn,
    ) -> Result<(), VerbsError> {
        let path = Path::InfiniBand {
            dlid: peer.lid,
            sl: ServiceLevel::default(),
            src_path_bits: 0,
            static_rate: 0,
            grh: None,
        };
        let rtr = RtrParams {
            path,
            mtu: hca.port()?.mtu,
            remote_qpn: peer.qpn,
            rq_psn: peer.psn,
            responder_resources: READS,
            min_rnr_timer: 12,
        };
        hca.modify_to_rtr(&mut self.qp, &rtr)?;
        let rts = RtsParams {
            sq_psn: psn,
            ack_timeout: ACK_TIMEOUT,
            retry_count: 7,
            rnr_retry: 7,
            initiator_depth: READS,
        };
        hca.modify_to_rts(&mut self.qp, &rts)?;
        self.peer = Some(*peer);
        Ok(())
    }

    /// Memory that the peer writes (at 0), reads (at [`SOURCE`]) and counts in (at [`WORD`]).
    pub(crate) fn exposed(&self) -> DmaSlice<'_> {
        self.exposed.as_slice()
    }

    /// Where the peer reads from.
    pub(crate) fn source(&self) -> Result<DmaSlice<'_>, VerbsError> {
        part(self.exposed.as_slice(), SOURCE, MAX_MESSAGE)
    }

    /// Where messages and writes are sent from.
    pub(crate) fn outgoing(&self) -> Result<DmaSlice<'_>, VerbsError> {
        part(self.private.as_slice(), SEND, MAX_MESSAGE)
    }

    /// Where reads go.
    pub(crate) fn read(&self) -> Result<DmaSlice<'_>, VerbsError> {
        part(self.private.as_slice(), READ, MAX_MESSAGE)
    }

    /// What arrived in a receive.
    pub(crate) fn received(&self, buffer: usize) -> Result<DmaSlice<'_>, VerbsError> {
        part(self.private.as_slice(), buffer * MAX_MESSAGE, MAX_MESSAGE)
    }

    /// The word that the peer's atomics work on, in host order.
    pub(crate) fn word(&self) -> Result<u64, VerbsError> {
        word(self.exposed.as_slice(), WORD)
    }

    pub(crate) fn set_word(&self, value: u64) -> Result<(), VerbsError> {
        self.exposed.write(WORD, &value.to_ne_bytes()).map_err(out_of_bounds)
    }

    /// What the last atomic operation answered.
    pub(crate) fn fetched(&self) -> Result<u64, VerbsError> {
        word(self.private.as_slice(), FETCHED)
    }

    pub(crate) fn repost(&mut self, buffer: usize) -> Result<(), VerbsError> {
        let sge = self.sge(buffer * MAX_MESSAGE, MAX_MESSAGE);
        Ok(self.qp.post_recv(&[sge], buffer as u64)?)
    }

    pub(crate) fn send(&mut self, len: usize) -> Result<(), VerbsError> {
        self.post(SendOp::Send, self.sge(SEND, len))
    }

    pub(crate) fn send_control(&mut self, control: Control) -> Result<(), VerbsError> {
        // As many places as there may be work requests: the one used now is free.
        let at = CONTROLS + self.controls % SENDS * CONTROL_LEN;
        self.controls += 1;
        self.private.write(at, &control.encode()).map_err(out_of_bounds)?;
        self.post(SendOp::Send, self.sge(at, CONTROL_LEN))
    }

    pub(crate) fn rdma_write(&mut self, len: usize) -> Result<(), VerbsError> {
        let peer = self.peer()?;
        self.post(SendOp::Write { raddr: peer.addr, rkey: peer.rkey }, self.sge(SEND, len))
    }

    pub(crate) fn rdma_read(&mut self, len: usize) -> Result<(), VerbsError> {
        let peer = self.peer()?;
        let raddr = peer.addr.wrapping_add(SOURCE as u64);
        self.post(SendOp::Read { raddr, rkey: peer.rkey }, self.sge(READ, len))
    }

    pub(crate) fn compare_swap(&mut self, compare: u64, swap: u64) -> Result<(), VerbsError> {
        let peer = self.peer()?;
        let raddr = peer.addr.wrapping_add(WORD as u64);
        let op = SendOp::CompareSwap { raddr, rkey: peer.rkey, compare, swap };
        self.post(op, self.sge(FETCHED, 8))
    }

    pub(crate) fn fetch_add(&mut self, add: u64) -> Result<(), VerbsError> {
        let peer = self.peer()?;
        let raddr = peer.addr.wrapping_add(WORD as u64);
        self.post(SendOp::FetchAdd { raddr, rkey: peer.rkey, add }, self.sge(FETCHED, 8))
    }

    fn peer(&self) -> Result<Address, VerbsError> {
        self.peer.ok_or(VerbsError::Protocol { during: None })
    }

    fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge {
            address: self.private_key.address() + offset as u64,
            length: len as u32,
            lkey: self.private_key.lkey(),
        }
    }

    fn post(&mut self, op: SendOp, sge: Sge) -> Result<(), VerbsError> {
        let doorbell = self.qp.post_send(op, &[sge], 0, SendFlags::SIGNALED)?;
        self.qp.ring(doorbell);
        self.under_way += 1;
        Ok(())
    }

    /// Whether everything posted has completed.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// Takes a completion of the send queue.
    pub(crate) fn sent(&mut self) -> Result<Option<Result<(), CompletionError>>, VerbsError> {
        let Some(retired) = self.send_cq.poll(|cqe| self.qp.retire(cqe))? else { return Ok(None) };
        self.under_way = self.under_way.saturating_sub(1);
        match retired {
            Some(Completion::Sent(_)) => Ok(Some(Ok(()))),
            Some(Completion::Failed(failed)) => Ok(Some(Err(failed.error))),
            Some(Completion::Received(_)) | None => Err(VerbsError::Protocol { during: None }),
        }
    }

    /// Takes a completion of the receive queue.
    pub(crate) fn arrived(&mut self) -> Result<Option<Result<Arrival, CompletionError>>, VerbsError> {
        let Some(retired) = self.recv_cq.poll(|cqe| self.qp.retire(cqe))? else { return Ok(None) };
        match retired {
            Some(Completion::Received(message)) => {
                Ok(Some(Ok(Arrival { buffer: message.wr_id.id as usize, len: message.length as usize })))
            }
            Some(Completion::Failed(failed)) => Ok(Some(Err(failed.error))),
            Some(Completion::Sent(_)) | None => Err(VerbsError::Protocol { during: None }),
        }
    }

    /// Asks for an interrupt at the next completion.
    pub(crate) fn arm(&mut self, hca: &mut Hca<'_, P>) {
        for (cq, armed) in [&mut self.send_cq, &mut self.recv_cq].into_iter().zip(&mut self.armed) {
            if !*armed {
                cq.arm(false);
                *armed = true;
            }
        }
        hca.arm_events();
    }

    /// Takes completion events; whether there was one.
    pub(crate) fn notified(&mut self, hca: &mut Hca<'_, P>) -> bool {
        let Self { send_cq, recv_cq, armed, .. } = self;
        hca.poll_completions(|number| {
            for (cq, armed) in [&mut *send_cq, &mut *recv_cq].into_iter().zip(armed.iter_mut()) {
                if cq.number() == number {
                    cq.notified();
                    *armed = false;
                }
            }
        }) > 0
    }

    /// Destroys everything.
    pub(crate) fn close(self, hca: &mut Hca<'_, P>) -> Result<(), VerbsError> {
        hca.destroy_qp(self.qp)?;
        hca.destroy_cq(self.send_cq)?;
        hca.destroy_cq(self.recv_cq)?;
        for (key, memory) in [(self.exposed_key, self.exposed), (self.private_key, self.private)] {
            hca.deregister(key)?;
            hca.free(memory)?;
        }
        Ok(hca.dealloc_pd(self.pd)?)
    }
}

/// The layout is ours: out of bounds is a defect, told as one of the arguments.
fn out_of_bounds(_: driver_mlx::OutOfBounds) -> VerbsError {
    VerbsError::Driver(driver_mlx::Error::InvalidArgument("memory"))
}

fn part(memory: DmaSlice<'_>, offset: usize, len: usize) -> Result<DmaSlice<'_>, VerbsError> {
    memory.slice(offset, len).ok_or(out_of_bounds(driver_mlx::OutOfBounds))
}

fn word(memory: DmaSlice<'_>, offset: usize) -> Result<u64, VerbsError> {
    let mut bytes = [0; 8];
    memory.read(offset, &mut bytes).map_err(out_of_bounds)?;
    Ok(u64::from_ne_bytes(bytes))
}
