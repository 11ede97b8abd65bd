//! The trait of works, and calls on their sockets.

use core::net::{IpAddr, SocketAddr};

use dat_nostd::{Adapter, CloseFlags, Duration, Instant, Platform, Wake};
use rds_nostd::{Msg, MsgFlags, Rds, RdsError, Received, SocketHandle};

use super::config::{MAX_LEN, SOCKETS};
use super::error::{AppError, InCall};
use crate::Status;

/// Limit of [`finish`]. A graceful stop ends sooner.
const LIMIT: Duration = Duration::from_millis(200);

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

/// Stops RDS, once peers have their final acknowledgements.
///
/// # Errors
/// See [`Rds::stop`].
pub fn stop<P: Platform>(mut rds: Rds<'_>, adapter: &mut Adapter<'_, P>) -> Result<(), RdsError> {
    finish(adapter, &mut rds, |adapter, rds| rds.stop(adapter, CloseFlags::Graceful, |_| {}))
}

/// Closes a socket, once access of peers to its memory has ended.
///
/// # Errors
/// See [`Rds::close`].
pub fn close<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    rds: &mut Rds<'_>,
    socket: SocketHandle,
) -> Result<(), RdsError> {
    finish(adapter, rds, |adapter, rds| rds.close(adapter, socket))
}

/// Repeats a call while it returns [`RdsError::Again`], for [`LIMIT`] at most.
fn finish<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    rds: &mut Rds<'_>,
    mut call: impl FnMut(&mut Adapter<'_, P>, &mut Rds<'_>) -> Result<(), RdsError>,
) -> Result<(), RdsError> {
    let end = adapter.now() + LIMIT;
    loop {
        let done = call(adapter, rds);
        let now = adapter.now();
        if done != Err(RdsError::Again) || now >= end {
            return done;
        }
        let wake = adapter.poll(now).earliest(rds.poll(adapter, now));
        if !wake.is_due(now) {
            adapter.idle(wake.earliest(Wake::At(end)).deadline(now).unwrap_or(end));
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
