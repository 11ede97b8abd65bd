//! Restart of the node after the adapter's device failed and was recovered.

use dat_nostd::{Adapter, CloseFlags, Platform};

use crate::connection::Objects as ConnectionObjects;
use crate::error::RdsError;
use crate::io::Rds;
use crate::io::objects::choose_burst;
use crate::io::{Held, Objects};
use crate::rdma::RdmaStatus;
use crate::reason::DownReason;

impl Rds<'_> {
    /// Restarts the node after [`Adapter::recover`]: creates new DAT objects over the same frames.
    /// Every connection has gone down ([`DownReason::Recovered`]). Either side reconnects when it
    /// has something to send. Messages that the peer had not acknowledged are retransmitted, and no
    /// message is received twice.
    ///
    /// Sockets and their unread messages survive. Offers to peers end: their keys are void, and
    /// [`free_mr`](Self::free_mr) does not find them. [Registrations](Self::register_memory) end,
    /// too. RDMA operations that had not completed, begun or not, end as [`RdmaStatus::Dropped`],
    /// as on any broken connection. So do unacknowledged messages with a [zero-copy
    /// payload](crate::Lend), whose registration is lost.
    ///
    /// Polls remain possible before this call: messages wait, and connection attempts fail.
    ///
    /// # Errors
    /// [`RdsError::Dat`]: the adapter has failed again, or lacks objects. Another call may succeed.
    pub fn adapter_recovered<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), RdsError> {
        let mut node = self.node(adapter);
        let now = node.adapter.now();
        node.protocol.now = now;
        *node.held = Held::EMPTY;
        for id in node.protocol.connections.ids() {
            let connection = node.protocol.connections.at_mut(id);
            connection.reconnect.held_request = 0;
            if connection.objects.ep != 0 {
                node.connection_down(id, DownReason::Recovered, now);
            }
            node.protocol.connections.at_mut(id).objects = ConnectionObjects {
                epoch: node.protocol.connection(id).objects.epoch,
                ..ConnectionObjects::EMPTY
            };
            let has_operation = |protocol: &crate::protocol::Protocol<'_>, message| {
                let descriptor = protocol.frames.message(message);
                descriptor.operation.is_some() || descriptor.lent().is_some()
            };
            node.protocol.drop_unsent(id, has_operation, RdmaStatus::Dropped);
        }
        node.release_ended();
        // The reset device cannot write to any memory, so everything can be freed.
        node.protocol.frames.release();
        node.protocol.windows.forget();
        node.free_regions(None)?;
        node.unregister_all(None)?;
        let memory = node.protocol.frames.memory().ok_or(RdsError::NoDevice)?;
        let (ia, async_evd) = node.adapter.ia_open(node.adapter.name(), 16, None)?;
        let count = node.protocol.connections.len() as u32;
        match Objects::create(node.adapter, (ia, async_evd), memory, &node.protocol.limits, count) {
            Ok(objects) => {
                *node.objects = objects;
                choose_burst(node.objects, &node.protocol.sockets);
                Ok(())
            }
            Err(error) => {
                let _ = node.adapter.ia_close(ia, CloseFlags::Abrupt);
                Err(error.into())
            }
        }
    }
}
