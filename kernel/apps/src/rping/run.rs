//! The two sides.

use core::ops::ControlFlow;

use dat_nostd::{Adapter, ConnectionEvent, Duration, Instant, Platform};
use driver_mlx::Wake;

use super::link::{BUFFER, Done, Link};
use super::message::{Offer, fill, mismatch, text_len};
use super::{Config, Report, RpingError, SIZES};
use crate::connection::LinkState;
use crate::{Role, Status};

/// Completions taken in one poll.
const COMPLETIONS_PER_POLL: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    /// Client: the source is offered. Server: nothing is offered yet.
    Source,
    /// Server: the read is under way, of so many bytes.
    Reading(usize),
    /// Client: the sink is offered. Server: it waits for that.
    Sink(usize),
    Closing,
}

/// A side in the middle of its work.
pub struct Rping {
    config: Config,
    link: Link,
    stage: Stage,
    report: Report,
    began_at: Instant,
    moved_at: Instant,
}

impl Rping {
    /// Makes the side's objects; the server listens from here on.
    ///
    /// # Errors
    /// [`RpingError::Dat`] if the adapter lacks objects or memory.
    pub fn start<P: Platform>(adapter: &mut Adapter<'_, P>, config: Config) -> Result<Self, RpingError> {
        let now = adapter.now();
        let size = config.size.clamp(*SIZES.start(), *SIZES.end());
        let link = Link::open(adapter, &config)?;
        Ok(Self {
            config: Config { size, ..config },
            link,
            stage: Stage::Connecting,
            report: Report::default(),
            began_at: now,
            moved_at: now,
        })
    }

    /// How it went so far.
    #[must_use]
    pub fn report(&self) -> Report {
        Report { ns: (self.moved_at - self.began_at).as_nanos() as u64, ..self.report }
    }

    /// How many attempts to connect have failed, and what the last of them ended with.
    #[must_use]
    pub fn failed_attempts(&self) -> Option<(u32, ConnectionEvent)> {
        let connection = &self.link.connection;
        connection.last_failure().map(|event| (connection.failures(), event))
    }

    /// Moves on. The caller polls the adapter before.
    ///
    /// # Errors
    /// [`RpingError`]: over without success.
    pub fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        now: Instant,
    ) -> Result<Status, RpingError> {
        self.notice_connection(adapter, now)?;
        // Before the end is looked at: the peer's last message may lie in front of its disconnect.
        let mut busy = false;
        for _ in 0..COMPLETIONS_PER_POLL {
            let Some(done) = self.link.completion(adapter, self.report.iterations)? else { break };
            busy = true;
            self.moved_at = now;
            if self.stage == Stage::Connecting {
                // The peer's first message may tell of the connection, if its confirmation was lost.
                self.notice_connection(adapter, now)?;
            }
            match self.config.role {
                Role::Client => self.client(adapter, done)?,
                Role::Server => self.server(adapter, done)?,
            }
        }
        let iteration = self.report.iterations;
        if let LinkState::Ended(event) = self.link.connection.state() {
            let between = match self.config.role {
                Role::Client => self.stage == Stage::Closing,
                // The client ends when it has enough.
                Role::Server => self.stage == Stage::Source && iteration > 0,
            };
            return if between && event == ConnectionEvent::Disconnected {
                Ok(ControlFlow::Break(()))
            } else {
                Err(RpingError::ConnectionLost { event, iteration })
            };
        }
        let waited = now - self.moved_at;
        let waited_ms = waited.as_millis() as u64;
        let limit = match self.stage {
            Stage::Connecting if waited > self.config.connect_timeout => {
                return Err(RpingError::NotConnected {
                    waited_ms,
                    last: self.link.connection.last_failure(),
                });
            }
            Stage::Connecting => self.config.connect_timeout,
            _ if waited > self.config.stall_timeout => {
                return Err(RpingError::Stalled { iteration, waited_ms });
            }
            _ => self.config.stall_timeout,
        };
        let deadline = self.moved_at + limit + Duration::from_nanos(1);
        let wake = Wake::from(self.link.connection.retry_at()).earliest(Wake::At(deadline));
        // What moved may let more move.
        Ok(ControlFlow::Continue(if busy { Wake::Now } else { wake }))
    }

    /// Runs connection events, and begins when there is a connection.
    fn notice_connection<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        now: Instant,
    ) -> Result<(), RpingError> {
        self.link.poll(adapter, now)?;
        if self.stage == Stage::Connecting && self.link.connection.state() == LinkState::Up {
            self.began_at = now;
            self.moved_at = now;
            self.stage = Stage::Source;
            if self.config.role == Role::Client {
                self.offer_source(adapter)?;
            }
        }
        Ok(())
    }

    fn offer_source<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), RpingError> {
        fill(self.link.source(), self.report.iterations, self.config.size as usize);
        self.link.offer_source(adapter, self.config.size)
    }

    fn client<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, done: Done) -> Result<(), RpingError> {
        let iteration = self.report.iterations;
        let len = self.config.size as usize;
        match (self.stage, done) {
            (_, Done::Sent) => Ok(()),
            (Stage::Source, Done::Message(_)) => {
                self.stage = Stage::Sink(len);
                // So that what was there before cannot pass for what comes.
                let _ = self.link.sink().fill(0, len, 0);
                self.link.offer_sink(adapter, self.config.size)
            }
            (Stage::Sink(_), Done::Message(_)) => {
                if self.config.verify
                    && let Some(position) = mismatch(self.link.sink(), iteration, len)
                {
                    return Err(RpingError::Mismatch { iteration, position });
                }
                self.iteration_done(len);
                if self.report.iterations == self.config.count {
                    self.stage = Stage::Closing;
                    return Ok(self.link.connection.disconnect(adapter)?);
                }
                self.offer_source(adapter)
            }
            _ => Err(RpingError::Protocol { iteration }),
        }
    }

    fn server<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, done: Done) -> Result<(), RpingError> {
        let iteration = self.report.iterations;
        match (self.stage, done) {
            (_, Done::Sent) => Ok(()),
            (Stage::Source, Done::Message(bytes)) => {
                let offer = Offer::decode(bytes);
                let len = offer.size as usize;
                if len == 0 || len > BUFFER {
                    return Err(RpingError::Protocol { iteration });
                }
                self.stage = Stage::Reading(len);
                self.link.rdma_read(adapter, &offer)
            }
            (Stage::Reading(len), Done::Read) => {
                if self.config.verify
                    && let Some(position) = mismatch(self.link.sink(), iteration, len)
                {
                    return Err(RpingError::Mismatch { iteration, position });
                }
                self.stage = Stage::Sink(len);
                self.link.go_ahead(adapter)
            }
            (Stage::Sink(len), Done::Message(bytes)) => {
                let offer = Offer::decode(bytes);
                let len = text_len(self.link.sink(), len);
                if offer.size as usize > BUFFER || len > offer.size as usize {
                    return Err(RpingError::Protocol { iteration });
                }
                self.link.rdma_write(adapter, &offer, len)?;
                self.iteration_done(len);
                // Behind the write in the same queue: it arrives behind it.
                self.link.go_ahead(adapter)
            }
            _ => Err(RpingError::Protocol { iteration }),
        }
    }

    fn iteration_done(&mut self, len: usize) {
        self.report.iterations = self.report.iterations.wrapping_add(1);
        self.report.bytes = self.report.bytes.saturating_add(len as u64);
        self.stage = Stage::Source;
    }

    /// Frees everything that was made.
    ///
    /// # Errors
    /// [`RpingError::Dat`] if something could not be freed.
    pub fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), RpingError> {
        self.link.close(adapter)
    }
}
