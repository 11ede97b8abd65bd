//! Messages of 0 bytes to 100 KiB from each of 8 sockets to each of 8 sockets of the peer.
//!
//! Socket `s` sends its message `m` to the peer's socket `(s + m) % 8`. The receiver computes the next
//! message of each pair of sockets, so it notices one that is lost, repeated, reordered or changed.
//! After all messages it sends their number to the sender's first socket. The sender replies with a
//! last message, so long that the receiver acknowledges it immediately.

use core::net::{IpAddr, SocketAddr};
use core::ops::ControlFlow;

use apps::rds::{AppError, InCall, MAX_LEN, SOCKETS, Work, bind_all, receive, send};
use apps::{Role, Status};
use dat_nostd::{Adapter, Duration, Instant, Platform};
use driver_mlx::Wake;
use ib_types::Payload;
use ib_types::random::finalize;
use rds_nostd::{Msg, Rds, SocketHandle};

use super::Report;

/// First port of the receiver's sockets.
const RECEIVER_PORT: u16 = 4100;
/// First port of the sender's sockets.
const SENDER_PORT: u16 = 4200;
/// Send buffer of the sender's sockets, in bytes: some of the longest messages.
const SEND_BUFFER: usize = 256 << 10;
/// Send buffer of the last message, and its length: more than half of it.
const LAST_SEND_BUFFER: usize = 2304;
const LAST_LEN: usize = 2048;
/// Limit for the acknowledgement of the last message. The receiver may be gone.
const LAST_WAIT: Duration = Duration::from_secs(5);
/// Messages of one poll.
const BURST: usize = 16;

/// The sizes 0, 1 to 1, 2 to 3, 4 to 7 and so on are equally frequent. The last group ends at
/// [`MAX_LEN`]. 16-bit fixed point.
const OCTAVES: u64 = (17 << 16) + (MAX_LEN as u64 - (1 << 16)) + 1;

/// Returns length and payload of message `number` from socket `sender` to socket `receiver`, as
/// `tests/guest/rds.c` does.
const fn message(seed: u64, sender: usize, receiver: usize, number: u64) -> (usize, Payload) {
    let pair = ((sender as u64) << 56) | ((receiver as u64) << 48);
    let payload = Payload::new(seed, pair, number);
    let size = ((finalize(payload.first_word()) >> 32) * OCTAVES) >> 32;
    let len = match size.checked_sub(1 << 16) {
        None => 0,
        Some(size) => ((1 << 16) + (size & 0xffff)) << (size >> 16) >> 16,
    };
    (len as usize, payload)
}

/// Returns the messages that socket `sender` sends of `count` in all.
const fn share(count: u64, sender: usize) -> u64 {
    count / SOCKETS as u64 + (count % SOCKETS as u64 > sender as u64) as u64
}

/// Order of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Messages are missing.
    Moving,
    /// The number was sent, or is awaited.
    Counted,
    /// The last message was sent at this time.
    Last(Instant),
    Done,
}

/// A side of the flows.
pub struct Flows {
    role: Role,
    sockets: [SocketHandle; SOCKETS],
    peer: IpAddr,
    count: u64,
    seed: u64,
    /// Messages of each pair, by sender and receiver.
    pairs: [[u64; SOCKETS]; SOCKETS],
    /// Messages of each sender.
    sent: [u64; SOCKETS],
    stage: Stage,
    /// First socket of the next poll.
    turn: usize,
    began_at: Option<Instant>,
    report: Report,
}

impl Flows {
    /// Binds the sockets. The client sends `count` messages; `seed` varies them. Both sides have the
    /// same values.
    ///
    /// # Errors
    /// [`AppError::Rds`].
    pub fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        role: Role,
        peer: IpAddr,
        (count, seed): (u64, u64),
    ) -> Result<Self, AppError> {
        let port = if role == Role::Client { SENDER_PORT } else { RECEIVER_PORT };
        let sockets = bind_all(rds, adapter.address(), Some(port))?;
        if role == Role::Client {
            for socket in sockets {
                rds.set_send_buffer(socket, SEND_BUFFER).in_call("set_send_buffer")?;
            }
        }
        Ok(Self {
            role,
            sockets,
            peer,
            count,
            seed,
            pairs: [[0; SOCKETS]; SOCKETS],
            sent: [0; SOCKETS],
            stage: Stage::Moving,
            turn: 0,
            began_at: None,
            report: Report::new("rds_messages"),
        })
    }

    /// Returns the result so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.report
    }

    fn count_message(&mut self, sender: usize, receiver: usize, len: usize, now: Instant) {
        self.pairs[sender][receiver] += 1;
        let result = &mut self.report.result;
        result.messages += 1;
        result.bytes += len as u64;
        result.ns = (now - *self.began_at.get_or_insert(now)).as_nanos() as u64;
    }

    /// Sends the next message of a socket. Returns false if there is none or no room for it.
    fn send<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        sender: usize,
        now: Instant,
    ) -> Result<bool, AppError> {
        let sent = self.sent[sender];
        if sent == share(self.count, sender) {
            return Ok(false);
        }
        let receiver = (sender + sent as usize) % SOCKETS;
        let (len, payload) = message(self.seed, sender, receiver, self.pairs[sender][receiver]);
        payload.fill(0, &mut buffer[..len]);
        if !self.say(adapter, rds, sender, RECEIVER_PORT + receiver as u16, &buffer[..len])? {
            return Ok(false);
        }
        self.sent[sender] += 1;
        self.count_message(sender, receiver, len, now);
        Ok(true)
    }

    /// Receives a message of a socket. Returns false if there is none.
    fn receive<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        receiver: usize,
        now: Instant,
    ) -> Result<bool, AppError> {
        let received = receive(adapter, rds, self.sockets[receiver], buffer)?;
        let Some(message) = received else { return Ok(false) };
        let (len, all) = (message.message_len, self.report.result.messages);
        let first = if self.role == Role::Client { RECEIVER_PORT } else { SENDER_PORT };
        let other = usize::from(message.from.port().wrapping_sub(first));
        let unexpected = Err(AppError::Unexpected { receiver });
        if message.from.ip() != self.peer || other >= SOCKETS {
            return unexpected;
        }
        match (self.role, self.stage) {
            (Role::Server, Stage::Moving) => {
                let number = self.pairs[other][receiver];
                let (expected, payload) = self::message(self.seed, other, receiver, number);
                let at = number as usize;
                let wrong = |what, expected, found| {
                    Err(AppError::Wrong { at, what, expected: expected as u64, found: found as u64 })
                };
                if len != expected {
                    return wrong("length of a message", expected, len);
                }
                if let Some(position) = payload.mismatch(0, &buffer[..len]) {
                    return wrong("first wrong byte of a message", len, position);
                }
                self.report.result.verified += 1;
                self.count_message(other, receiver, len, now);
            }
            (Role::Server, Stage::Counted) if (receiver, other, len) == (0, 0, LAST_LEN) => {
                self.stage = Stage::Done;
            }
            (Role::Client, Stage::Counted) if (receiver, other) == (0, 0) => {
                if buffer.get(..len) != Some(&all.to_le_bytes()[..]) {
                    return unexpected;
                }
                // The receiver compared all of them.
                self.report.result.verified = all;
                let socket = self.sockets[0];
                rds.set_send_buffer(socket, LAST_SEND_BUFFER).in_call("set_send_buffer")?;
                self.stage = Stage::Last(Instant::MAX);
            }
            _ => return unexpected,
        }
        Ok(true)
    }

    /// Sends bytes. Returns false if there is no room.
    fn say<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        socket: usize,
        port: u16,
        bytes: &[u8],
    ) -> Result<bool, AppError> {
        send(adapter, rds, self.sockets[socket], Msg::to(&SocketAddr::new(self.peer, port), bytes))
    }
}

impl Work for Flows {
    fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        now: Instant,
    ) -> Result<Status, AppError> {
        let mut result = ControlFlow::Continue(Wake::Idle);
        // Other sockets may send after a refusal.
        for step in 0..BURST {
            let index = (self.turn + step) % SOCKETS;
            let sends = self.role == Role::Client && self.stage == Stage::Moving;
            let moved = if sends {
                self.send(adapter, rds, buffer, index, now)?
            } else {
                self.receive(adapter, rds, buffer, index, now)?
            };
            if moved {
                result = ControlFlow::Continue(Wake::Now);
            }
            if self.report.result.messages == self.count && self.stage == Stage::Moving {
                let count = self.count.to_le_bytes();
                let is_told = self.role == Role::Client || self.say(adapter, rds, 0, SENDER_PORT, &count)?;
                if is_told {
                    (self.stage, result) = (Stage::Counted, ControlFlow::Continue(Wake::Now));
                }
                break;
            }
        }
        self.turn = (self.turn + 1) % SOCKETS;
        match self.stage {
            Stage::Done => return Ok(ControlFlow::Break(())),
            Stage::Last(Instant::MAX) => {
                if self.say(adapter, rds, 0, RECEIVER_PORT, &[0; LAST_LEN])? {
                    (self.stage, result) = (Stage::Last(now), ControlFlow::Continue(Wake::Now));
                }
            }
            Stage::Last(at) => {
                let end = at + LAST_WAIT;
                let acknowledged = rds.unacknowledged(self.sockets[0]).in_call("unacknowledged")? == 0;
                result = if acknowledged || now >= end {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(Wake::At(end))
                };
            }
            Stage::Moving | Stage::Counted => {}
        }
        Ok(result)
    }

    fn moved(&self) -> Option<u64> {
        let end = !matches!(self.stage, Stage::Moving | Stage::Counted);
        Some(self.report.result.messages + u64::from(end))
    }

    fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>, rds: &mut Rds<'_>) -> Result<(), AppError> {
        self.sockets.iter().try_for_each(|socket| rds.close(adapter, *socket).in_call("close"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_log_uniform_from_0_to_100_kib() {
        let mut octaves = [0u32; 18];
        let mut longest = 0;
        for number in 0..176_000 {
            let (len, _) = message(7, 3, 5, number);
            octaves[(usize::BITS - len.leading_zeros()) as usize] += 1;
            longest = longest.max(len);
        }
        assert!((MAX_LEN - 100..=MAX_LEN).contains(&longest), "{longest}");
        assert!(octaves[..17].iter().all(|count| (9_500..10_500).contains(count)), "{octaves:?}");
        assert!((5_000..6_500).contains(&octaves[17]), "{octaves:?}");
    }
}
