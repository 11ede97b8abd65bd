//! A socket, and its descriptor, which is readable while the socket has something to receive.

use rds_nostd::{PollMask, Profile, Rds, SocketHandle};

/// What a socket is to the program.
pub trait Descriptor {
    /// Whether calls on it do not wait.
    fn is_nonblocking(&self) -> bool;

    /// Sets or takes away that.
    fn set_nonblocking(&mut self, on: bool);

    /// Says that there is something to receive.
    fn raise(&mut self);

    /// Says that there is nothing.
    fn lower(&mut self);
}

/// A socket of the program's.
pub struct Socket<D> {
    /// The protocol's.
    pub handle: SocketHandle,
    /// Whose numbers and layouts its program has.
    pub profile: Profile,
    /// The program's.
    pub descriptor: D,
    is_raised: bool,
    /// What the socket is ready for, as far as it is known.
    mask: PollMask,
    /// The HCA has failed and does not come back.
    is_gone: bool,
    /// A peer's congestion has changed and nobody has heard of it: the protocol says so once.
    heard: bool,
}

/// Readable by a change of congestion.
const NEWS: PollMask = PollMask::IN.union(PollMask::RDNORM).union(PollMask::WRBAND);
/// What is told of an HCA that is gone, whether it was asked or not: `POLLERR`, `POLLHUP`.
const GONE: u16 = 0x8 | 0x10;

impl<D: Descriptor> Socket<D> {
    /// A new one.
    pub fn new(handle: SocketHandle, profile: Profile, descriptor: D) -> Self {
        Self {
            handle,
            profile,
            descriptor,
            is_raised: false,
            mask: PollMask::empty(),
            is_gone: false,
            heard: false,
        }
    }

    /// The same descriptor as another socket of the protocol's.
    #[must_use]
    pub fn moved_to(self, handle: SocketHandle) -> Self {
        Self { handle, ..self }
    }

    /// Whether its descriptor says that there is something to receive, as far as this library has to do with it.
    pub fn is_raised(&self) -> bool {
        self.is_raised
    }

    /// Looks what the socket is ready for, and has the descriptor say so.
    /// That the HCA is gone is something to receive, too: the next call says so.
    pub fn look(&mut self, rds: &mut Rds<'_>, is_gone: bool) {
        let found = rds.poll_mask(self.handle).unwrap_or(PollMask::empty());
        self.is_gone = is_gone;
        self.heard |= found.contains(PollMask::WRBAND);
        self.mask = if self.heard { found | NEWS } else { found };
        self.mask.set(PollMask::IN | PollMask::RDNORM, is_gone || self.mask.contains(PollMask::IN));
        let wanted = self.mask.contains(PollMask::IN);
        if wanted && !self.is_raised {
            self.descriptor.raise();
        } else if !wanted && self.is_raised {
            self.descriptor.lower();
        }
        self.is_raised = wanted;
    }

    /// What the socket is ready for of what is asked. A change of congestion is told once.
    pub(crate) fn mask_for(&mut self, events: u16) -> u16 {
        let mask = self.mask.bits() & events;
        self.heard &= mask == 0;
        if self.is_gone { mask | GONE } else { mask }
    }

    /// There was nothing to receive: no news either.
    pub(crate) fn is_empty(&mut self) {
        self.heard = false;
    }
}
