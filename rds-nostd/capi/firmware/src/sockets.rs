//! Sockets by number.

use crate::node::SOCKETS;
use dat_nostd::{Adapter, Platform};
use rds_calls::{Descriptor, Socket, Sockets};
use rds_nostd::{Rds, RdsError, SocketHandle};

/// The firmware's descriptor of a socket, a number.
pub struct Number {
    nonblocking: bool,
}

impl Descriptor for Number {
    fn is_nonblocking(&self) -> bool {
        self.nonblocking
    }

    fn set_nonblocking(&mut self, on: bool) {
        self.nonblocking = on;
    }

    fn raise(&mut self) {}

    fn lower(&mut self) {}
}

/// All sockets. A new socket gets the lowest free number.
pub struct Numbers {
    sockets: [Option<Socket<Number>>; SOCKETS],
    /// Sockets without numbers, to be closed later. While the HCA has failed, it may still access
    /// their memory.
    to_close: [Option<SocketHandle>; SOCKETS],
}

impl Numbers {
    pub(crate) const NONE: Self = Self { sockets: [const { None }; SOCKETS], to_close: [None; SOCKETS] };

    /// Closes sockets that could not be closed with their numbers.
    pub(crate) fn close_left<P: Platform>(&mut self, rds: &mut Rds<'_>, adapter: &mut Adapter<'_, P>) {
        for entry in &mut self.to_close {
            // Retry those that cannot be closed yet.
            let mut is_later =
                |handle| matches!(rds.close(adapter, handle), Err(RdsError::Again | RdsError::Dat(_)));
            *entry = entry.filter(|handle| is_later(*handle));
        }
    }
}

impl Sockets<Number> for Numbers {
    fn get(&mut self, fd: i32) -> Option<&mut Socket<Number>> {
        self.sockets.get_mut(usize::try_from(fd).ok()?)?.as_mut()
    }

    fn add(
        &mut self,
        make: impl FnOnce(Number) -> Socket<Number>,
        nonblocking: bool,
    ) -> Result<i32, RdsError> {
        let free = self.sockets.iter_mut().enumerate().find(|(_, place)| place.is_none());
        let (number, place) = free.ok_or(RdsError::TooManySockets)?;
        *place = Some(make(Number { nonblocking }));
        Ok(number as i32)
    }

    fn remove(&mut self, fd: i32, later: Option<SocketHandle>) {
        if later.is_some()
            && let Some(free) = self.to_close.iter_mut().find(|entry| entry.is_none())
        {
            *free = later;
        }
        if let Some(place) = usize::try_from(fd).ok().and_then(|place| self.sockets.get_mut(place)) {
            *place = None;
        }
    }
}
