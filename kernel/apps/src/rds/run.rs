//! A node: RDS, and what its mode says.

use driver_mlx::Instant;

use dat_nostd::{Adapter, Platform};
use rds_nostd::{Rds, RdsConfig};

use super::congestion::Congestion;
use super::echo::Echo;
use super::hash::{Receiver, Sender};
use super::ping::Ping;
use super::requester::Requester;
use super::server::Server;
use super::work::Move;
use super::{AppError, Config, InCall, MAX_LEN, Mode, Outcome, Report, Storage};
use crate::{Role, Status};

enum Work {
    Ping(Ping),
    Echo(Echo),
    Sender(Sender),
    Receiver(Receiver),
    Server(Server),
    Requester(Requester),
    Congestion(Congestion),
}

/// A node in the middle of its work.
pub struct RdsApp<'s> {
    config: Config,
    rds: Rds<'s>,
    buffer: &'s mut [u8; MAX_LEN],
    work: Work,
    last_moved: u64,
    last_moved_at: u64,
}

impl<'s> RdsApp<'s> {
    /// Starts RDS and binds the sockets; peers may send from here on.
    ///
    /// # Errors
    /// [`AppError::Rds`] if the adapter lacks memory or objects.
    pub fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        storage: &'s mut Storage,
        config: Config,
    ) -> Result<Self, AppError> {
        let now = adapter.now().as_nanos();
        let settings =
            RdsConfig { send_frames: 1024, seed: config.random, ..RdsConfig::new(config.generation) };
        let mut rds = Rds::start(adapter, storage.rds.parts(), settings).in_call("rds start")?;
        let peer = config.peer;
        let work = match config.mode {
            Mode::Ping { count, interval } => {
                Ping::start(adapter, &mut rds, peer, count, interval).map(Work::Ping)
            }
            Mode::Echo => Echo::start(adapter, &mut rds).map(Work::Echo),
            Mode::Hash { role: Role::Client, count, seed } => {
                Sender::start(adapter, &mut rds, peer, (count, seed)).map(Work::Sender)
            }
            Mode::Hash { role: Role::Server, count, seed } => {
                Receiver::start(adapter, &mut rds, peer, (count, seed)).map(Work::Receiver)
            }
            Mode::Serve => Server::start(adapter, &mut rds).map(Work::Server),
            Mode::Rdma { rounds } => Requester::start(adapter, &mut rds, peer, rounds).map(Work::Requester),
            Mode::Congestion { rounds } => {
                Congestion::start(adapter, &mut rds, peer, rounds).map(Work::Congestion)
            }
        };
        match work {
            Ok(work) => {
                Ok(Self { config, rds, buffer: &mut storage.buffer, work, last_moved: 0, last_moved_at: now })
            }
            Err(error) => {
                // The reason is in `error`.
                let _ = rds.stop(adapter, |_| {});
                Err(error)
            }
        }
    }

    /// Moves on. The caller polls the adapter before.
    ///
    /// # Errors
    /// [`AppError`]: over without success.
    pub fn poll<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, now: u64) -> Result<Status, AppError> {
        let Self { rds, buffer, work, .. } = self;
        let instant = Instant::from_nanos(now);
        let deadline = rds.poll(adapter, instant).deadline(instant).unwrap_or(Instant::MAX).as_nanos();
        // A server that nobody asks is no server that hangs.
        let (next, moved) = match work {
            Work::Ping(ping) => (ping.poll(adapter, rds, now)?, Some(ping.moved())),
            Work::Echo(echo) => (echo.poll(adapter, rds, buffer, now)?, None),
            Work::Sender(sender) => (sender.poll(adapter, rds, buffer, now)?, Some(sender.moved())),
            Work::Receiver(receiver) => (receiver.poll(adapter, rds, buffer, now)?, Some(receiver.moved())),
            Work::Server(server) => (server.poll(adapter, rds, buffer, now)?, server.moved()),
            Work::Requester(client) => (client.poll(adapter, rds, buffer)?, Some(client.moved())),
            Work::Congestion(client) => (client.poll(adapter, rds, buffer)?, Some(client.moved())),
        };
        let own = match next {
            Move::Done => return Ok(Status::Done),
            Move::Again => return Ok(Status::Working(now)),
            Move::Wait(until) => until,
        };
        let Some(moved) = moved else { return Ok(Status::Working(deadline.min(own))) };
        if moved != self.last_moved {
            (self.last_moved, self.last_moved_at) = (moved, now);
        }
        let stalls_at = self.last_moved_at.saturating_add(self.config.stall_timeout);
        // What waits for its own time does not hang.
        if now >= stalls_at && own == u64::MAX {
            let waited_ms = now.saturating_sub(self.last_moved_at) / 1_000_000;
            return Err(AppError::Stalled { moved, waited_ms });
        }
        let stalls_at = if own == u64::MAX { stalls_at } else { u64::MAX };
        Ok(Status::Working(deadline.min(own).min(stalls_at)))
    }

    /// The adapter has been recovered: RDS carries on, and with it what exchanges messages. What has offered memory to its peer does not.
    ///
    /// # Errors
    /// [`AppError::Rds`] if the adapter has failed again.
    pub fn adapter_recovered<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), AppError> {
        self.rds.adapter_recovered(adapter).in_call("rds adapter_recovered")
    }

    /// How it went so far.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let report = match &self.work {
            Work::Ping(ping) => Report::Ping(ping.report()),
            Work::Echo(echo) => Report::Echo(echo.report()),
            Work::Sender(sender) => Report::Hash(sender.report()),
            Work::Receiver(receiver) => Report::Hash(receiver.report()),
            Work::Server(server) => Report::Serve(server.report()),
            Work::Requester(client) => Report::Rdma(client.report()),
            Work::Congestion(client) => Report::Congestion(client.report()),
        };
        Outcome { report, counters: *self.rds.counters() }
    }

    /// The node's RDS, for whatever it tells of itself.
    #[must_use]
    pub const fn rds(&mut self) -> &mut Rds<'s> {
        &mut self.rds
    }

    /// Closes the sockets and ends RDS.
    ///
    /// # Errors
    /// [`AppError::Rds`] if something could not be freed.
    pub fn close<P: Platform>(mut self, adapter: &mut Adapter<'_, P>) -> Result<(), AppError> {
        let rds = &mut self.rds;
        let closed = match self.work {
            Work::Ping(ping) => ping.close(adapter, rds),
            Work::Echo(echo) => echo.close(adapter, rds),
            Work::Sender(sender) => sender.close(adapter, rds),
            Work::Receiver(receiver) => receiver.close(adapter, rds),
            Work::Server(server) => server.close(adapter, rds),
            Work::Requester(client) => client.close(adapter, rds),
            Work::Congestion(client) => client.close(adapter, rds),
        };
        let stopped = self.rds.stop(adapter, |_| {}).in_call("rds stop");
        closed.and(stopped)
    }
}
