//! The context of calls: an HCA with its sockets, behind its lock.

use crate::control::Iovs;
use crate::failure::{Answer, Failure};
use crate::socket::{Descriptor, Socket};
use core::net::IpAddr;
use dat_nostd::{Adapter, Instant, Platform};
use rds_nostd::{Rds, RdsError, SocketHandle};

/// An HCA with its sockets.
pub trait Node: Sized + 'static {
    /// The adapter's platform.
    type Platform: Platform + 'static;
    /// The program's descriptor of a socket.
    type Descriptor: Descriptor;
    /// The sockets by descriptor.
    type Sockets: Sockets<Self::Descriptor>;
    /// A held lock.
    type Guard<'n>;

    /// Returns the state that the lock protects.
    fn state<'g>(guard: &'g mut Self::Guard<'_>) -> State<'g, Self>;

    /// Returns the node of new sockets. Opens it if necessary.
    ///
    /// # Errors
    /// [`RdsError::NoDevice`]: no HCA opens.
    fn open() -> Result<&'static Self, RdsError>;

    /// Returns the node of a socket, or `None` if `fd` is not a socket.
    fn of(fd: i32) -> Option<&'static Self>;

    /// Returns the node of a socket that is about to be bound to `address`. Moves the socket to the
    /// HCA that has the address, if there are several.
    ///
    /// # Errors
    /// That HCA does not open, or has no free entry.
    fn home(fd: i32, address: IpAddr) -> Result<Option<&'static Self>, RdsError> {
        let _ = address;
        Ok(Self::of(fd))
    }

    /// Takes the lock. Returns `None` if the device is closed.
    fn lock(&self) -> Option<Self::Guard<'_>>;

    /// Releases the lock after a call that may have left work.
    fn changed(&self, guard: Self::Guard<'_>);

    /// Reports a new socket, whose descriptor may have belonged to an earlier one.
    fn opened(&self, guard: Self::Guard<'_>) {
        drop(guard);
    }

    /// Reports a closed socket. Wakes all threads that wait for it.
    fn closed(&self, guard: Self::Guard<'_>);

    /// Releases the lock, sleeps until something may have changed, and takes the lock again. The
    /// caller has reported pending work by [`changed`](Self::changed).
    /// # Errors
    /// [`RdsError::NoMemory`]: no waker is free; [`RdsError::BadSocket`]: the device was closed. A
    /// library whose threads sleep outside the call always fails, and repeats the call after the
    /// sleep.
    fn sleep<'n>(
        &'n self,
        guard: Self::Guard<'n>,
        socket: SocketHandle,
        now: Instant,
    ) -> Answer<Self::Guard<'n>>;

    /// Releases the lock for a moment, in which the node makes progress, and takes it again.
    /// Neither signals nor cancellation interrupt it. Returns `None` if the device was closed.
    fn nap<'n>(&'n self, guard: Self::Guard<'n>) -> Option<Self::Guard<'n>>;

    /// Returns the socket on which this call has slept, if the call is repeated.
    fn resumed() -> Option<SocketHandle> {
        None
    }
}

/// Sockets by descriptor.
pub trait Sockets<D> {
    /// Returns the socket of a descriptor.
    fn get(&mut self, fd: i32) -> Option<&mut Socket<D>>;

    /// Adds a socket with a new descriptor.
    ///
    /// # Errors
    /// [`RdsError::TooManySockets`].
    fn add(&mut self, make: impl FnOnce(D) -> Socket<D>, nonblocking: bool) -> Result<i32, RdsError>;

    /// Closes a descriptor. `later` is the protocol's socket if it could not be closed: its HCA has
    /// failed and may still write to the program's memory.
    fn remove(&mut self, fd: i32, later: Option<SocketHandle>);
}

/// The state that the lock protects.
pub struct State<'g, N: Node> {
    /// The HCA's adapter.
    pub adapter: &'g mut Adapter<'static, N::Platform>,
    /// The protocol on it.
    pub rds: &'g mut Rds<'static>,
    /// The sockets.
    pub sockets: &'g mut N::Sockets,
    /// Buffer in which messages of several parts are assembled or split. Bounds their length.
    pub whole: &'g mut [u8],
    /// SGEs of an operation.
    pub iovs: &'g mut Iovs,
    /// The HCA has failed permanently.
    pub is_gone: bool,
    /// The HCA has failed, and its recovery is not complete.
    pub is_failed: bool,
}

impl<N: Node> State<'_, N> {
    /// Updates one socket's descriptor.
    pub fn look(&mut self, fd: i32) {
        if let Some(socket) = self.sockets.get(fd) {
            socket.look(self.rds, self.is_gone);
        }
    }

    /// Succeeds if the HCA works, or may come back.
    ///
    /// # Errors
    /// [`RdsError::NoDevice`].
    pub(crate) fn usable(&self) -> Result<(), RdsError> {
        if self.is_gone { Err(RdsError::NoDevice) } else { Ok(()) }
    }

    /// Converts an adapter's error to [`RdsError::NoDevice`] while the HCA has failed, because the
    /// failure caused it.
    pub(crate) fn why(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Rds(RdsError::Dat(_)) if self.is_failed => RdsError::NoDevice.into(),
            other => other,
        }
    }

    /// Returns which of `events` the socket is ready for, or `None` if `fd` is not a socket.
    pub fn ready(&mut self, fd: i32, events: u16) -> Option<u16> {
        self.look(fd);
        self.sockets.get(fd).map(|socket| socket.mask_for(events))
    }

    /// Returns the socket of a descriptor.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn socket(&mut self, fd: i32) -> Result<&mut Socket<N::Descriptor>, RdsError> {
        self.sockets.get(fd).ok_or(RdsError::BadSocket)
    }

    /// Makes progress on everything. Returns until when the caller may sleep, or `None` if there is
    /// more to do.
    pub fn work(&mut self) -> Option<Instant> {
        // Takes the interrupts without a wait.
        self.adapter.idle(Instant::ORIGIN);
        let now = self.adapter.now();
        let _ = self.adapter.poll(now);
        let wake = self.rds.poll(self.adapter, now);
        let rest = self.adapter.rest(now).filter(|_| !wake.is_due(now))?;
        Some(wake.deadline(now).map_or(rest, |deadline| rest.min(deadline)))
    }
}
