//! What the datagram queues of a port share: registered memory, a completion queue, and how their queue pairs start.

use driver_mlx::{
    Access, Bar, Base, Cq, CqConfig, CqNumber, DmaBuffer, Error, Hca, InitParams, MemoryRegion, Pd, Platform,
    Psn, Qp, QpConfig, Sge,
};

/// Memory that datagrams are received into and sent from, and the queue of their completions.
#[derive(Debug)]
pub(crate) struct Buffers<B: Bar> {
    pub(crate) pd: Pd,
    pub(crate) memory: DmaBuffer,
    region: MemoryRegion,
    pub(crate) cq: Cq<B>,
    /// Rates that address vectors can name.
    pub(crate) rate_supported: u16,
    armed: bool,
}

impl<B: Bar> Buffers<B> {
    /// `len` bytes, and room for `entries` completions. What was begun is undone on failure.
    pub(crate) fn open<P: Platform<Bar = B>>(
        hca: &mut Hca<'_, P>,
        len: usize,
        entries: usize,
    ) -> Result<Self, Error> {
        let pd = hca.alloc_pd()?;
        let opened = Self::open_memory(hca, pd, len, entries);
        let (memory, region, cq) = match opened {
            Ok(parts) => parts,
            Err(error) => {
                // The first error is the one to tell.
                let _ = hca.dealloc_pd(pd);
                return Err(error);
            }
        };
        let rate_supported = hca.caps().stat_rate_support;
        Ok(Self { pd, memory, region, cq, rate_supported, armed: false })
    }

    fn open_memory<P: Platform<Bar = B>>(
        hca: &mut Hca<'_, P>,
        pd: Pd,
        len: usize,
        entries: usize,
    ) -> Result<(DmaBuffer, MemoryRegion, Cq<B>), Error> {
        let memory = hca.alloc(len, 4096)?;
        let region = match hca.register(pd, &memory, Access::LOCAL_WRITE, Base::Virtual) {
            Ok(region) => region,
            Err(error) => {
                let _ = hca.free(memory);
                return Err(error);
            }
        };
        match hca.create_cq(&CqConfig { entries: entries as u32, eq: 0 }) {
            Ok(cq) => Ok((memory, region, cq)),
            Err(error) => {
                let _ = hca.deregister(region);
                let _ = hca.free(memory);
                Err(error)
            }
        }
    }

    /// Destroys everything, after the queue pairs; the first error is told, the rest is done all the same.
    pub(crate) fn close<P: Platform<Bar = B>>(self, hca: &mut Hca<'_, P>) -> Result<(), Error> {
        // The number of a zone of an earlier life may be another's by now.
        let zone = hca.is_current(&self.region);
        let cq = hca.destroy_cq(self.cq);
        let region = hca.deregister(self.region).map_err(Error::from);
        let memory = if region.is_ok() { hca.free(self.memory).map_err(Error::from) } else { Ok(()) };
        let pd = if zone { hca.dealloc_pd(self.pd) } else { Ok(()) };
        cq.and(region).and(memory).and(pd)
    }

    /// A piece of the memory, as work requests name it.
    pub(crate) fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { address: self.region.address() + offset as u64, length: len as u32, lkey: self.region.lkey() }
    }

    /// The CQ's number, to tell whose event it is.
    pub(crate) fn cq_number(&self) -> CqNumber {
        self.cq.number()
    }

    /// The event of [`Buffers::arm`] arrived.
    pub(crate) fn notified(&mut self) {
        self.cq.notified();
        self.armed = false;
    }

    /// Asks for an event at the next completion.
    pub(crate) fn arm(&mut self) {
        if !self.armed {
            self.cq.arm(false);
            self.armed = true;
        }
    }

    /// Whether something has completed that was not taken yet.
    pub(crate) fn has_work(&self) -> bool {
        !matches!(self.cq.peek(0), Ok(None))
    }
}

/// Makes a datagram queue pair of port 1 and brings it to RTS.
pub(crate) fn start_qp<P: Platform>(
    hca: &mut Hca<'_, P>,
    config: &QpConfig,
    pkey_index: u16,
) -> Result<Qp<P::Bar>, Error> {
    let mut qp = hca.create_qp(config)?;
    match run_qp(hca, &mut qp, pkey_index) {
        Ok(()) => Ok(qp),
        Err(error) => {
            let _ = hca.destroy_qp(qp);
            Err(error)
        }
    }
}

/// Makes the raw-packet queue pair, which receives from now on.
pub(crate) fn start_raw_packet<P: Platform>(
    hca: &mut Hca<'_, P>,
    config: &QpConfig,
) -> Result<Qp<P::Bar>, Error> {
    let mut qp = hca.create_qp(config)?;
    match hca.start_raw_packet(&mut qp) {
        Ok(()) => Ok(qp),
        Err(error) => {
            let _ = hca.destroy_qp(qp);
            Err(error)
        }
    }
}

/// Brings a datagram queue pair of port 1 from RESET to RTS.
pub(crate) fn run_qp<P: Platform>(
    hca: &mut Hca<'_, P>,
    qp: &mut Qp<P::Bar>,
    pkey_index: u16,
) -> Result<(), Error> {
    let params = InitParams { port: 1, pkey_index, access: Access::empty() };
    hca.modify_to_init(qp, &params)?;
    hca.modify_to_rts_datagram(qp, Psn::new(0))
}
