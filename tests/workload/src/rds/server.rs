//! The server: offers memory, checks it, and has sockets that it reads only on request. `exchange`
//! lists the requests.

use core::net::SocketAddr;
use core::ops::ControlFlow;

use apps::Status;
use apps::rds::{AppError, InCall, MAX_LEN, Work, receive};
use dat_nostd::{Adapter, DmaBuffer, Duration, Instant, Platform};
use driver_mlx::Wake;
use rds_nostd::{Control, Msg, RdmaCookie, RdmaFlags, Rds, RdsError, SocketHandle};

use super::exchange::{AFTER, ARENA, BEFORE, FIRST_OFFSET, Kind, Message, PORT, Writer, payload, send_last};
use super::{Report, no_memory};
use crate::memory::{fill, mismatch};

/// Sockets that are not read.
const HELD: usize = 4;
/// How long the last answer's acknowledgement may take. Without it the client has ended already, or is out of reach and will
/// say so itself.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// The region in question, and what was last offered.
#[derive(Clone, Copy, Default)]
struct Region {
    number: u32,
    offset: usize,
    len: usize,
}

/// A socket that is read only when the client says so.
#[derive(Clone, Copy)]
struct Held {
    port: u16,
    socket: SocketHandle,
}

/// Messages still to be read.
#[derive(Clone, Copy)]
struct Releasing {
    request: Message,
    socket: SocketHandle,
    left: u64,
    wrong: u64,
}

/// What an answer carries beside its values.
#[derive(Clone, Copy)]
enum Carry {
    Nothing,
    Map(usize, usize, RdmaFlags),
    Dest(RdmaCookie),
}

/// A server.
pub struct Server {
    socket: SocketHandle,
    arena: DmaBuffer,
    region: Region,
    held: [Option<Held>; HELD],
    releasing: Option<Releasing>,
    /// An answer that could not be sent yet.
    answer: Option<(SocketAddr, Message, Carry)>,
    client: Option<SocketAddr>,
    /// The last answer was sent by then.
    done_at: Option<Instant>,
    report: Report,
}

impl Server {
    /// Binds its port.
    ///
    /// # Errors
    /// [`AppError::Rds`].
    pub fn start<P: Platform>(adapter: &mut Adapter<'_, P>, rds: &mut Rds<'_>) -> Result<Self, AppError> {
        let socket = rds.bind(SocketAddr::new(adapter.address(), PORT)).in_call("bind")?;
        let arena = adapter.dma_alloc(ARENA, 4096).map_err(RdsError::Dat).in_call("dma_alloc")?;
        Ok(Self {
            socket,
            arena,
            region: Region::default(),
            held: [None; HELD],
            releasing: None,
            answer: None,
            client: None,
            done_at: None,
            report: Report::new("rds_server"),
        })
    }

    /// Returns the result so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.report
    }

    fn serve<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        request: &Message,
    ) -> Result<(), AppError> {
        let values = &request.values;
        let flags = RdmaFlags::from_bits_truncate;
        let port = u16::try_from(values[0]).ok();
        match request.kind {
            Kind::Offer => {
                let (offset, len) = (request.size(0), request.size(1));
                let end = offset.checked_add(len).and_then(|end| end.checked_add(AFTER));
                if offset < FIRST_OFFSET || end.is_none_or(|end| end > ARENA) {
                    self.reply(request, [u64::MAX, 0, 0, 0], Carry::Nothing);
                    return Ok(());
                }
                self.region = Region { number: request.number, offset, len };
                self.prepare(Writer::Server)?;
                // It reaches to its last byte and no farther.
                self.reply(request, [0, values[1], 0, 0], Carry::Map(offset, len, flags(values[2])));
            }
            Kind::Again => self.reply(request, [0; 4], Carry::Dest(RdmaCookie(values[0]))),
            Kind::Check => {
                let found = self.check(request);
                self.report.wrong += u64::from(found.is_some());
                self.report.result.verified += u64::from(found.is_none());
                if values[2] != 0 {
                    self.prepare(Writer::Overwritten)?;
                }
                let first = found.unwrap_or_default() as u64;
                self.reply(request, [u64::from(found.is_some()), first, 0, 0], Carry::Nothing);
            }
            Kind::Free => {
                let freed = rds.free_mr(adapter, self.socket, RdmaCookie(values[0]));
                self.reply(request, [errno(freed), 0, 0, 0], Carry::Nothing);
            }
            Kind::Hold => {
                let held = self.hold(adapter, rds, port.unwrap_or(0), request.size(1));
                self.reply(request, [errno(held), 0, 0, 0], Carry::Nothing);
            }
            Kind::Release => {
                let held = self.held.iter().flatten().find(|held| Some(held.port) == port);
                let Some(held) = held else {
                    self.reply(request, [u64::MAX, 0, 0, 0], Carry::Nothing);
                    return Ok(());
                };
                self.releasing =
                    Some(Releasing { request: *request, socket: held.socket, left: values[1], wrong: 0 });
            }
            Kind::Close => {
                let place = self.held.iter_mut().find(|held| held.map(|held| held.port) == port);
                let held = place.and_then(Option::take);
                let closed = held.map_or(Err(RdsError::BadSocket), |held| rds.close(adapter, held.socket));
                self.reply(request, [errno(closed), 0, 0, 0], Carry::Nothing);
            }
            Kind::Done => self.reply(request, [0; 4], Carry::Nothing),
        }
        Ok(())
    }

    /// Fills the region and the bytes around it.
    fn prepare(&self, writer: Writer) -> Result<(), AppError> {
        let Region { number, offset, len } = self.region;
        let start = offset.saturating_sub(BEFORE);
        fill(self.arena.as_slice(), start, BEFORE + len + AFTER, payload(writer, number), start)
            .map_err(no_memory)
    }

    /// Returns the first wrong byte: of those that the client wrote, and of all around them.
    fn check(&self, request: &Message) -> Option<usize> {
        let Region { number, offset, len } = self.region;
        let (from, written) = (request.size(0), request.size(1));
        let start = offset.saturating_sub(BEFORE);
        let end = offset + len + AFTER;
        let Some(after) = from.checked_add(written).filter(|after| from >= start && *after <= end) else {
            return Some(0);
        };
        let (own, theirs) = (payload(Writer::Server, number), payload(Writer::Client, number));
        [(start, from, own, start), (from, after, theirs, 0), (after, end, own, after)].into_iter().find_map(
            |(at, end, payload, first)| {
                Some(at - start + mismatch(self.arena.as_slice(), at, end - at, payload, first)?)
            },
        )
    }

    fn hold<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        port: u16,
        receive_buffer: usize,
    ) -> Result<(), RdsError> {
        let place = self.held.iter_mut().find(|held| held.is_none()).ok_or(RdsError::TooManySockets)?;
        let socket = rds.bind(SocketAddr::new(adapter.address(), port))?;
        *place = Some(Held { port, socket });
        rds.set_receive_buffer(adapter, socket, receive_buffer)
    }

    /// Reads what the client wants to be read.
    fn release<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
    ) -> Result<Status, AppError> {
        let Some(mut releasing) = self.releasing else { return Ok(ControlFlow::Continue(Wake::Now)) };
        let request = releasing.request;
        while releasing.left > 0 {
            let Some(received) = receive(adapter, rds, releasing.socket, buffer)? else {
                self.releasing = Some(releasing);
                return Ok(ControlFlow::Continue(Wake::Idle));
            };
            let done = request.values[1] - releasing.left;
            let number = request.values[3].wrapping_add(done) as u32;
            let bytes = buffer.get(..received.len).unwrap_or_default();
            let right = received.message_len == request.size(2)
                && payload(Writer::Client, number).mismatch(0, bytes).is_none();
            releasing.wrong += u64::from(!right);
            releasing.left -= 1;
            self.report.result.messages += 1;
            self.report.result.bytes += received.len as u64;
            self.report.result.verified += u64::from(right);
        }
        let more = rds.is_readable(releasing.socket).in_call("poll")?;
        self.report.wrong += releasing.wrong;
        self.releasing = None;
        self.reply(&request, [releasing.wrong, u64::from(more), 0, 0], Carry::Nothing);
        Ok(ControlFlow::Continue(Wake::Now))
    }

    fn reply(&mut self, request: &Message, values: [u64; 4], carry: Carry) {
        let message = Message::new(request.kind, request.number, values);
        self.answer = self.client.map(|client| (client, message, carry));
    }

    /// Sends the answer there is; false if it has to wait.
    fn flush<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        now: Instant,
    ) -> Result<bool, AppError> {
        while let Some((client, message, carry)) = self.answer {
            let control = match carry {
                Carry::Nothing => Control::default(),
                // A part of the arena, as was checked before.
                Carry::Map(offset, len, flags) => Control {
                    map: self.arena.slice(offset, len).map(|memory| (memory, flags)),
                    ..Control::default()
                },
                Carry::Dest(cookie) => Control { dest: Some(cookie), ..Control::default() },
            };
            let sent = if message.kind == Kind::Done {
                send_last(adapter, rds, self.socket, client, &message)
            } else {
                let sent =
                    rds.sendmsg(adapter, self.socket, Msg::to(&client, &message.encode()).with(&control));
                sent.map(|_| ())
            };
            match sent {
                Ok(()) => {
                    self.answer = None;
                    self.report.result.messages += u64::from(matches!(carry, Carry::Map(..)));
                    if message.kind == Kind::Done {
                        self.done_at = Some(now);
                    }
                }
                Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => return Ok(false),
                // The memory, not the message: the client is to hear of it.
                Err(error) if !matches!(carry, Carry::Nothing) => {
                    let refused = Message::new(message.kind, message.number, [error.errno() as u64, 0, 0, 0]);
                    self.answer = Some((client, refused, Carry::Nothing));
                }
                Err(error) => return Err(AppError::Rds { call: "sendmsg", error }),
            }
        }
        Ok(true)
    }
}

impl Work for Server {
    fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        now: Instant,
    ) -> Result<Status, AppError> {
        if !self.flush(adapter, rds, now)? {
            return Ok(ControlFlow::Continue(Wake::Idle));
        }
        if let Some(done_at) = self.done_at {
            let until = done_at + LAST_WAIT;
            let over = now >= until || rds.unacknowledged(self.socket).in_call("unacknowledged")? == 0;
            return Ok(if over { ControlFlow::Break(()) } else { ControlFlow::Continue(Wake::At(until)) });
        }
        if self.releasing.is_some() {
            return self.release(adapter, rds, buffer);
        }
        let Some(received) = receive(adapter, rds, self.socket, buffer)? else {
            return Ok(ControlFlow::Continue(Wake::Idle));
        };
        let Some(request) = buffer.get(..received.message_len).and_then(Message::decode) else {
            return Err(AppError::Unexpected { receiver: 0 });
        };
        self.client = Some(received.from);
        self.report.requests += 1;
        self.serve(adapter, rds, &request)?;
        Ok(ControlFlow::Continue(Wake::Now))
    }

    /// A server without a client does not stall.
    fn moved(&self) -> Option<u64> {
        let moved = self.report.requests + self.report.result.messages;
        (moved > 0).then_some(moved)
    }

    fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>, rds: &mut Rds<'_>) -> Result<(), AppError> {
        for held in self.held.iter().flatten() {
            rds.close(adapter, held.socket).in_call("close")?;
        }
        rds.close(adapter, self.socket).in_call("close")?;
        adapter.dma_free(self.arena).map_err(|kept| RdsError::Dat(kept.reason)).in_call("dma_free")
    }
}

/// As a value of an answer.
fn errno(result: Result<(), RdsError>) -> u64 {
    result.map_or_else(|error| error.errno() as u64, |()| 0)
}
