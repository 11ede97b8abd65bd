//! The trait of works, and calls on their sockets.

use core::net::{IpAddr, SocketAddr};

use dat_nostd::{Adapter, Duration, Instant, Platform};
use rds_nostd::{Msg, MsgFlags, Rds, RdsError, Received, SocketHandle};

use super::config::{MAX_LEN, SOCKETS};
use super::error::{AppError, InCall};
use crate::Status;

/// Work of a node: what it does with its sockets.
pub trait Work {
    /// Makes progress. RDS was polled before. A work that waits for something to arrive returns [`Wake::Idle`](driver_mlx::Wake).
    ///
    /// # Errors
    /// [`AppError`]: the work failed.
    fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        now: Instant,
    ) -> Result<Status, AppError>;

    /// Returns a number that grows with each movement, or `None` if the work never stalls: a server
    /// without clients.
    fn moved(&self) -> Option<u64>;

    /// Frees everything.
    ///
    /// # Errors
    /// [`AppError::Rds`].
    fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>, rds: &mut Rds<'_>) -> Result<(), AppError>;
}

/// Receives a message. Returns `None` if there is none.
///
/// # Errors
/// [`AppError::Rds`].
pub fn receive<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    rds: &mut Rds<'_>,
    socket: SocketHandle,
    buffer: &mut [u8],
) -> Result<Option<Received>, AppError> {
    match rds.recvmsg(adapter, socket, buffer, MsgFlags::empty()) {
        Ok(arrival) => Ok(arrival.message()),
        Err(RdsError::Again) => Ok(None),
        Err(error) => Err(AppError::Rds { call: "recvmsg", error }),
    }
}

/// Time between two looks of [`stop`].
const APART: Duration = Duration::from_micros(100);

/// Stops RDS, once peers have their final acknowledgements or [`Rds::SETTLE_LIMIT`] is over.
///
/// # Errors
/// See [`Rds::stop`].
pub fn stop<P: Platform>(mut rds: Rds<'_>, adapter: &mut Adapter<'_, P>) -> Result<(), RdsError> {
    let end = adapter.now() + Rds::SETTLE_LIMIT;
    while rds.settle(adapter) == Err(RdsError::Again) && adapter.now() < end {
        adapter.idle(end.min(adapter.now() + APART));
    }
    rds.stop(adapter, |_| {})
}

/// Closes a socket, once access of peers to its memory has ended or [`Rds::SETTLE_LIMIT`] is over.
///
/// # Errors
/// See [`Rds::close`].
pub fn close<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    rds: &mut Rds<'_>,
    socket: SocketHandle,
) -> Result<(), RdsError> {
    let end = adapter.now() + Rds::SETTLE_LIMIT;
    loop {
        let closed = rds.close(adapter, socket);
        let now = adapter.now();
        if closed != Err(RdsError::Again) || now >= end {
            return closed;
        }
        if !adapter.poll(now).earliest(rds.poll(adapter, now)).is_due(now) {
            adapter.idle(end.min(now + APART));
        }
    }
}

/// Sends a message. Returns false if it has no room now.
///
/// # Errors
/// [`AppError::Rds`].
pub fn send<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    rds: &mut Rds<'_>,
    socket: SocketHandle,
    message: Msg<'_>,
) -> Result<bool, AppError> {
    match rds.sendmsg(adapter, socket, message) {
        Ok(_) => Ok(true),
        Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => Ok(false),
        Err(error) => Err(AppError::Rds { call: "sendmsg", error }),
    }
}

/// Binds 8 sockets: at the ports from `first` on, or at any.
///
/// # Errors
/// [`AppError::Rds`].
pub fn bind_all(
    rds: &mut Rds<'_>,
    address: IpAddr,
    first: Option<u16>,
) -> Result<[SocketHandle; SOCKETS], AppError> {
    let mut bind = |index: usize| {
        let port = first.map_or(0, |first| first + index as u16);
        rds.bind(SocketAddr::new(address, port)).in_call("bind")
    };
    let mut sockets = [bind(0)?; SOCKETS];
    for (index, socket) in sockets.iter_mut().enumerate().skip(1) {
        *socket = bind(index)?;
    }
    Ok(sockets)
}
