//! The client of `mode=rdma`: operations on memory that the server offers, each compared byte by byte on both sides.
//!
//! A case goes: the server fills its memory and offers a region; the operation, with a message behind it that has the server
//! look at its memory; the status; the region is freed. An operation that is to fail loses its message, so that the server is
//! asked again.

use core::net::{IpAddr, SocketAddr};

use dat_nostd::{Adapter, Platform};
use rds_nostd::{
    Arrival, AtomicArgs, AtomicOp, Control, Msg, MsgFlags, RdmaArgs, RdmaCookie, RdmaFlags, RdmaStatus, Rds,
    RdsError, SocketHandle,
};

use super::cases::{Aim, Case, ROUND};
use super::exchange::{FIRST_OFFSET, Kind, Message, Writer, byte};
use super::local::{Local, WORD};
use super::work::Move;
use super::{AppError, EXCHANGE_CLIENT_PORT, EXCHANGE_PORT, InCall, MAX_LEN, RdmaFault};

/// See `exchange`.
const PATIENCE_MS: u64 = 500;
/// A region longer than any may be.
const TOO_LONG: usize = (1 << 20) + 8192;
/// How often in one case the connection may break under an operation.
const MOST_DROPPED: u8 = 8;

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdmaReport {
    /// Operations that were done, and their bytes.
    pub done: u64,
    /// See above.
    pub bytes: u64,
    /// Operations that failed as they had to.
    pub failed: u64,
    /// Atomic operations that were done.
    pub atomics: u64,
    /// Operations that ended with their connection, so that nobody knows what became of them: they were tried again.
    pub dropped: u64,
}

/// Where a case is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The region is asked for.
    Offer,
    /// And once more, by its cookie.
    Again,
    /// The operation has to be sent.
    Operate,
    /// It is under way: its end is awaited, and the answer to its message.
    Wait { told: bool, answered: bool },
    /// The connection broke under it: whether it was done and its message arrived nobody knows, so the case begins anew.
    Abandon,
    /// It is over, and the server is asked what it sees.
    Check,
    /// The region is to be freed.
    Free,
    /// It is gone, and is tried all the same.
    Stale { told: bool },
    /// What the server sees after that.
    CheckStale,
    /// Regions that cannot be.
    Impossible(u8),
    /// The server is told that this is all.
    Done,
}

/// A client.
pub(super) struct Requester {
    socket: SocketHandle,
    server: SocketAddr,
    memory: Local,
    cases: usize,
    index: usize,
    case: Case,
    stage: Stage,
    /// What waits for an answer has been sent.
    sent: bool,
    cookie: RdmaCookie,
    /// Bytes that the region reaches from its cookie on.
    reach: usize,
    report: RdmaReport,
    /// How often the connection broke under an operation of this case.
    dropped: u8,
    moved: u64,
}

impl Requester {
    pub(super) fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        peer: IpAddr,
        rounds: u32,
    ) -> Result<Self, AppError> {
        let socket = rds.bind(SocketAddr::new(adapter.address(), EXCHANGE_CLIENT_PORT)).in_call("bind")?;
        // So that what was dropped is told whether or not its end was asked for.
        rds.set_receive_errors(socket, true).in_call("setsockopt")?;
        let memory = Local::alloc(adapter)?;
        Ok(Self {
            socket,
            server: SocketAddr::new(peer, EXCHANGE_PORT),
            memory,
            cases: ROUND.saturating_mul(rounds as usize),
            index: 0,
            case: Case::new(0),
            stage: Stage::Impossible(0),
            sent: false,
            cookie: RdmaCookie(0),
            reach: 0,
            report: RdmaReport::default(),
            dropped: 0,
            moved: 0,
        })
    }

    pub(super) fn report(&self) -> RdmaReport {
        self.report
    }

    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    fn fault<T>(&self, fault: RdmaFault) -> Result<T, AppError> {
        Err(AppError::Rdma { case: self.index, fault })
    }

    fn number(&self) -> u32 {
        self.index as u32
    }

    pub(super) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
    ) -> Result<Move, AppError> {
        if !self.sent {
            match self.send(adapter, rds) {
                Ok(()) => self.sent = true,
                Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => {
                    return Ok(Move::Wait(u64::MAX));
                }
                Err(error) => return Err(AppError::Rds { call: "sendmsg", error }),
            }
            self.moved += 1;
            return Ok(Move::Again);
        }
        match rds.recvmsg(adapter, self.socket, buffer, MsgFlags::empty()) {
            Ok(Arrival::RdmaStatus(notify)) => {
                if notify.user_token != self.index as u64 {
                    return self.fault(RdmaFault::Told);
                }
                self.told(notify.status)?;
            }
            Ok(Arrival::CongestionUpdate(_) | Arrival::Lent(_) | Arrival::Nothing) => {}
            Ok(Arrival::Message(received)) => {
                let answer = buffer.get(..received.message_len).and_then(Message::decode);
                let Some(answer) = answer.filter(|answer| answer.number == self.number()) else {
                    return self.fault(RdmaFault::Answer);
                };
                if self.answered(&answer, received.cookie)? {
                    return Ok(Move::Done);
                }
            }
            Err(RdsError::Again) => return Ok(Move::Wait(u64::MAX)),
            Err(error) => return Err(AppError::Rds { call: "recvmsg", error }),
        }
        self.moved += 1;
        Ok(Move::Again)
    }

    /// Sends what the stage is about.
    fn send<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, rds: &mut Rds<'_>) -> Result<(), RdsError> {
        let case = self.case;
        let (kind, values) = match self.stage {
            Stage::Offer => {
                (Kind::Offer, [case.offset as u64, case.len as u64, case.offer.bits(), self.patience()])
            }
            Stage::Again => (Kind::Again, [self.cookie.0, 0, 0, 0]),
            Stage::Operate | Stage::Wait { .. } | Stage::Stale { .. } => return self.operate(adapter, rds),
            Stage::Check | Stage::CheckStale => (Kind::Check, self.written()),
            Stage::Free | Stage::Abandon => (Kind::Free, [self.cookie.0, RdmaFlags::INVALIDATE.bits(), 0, 0]),
            Stage::Impossible(0) => (Kind::Offer, [FIRST_OFFSET as u64, 0, 0, 0]),
            Stage::Impossible(1) => (Kind::Offer, [FIRST_OFFSET as u64, TOO_LONG as u64, 0, 0]),
            Stage::Impossible(_) => (Kind::Free, [0x0000_0100_ffff_fe00, 0, 0, 0]),
            Stage::Done => (Kind::Done, [0; 4]),
        };
        let message = Message::new(kind, self.number(), values);
        rds.sendmsg(adapter, self.socket, Msg::to(self.server, &message.encode())).map(|_| ())
    }

    /// What the server should find in its memory after the first operation: what was written, and that it is to overwrite it.
    fn written(&self) -> [u64; 4] {
        let case = self.case;
        if self.is_to_fail_first() {
            return self.unwritten();
        }
        match case.aim {
            Aim::Atomic => [(case.offset + self.to_word()) as u64, WORD as u64, 0, 0],
            _ if case.is_write() => [(case.offset + case.skip) as u64, case.bytes as u64, 0, 0],
            // The fence is there so that this does not come too early for the read.
            Aim::Offered if case.flags.contains(RdmaFlags::FENCE) => [case.offset as u64, 0, 1, 0],
            _ => self.unwritten(),
        }
    }

    /// How long a server of Linux keeps a region that is tried in vain, milliseconds.
    fn patience(&self) -> u64 {
        match self.case.aim {
            Aim::BeyondEnd | Aim::OtherKey | Aim::Atomic => PATIENCE_MS,
            Aim::Offered | Aim::BeforeStart | Aim::Freed | Aim::Used => 0,
        }
    }

    fn unwritten(&self) -> [u64; 4] {
        [self.case.offset as u64, 0, 0, 0]
    }

    /// Whether the operation at hand is to fail.
    fn is_to_fail(&self) -> bool {
        matches!(self.stage, Stage::Stale { .. }) || self.is_to_fail_first()
    }

    /// Whether the case's first operation is.
    fn is_to_fail_first(&self) -> bool {
        match self.case.aim {
            Aim::Offered | Aim::Freed | Aim::Used => false,
            // Linux gives no right to it.
            Aim::Atomic => !self.is_exact(),
            // Linux's regions are whole pages.
            Aim::BeforeStart => self.is_exact(),
            Aim::BeyondEnd | Aim::OtherKey => true,
        }
    }

    /// Whether the server's regions are as long as was asked for.
    fn is_exact(&self) -> bool {
        self.reach == self.case.len
    }

    fn operate<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), RdsError> {
        let case = self.case;
        let number = self.number();
        // Something else the second time, so that it would show.
        self.memory.prepare(&case, number, matches!(self.stage, Stage::Stale { .. }));
        let check = Message::new(Kind::Check, number, self.written()).encode();
        let payload = if case.is_silent() { &[][..] } else { &check[..] };
        let (mut cookie, mut skip) = (self.cookie, case.skip);
        match case.aim {
            Aim::BeyondEnd => skip = (self.reach + 1).saturating_sub(case.bytes),
            Aim::BeforeStart if self.is_to_fail() => cookie = RdmaCookie(cookie.0.wrapping_sub(1 << 32)),
            Aim::OtherKey => cookie = RdmaCookie(cookie.0 ^ 0xa5),
            Aim::Atomic => return self.atomic(adapter, rds, payload),
            _ => {}
        }
        let (pieces, count) = self.memory.pieces(&case);
        let args = RdmaArgs {
            cookie,
            remote_offset: skip as u64,
            remote_bytes: case.bytes as u64,
            local: pieces.get(..count).unwrap_or_default(),
            flags: case.flags,
            user_token: self.index as u64,
        };
        let control = Control { rdma: Some(args), ..Control::default() };
        rds.sendmsg(adapter, self.socket, Msg::to(self.server, payload).with(&control))?;
        self.under_way();
        Ok(())
    }

    /// From the region's first byte to the first that an atomic operation may be at.
    fn to_word(&self) -> usize {
        let first = self.cookie.offset() as usize;
        first.next_multiple_of(WORD) - first
    }

    /// What is in the server's aligned word before the atomic operation, and after it.
    fn words(&self) -> [u64; 2] {
        let (number, first) = (self.number(), self.case.offset + self.to_word());
        let word = |writer, first: usize| {
            let mut bytes = [0; WORD];
            bytes.iter_mut().zip(first..).for_each(|(to, position)| *to = byte(writer, number, position));
            u64::from_ne_bytes(bytes)
        };
        [word(Writer::Server, first), word(Writer::Client, 0)]
    }

    /// 8 aligned bytes of the region are exchanged.
    fn atomic<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        payload: &[u8],
    ) -> Result<(), RdsError> {
        let local = self.memory.word().ok_or(RdsError::InvalidArgument)?;
        let [compare, swap] = self.words();
        let exchange = AtomicArgs {
            cookie: self.cookie,
            remote_offset: self.to_word() as u64,
            local,
            op: AtomicOp::CompareSwap { compare, swap },
            flags: RdmaFlags::NOTIFY_ME | RdmaFlags::FENCE,
            user_token: self.index as u64,
        };
        let control = Control { atomic: Some(exchange), ..Control::default() };
        rds.sendmsg(adapter, self.socket, Msg::to(self.server, payload).with(&control))?;
        self.under_way();
        Ok(())
    }

    fn under_way(&mut self) {
        match &mut self.stage {
            // Its message never comes; the server is asked afterwards.
            Stage::Stale { told } => *told = false,
            stage => *stage = Stage::Wait { told: false, answered: false },
        }
    }

    fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.sent = false;
    }

    /// The operation ended.
    fn told(&mut self, found: RdmaStatus) -> Result<(), AppError> {
        let fails = self.is_to_fail();
        let expected = if fails { RdmaStatus::RemoteError } else { RdmaStatus::Success };
        if found == RdmaStatus::Dropped && self.dropped < MOST_DROPPED {
            self.dropped += 1;
            self.report.dropped += 1;
            if fails {
                // The denial is one packet, and the server disconnects right behind it: that can be all that is heard.
                self.sent = false;
            } else {
                self.enter(Stage::Abandon);
            }
            return Ok(());
        }
        if found != expected {
            return self.fault(RdmaFault::Status { expected, found });
        }
        match self.stage {
            Stage::Wait { told: false, answered } if self.case.is_told() => {
                self.stage = Stage::Wait { told: true, answered };
            }
            Stage::Stale { told: false } => {
                self.report.failed += 1;
                self.enter(Stage::CheckStale);
                return Ok(());
            }
            _ => return self.fault(RdmaFault::Told),
        }
        if fails {
            self.report.failed += 1;
            self.enter(Stage::Check);
            return Ok(());
        }
        if self.case.is_silent() {
            self.enter(Stage::Check);
            return Ok(());
        }
        self.settle()
    }

    /// After the end and the answer, whichever comes last.
    fn settle(&mut self) -> Result<(), AppError> {
        let Stage::Wait { told, answered } = self.stage else { return Ok(()) };
        if !answered || told != self.case.is_told() {
            return Ok(());
        }
        self.succeeded()
    }

    fn succeeded(&mut self) -> Result<(), AppError> {
        let case = self.case;
        if case.aim == Aim::Atomic {
            if self.memory.read_word() != Some(self.words()[0]) {
                return self.fault(RdmaFault::Local { count: WORD as u64, first: 0 });
            }
            self.report.atomics += 1;
        } else {
            let found = self.memory.wrong(&self.case, self.number());
            if found.count > 0 {
                return self.fault(RdmaFault::Local { count: found.count as u64, first: found.first as u64 });
            }
            self.report.done += 1;
            self.report.bytes += case.bytes as u64;
        }
        self.enter(Stage::Free);
        Ok(())
    }

    /// An answer came; true if it was the last.
    fn answered(&mut self, answer: &Message, cookie: Option<RdmaCookie>) -> Result<bool, AppError> {
        let values = answer.values;
        let (kind, due) = match self.stage {
            Stage::Offer => (Kind::Offer, 0),
            Stage::Again => (Kind::Again, 0),
            Stage::Wait { answered: false, .. } => (Kind::Check, 0),
            Stage::Check | Stage::CheckStale => (Kind::Check, 0),
            // The answer to a message that arrived after all comes before the one to what was asked after it.
            Stage::Abandon if answer.kind == Kind::Check => return Ok(false),
            // If it did, the region may have been used up.
            Stage::Abandon => (Kind::Free, if values[0] == 22 { 22 } else { 0 }),
            Stage::Free => (Kind::Free, if self.case.is_used_up() { 22 } else { 0 }),
            Stage::Impossible(0) => (Kind::Offer, 22),
            Stage::Impossible(1) => (Kind::Offer, 90),
            Stage::Impossible(_) => (Kind::Free, 22),
            Stage::Done => (Kind::Done, 0),
            Stage::Operate | Stage::Wait { .. } | Stage::Stale { .. } => {
                return self.fault(RdmaFault::Answer);
            }
        };
        if answer.kind != kind {
            return self.fault(RdmaFault::Answer);
        }
        if kind == Kind::Check {
            if values[0] != 0 {
                return self.fault(RdmaFault::Remote { count: values[0], first: values[1] });
            }
        } else if values[0] != due {
            return self.fault(RdmaFault::Errno { expected: due, found: values[0] });
        }
        match self.stage {
            Stage::Offer | Stage::Again => {
                let Some(offered) = cookie else { return self.fault(RdmaFault::NoCookie) };
                if self.stage == Stage::Offer {
                    self.reach = answer.size(1);
                    self.cookie = offered;
                } else if self.cookie != offered {
                    return self.fault(RdmaFault::NoCookie);
                }
                // Every fourth region is offered twice.
                let again = self.stage == Stage::Offer && self.index % 4 == 1;
                self.enter(if again { Stage::Again } else { Stage::Operate });
            }
            Stage::Wait { told, .. } => {
                self.stage = Stage::Wait { told, answered: true };
                if self.is_to_fail() {
                    return self.fault(RdmaFault::Answer);
                }
                self.settle()?;
            }
            Stage::Abandon => self.enter(Stage::Offer),
            Stage::Check if self.is_to_fail() => self.enter(Stage::Free),
            Stage::Check => self.succeeded()?,
            Stage::Free if matches!(self.case.aim, Aim::Freed | Aim::Used) => {
                self.enter(Stage::Stale { told: false });
            }
            Stage::Free | Stage::CheckStale => self.next(),
            Stage::Impossible(2) => self.enter(Stage::Offer),
            Stage::Impossible(step) => self.enter(Stage::Impossible(step + 1)),
            Stage::Done => return Ok(true),
            Stage::Operate | Stage::Stale { .. } => {}
        }
        Ok(false)
    }

    fn next(&mut self) {
        self.index += 1;
        self.case = Case::new(self.index);
        self.dropped = 0;
        self.enter(if self.index == self.cases { Stage::Done } else { Stage::Offer });
    }

    pub(super) fn close<P: Platform>(
        self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), AppError> {
        rds.close(adapter, self.socket).in_call("close")?;
        self.memory.free(adapter)
    }
}
