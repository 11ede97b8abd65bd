//! The server of perftest's `ib_write_bw -R`: a connection on which both sides agree, and one on which the client writes.
//!
//! The client sends first, and the server answers each message with one of the same length. Versions, sizes of pages and cache
//! lines, the MTU and reports are returned as they came; the answer to a `Destination` is the server's own. Before the first
//! one is answered, the server listens for the second connection.
//! (perftest 4.5, `src/perftest_communication.c`.)

use apps::connection::{Buffer, CallError, Change, Connection, ConnectionConfig, LinkState};
use apps::{Role, Status};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr};
use core::ops::ControlFlow;
use dat_nostd::{Adapter, DtoOperation, DtoStatus, Duration, EventData, Instant, MemPriv, Platform};
use driver_mlx::Wake;

/// The port unless the client has another one.
pub const PORT: u16 = 18_515;
/// Bytes that the client may write to: its longest write.
const TARGET: usize = 1 << 20;
/// Bytes of a receive: more than the longest message.
const MESSAGE: usize = 1024;
/// Messages and answers that may be under way; the client waits for each answer.
const SLOTS: usize = 4;

/// `struct pingpong_dest`: big-endian words of LID, reads, QP, PSN, R_Key; then at a multiple of 8 the address; GID, SRQ, GID
/// index.
struct Destination {
    rkey: u32,
    address: u64,
}

impl Destination {
    const LEN: usize = 56;

    fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        for (offset, value) in [(16, &self.rkey.to_be_bytes()[..]), (24, &self.address.to_be_bytes())] {
            bytes.iter_mut().skip(offset).zip(value).for_each(|(to, from)| *to = *from);
        }
        bytes
    }
}

/// Why the server gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerftestError {
    /// A DAT call.
    Call(CallError),
    /// A transfer.
    Transfer(DtoStatus),
    /// No progress for so many milliseconds.
    Stalled(u64),
    /// The connection ended before the client wrote anything.
    Early,
}

impl From<CallError> for PerftestError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl fmt::Display for PerftestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(CallError { call, error }) => write!(f, "{call}: {error:?}"),
            Self::Transfer(status) => write!(f, "a transfer ended with {status:?}"),
            Self::Stalled(ms) => write!(f, "no progress for {ms} ms"),
            Self::Early => f.write_str("the client left before it wrote"),
        }
    }
}

impl core::error::Error for PerftestError {}

/// How near the end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The client has not reported.
    Far,
    /// Reports were exchanged: the next [`Destination`] is the client's last message.
    Near,
    /// The last answer is under way.
    Next,
    /// The server has disconnected.
    Here,
}

/// The server in the middle of a run.
#[derive(Debug)]
pub struct PerftestServer {
    config: ConnectionConfig,
    agreed: Connection,
    receives: Buffer,
    answers: Buffer,
    /// The connection on which the client writes, and its memory.
    written: Option<(Connection, Buffer)>,
    messages: usize,
    end: End,
    limit: Duration,
    moved_at: Instant,
}

impl PerftestServer {
    /// Listens at the IA of this name. Without progress for `limit` the run fails.
    ///
    /// # Errors
    /// [`PerftestError::Call`].
    pub fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        ia: &'static str,
        limit: Duration,
    ) -> Result<Self, PerftestError> {
        let config = ConnectionConfig {
            role: Role::Server,
            ia,
            peer: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: PORT,
            receives: SLOTS,
            requests: SLOTS,
            reads: 1,
        };
        let agreed = Connection::open(adapter, &config)?;
        let local = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE;
        let mut buffer = |len| Buffer::new(adapter, agreed.ia, agreed.pz, len, local);
        let (receives, answers) = (buffer(SLOTS * MESSAGE)?, buffer(SLOTS * MESSAGE)?);
        let moved_at = adapter.now();
        let server = Self {
            config,
            agreed,
            receives,
            answers,
            written: None,
            messages: 0,
            end: End::Far,
            limit,
            moved_at,
        };
        (0..SLOTS).try_for_each(|slot| server.post_receive(adapter, slot))?;
        Ok(server)
    }

    fn post_receive<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        slot: usize,
    ) -> Result<(), PerftestError> {
        let segment = self.receives.triplet(slot * MESSAGE, MESSAGE);
        Ok(self.agreed.post_recv(adapter, segment, slot as u64)?)
    }

    /// Returns the messages of the client, and how many of the first `len` bytes it may write to are not 0.
    #[must_use]
    pub fn report(&self, len: usize) -> (usize, usize) {
        let mut filled = 0;
        let mut bytes = [0; MESSAGE];
        if let Some((_, target)) = &self.written {
            for offset in (0..len.min(TARGET)).step_by(MESSAGE) {
                let _ = target.memory.read(offset, &mut bytes);
                filled += bytes.iter().filter(|byte| **byte != 0).count();
            }
        }
        (self.messages, filled)
    }

    /// Makes progress. The caller polls the adapter before.
    ///
    /// # Errors
    /// [`PerftestError`]: the run failed.
    pub fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        now: Instant,
    ) -> Result<Status, PerftestError> {
        loop {
            match self.agreed.poll(adapter, &[], now)? {
                Change::None => break,
                Change::Established => self.moved_at = now,
                Change::Reset => (0..SLOTS).try_for_each(|slot| self.post_receive(adapter, slot))?,
            }
        }
        if let Some((connection, _)) = &mut self.written {
            while connection.poll(adapter, &[], now)? != Change::None {}
            // The client's last write may fail at its end only.
            while connection.completion(adapter)?.is_some() {}
        }
        while let Some(event) = self.agreed.completion(adapter)? {
            let EventData::Dto(dto) = event.data else { continue };
            match (dto.status, dto.operation) {
                (DtoStatus::Success, DtoOperation::Receive) => {
                    self.moved_at = now;
                    self.answer(adapter, dto.user_cookie as usize, dto.transferred_length as usize)?;
                }
                (DtoStatus::Success, _) if self.end == End::Next => self.disconnect(adapter)?,
                (DtoStatus::Success | DtoStatus::ErrFlushed, _) => {}
                (status, _) => return Err(PerftestError::Transfer(status)),
            }
        }
        if matches!(self.agreed.state(), LinkState::Ended(_)) {
            return if self.written.is_some() {
                Ok(ControlFlow::Break(()))
            } else {
                Err(PerftestError::Early)
            };
        }
        let waited = now - self.moved_at;
        if waited > self.limit {
            return Err(PerftestError::Stalled(waited.as_millis() as u64));
        }
        Ok(ControlFlow::Continue(Wake::At(self.moved_at + self.limit + Duration::from_nanos(1))))
    }

    /// Answers a message.
    fn answer<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        slot: usize,
        len: usize,
    ) -> Result<(), PerftestError> {
        let mut bytes = [0; MESSAGE];
        let len = len.min(MESSAGE);
        let _ = self.receives.memory.read(slot * MESSAGE, &mut bytes);
        self.end = match (self.end, len == Destination::LEN) {
            (End::Far, false) if self.written.is_some() => End::Near,
            (End::Near, true) => End::Next,
            (end, _) => end,
        };
        if len == Destination::LEN {
            let target = self.target(adapter)?;
            bytes.iter_mut().zip(target.encode()).for_each(|(to, from)| *to = from);
        }
        let offset = self.messages % SLOTS * MESSAGE;
        self.messages += 1;
        let _ = self.answers.memory.write(offset, bytes.get(..len).unwrap_or_default());
        self.post_receive(adapter, slot)?;
        Ok(self.agreed.post_send(adapter, self.answers.triplet(offset, len), 0)?)
    }

    /// Ends the connection on which the client wrote. Clients before perftest 24 do so themselves, later
    /// ones wait for it.
    fn disconnect<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), PerftestError> {
        self.end = End::Here;
        match &self.written {
            Some((connection, _)) if connection.state() == LinkState::Up => {
                Ok(connection.disconnect(adapter)?)
            }
            _ => Ok(()),
        }
    }

    /// Returns the memory that the client writes to. The client's second connection follows the answer with it.
    fn target<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<Destination, PerftestError> {
        if self.written.is_none() {
            self.agreed.stop_listening(adapter)?;
            let connection = Connection::open(adapter, &self.config)?;
            let rights = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE | MemPriv::REMOTE_WRITE;
            let buffer = Buffer::new(adapter, connection.ia, connection.pz, TARGET, rights)?;
            let _ = buffer.memory.fill(0, TARGET, 0);
            self.written = Some((connection, buffer));
        }
        let registered = self.written.as_ref().map(|(_, buffer)| buffer.registered);
        Ok(registered.map_or(Destination { rkey: 0, address: 0 }, |region| Destination {
            rkey: region.rmr_context,
            address: region.registered_address,
        }))
    }

    /// Frees everything.
    ///
    /// # Errors
    /// [`PerftestError::Call`].
    pub fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), PerftestError> {
        if let Some((connection, buffer)) = self.written {
            connection.close(adapter, [buffer])?;
        }
        Ok(self.agreed.close(adapter, [self.receives, self.answers])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_have_the_layout_of_c() {
        let bytes = Destination { rkey: 0x1122_3344, address: 0x5566_7788_99aa_bbcc }.encode();
        assert_eq!(
            bytes[16..32],
            [0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc]
        );
        assert!(bytes[..16].iter().chain(&bytes[32..]).all(|byte| *byte == 0));
    }
}
