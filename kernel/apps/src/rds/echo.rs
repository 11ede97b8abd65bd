//! `mode=echo`: whatever arrives at 8 ports goes back to where it came from.
//!
//! A node that does not take what comes back is waited for once, for a second; after that, until it takes something, what does not go at
//! once is dropped, so that the others are served.

use core::net::{IpAddr, SocketAddr};
use core::ops::ControlFlow;

use dat_nostd::{Adapter, Duration, Instant, Platform};
use driver_mlx::Wake;
use rds_nostd::{Msg, Rds, SocketHandle};

use super::work::{bind_all, receive, send};
use super::{AppError, ECHO_PORT, InCall, MAX_LEN, SOCKETS};
use crate::Status;

/// Maximum time until a message is sent back.
const PATIENCE: Duration = Duration::from_secs(1);
/// Nodes that are not waited for, at most: the one that was added first makes room.
const SLOW: usize = 16;

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EchoReport {
    /// Messages sent back.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages that were longer than the server takes, and were not sent back.
    pub too_long: u64,
    /// Messages that their senders did not take back.
    pub dropped: u64,
}

/// A message that lies in the buffer because it could not be sent back yet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    socket: SocketHandle,
    to: SocketAddr,
    len: usize,
    /// Until then, by the adapter's clock.
    until: Instant,
}

/// A server.
pub struct Echo {
    sockets: [SocketHandle; SOCKETS],
    waiting: Option<Waiting>,
    /// Nodes that something was dropped for, and that have taken nothing since; the next place.
    slow: [Option<IpAddr>; SLOW],
    next_slow: usize,
    /// Whose turn it is, so that none keeps the others waiting.
    turn: usize,
    report: EchoReport,
}

impl Echo {
    pub(super) fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<Self, AppError> {
        let sockets = bind_all(rds, adapter.address(), Some(ECHO_PORT))?;
        let (slow, report) = ([None; SLOW], EchoReport::default());
        Ok(Self { sockets, waiting: None, slow, next_slow: 0, turn: 0, report })
    }

    pub(super) fn report(&self) -> EchoReport {
        self.report
    }

    pub(super) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        now: Instant,
    ) -> Result<Status, AppError> {
        let mut result = ControlFlow::Continue(Wake::Idle);
        for step in 0..SOCKETS {
            if self.waiting.is_none() {
                let index = (self.turn + step) % SOCKETS;
                let Some(socket) = self.sockets.get(index) else { continue };
                let Some(message) = receive(adapter, rds, *socket, buffer)? else { continue };
                let (to, len) = (message.from, message.len);
                if message.message_len > len {
                    self.report.too_long += 1;
                } else if to.port() != 0 {
                    // What comes from port 0 is nobody's message.
                    self.waiting = Some(Waiting { socket: *socket, to, len, until: now + PATIENCE });
                }
                result = ControlFlow::Continue(Wake::Now);
            }
            let Some(Waiting { socket, to, len, until }) = self.waiting else { continue };
            if send(adapter, rds, socket, Msg::to(&to, buffer.get(..len).unwrap_or_default()))? {
                self.waiting = None;
                self.is_quick(to.ip());
                self.report.messages += 1;
                self.report.bytes += len as u64;
            } else if now < until && !self.slow.contains(&Some(to.ip())) {
                return Ok(ControlFlow::Continue(Wake::At(until)));
            } else {
                self.drop_waiting(to.ip());
            }
            result = ControlFlow::Continue(Wake::Now);
        }
        self.turn = (self.turn + 1) % SOCKETS;
        Ok(result)
    }

    /// A node takes what it is sent.
    fn is_quick(&mut self, node: IpAddr) {
        for slow in self.slow.iter_mut().filter(|slow| **slow == Some(node)) {
            *slow = None;
        }
    }

    /// Gives a message up that its sender does not take back.
    fn drop_waiting(&mut self, node: IpAddr) {
        self.waiting = None;
        self.report.dropped += 1;
        if !self.slow.contains(&Some(node))
            && let Some(place) = self.slow.get_mut(self.next_slow)
        {
            *place = Some(node);
            self.next_slow = (self.next_slow + 1) % SLOW;
        }
    }

    pub(super) fn close<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), AppError> {
        self.sockets.iter().try_for_each(|socket| rds.close(adapter, *socket).in_call("close"))
    }
}
