//! Sockets by their numbers.

use crate::node::SOCKETS;
use rds_calls::{Descriptor, Socket, Sockets};
use rds_nostd::{RdsError, SocketHandle};

/// What a socket is to the firmware: a number.
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

/// All sockets; the lowest free number is given out, as elsewhere.
pub struct Numbers([Option<Socket<Number>>; SOCKETS]);

impl Numbers {
    pub(crate) const NONE: Self = Self([const { None }; SOCKETS]);
}

impl Sockets<Number> for Numbers {
    fn get(&mut self, fd: i32) -> Option<&mut Socket<Number>> {
        self.0.get_mut(usize::try_from(fd).ok()?)?.as_mut()
    }

    fn add(
        &mut self,
        make: impl FnOnce(Number) -> Socket<Number>,
        nonblocking: bool,
    ) -> Result<i32, RdsError> {
        let free = self.0.iter_mut().enumerate().find(|(_, place)| place.is_none());
        let (number, place) = free.ok_or(RdsError::TooManySockets)?;
        *place = Some(make(Number { nonblocking }));
        Ok(number as i32)
    }

    /// What has failed stays so here: nothing is closed later.
    fn remove(&mut self, fd: i32, _later: Option<SocketHandle>) {
        if let Some(place) = usize::try_from(fd).ok().and_then(|place| self.0.get_mut(place)) {
            *place = None;
        }
    }
}
