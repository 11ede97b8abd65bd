//! What the works have in common: their sockets, and what they say after each poll.

use core::net::{IpAddr, SocketAddr};

use rds_nostd::{Rds, SocketHandle};

use super::config::SOCKETS;
use super::error::{AppError, InCall};

/// What a work says after each poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// Something moved: more may.
    Again,
    /// Nothing to do until something arrives or this time (nanoseconds) comes.
    Wait(u64),
    /// Everything was done.
    Done,
}

/// 8 sockets: at the ports from `first` on, or at any.
pub(super) fn bind_all(
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
