//! Where calls run: an HCA with its sockets, behind its lock.

use crate::control::Pieces;
use crate::failure::{Answer, Failure};
use crate::socket::{Descriptor, Socket};
use core::net::IpAddr;
use dat_nostd::{Adapter, Instant, Platform};
use rds_nostd::{Rds, RdsError, SocketHandle};

/// An HCA with its sockets, as calls reach it.
pub trait Node: Sized + 'static {
    /// Where the adapter runs.
    type Platform: Platform + 'static;
    /// What a socket is to the program.
    type Descriptor: Descriptor;
    /// All of them.
    type Sockets: Sockets<Self::Descriptor>;
    /// The lock, held.
    type Guard<'n>;

    /// What the lock is for.
    fn state<'g>(guard: &'g mut Self::Guard<'_>) -> State<'g, Self>;

    /// The node of new sockets, which may have to be opened.
    ///
    /// # Errors
    /// [`RdsError::NoDevice`]: there is none.
    fn open() -> Result<&'static Self, RdsError>;

    /// The node of a socket; None for what is no socket.
    fn of(fd: i32) -> Option<&'static Self>;

    /// The same before the socket is bound to an address: where there are several HCAs it goes to the one that has it.
    ///
    /// # Errors
    /// That HCA does not open, or has no room for it.
    fn home(fd: i32, address: IpAddr) -> Result<Option<&'static Self>, RdsError> {
        let _ = address;
        Ok(Self::of(fd))
    }

    /// Takes the lock; None if the device is closed.
    fn lock(&self) -> Option<Self::Guard<'_>>;

    /// Gives the lock back after a call that may have left something to move on.
    fn changed(&self, guard: Self::Guard<'_>);

    /// A socket has come, perhaps by a number that another one had.
    fn opened(&self, guard: Self::Guard<'_>) {
        drop(guard);
    }

    /// A socket has gone: those who wait on it look again.
    fn closed(&self, guard: Self::Guard<'_>);

    /// Sleeps until something may have changed, without the lock, and takes the lock again. The
    /// caller has reported work that it left to be moved on before, by [`changed`](Self::changed).
    ///
    /// # Errors
    /// [`RdsError::NoMemory`]: nothing to sleep by; [`RdsError::BadSocket`]: the device was closed.
    /// A library whose threads sleep outside the call fails always, and makes the call again after
    /// the sleep.
    fn sleep<'n>(
        &'n self,
        guard: Self::Guard<'n>,
        socket: SocketHandle,
        now: Instant,
    ) -> Answer<Self::Guard<'n>>;

    /// Gives up the lock for a moment in which everything moves on, and takes it again. No signal and
    /// no cancellation ends it. Returns `None` if the device was closed.
    fn nap<'n>(&'n self, guard: Self::Guard<'n>) -> Option<Self::Guard<'n>>;

    /// The socket on which this call has slept, if it is made again.
    fn resumed() -> Option<SocketHandle> {
        None
    }
}

/// Sockets by their descriptors.
pub trait Sockets<D> {
    /// The socket of a descriptor.
    fn get(&mut self, fd: i32) -> Option<&mut Socket<D>>;

    /// A new one, with a descriptor of its own.
    ///
    /// # Errors
    /// [`RdsError::TooManySockets`].
    fn add(&mut self, make: impl FnOnce(D) -> Socket<D>, nonblocking: bool) -> Result<i32, RdsError>;

    /// Its descriptor is closed. The protocol's socket that is to be closed later, if it could not be: its HCA has failed, and may still
    /// write to memory of the program's.
    fn remove(&mut self, fd: i32, later: Option<SocketHandle>);
}

/// What the lock is for.
pub struct State<'g, N: Node> {
    /// The HCA's adapter.
    pub adapter: &'g mut Adapter<'static, N::Platform>,
    /// The protocol on it.
    pub rds: &'g mut Rds<'static>,
    /// Its sockets.
    pub sockets: &'g mut N::Sockets,
    /// Where a message of several parts is put together, or taken apart: longer ones are refused.
    pub whole: &'g mut [u8],
    /// Memory that an operation moves.
    pub pieces: &'g mut Pieces,
    /// The HCA has failed and does not come back.
    pub is_gone: bool,
    /// It has failed, and is not back altogether.
    pub is_failed: bool,
}

impl<N: Node> State<'_, N> {
    /// One socket may have changed: its descriptor says so.
    pub fn look(&mut self, fd: i32) {
        if let Some(socket) = self.sockets.get(fd) {
            socket.look(self.rds, self.is_gone);
        }
    }

    /// Whether the HCA can be used, or will be again.
    ///
    /// # Errors
    /// [`RdsError::NoDevice`].
    pub(crate) fn usable(&self) -> Result<(), RdsError> {
        if self.is_gone { Err(RdsError::NoDevice) } else { Ok(()) }
    }

    /// Why a call has failed: what an adapter refuses whose HCA has failed, it refuses because of that.
    pub(crate) fn why(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Rds(RdsError::Dat(_)) if self.is_failed => RdsError::NoDevice.into(),
            other => other,
        }
    }

    /// What a socket is ready for of what is asked; None for no socket.
    pub fn ready(&mut self, fd: i32, events: u16) -> Option<u16> {
        self.look(fd);
        self.sockets.get(fd).map(|socket| socket.mask_for(events))
    }

    /// The socket of a descriptor.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn socket(&mut self, fd: i32) -> Result<&mut Socket<N::Descriptor>, RdsError> {
        self.sockets.get(fd).ok_or(RdsError::BadSocket)
    }

    /// Moves everything on. Until when one may sleep then, if one may.
    pub fn work(&mut self) -> Option<Instant> {
        // Takes the interrupts and does not wait.
        self.adapter.idle(Instant::ORIGIN);
        let now = self.adapter.now();
        let _ = self.adapter.poll(now);
        let wake = self.rds.poll(self.adapter, now);
        let rest = self.adapter.rest(now).filter(|_| !wake.is_due(now))?;
        Some(wake.deadline(now).map_or(rest, |deadline| rest.min(deadline)))
    }
}
