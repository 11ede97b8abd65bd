//! A reliable connection on the driver alone, without a connection manager: what the data-path tests, the capture and the
//! bench work with.

use crate::kept::keep;
use crate::node::Node;
use crate::platform::{ModelBar, ModelPlatform};
use driver_mlx::{
    Access, Base, Cq, CqConfig, Cqe, DmaBuffer, Duration, Error, Hca, InitParams, LKey, Lid, MemoryRegion,
    Mtu, Path, Pd, Platform, Psn, Qp, QpConfig, QpNumber, RtrParams, RtsParams, ServiceLevel, Sge,
};

/// What [`connect`] may be told.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Path MTU.
    pub mtu: Mtu,
    /// Local ACK time-out code: 4.096 us times 2 to this power.
    pub ack_timeout: u8,
    /// Retries after a time-out or a sequence error.
    pub retry_count: u8,
    /// Retries after "receiver not ready"; 7 without end.
    pub rnr_retry: u8,
    /// First sequence number of the side that calls, the other side's is 0x123 on.
    pub psn: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { mtu: Mtu::B4096, ack_timeout: 14, retry_count: 7, rnr_retry: 7, psn: 0xff_fff0 }
    }
}

/// Brings `qp` from INIT to RTS towards QP `peer` at `lid`; `psns` are the first sequence numbers of its requests and of its peer's.
///
/// # Errors
/// Those of the driver.
pub fn to_rts<P: Platform>(
    hca: &mut Hca<'_, P>,
    qp: &mut Qp<P::Bar>,
    lid: Lid,
    peer: QpNumber,
    psns: (u32, u32),
    options: &Options,
) -> Result<(), Error> {
    let path = Path::InfiniBand {
        dlid: lid,
        sl: ServiceLevel::default(),
        src_path_bits: 0,
        static_rate: 0,
        grh: None,
    };
    to_rts_along(hca, qp, path, peer, psns, options)
}

/// As [`to_rts`], along a path on any medium.
///
/// # Errors
/// Those of the driver.
pub fn to_rts_along<P: Platform>(
    hca: &mut Hca<'_, P>,
    qp: &mut Qp<P::Bar>,
    path: Path,
    peer: QpNumber,
    psns: (u32, u32),
    options: &Options,
) -> Result<(), Error> {
    let rtr = RtrParams {
        path,
        mtu: options.mtu,
        remote_qpn: peer,
        rq_psn: Psn::new(psns.1),
        responder_resources: 4,
        min_rnr_timer: 12,
    };
    hca.modify_to_rtr(qp, &rtr)?;
    let rts = RtsParams {
        sq_psn: Psn::new(psns.0),
        ack_timeout: options.ack_timeout,
        retry_count: options.retry_count,
        rnr_retry: options.rnr_retry,
        initiator_depth: 4,
    };
    hca.modify_to_rts(qp, &rts)
}

/// One side of a reliable connection, with registered memory.
pub struct Endpoint {
    /// The connection.
    pub qp: Qp<ModelBar>,
    /// Completions of both directions.
    pub cq: Cq<ModelBar>,
    /// Its protection domain.
    pub pd: Pd,
    /// Registered memory.
    pub memory: DmaBuffer,
    /// Its key, for local writes and all remote access, by virtual address.
    pub key: MemoryRegion,
}

impl Endpoint {
    /// Everything that an endpoint needs, its QP in INIT. `queues` are the lengths of both work queues.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(
        hca: &mut Hca<'_, ModelPlatform>,
        memory: usize,
        queues: u32,
        config: impl FnOnce(QpConfig) -> QpConfig,
    ) -> Result<Self, Error> {
        let pd = hca.alloc_pd()?;
        let memory = hca.alloc(memory, 4096)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let key = hca.register(pd, &memory, access, Base::Virtual)?;
        let cq = hca.create_cq(&CqConfig { entries: 2 * queues, eq: 0 })?;
        let sizes = QpConfig { max_send_wr: queues, max_recv_wr: queues, ..QpConfig::rc(pd, cq.number()) };
        let mut qp = hca.create_qp(&config(sizes))?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        hca.modify_to_init(&mut qp, &InitParams { port: 1, pkey_index: 0, access })?;
        Ok(Self { qp, cq, pd, memory, key })
    }

    /// Brings the QP to RTS towards QP `peer` at `lid`.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn to_rts(
        &mut self,
        hca: &mut Hca<'_, ModelPlatform>,
        lid: Lid,
        peer: QpNumber,
        psns: (u32, u32),
        options: &Options,
    ) -> Result<(), Error> {
        to_rts(hca, &mut self.qp, lid, peer, psns, options)
    }

    /// `len` bytes of the memory from `offset` on, as a work request names them.
    #[must_use]
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { address: self.address(offset), length: len as u32, lkey: self.key.lkey() }
    }

    /// Address of byte `offset` of the memory, as the key counts.
    #[must_use]
    pub fn address(&self, offset: usize) -> u64 {
        self.key.address() + offset as u64
    }

    /// Waits, in virtual time, for the next completion.
    ///
    /// # Panics
    /// If there is none for `limit` nanoseconds, or one that cannot be.
    pub fn wait(&mut self, platform: &ModelPlatform, limit: u64) -> Cqe<'static> {
        let end = platform.now().saturating_add(Duration::from_nanos(limit));
        loop {
            match self.cq.poll(|cqe| keep(cqe.copy()).cqe()) {
                Ok(Some(completion)) => return completion,
                Ok(None) => assert!(platform.now() < end, "no completion for {} ms", limit / 1_000_000),
                Err(error) => panic!("{error}"),
            }
            platform.idle(end);
        }
    }

    /// Destroys everything.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn destroy(self, hca: &mut Hca<'_, ModelPlatform>) -> Result<(), Error> {
        hca.destroy_qp(self.qp)?;
        hca.destroy_cq(self.cq)?;
        hca.deregister(self.key)?;
        hca.dealloc_pd(self.pd)?;
        hca.free(self.memory)?;
        Ok(())
    }
}

/// Connects two endpoints of two nodes whose ports are Active.
///
/// # Errors
/// Those of the driver.
pub fn connect(
    (a, at): (&mut Node, &mut Endpoint),
    (b, to): (&mut Node, &mut Endpoint),
    options: &Options,
) -> Result<(), Error> {
    let (lid_a, lid_b) = (a.hca.port()?.lid(), b.hca.port()?.lid());
    let (qpn_a, qpn_b) = (at.qp.number(), to.qp.number());
    at.to_rts(&mut a.hca, lid_b, qpn_b, (options.psn, 0x123), options)?;
    to.to_rts(&mut b.hca, lid_a, qpn_a, (0x123, options.psn), options)
}

/// A key that nobody has.
#[must_use]
pub fn wrong_key() -> LKey {
    LKey::new(0xdead_be00)
}
