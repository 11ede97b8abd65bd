//! `mode=hash`: messages of 0 bytes to 100 KiB from each of 8 sockets to each of 8 sockets of the peer.
//!
//! Socket `s` sends its message `m` to the peer's socket `(s + m) % 8`. The receiver knows what is due between each pair of sockets
//! and compares: a message that is lost, doubled, overtaken or changed shows at once. When all have come its first socket
//! sends the sum over all of them to the sender's first socket, which compares it with its own and answers. That last message
//! is long enough for its send buffer that the receiver's RDS acknowledges it at once.

use core::net::{IpAddr, SocketAddr};

use dat_nostd::{Adapter, Platform};
use rds_nostd::{Arrival, Msg, MsgFlags, Rds, RdsError, SocketHandle};

use super::pattern::{MAX_LEN, Pattern, Sum};
use super::work::{Move, bind_all};
use super::{AppError, InCall, RECEIVER_PORT, SENDER_PORT, SOCKETS};

/// Send buffer of a sender's socket: some of the longest messages.
const SEND_BUFFER: usize = 256 << 10;
/// Send buffer of the last message and its length: more than half.
const LAST_SEND_BUFFER: usize = 2304;
const LAST_LEN: usize = 2048;
/// How long the sender waits for the acknowledgement of its last message. Without it the receiver has ended already, or is
/// out of reach and will say so itself.
const LAST_WAIT: u64 = 5_000_000_000;
/// Messages of one poll.
const BURST: usize = 16;

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashReport {
    /// Messages sent or received, their bytes, the sum over all.
    pub sum: Sum,
    /// From the first message to the last, nanoseconds.
    pub ns: u64,
}

/// The table of sums, by sender's and receiver's socket.
type Sums = [[Sum; SOCKETS]; SOCKETS];

fn sum_mut(sums: &mut Sums, sender: usize, receiver: usize) -> Option<&mut Sum> {
    sums.get_mut(sender)?.get_mut(receiver)
}

/// Messages that socket `sender` sends of `count` in all.
const fn share(count: u64, sender: usize) -> u64 {
    count / SOCKETS as u64 + (count % SOCKETS as u64 > sender as u64) as u64
}

/// When it began and when it last moved.
#[derive(Clone, Copy, Default)]
struct Times {
    first: Option<u64>,
    last: u64,
}

impl Times {
    fn note(&mut self, now: u64) {
        self.first.get_or_insert(now);
        self.last = now;
    }

    fn ns(&self) -> u64 {
        self.last.saturating_sub(self.first.unwrap_or(self.last))
    }
}

/// What is the same on both sides.
struct Common {
    sockets: [SocketHandle; SOCKETS],
    peer: IpAddr,
    count: u64,
    seed: u64,
    sums: Sums,
    moved: u64,
    times: Times,
    /// Whose turn it is.
    turn: usize,
}

impl Common {
    fn report(&self) -> HashReport {
        HashReport { sum: Sum::of_all(&self.sums), ns: self.times.ns() }
    }

    fn close<P: Platform>(&self, adapter: &mut Adapter<'_, P>, rds: &mut Rds<'_>) -> Result<(), AppError> {
        self.sockets.iter().try_for_each(|socket| rds.close(adapter, *socket).in_call("close"))
    }
}

/// The sending side.
pub struct Sender {
    common: Common,
    /// Messages sent by each socket.
    sent: [u64; SOCKETS],
    /// The last message was sent, at this time.
    last_sent: Option<u64>,
    confirmed: bool,
}

impl Sender {
    pub(super) fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        peer: IpAddr,
        (count, seed): (u64, u64),
    ) -> Result<Self, AppError> {
        let sockets = bind_all(rds, adapter.address(), Some(SENDER_PORT))?;
        for socket in sockets {
            rds.set_send_buffer(socket, SEND_BUFFER).in_call("set_send_buffer")?;
        }
        let common = Common {
            sockets,
            peer,
            count,
            seed,
            sums: Sums::default(),
            moved: 0,
            times: Times::default(),
            turn: 0,
        };
        Ok(Self { common, sent: [0; SOCKETS], last_sent: None, confirmed: false })
    }

    pub(super) fn report(&self) -> HashReport {
        self.common.report()
    }

    pub(super) fn moved(&self) -> u64 {
        self.common.moved + u64::from(self.confirmed) + u64::from(self.last_sent.is_some())
    }

    pub(super) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        now: u64,
    ) -> Result<Move, AppError> {
        let mut result = Move::Wait(u64::MAX);
        // After a refusal the others may still send.
        for step in 0..BURST {
            let index = (self.common.turn + step) % SOCKETS;
            if self.send(adapter, rds, buffer, index, now)? {
                result = Move::Again;
            }
        }
        self.common.turn = (self.common.turn + 1) % SOCKETS;
        if !self.confirmed {
            self.confirmed = self.confirmation(adapter, rds)?;
        }
        if !self.confirmed {
            return Ok(result);
        }
        let Some(first) = self.common.sockets.first().copied() else { return Ok(Move::Done) };
        match self.last_sent {
            None => {
                rds.set_send_buffer(first, LAST_SEND_BUFFER).in_call("set_send_buffer")?;
                let to = SocketAddr::new(self.common.peer, RECEIVER_PORT);
                match rds.sendmsg(adapter, first, Msg::to(to, &[0; LAST_LEN])) {
                    Ok(_) => self.last_sent = Some(now),
                    Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => {
                        return Ok(Move::Wait(u64::MAX));
                    }
                    Err(error) => return Err(AppError::Rds { call: "sendmsg", error }),
                }
                Ok(Move::Again)
            }
            Some(at) => {
                let end = at.saturating_add(LAST_WAIT);
                let acknowledged = rds.unacknowledged(first).in_call("unacknowledged")? == 0;
                Ok(if acknowledged || now >= end { Move::Done } else { Move::Wait(end) })
            }
        }
    }

    /// Sends the next message of a socket, if there is one and it may go.
    fn send<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        sender: usize,
        now: u64,
    ) -> Result<bool, AppError> {
        let Common { sockets, peer, count, seed, sums, moved, times, .. } = &mut self.common;
        let (Some(socket), Some(sent)) = (sockets.get(sender), self.sent.get_mut(sender)) else {
            return Ok(false);
        };
        if *sent == share(*count, sender) {
            return Ok(false);
        }
        let receiver = (sender + *sent as usize) % SOCKETS;
        let Some(sum) = sum_mut(sums, sender, receiver) else { return Ok(false) };
        let pattern = Pattern::new(*seed, sender, receiver, sum.messages);
        let Some(payload) = buffer.get_mut(..pattern.len) else { return Ok(false) };
        pattern.fill(payload);
        let to = SocketAddr::new(*peer, RECEIVER_PORT + receiver as u16);
        match rds.sendmsg(adapter, *socket, Msg::to(to, payload)) {
            Ok(_) => {}
            Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => return Ok(false),
            Err(error) => return Err(AppError::Rds { call: "sendmsg", error }),
        }
        sum.add(payload);
        *sent += 1;
        *moved += 1;
        times.note(now);
        Ok(true)
    }

    /// Whether the receiver has said that it has everything.
    fn confirmation<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<bool, AppError> {
        let Some(first) = self.common.sockets.first() else { return Ok(false) };
        let mut bytes = [0; 8];
        let message = match rds.recvmsg(adapter, *first, &mut bytes, MsgFlags::empty()) {
            Ok(Arrival::Message(message)) => message,
            Ok(_) | Err(RdsError::Again) => return Ok(false),
            Err(error) => return Err(AppError::Rds { call: "recvmsg", error }),
        };
        let own = Sum::of_all(&self.common.sums);
        let from = SocketAddr::new(self.common.peer, RECEIVER_PORT);
        if message.from != from || message.message_len != bytes.len() || own.messages != self.common.count {
            return Err(AppError::Unexpected { receiver: 0 });
        }
        let other = u64::from_le_bytes(bytes);
        if other != own.value {
            return Err(AppError::WrongSum { own: own.value, other });
        }
        Ok(true)
    }

    pub(super) fn close<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), AppError> {
        self.common.close(adapter, rds)
    }
}

/// The receiving side.
pub struct Receiver {
    common: Common,
    told: bool,
    confirmed: bool,
}

impl Receiver {
    pub(super) fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        peer: IpAddr,
        (count, seed): (u64, u64),
    ) -> Result<Self, AppError> {
        let common = Common {
            sockets: bind_all(rds, adapter.address(), Some(RECEIVER_PORT))?,
            peer,
            count,
            seed,
            sums: Sums::default(),
            moved: 0,
            times: Times::default(),
            turn: 0,
        };
        Ok(Self { common, told: false, confirmed: false })
    }

    pub(super) fn report(&self) -> HashReport {
        self.common.report()
    }

    pub(super) fn moved(&self) -> u64 {
        self.common.moved + u64::from(self.told) + u64::from(self.confirmed)
    }

    pub(super) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        now: u64,
    ) -> Result<Move, AppError> {
        let mut result = Move::Wait(u64::MAX);
        for step in 0..BURST {
            let index = (self.common.turn + step) % SOCKETS;
            if self.receive(adapter, rds, buffer, index, now)? {
                result = Move::Again;
            }
        }
        self.common.turn = (self.common.turn + 1) % SOCKETS;
        if self.confirmed {
            return Ok(Move::Done);
        }
        if self.common.moved == self.common.count && !self.told {
            let Some(first) = self.common.sockets.first() else { return Ok(Move::Done) };
            let sum = Sum::of_all(&self.common.sums).value.to_le_bytes();
            match rds.sendmsg(adapter, *first, Msg::to(SocketAddr::new(self.common.peer, SENDER_PORT), &sum))
            {
                Ok(_) => self.told = true,
                Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => {}
                Err(error) => return Err(AppError::Rds { call: "sendmsg", error }),
            }
            result = Move::Again;
        }
        Ok(result)
    }

    /// Takes a message of a socket, if there is one.
    fn receive<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        receiver: usize,
        now: u64,
    ) -> Result<bool, AppError> {
        let Common { sockets, peer, count, seed, sums, moved, times, .. } = &mut self.common;
        let Some(socket) = sockets.get(receiver) else { return Ok(false) };
        let message = match rds.recvmsg(adapter, *socket, buffer, MsgFlags::empty()) {
            Ok(Arrival::Message(message)) => message,
            Ok(_) | Err(RdsError::Again) => return Ok(false),
            Err(error) => return Err(AppError::Rds { call: "recvmsg", error }),
        };
        let unexpected = AppError::Unexpected { receiver };
        let sender = usize::from(message.from.port().wrapping_sub(SENDER_PORT));
        if message.from.ip() != *peer || sender >= SOCKETS {
            return Err(unexpected);
        }
        if self.told {
            self.confirmed = receiver == 0 && sender == 0 && message.message_len == LAST_LEN;
            return if self.confirmed { Ok(true) } else { Err(unexpected) };
        }
        // The sender's messages to this socket are those with this remainder.
        let offset = (SOCKETS + receiver - sender) % SOCKETS;
        let due = (share(*count, sender) + (SOCKETS - 1 - offset) as u64) / SOCKETS as u64;
        let sum = sum_mut(sums, sender, receiver).filter(|sum| sum.messages < due).ok_or(unexpected)?;
        let number = sum.messages;
        let pattern = Pattern::new(*seed, sender, receiver, number);
        let payload = buffer.get(..message.len).unwrap_or_default();
        let wrong = if message.message_len == pattern.len {
            pattern.mismatch(payload)
        } else {
            Some(message.message_len)
        };
        if let Some(position) = wrong {
            return Err(AppError::Mismatch { sender, receiver, number, position });
        }
        sum.add(payload);
        *moved += 1;
        times.note(now);
        Ok(true)
    }

    pub(super) fn close<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), AppError> {
        self.common.close(adapter, rds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_due_somewhere() {
        for count in [1, 7, 8, 9, 63, 64, 65, 1000, 50_000] {
            let mut due = [[0u64; SOCKETS]; SOCKETS];
            for sender in 0..SOCKETS {
                for number in 0..share(count, sender) {
                    due[sender][(sender + number as usize) % SOCKETS] += 1;
                }
            }
            assert_eq!(due.iter().flatten().sum::<u64>(), count);
            for (sender, row) in due.iter().enumerate() {
                for (receiver, messages) in row.iter().enumerate() {
                    let offset = (SOCKETS + receiver - sender) % SOCKETS;
                    let formula = (share(count, sender) + (SOCKETS - 1 - offset) as u64) / SOCKETS as u64;
                    assert_eq!(*messages, formula, "{count} {sender} {receiver}");
                }
            }
        }
    }
}
