//! Resources that a refused message waits for, and their availability.

use crate::error::RdsError;
use crate::ids::SocketHandle;
use crate::protocol::Protocol;
use crate::socket::{Socket, Wants};

impl Protocol<'_> {
    /// Refuses a message for lack of frames, and makes its socket wait for them.
    #[cold]
    pub(crate) fn refuse_short(&mut self, from: SocketHandle, wants: Wants) -> RdsError {
        self.counters.send_frames_short += 1;
        self.wait_for(from, wants)
    }

    /// Makes a socket wait for a resource other than frames.
    #[cold]
    pub(crate) fn wait_for(&mut self, from: SocketHandle, wants: Wants) -> RdsError {
        if let Ok(socket) = self.sockets.open_mut(from) {
            socket.wants = wants;
        }
        RdsError::NoBufferSpace
    }

    /// Returns whether the resource that a socket waits for is available, so that the same message
    /// would not be refused for it again.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub(crate) fn has_room(&mut self, handle: SocketHandle) -> Result<bool, RdsError> {
        let socket = self.sockets.open(handle)?;
        let there = self.is_there(socket);
        if there {
            self.sockets.open_mut(handle)?.wants = Wants::Nothing;
        }
        Ok(there)
    }

    fn is_there(&self, socket: &Socket) -> bool {
        match socket.wants {
            Wants::Nothing => true,
            Wants::Frames(id, count) => {
                let room = self.sending.fair_room(self.connections.at(id).peer.frames);
                count <= room.min(self.free_frames())
            }
            Wants::LocalFrames(count) => count <= self.local_room(),
            Wants::Entry => self.has_entry_for(socket.route_to, socket.tos),
            Wants::Operations(count, iovs) => self.operations.has_room_for(count.into(), iovs as usize),
        }
    }

    /// Returns whether our map has changed, or a connection lacked receives, since the last call.
    pub(crate) fn take_changes(&mut self) -> bool {
        core::mem::take(&mut self.maps_changed) | core::mem::take(&mut self.starved)
    }

    /// Returns the frames that a loopback message may take.
    pub(crate) fn local_room(&self) -> u32 {
        self.receiving.room(self.local_used, self.limits.reserve).min(self.free_frames())
    }

    /// Returns the number of free frames. This number may be below the shares while receives of a failed
    /// device are withheld.
    pub(crate) fn free_frames(&self) -> u32 {
        self.frames.free_count() as u32
    }

    /// Returns whether a peer has an entry, or could get one.
    fn has_entry_for(&self, foreign: u128, tos: u8) -> bool {
        !self.is_full_for(foreign, tos) || self.find_evictable(self.now).is_some()
    }
}
