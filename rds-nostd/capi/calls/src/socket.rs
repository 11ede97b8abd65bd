//! A socket and its descriptor, which is readable while the socket has something to receive.

use rds_nostd::{PollMask, Profile, Rds, SocketHandle};

/// The program's descriptor of a socket.
pub trait Descriptor {
    /// Returns true if calls on the socket do not block.
    fn is_nonblocking(&self) -> bool;

    /// Sets or clears non-blocking mode.
    fn set_nonblocking(&mut self, on: bool);

    /// Makes the descriptor readable.
    fn raise(&mut self);

    /// Makes the descriptor unreadable.
    fn lower(&mut self);
}

/// A socket of the program.
pub struct Socket<D> {
    /// The protocol's socket.
    pub handle: SocketHandle,
    /// System whose numbers and layouts the program uses.
    pub profile: Profile,
    /// The program's descriptor.
    pub descriptor: D,
    is_raised: bool,
    /// Events at the last check.
    mask: PollMask,
    /// The HCA has failed permanently.
    is_gone: bool,
    /// Congestion change not yet delivered. Latched, because the protocol reports it only once.
    congestion_pending: bool,
}

/// Events of a congestion change.
const CONGESTION: PollMask = PollMask::IN.union(PollMask::RDNORM).union(PollMask::WRBAND);
/// Events of a socket whose HCA is gone, requested or not: `POLLERR`, `POLLHUP`.
const GONE: u16 = 0x8 | 0x10;

impl<D: Descriptor> Socket<D> {
    /// Creates a socket that is not readable.
    pub fn new(handle: SocketHandle, profile: Profile, descriptor: D) -> Self {
        Self {
            handle,
            profile,
            descriptor,
            is_raised: false,
            mask: PollMask::empty(),
            is_gone: false,
            congestion_pending: false,
        }
    }

    /// Returns the same descriptor for another socket of the protocol.
    #[must_use]
    pub fn moved_to(self, handle: SocketHandle) -> Self {
        Self { handle, ..self }
    }

    /// Returns true if the library has made the descriptor readable.
    pub fn is_raised(&self) -> bool {
        self.is_raised
    }

    /// Updates the socket's events, and the descriptor to match. A lost HCA makes the socket
    /// readable, because the next call reports the loss.
    pub fn look(&mut self, rds: &mut Rds<'_>, is_gone: bool) {
        let found = rds.poll_mask(self.handle).unwrap_or(PollMask::empty());
        self.is_gone = is_gone;
        self.congestion_pending |= found.contains(PollMask::WRBAND);
        self.mask = if self.congestion_pending { found | CONGESTION } else { found };
        self.mask.set(PollMask::IN | PollMask::RDNORM, is_gone || self.mask.contains(PollMask::IN));
        let wanted = self.mask.contains(PollMask::IN);
        if wanted && !self.is_raised {
            self.descriptor.raise();
        } else if !wanted && self.is_raised {
            self.descriptor.lower();
        }
        self.is_raised = wanted;
    }

    /// Returns which of `events` the socket is ready for. Reports a congestion change once.
    pub(crate) fn mask_for(&mut self, events: u16) -> u16 {
        let mask = self.mask.bits() & events;
        self.congestion_pending &= mask == 0;
        if self.is_gone { mask | GONE } else { mask }
    }

    /// Clears a pending congestion change, because the program found nothing to receive.
    pub(crate) fn is_empty(&mut self) {
        self.congestion_pending = false;
    }
}
