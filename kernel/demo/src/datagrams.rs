//! The RDS part: datagrams both ways, then round trips for the latency.

use core::net::{IpAddr, SocketAddr};

use dat_nostd::{Adapter, Platform};
use rds_nostd::{Arrival, Msg, MsgFlags, Rds, RdsError, SocketHandle};

use crate::Role;
use crate::error::{DemoError, InCall};
use crate::parts::Plan;
use crate::pattern::Stream;
use crate::report::{Operation, Tally};
use crate::sizes::Sizes;

/// The longest datagram.
pub(crate) const MAX_DATAGRAM: usize = 256 << 10;
const PORT: u16 = 5000;
const ECHO_PORT: u16 = 5001;
/// Enough for four of the longest datagrams on their way.
const SEND_BUFFER: usize = 4 * MAX_DATAGRAM;
const ROUND_TRIPS: u64 = 500;
const ROUND_TRIP_LEN: usize = 64;
/// Datagrams sent before what arrived is looked at again.
const BURST: usize = 8;

/// Buffers of this part.
pub(crate) struct Buffers {
    pub(crate) outgoing: [u8; MAX_DATAGRAM],
    pub(crate) incoming: [u8; MAX_DATAGRAM],
}

/// The sockets of the RDS part. They are there from the beginning: the peer may begin with its datagrams before this side
/// knows that the part before is over, and what arrives for nobody is gone.
#[derive(Clone, Copy)]
pub(crate) struct Sockets {
    socket: SocketHandle,
    echo: SocketHandle,
}

impl Sockets {
    pub(crate) fn bind(rds: &mut Rds<'_>, local: IpAddr) -> Result<Self, DemoError> {
        let socket = rds.bind(SocketAddr::new(local, PORT)).in_call("bind")?;
        rds.set_send_buffer(socket, SEND_BUFFER).in_call("set_send_buffer")?;
        let echo = rds.bind(SocketAddr::new(local, ECHO_PORT)).in_call("bind")?;
        Ok(Self { socket, echo })
    }
}

/// State of the RDS part.
pub(crate) struct Datagrams {
    socket: SocketHandle,
    echo: SocketHandle,
    peer: SocketAddr,
    echo_peer: SocketAddr,
    role: Role,
    count: u64,
    own: Stream,
    theirs: Stream,
    sizes: Sizes,
    sent: u64,
    received: u64,
    /// A datagram that is made but not yet accepted.
    made: bool,
    /// Round trips made (client) or answered (server).
    trips: u64,
    trip_began: Option<u64>,
    /// What the server has to send back: to whom, how much of it.
    reply: Option<(SocketAddr, [u8; ROUND_TRIP_LEN], usize)>,
}

impl Datagrams {
    pub(crate) fn new(sockets: Sockets, peer: IpAddr, role: Role, plan: &Plan) -> Self {
        let Plan { count, own, theirs, sizes, .. } = *plan;
        Self {
            socket: sockets.socket,
            echo: sockets.echo,
            peer: SocketAddr::new(peer, PORT),
            echo_peer: SocketAddr::new(peer, ECHO_PORT),
            role,
            count,
            own,
            theirs,
            sizes,
            sent: 0,
            received: 0,
            made: false,
            trips: 0,
            trip_began: None,
            reply: None,
        }
    }

    /// Number of steps made, for noticing that nothing moves.
    pub(crate) fn moved(&self) -> u64 {
        self.sent + self.received + self.trips
    }

    /// True when this side has done its part.
    pub(crate) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffers: &mut Buffers,
        tally: &mut Tally,
    ) -> Result<bool, DemoError> {
        self.send(adapter, rds, buffers, tally)?;
        self.receive(adapter, rds, buffers, tally)?;
        self.echo(adapter, rds)?;
        // The last few messages may stay unacknowledged until more traffic comes; the peer's last word says it has them.
        if self.sent < self.count || self.received < self.count {
            return Ok(false);
        }
        if self.role == Role::Server {
            // The client says when it has all its round trips.
            return Ok(true);
        }
        self.round_trip(adapter, rds, tally)?;
        Ok(self.trips == ROUND_TRIPS)
    }

    fn send<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffers: &mut Buffers,
        tally: &mut Tally,
    ) -> Result<(), DemoError> {
        for _ in 0..BURST {
            if self.sent == self.count {
                break;
            }
            let len = self.sizes.of(self.sent) as usize;
            let Some(payload) = buffers.outgoing.get_mut(..len) else { break };
            if !self.made {
                self.own.payload(self.sent).fill(0, payload);
                self.made = true;
            }
            match rds.sendmsg(adapter, self.socket, Msg::to(&self.peer, payload)) {
                Ok(_) => {
                    self.made = false;
                    self.sent += 1;
                    tally.messages += 1;
                    tally.bytes += len as u64;
                }
                Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => break,
                Err(error) => return Err(DemoError::Rds { call: "sendmsg", error }),
            }
        }
        Ok(())
    }

    fn receive<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffers: &mut Buffers,
        tally: &mut Tally,
    ) -> Result<(), DemoError> {
        loop {
            let message = match rds.recvmsg(adapter, self.socket, &mut buffers.incoming, MsgFlags::empty()) {
                Ok(Arrival::Message(message)) => message,
                Ok(_) | Err(RdsError::Again) => return Ok(()),
                Err(error) => return Err(DemoError::Rds { call: "recvmsg", error }),
            };
            let wrong = |position| DemoError::Mismatch {
                operation: Operation::Rds,
                sequence: self.received,
                position,
            };
            let expected = self.sizes.of(self.received) as usize;
            if message.from != self.peer || message.message_len != expected || self.received == self.count {
                return Err(wrong(message.message_len));
            }
            let payload = buffers.incoming.get(..message.len).unwrap_or_default();
            if let Some(position) = self.theirs.payload(self.received).mismatch(0, payload) {
                return Err(wrong(position));
            }
            self.received += 1;
            tally.verified += 1;
        }
    }

    /// The server sends back what arrives at the echo port.
    fn echo<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), DemoError> {
        if self.role == Role::Client {
            return Ok(());
        }
        if self.reply.is_none() {
            let mut buffer = [0; ROUND_TRIP_LEN];
            match rds.recvmsg(adapter, self.echo, &mut buffer, MsgFlags::empty()) {
                Ok(Arrival::Message(message)) => self.reply = Some((message.from, buffer, message.len)),
                Ok(_) | Err(RdsError::Again) => return Ok(()),
                Err(error) => return Err(DemoError::Rds { call: "recvmsg", error }),
            }
        }
        if let Some((to, buffer, len)) = &self.reply {
            let payload = buffer.get(..*len).unwrap_or_default();
            match rds.sendmsg(adapter, self.echo, Msg::to(to, payload)) {
                Ok(_) => {
                    self.trips += 1;
                    self.reply = None;
                }
                Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => {}
                Err(error) => return Err(DemoError::Rds { call: "sendmsg", error }),
            }
        }
        Ok(())
    }

    fn round_trip<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        tally: &mut Tally,
    ) -> Result<(), DemoError> {
        let sequence = self.count + self.trips;
        let mut buffer = [0; ROUND_TRIP_LEN];
        let Some(began) = self.trip_began else {
            self.own.payload(sequence).fill(0, &mut buffer);
            let now = adapter.now().as_nanos();
            return match rds.sendmsg(adapter, self.echo, Msg::to(&self.echo_peer, &buffer)) {
                Ok(_) => {
                    self.trip_began = Some(now);
                    Ok(())
                }
                Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => Ok(()),
                Err(error) => Err(DemoError::Rds { call: "sendmsg", error }),
            };
        };
        match rds.recvmsg(adapter, self.echo, &mut buffer, MsgFlags::empty()) {
            Ok(Arrival::Message(message)) => {
                let mismatch = self.own.payload(sequence).mismatch(0, &buffer);
                let foreign = message.from != self.echo_peer;
                if mismatch.is_some() || foreign || message.message_len != ROUND_TRIP_LEN {
                    let position = mismatch.unwrap_or(message.message_len);
                    return Err(DemoError::Mismatch { operation: Operation::Rds, sequence, position });
                }
                tally.latency.record(adapter.now().as_nanos().saturating_sub(began));
                self.trips += 1;
                self.trip_began = None;
                Ok(())
            }
            Ok(_) | Err(RdsError::Again) => Ok(()),
            Err(error) => Err(DemoError::Rds { call: "recvmsg", error }),
        }
    }

    pub(crate) fn close<P: Platform>(
        self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), DemoError> {
        rds.close(adapter, self.socket).in_call("close")?;
        rds.close(adapter, self.echo).in_call("close")
    }
}
