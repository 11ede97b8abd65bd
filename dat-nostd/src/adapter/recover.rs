//! The adapter after its device has failed: everything made anew over the same memory.

use driver_mlx::{Duration, Platform};

use crate::adapter::Adapter;
use crate::adapter::config::OpenError;

impl<P: Platform> Adapter<'_, P> {
    /// Extension: brings an adapter whose device is gone ([`Adapter::is_dead`], IA_CATASTROPHIC on every asynchronous EVD) back to work:
    /// the device is reset, or its reset by others waited for, the HCA and the port are brought up, and `activation_timeout` is waited
    /// for the port as [`AdapterConfig::activation_timeout`](crate::AdapterConfig::activation_timeout) says. An adapter that works stays as
    /// it is.
    ///
    /// Before, poll the EVDs empty: every DTO that was outstanding is reported there, as flushed, and every connection as broken. Once the
    /// device is back, what the consumers have not closed is closed abruptly, as [`Adapter::close`] does; their handles name nothing any
    /// more. As long as the device is not back, everything stays.
    ///
    /// Platform, region and tables stay the adapter's. So do the buffers of [`Adapter::dma_alloc`], which are nobody's but their owner's:
    /// they keep address and content, and one that is no longer wanted is freed as ever. No memory that the device could still write to is
    /// allocated anew before it was reset; buffers of receives that were reported as flushed are the consumer's at once, with the exceptions
    /// of [`Hca::recover`](driver_mlx::Hca::recover). Memory of a consumer's own is the consumer's again at the latest when this has succeeded.
    ///
    /// # How a program goes on
    /// It opens its IA again, makes zone, EVDs and EPs, registers the *same buffers* (contexts are new, addresses are not), and connects.
    /// A protocol with connections of its own, as RDS, takes the failure as the end of every connection: it forgets the handles of all its
    /// objects, keeps its frames with the messages not yet acknowledged in them and its order of sequence, lets this run, makes its objects
    /// over the frames' buffers, and goes through its ordinary reconnect, which sends again what was not acknowledged. What its peer had
    /// acknowledged before is not sent again; memory that it had offered to peers is offered under new contexts only.
    ///
    /// ```
    /// use dat_nostd::{Adapter, DmaBuffer, Duration, IaHandle, LmrCreated, MemPriv, OpenError, Platform};
    ///
    /// fn again<P: Platform>(adapter: &mut Adapter<'_, P>, frames: &DmaBuffer) -> Result<(IaHandle, LmrCreated), OpenError> {
    ///     adapter.recover(Duration::from_secs(30))?;
    ///     let (ia, _) = adapter.ia_open("ib0", 8, None).expect("an IA is free: all were closed");
    ///     let pz = adapter.pz_create(ia).expect("a zone");
    ///     Ok((ia, adapter.lmr_create(ia, frames, pz, MemPriv::ALL).expect("registered")))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`OpenError::Hca`] as [`Hca::recover`](driver_mlx::Hca::recover) says: the adapter is as dead as before, and it may be tried again
    /// unless the error says otherwise. [`OpenError::PortNotActive`]: the adapter works, its port is not up yet.
    pub fn recover(&mut self, activation_timeout: Duration) -> Result<(), OpenError> {
        // Of which no poll may have told yet.
        let now = self.device.now();
        if self.device.hca_mut().check_health(now).is_some() {
            self.device_events().die();
        }
        if !self.device.is_dead() {
            return Ok(());
        }
        self.device.hca_mut().recover()?;
        // Now it is sure that there is another life, and that the device reaches nothing of the last one's.
        self.close_ias();
        self.memory().free_kept();
        let _ = self.progress.pending_mut().take_flush();
        self.device.reopen(activation_timeout)
    }
}
