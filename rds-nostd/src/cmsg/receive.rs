//! `recvmsg` with its control messages.

use dat_nostd::{Adapter, Platform};

use crate::cmsg::buffer::ControlWriter;
use crate::cmsg::message::Cmsg;
use crate::error::RdsError;
use crate::ids::SocketHandle;
use crate::io::Rds;
use crate::message::{Arrival, LentMessage, MsgFlags, Received};

impl Rds<'_> {
    /// [`recvmsg`](Self::recvmsg) with its control messages. Writes as many pending RDMA
    /// notifications as `control` has space for, at least one, and returns the first.
    ///
    /// # Errors
    /// As for `recvmsg`. `control` is unchanged then.
    pub fn recvmsg_control<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        buffer: &mut [u8],
        flags: MsgFlags,
        control: &mut ControlWriter<'_>,
    ) -> Result<Arrival, RdsError> {
        let latency = self.rxpath_latency(adapter, handle)?;
        let arrival = self.recvmsg(adapter, handle, buffer, flags)?;
        match arrival {
            Arrival::RdmaStatus(first) => {
                let room = control.room_for_statuses();
                control.push(&Cmsg::RdmaStatus(first));
                for _ in 1..room {
                    let Some(next) = self.take_notification(handle)? else { break };
                    control.push(&Cmsg::RdmaStatus(next));
                }
            }
            Arrival::CongestionUpdate(ports) => {
                control.push(&Cmsg::CongUpdate(ports));
            }
            Arrival::Message(Received { cookie, .. }) | Arrival::Lent(LentMessage { cookie, .. }) => {
                if let Some(cookie) = cookie {
                    control.push(&Cmsg::RdmaDest(cookie));
                }
                if let Some(trace) = latency {
                    control.push(&Cmsg::RxpathLatency(trace));
                }
            }
            Arrival::Nothing => {}
        }
        Ok(arrival)
    }
}
