//! The adapter's device failed and was recovered: the node's objects went with it, what was not acknowledged is kept.

use dat_nostd::{Adapter, CloseFlags, Platform};

use crate::connection::Objects as ConnectionObjects;
use crate::error::RdsError;
use crate::io::Rds;
use crate::io::{Held, Objects};
use crate::rdma::RdmaStatus;
use crate::reason::DownReason;

impl Rds<'_> {
    /// The adapter has been recovered ([`Adapter::recover`]): the node makes its DAT objects anew, over the same frames, and goes on. Every
    /// connection has gone down ([`DownReason::Recovered`]) and is made again as soon as one side has something to send: what the peer had
    /// not acknowledged is sent again, what it had is not, and nothing is received twice.
    ///
    /// Sockets stay, with what they have received. Memory that was offered to peers is offered no more: their keys are void, and
    /// [`free_mr`](Self::free_mr) does not know them; memory that was [registered](Self::register_memory) is registered no more. RDMA
    /// operations that had not ended end as [`RdmaStatus::Dropped`], as on any connection that breaks, those not begun too, and so do
    /// messages with a [lent payload](crate::Lend) that the peer had not acknowledged: its registration is gone.
    ///
    /// Until then, while the device is gone, the node may be polled as ever: messages wait, and attempts to connect fail.
    ///
    /// # Errors
    /// [`RdsError::Dat`]: the adapter has failed again, or lacks objects. It can be called again.
    pub fn adapter_recovered<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), RdsError> {
        let now = adapter.now();
        self.protocol.now = now;
        self.held = Held::EMPTY;
        for id in self.protocol.connections.ids() {
            let connection = self.protocol.connections.at_mut(id);
            connection.reconnect.held_request = 0;
            if connection.objects.ep != 0 {
                self.connection_down(adapter, id, DownReason::Recovered, now);
            }
            self.protocol.connections.at_mut(id).objects = ConnectionObjects {
                epoch: self.protocol.connection(id).objects.epoch,
                ..ConnectionObjects::NONE
            };
            let has_operation = |protocol: &crate::protocol::Protocol<'_>, message| {
                let descriptor = protocol.frames.message(message);
                descriptor.operation.is_some() || descriptor.lent().is_some()
            };
            self.protocol.drop_unsent(id, has_operation, RdmaStatus::Dropped);
        }
        self.release_ended(adapter);
        // The device was reset: what it might still have written to is free, and what it could be told of is not there any more.
        self.protocol.frames.release();
        self.protocol.windows.forget();
        self.free_regions(adapter, None)?;
        self.unregister_all(adapter, None)?;
        let (ia, async_evd) = adapter.ia_open("ib0", 16, None)?;
        let count = self.protocol.connections.len() as u32;
        let memory = self.protocol.frames.memory().ok_or(RdsError::NoDevice)?;
        match Objects::create(adapter, (ia, async_evd), memory, &self.protocol.limits, count) {
            Ok(objects) => {
                self.objects = objects;
                self.choose_burst();
                Ok(())
            }
            Err(error) => {
                let _ = adapter.ia_close(ia, CloseFlags::Abrupt);
                Err(error.into())
            }
        }
    }
}
