//! The client: runs the steps of a script, and compares what each of them leaves.

use core::net::{IpAddr, SocketAddr};
use core::ops::ControlFlow;

use apps::Status;
use apps::rds::{AppError, InCall, MAX_LEN, Work};
use dat_nostd::{Adapter, Instant, Platform};
use driver_mlx::Wake;
use rds_nostd::{
    Arrival, AtomicArgs, AtomicOp, Control, Msg, MsgFlags, RdmaArgs, RdmaCookie, RdmaFlags, RdmaNotify,
    RdmaStatus, Rds, RdsError, SocketHandle, port_mask,
};

use super::Report;
use super::cases::{Aim, Case};
use super::exchange::{Kind, Message, PORT, Writer, payload};
use super::local::{Local, WORD};
use super::script::{END, FULL, FULL_BUFFER, INVALID, Script, Step};

/// Repetitions of an operation whose connection broke.
const MOST_DROPPED: u8 = 8;
/// Length of messages to a port that is not read.
const LEN: usize = 3000;

/// Arrivals that complete a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Awaited {
    reply: bool,
    status: bool,
    update: bool,
}

/// Numbers of the messages to a port that is not read: the first unread one, and the next.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    first: u64,
    next: u64,
}

/// A client.
pub struct Client {
    /// Only the first is notified of congestion.
    sockets: [SocketHandle; 2],
    server: IpAddr,
    script: Script,
    parts: usize,
    memory: Local,
    /// Part of the script, step in it, progress in that.
    part: usize,
    at: usize,
    count: u64,
    sent: bool,
    awaited: Awaited,
    case: Case,
    cookie: RdmaCookie,
    /// Length of the region, which on Linux is whole pages.
    reach: usize,
    /// The connection broke under the operation, so the case restarts after its region is freed.
    abandoned: bool,
    dropped: u8,
    numbers: [Numbers; 2],
    report: Report,
    began_at: Option<Instant>,
    moved: u64,
}

impl Client {
    /// Binds its ports and allocates its memory.
    ///
    /// # Errors
    /// [`AppError::Rds`].
    pub fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        server: IpAddr,
        script: Script,
        rounds: u32,
    ) -> Result<Self, AppError> {
        let mut bind = |port| rds.bind(SocketAddr::new(adapter.address(), port)).in_call("bind");
        let sockets = [bind(PORT + 1)?, bind(PORT + 2)?];
        rds.set_congestion_monitor(sockets[0], true).in_call("RDS_CONG_MONITOR")?;
        // Without this, nothing reports a dropped operation that requested no status.
        rds.set_receive_errors(sockets[0], true).in_call("RDS_RECVERR")?;
        Ok(Self {
            sockets,
            server,
            script,
            parts: script.parts().saturating_mul(rounds as usize),
            memory: Local::alloc(adapter)?,
            part: 0,
            at: 0,
            count: 0,
            sent: false,
            awaited: Awaited::default(),
            case: Case::new(0),
            cookie: RdmaCookie(0),
            reach: 0,
            abandoned: false,
            dropped: 0,
            numbers: [Numbers::default(); 2],
            report: Report::new(script.name()),
            began_at: None,
            moved: 0,
        })
    }

    /// Returns the result so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.report
    }

    fn step(&self) -> Option<Step> {
        if self.part == self.parts {
            return END.get(self.at).copied();
        }
        self.script.step(&self.case, self.exact(), self.at)
    }

    /// Returns whether the region ends where it should.
    fn exact(&self) -> bool {
        self.reach == self.case.len
    }

    fn number(&self) -> u32 {
        self.part as u32
    }

    fn expect(&self, what: &'static str, expected: u64, found: u64) -> Result<(), AppError> {
        if expected == found {
            return Ok(());
        }
        Err(AppError::Wrong { at: self.part, what, expected, found })
    }

    /// Whether the operation of this step fails.
    fn fails(&self) -> bool {
        self.step() == Some(Step::Stale) || self.case.fails(self.exact())
    }

    /// Numbers of the messages to `port`.
    fn numbers(&mut self, port: u16) -> &mut Numbers {
        let [full, open] = &mut self.numbers;
        if port == FULL { full } else { open }
    }

    /// Begins a step, or continues it.
    fn perform<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<Status, AppError> {
        let Some(step) = self.step() else { return Ok(ControlFlow::Break(())) };
        if self.sent {
            return Ok(ControlFlow::Continue(Wake::Idle));
        }
        let performed = match step {
            Step::Compare => self.compare().map(|()| true)?,
            Step::Fill => match self.message(adapter, rds, 0, FULL) {
                Ok(()) => false,
                Err(RdsError::Congested) => {
                    let Numbers { first, next } = *self.numbers(FULL);
                    self.expect("closed early", 1, u64::from((next - first) * LEN as u64 > FULL_BUFFER))?;
                    true
                }
                Err(error) => return self.refused(error),
            },
            Step::Refused => {
                for socket in 0..2 {
                    let refused = self.message(adapter, rds, socket, FULL) == Err(RdsError::Congested);
                    self.expect("refused", 1, refused.into())?;
                }
                true
            }
            Step::Send { socket, port, count } => match self.message(adapter, rds, socket, port) {
                Ok(()) => {
                    self.count += 1;
                    self.count == count
                }
                Err(RdsError::Congested) => {
                    return self.expect("refused", 0, 1).map(|()| ControlFlow::Continue(Wake::Now));
                }
                Err(error) => return self.refused(error),
            },
            Step::Operate | Step::Stale => match self.operate(adapter, rds) {
                Ok(()) => true,
                Err(error) => return self.refused(error),
            },
            step => match self.request(adapter, rds, step) {
                Ok(()) => true,
                Err(error) => return self.refused(error),
            },
        };
        self.sent = performed;
        Ok(if self.advance() { ControlFlow::Break(()) } else { ControlFlow::Continue(Wake::Now) })
    }

    /// A message that waits for room is sent later.
    fn refused(&self, error: RdsError) -> Result<Status, AppError> {
        match error {
            RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested => {
                Ok(ControlFlow::Continue(Wake::Idle))
            }
            error => Err(AppError::Rds { call: "sendmsg", error }),
        }
    }

    /// Sends the next message to a port that is not read.
    fn message<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        socket: usize,
        port: u16,
    ) -> Result<(), RdsError> {
        let mut bytes = [0; LEN];
        payload(Writer::Client, self.numbers(port).next as u32).fill(0, &mut bytes);
        let to = SocketAddr::new(self.server, port);
        let sent = rds.sendmsg(adapter, self.sockets[socket], Msg::to(&to, &bytes)).map(|_| ());
        match sent {
            Ok(()) => {
                self.numbers(port).next += 1;
                self.report.result.messages += 1;
                self.report.result.bytes += LEN as u64;
            }
            Err(RdsError::Congested) => self.report.refused += 1,
            Err(_) => {}
        }
        sent
    }

    /// Sends the request of a step.
    fn request<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        step: Step,
    ) -> Result<(), RdsError> {
        let (case, mut update) = (self.case, false);
        let (kind, values) = match step {
            Step::Again => (Kind::Again, [self.cookie.0, 0, 0, 0]),
            Step::Check => (Kind::Check, self.written()),
            Step::Free => (Kind::Free, [self.cookie.0, RdmaFlags::INVALIDATE.bits(), 0, 0]),
            Step::Hold(port, buffer) => (Kind::Hold, [port.into(), buffer, 0, 0]),
            Step::Read { port, opens } => {
                update = opens;
                let Numbers { first, next } = *self.numbers(port);
                (Kind::Release, [port.into(), next - first, LEN as u64, first])
            }
            Step::Close { port, opens } => {
                update = opens;
                (Kind::Close, [port.into(), 0, 0, 0])
            }
            Step::Ask(kind, values, _) => (kind, values),
            _ => (Kind::Offer, [case.offset as u64, case.len as u64, case.offer.bits(), case.patience()]),
        };
        let message = Message::new(kind, self.number(), values);
        let to = SocketAddr::new(self.server, PORT);
        rds.sendmsg(adapter, self.sockets[0], Msg::to(&to, &message.encode()))?;
        self.awaited = Awaited { reply: true, status: false, update };
        Ok(())
    }

    /// Bytes that the server must find after the operation: offset, length, and 1 to overwrite all.
    fn written(&self) -> [u64; 4] {
        let case = self.case;
        let unwritten = [case.offset as u64, 0, 0, 0];
        match case.aim {
            _ if case.fails(self.exact()) => unwritten,
            Aim::Atomic => [(case.offset + self.to_word()) as u64, WORD as u64, 0, 0],
            _ if case.is_write() => [(case.offset + case.skip) as u64, case.bytes as u64, 0, 0],
            // The fence delays this message until the read is complete.
            Aim::Offered if case.flags.contains(RdmaFlags::FENCE) => [case.offset as u64, 0, 1, 0],
            _ => unwritten,
        }
    }

    fn operate<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), RdsError> {
        let (case, number, fails) = (self.case, self.number(), self.fails());
        let stale = self.step() == Some(Step::Stale);
        self.memory.prepare(&case, number, stale).map_err(|_| RdsError::InvalidArgument)?;
        let check = Message::new(Kind::Check, number, self.written()).encode();
        let payload = if case.is_silent() { &[][..] } else { &check[..] };
        let (mut cookie, mut skip) = (self.cookie, case.skip);
        match case.aim {
            Aim::BeyondEnd => skip = (self.reach + 1).saturating_sub(case.bytes),
            Aim::BeforeStart if fails => cookie = RdmaCookie(cookie.0.wrapping_sub(1 << 32)),
            Aim::OtherKey => cookie = RdmaCookie(cookie.0 ^ 0xa5),
            _ => {}
        }
        let (pieces, count) = self.memory.pieces(&case);
        let control = if case.aim == Aim::Atomic {
            let [compare, swap] = self.words();
            let atomic = AtomicArgs {
                cookie,
                remote_offset: self.to_word() as u64,
                local: self.memory.word().ok_or(RdsError::InvalidArgument)?,
                op: AtomicOp::CompareSwap { compare, swap },
                flags: RdmaFlags::NOTIFY_ME | RdmaFlags::FENCE,
                user_token: number.into(),
            };
            Control { atomic: Some(atomic), ..Control::default() }
        } else {
            let rdma = RdmaArgs {
                cookie,
                remote_offset: skip as u64,
                remote_bytes: case.bytes as u64,
                local: pieces.get(..count).unwrap_or_default(),
                flags: case.flags,
                user_token: number.into(),
            };
            Control { rdma: Some(rdma), ..Control::default() }
        };
        let to = SocketAddr::new(self.server, PORT);
        rds.sendmsg(adapter, self.sockets[0], Msg::to(&to, payload).with(&control))?;
        // The message of an operation that fails is lost.
        let reply = !fails && !case.is_silent();
        self.awaited = Awaited { reply, status: fails || case.is_told(), update: false };
        Ok(())
    }

    /// Offset in the region of its first aligned word.
    fn to_word(&self) -> usize {
        let first = self.cookie.offset() as usize;
        first.next_multiple_of(WORD) - first
    }

    /// Returns the server's aligned word before the atomic operation, and after it.
    fn words(&self) -> [u64; 2] {
        let word = |writer, first: usize| {
            let payload = payload(writer, self.number());
            let mut bytes = [0; WORD];
            bytes.iter_mut().zip(first..).for_each(|(to, position)| *to = payload.byte(position));
            u64::from_ne_bytes(bytes)
        };
        [word(Writer::Server, self.case.offset + self.to_word()), word(Writer::Client, 0)]
    }

    /// Compares the local memory after an operation.
    fn compare(&mut self) -> Result<(), AppError> {
        if self.case.aim == Aim::Atomic {
            let found = self.memory.read_word().unwrap_or_default();
            self.expect("word", self.words()[0], found)?;
            self.report.atomics += 1;
        } else {
            let wrong = self.memory.mismatch(&self.case, self.number());
            self.expect("local bytes", 0, wrong.map_or(0, |position| position as u64 + 1))?;
        }
        self.report.result.messages += 1;
        self.report.result.bytes += self.case.bytes as u64;
        Ok(())
    }

    /// The operation ended.
    fn ended(&mut self, notify: RdmaNotify) -> Result<(), AppError> {
        self.expect("token", self.part as u64, notify.user_token)?;
        let fails = self.fails();
        if notify.status == RdmaStatus::Dropped && self.dropped < MOST_DROPPED {
            self.dropped += 1;
            self.report.dropped += 1;
            self.sent = false;
            self.awaited = Awaited::default();
            // A denial is one packet, and the server disconnects after it: its loss is a drop. Any
            // other operation may or may not be done.
            if !fails {
                self.abandoned = true;
                while self.step().is_some_and(|step| step != Step::Free) {
                    self.at += 1;
                }
            }
            return Ok(());
        }
        self.expect("status awaited", 1, self.awaited.status.into())?;
        let expected = if fails { RdmaStatus::RemoteError } else { RdmaStatus::Success };
        self.expect("status", expected as u64, notify.status as u64)?;
        self.awaited.status = false;
        self.report.failed += u64::from(fails);
        Ok(())
    }

    /// The server replied.
    fn replied(&mut self, reply: &Message, cookie: Option<RdmaCookie>) -> Result<(), AppError> {
        if self.abandoned && reply.kind == Kind::Check {
            // The message of the abandoned operation arrived after all.
            return Ok(());
        }
        self.expect("reply awaited", 1, self.awaited.reply.into())?;
        self.expect("number", self.part as u64, reply.number.into())?;
        let [errno, second, ..] = reply.values;
        let (kind, due) = match self.step() {
            Some(Step::Offer) => (Kind::Offer, 0),
            Some(Step::Again) => (Kind::Again, 0),
            // The abandoned operation may have used the region up.
            Some(Step::Free) if self.abandoned && errno == INVALID => (Kind::Free, INVALID),
            Some(Step::Free) if self.case.is_used_up() && !self.abandoned => (Kind::Free, INVALID),
            Some(Step::Free) => (Kind::Free, 0),
            Some(Step::Hold(..)) => (Kind::Hold, 0),
            Some(Step::Read { .. }) => (Kind::Release, 0),
            Some(Step::Close { .. }) => (Kind::Close, 0),
            Some(Step::Ask(kind, _, errno)) => (kind, errno),
            _ => (Kind::Check, 0),
        };
        self.expect("kind", kind as u64, reply.kind as u64)?;
        self.expect("errno or wrong bytes", due, errno)?;
        match kind {
            Kind::Offer if due == 0 => {
                self.reach = reply.size(1);
                self.cookie = cookie.unwrap_or(RdmaCookie(0));
            }
            Kind::Again => self.expect("cookie", self.cookie.0, cookie.map_or(0, |cookie| cookie.0))?,
            Kind::Release => self.expect("more messages", 0, second)?,
            _ => {}
        }
        self.awaited.reply = false;
        Ok(())
    }

    /// Moves on from a step that is complete. Returns whether it was the last one.
    fn advance(&mut self) -> bool {
        if !self.sent || self.awaited != Awaited::default() {
            return false;
        }
        if let Some(Step::Read { port, .. } | Step::Close { port, .. }) = self.step() {
            let numbers = self.numbers(port);
            numbers.first = numbers.next;
        }
        (self.at, self.count, self.sent) = (self.at + 1, 0, false);
        if self.abandoned {
            (self.at, self.abandoned) = (0, false);
        } else if self.step().is_none() && self.part < self.parts {
            (self.part, self.at, self.dropped) = (self.part + 1, 0, 0);
            self.case = Case::new(self.part);
            self.numbers.iter_mut().for_each(|numbers| numbers.first = numbers.next);
        }
        self.step().is_none()
    }
}

impl Work for Client {
    fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        now: Instant,
    ) -> Result<Status, AppError> {
        self.report.result.ns = (now - *self.began_at.get_or_insert(now)).as_nanos() as u64;
        self.report.result.verified = self.report.result.messages;
        match rds.recvmsg(adapter, self.sockets[0], buffer, MsgFlags::empty()) {
            Ok(Arrival::Message(received)) => {
                let reply = buffer.get(..received.message_len).and_then(Message::decode);
                let reply = reply.ok_or(AppError::Unexpected { receiver: 0 })?;
                self.replied(&reply, received.cookie)?;
            }
            Ok(Arrival::RdmaStatus(notify)) => self.ended(notify)?,
            Ok(Arrival::CongestionUpdate(ports)) => {
                self.expect("update awaited", 1, self.awaited.update.into())?;
                self.expect("ports of an update", port_mask(FULL), ports)?;
                self.awaited.update = false;
                self.report.updates += 1;
            }
            Ok(Arrival::Lent(_) | Arrival::Nothing) => {}
            Err(RdsError::Again) => {
                let moved = self.perform(adapter, rds)?;
                self.moved += u64::from(moved == ControlFlow::Continue(Wake::Now));
                return Ok(moved);
            }
            Err(error) => return Err(AppError::Rds { call: "recvmsg", error }),
        }
        self.moved += 1;
        Ok(if self.advance() { ControlFlow::Break(()) } else { ControlFlow::Continue(Wake::Now) })
    }

    fn moved(&self) -> Option<u64> {
        Some(self.moved)
    }

    fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>, rds: &mut Rds<'_>) -> Result<(), AppError> {
        self.sockets.iter().try_for_each(|socket| rds.close(adapter, *socket).in_call("close"))?;
        self.memory.free(adapter)
    }
}
