//! `mode=ping`: empty messages to port 0, from 8 sockets in turn, as `rds-ping` sends them.

use core::net::{IpAddr, SocketAddr};
use core::ops::ControlFlow;

use dat_nostd::{Adapter, Duration, Instant, Platform};
use driver_mlx::Wake;
use rds_nostd::{Msg, Rds, SocketHandle};

use super::work::{bind_all, receive, send};
use super::{AppError, InCall, SOCKETS};
use crate::Status;

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PingReport {
    /// Pings sent.
    pub sent: u32,
    /// Answers received.
    pub received: u32,
    /// Shortest, longest and summed round trip, nanoseconds.
    pub min: u64,
    /// See above.
    pub max: u64,
    /// See above.
    pub sum: u64,
}

/// A pinger.
pub struct Ping {
    peer: SocketAddr,
    count: u32,
    interval: Duration,
    sockets: [SocketHandle; SOCKETS],
    /// When each socket's ping was sent, while it is not answered.
    asked_at: [Option<Instant>; SOCKETS],
    next_at: Instant,
    report: PingReport,
}

impl Ping {
    pub(super) fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        peer: IpAddr,
        count: u32,
        interval: Duration,
    ) -> Result<Self, AppError> {
        Ok(Self {
            peer: SocketAddr::new(peer, 0),
            count,
            interval,
            sockets: bind_all(rds, adapter.address(), None)?,
            asked_at: [None; SOCKETS],
            next_at: Instant::ORIGIN,
            report: PingReport::default(),
        })
    }

    pub(super) fn report(&self) -> PingReport {
        self.report
    }

    pub(super) fn moved(&self) -> u64 {
        u64::from(self.report.sent) + u64::from(self.report.received)
    }

    pub(super) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        now: Instant,
    ) -> Result<Status, AppError> {
        self.receive(adapter, rds, now)?;
        let Self { sockets, asked_at, report, .. } = self;
        if report.sent == self.count {
            let is_done = report.received == self.count;
            return Ok(if is_done { ControlFlow::Break(()) } else { ControlFlow::Continue(Wake::Idle) });
        }
        // One that is not answered yet holds the next ping of its socket up, not that of another.
        let turn = report.sent as usize % SOCKETS;
        let (Some(socket), Some(asked_at)) = (sockets.get(turn), asked_at.get_mut(turn)) else {
            return Ok(ControlFlow::Break(()));
        };
        if asked_at.is_some() {
            return Ok(ControlFlow::Continue(Wake::Idle));
        }
        if now < self.next_at {
            return Ok(ControlFlow::Continue(Wake::At(self.next_at)));
        }
        if !send(adapter, rds, *socket, Msg::to(&self.peer, &[]))? {
            return Ok(ControlFlow::Continue(Wake::Idle));
        }
        *asked_at = Some(now);
        report.sent += 1;
        self.next_at = now + self.interval;
        Ok(ControlFlow::Continue(Wake::Now))
    }

    fn receive<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        now: Instant,
    ) -> Result<(), AppError> {
        for (index, (socket, asked_at)) in self.sockets.iter().zip(&mut self.asked_at).enumerate() {
            let Some(answer) = receive(adapter, rds, *socket, &mut [])? else { continue };
            let Some(asked_at) = asked_at.take() else {
                return Err(AppError::Unexpected { receiver: index });
            };
            if answer.from != self.peer || answer.message_len != 0 {
                return Err(AppError::Unexpected { receiver: index });
            }
            let trip = (now - asked_at).as_nanos() as u64;
            let report = &mut self.report;
            report.min = if report.received == 0 { trip } else { report.min.min(trip) };
            report.max = report.max.max(trip);
            report.sum = report.sum.saturating_add(trip);
            report.received += 1;
        }
        Ok(())
    }

    pub(super) fn close<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), AppError> {
        self.sockets.iter().try_for_each(|socket| rds.close(adapter, *socket).in_call("close"))
    }
}
