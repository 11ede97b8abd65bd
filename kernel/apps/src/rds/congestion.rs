//! The client of `mode=congestion`: fills a port of the server that is not read, finds it closed and its neighbour open, has it
//! read, and finds it open again. Every message that was accepted has to arrive.

use core::net::{IpAddr, SocketAddr};

use dat_nostd::{Adapter, Platform};
use rds_nostd::{Arrival, Msg, MsgFlags, Rds, RdsError, SocketHandle, port_mask};

use super::exchange::{Kind, Message, Writer, byte};
use super::work::Move;
use super::{AppError, CongestionFault, EXCHANGE_CLIENT_PORT, EXCHANGE_PORT, InCall, MAX_LEN};

/// The port that is filled, and the one beside it that stays open.
const FULL: u16 = EXCHANGE_PORT + 10;
/// See [`FULL`].
const OPEN: u16 = FULL + 1;
/// Receive buffers of the two; bytes.
const FULL_BUFFER: u64 = 20_000;
const OPEN_BUFFER: u64 = 100_000;
/// Length of the messages to them, bytes.
const LEN: usize = 3000;
/// Messages through the open port while the other is closed, and through the other after it opened.
const BESIDE: u64 = 20;
const AFTER: u64 = 5;

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CongestionReport {
    /// Times that the port was filled and opened again.
    pub times: u64,
    /// Messages that were accepted, all of which arrived but for those to a closed socket.
    pub messages: u64,
    /// Messages that were refused.
    pub refused: u64,
    /// Congestion updates that came.
    pub updates: u64,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    HoldFull,
    HoldOpen,
    /// Until the port closes.
    Fill,
    /// Another socket meets the same.
    Blocked,
    /// The port beside it is open.
    Beside(u64),
    ReadBeside,
    /// And the first one is still closed.
    StillBlocked,
    ReadFull,
    /// The update that follows.
    Update,
    /// It takes messages again.
    After(u64),
    ReadAfter,
    /// Once more, until the socket closes.
    FillAgain,
    CloseFull,
    UpdateAgain,
    /// To nobody.
    Nobody,
    CloseOpen,
    Done,
}

/// A client.
pub(super) struct Congestion {
    /// One that monitors congestion, one that does not.
    sockets: [SocketHandle; 2],
    server: IpAddr,
    rounds: u64,
    stage: Stage,
    /// The stage's request was sent.
    sent: bool,
    /// Number of the first message that the filled port has not been read up to, and of the next one.
    first: u64,
    next: u64,
    update: bool,
    report: CongestionReport,
    moved: u64,
}

impl Congestion {
    pub(super) fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        peer: IpAddr,
        rounds: u32,
    ) -> Result<Self, AppError> {
        let mut bind = |port| rds.bind(SocketAddr::new(adapter.address(), port)).in_call("bind");
        let sockets = [bind(EXCHANGE_CLIENT_PORT)?, bind(EXCHANGE_CLIENT_PORT + 1)?];
        rds.set_congestion_monitor(sockets[0], true).in_call("RDS_CONG_MONITOR")?;
        Ok(Self {
            sockets,
            server: peer,
            rounds: u64::from(rounds),
            stage: Stage::HoldFull,
            sent: false,
            first: 0,
            next: 0,
            update: false,
            report: CongestionReport::default(),
            moved: 0,
        })
    }

    pub(super) fn report(&self) -> CongestionReport {
        self.report
    }

    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    fn fault<T>(&self, fault: CongestionFault) -> Result<T, AppError> {
        Err(AppError::Congestion { time: self.report.times, fault })
    }

    fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.sent = false;
    }

    pub(super) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
    ) -> Result<Move, AppError> {
        let result = self.step(adapter, rds, buffer)?;
        if result == Move::Again {
            self.moved += 1;
        }
        Ok(result)
    }

    fn step<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
    ) -> Result<Move, AppError> {
        match rds.recvmsg(adapter, self.sockets[0], buffer, MsgFlags::empty()) {
            Ok(Arrival::Message(received)) => {
                let answer = buffer.get(..received.message_len).and_then(Message::decode);
                return self.answered(answer);
            }
            Ok(Arrival::CongestionUpdate(ports)) => {
                let due = matches!(
                    self.stage,
                    Stage::ReadFull | Stage::Update | Stage::CloseFull | Stage::UpdateAgain
                );
                if !due || self.update || ports != port_mask(FULL) {
                    return self.fault(CongestionFault::Update { ports });
                }
                self.update = true;
                self.report.updates += 1;
                return Ok(Move::Again);
            }
            Ok(Arrival::RdmaStatus(_) | Arrival::Lent(_) | Arrival::Nothing) => {
                return self.fault(CongestionFault::Answer);
            }
            Err(RdsError::Again) => {}
            Err(error) => return Err(AppError::Rds { call: "recvmsg", error }),
        }
        let waiting = Ok(Move::Wait(u64::MAX));
        match self.stage {
            Stage::Fill | Stage::FillAgain => match self.send(adapter, rds, 0, FULL)? {
                Sent::Accepted => {}
                Sent::Full => return waiting,
                Sent::Congested => {
                    let messages = self.next - self.first;
                    if messages * (LEN as u64) <= FULL_BUFFER {
                        return self.fault(CongestionFault::TooEarly { messages });
                    }
                    self.enter(if self.stage == Stage::Fill { Stage::Blocked } else { Stage::CloseFull });
                }
            },
            Stage::Blocked | Stage::StillBlocked => {
                for socket in 0..2 {
                    if self.send(adapter, rds, socket, FULL)? != Sent::Congested {
                        return self.fault(CongestionFault::NotBlocked);
                    }
                }
                self.enter(if self.stage == Stage::Blocked { Stage::Beside(0) } else { Stage::ReadFull });
            }
            Stage::Beside(BESIDE) => self.enter(Stage::ReadBeside),
            Stage::Beside(count) => match self.send(adapter, rds, 0, OPEN)? {
                Sent::Accepted => self.enter(Stage::Beside(count + 1)),
                Sent::Full => return waiting,
                Sent::Congested => return self.fault(CongestionFault::NotBlocked),
            },
            Stage::After(AFTER) => self.enter(Stage::ReadAfter),
            Stage::After(count) => match self.send(adapter, rds, 0, FULL)? {
                Sent::Accepted => self.enter(Stage::After(count + 1)),
                Sent::Full => return waiting,
                Sent::Congested => return self.fault(CongestionFault::Update { ports: 0 }),
            },
            Stage::Update | Stage::UpdateAgain if self.update => {
                self.update = false;
                self.first = self.next;
                self.enter(if self.stage == Stage::Update { Stage::After(0) } else { Stage::Nobody });
            }
            Stage::Update | Stage::UpdateAgain => return waiting,
            Stage::Nobody => match self.send(adapter, rds, 1, FULL)? {
                Sent::Accepted => self.enter(Stage::CloseOpen),
                Sent::Full => return waiting,
                Sent::Congested => return self.fault(CongestionFault::Update { ports: 0 }),
            },
            _ if self.sent => return waiting,
            _ => match self.request(adapter, rds) {
                Ok(()) => self.sent = true,
                Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => return waiting,
                Err(error) => return Err(AppError::Rds { call: "sendmsg", error }),
            },
        }
        Ok(Move::Again)
    }

    /// Sends the next message to one of the two ports.
    fn send<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        socket: usize,
        port: u16,
    ) -> Result<Sent, AppError> {
        let number = match self.stage {
            Stage::Beside(count) => count,
            _ => self.next,
        };
        let mut bytes = [0; LEN];
        bytes.iter_mut().enumerate().for_each(|(at, to)| *to = byte(Writer::Client, number as u32, at));
        let Some(socket) = self.sockets.get(socket) else { return Ok(Sent::Full) };
        match rds.sendmsg(adapter, *socket, Msg::to(SocketAddr::new(self.server, port), &bytes)) {
            Ok(_) => {
                self.report.messages += 1;
                if port == FULL {
                    self.next += 1;
                }
                Ok(Sent::Accepted)
            }
            Err(RdsError::Congested) => {
                self.report.refused += 1;
                Ok(Sent::Congested)
            }
            Err(RdsError::Again | RdsError::NoBufferSpace) => Ok(Sent::Full),
            Err(error) => Err(AppError::Rds { call: "sendmsg", error }),
        }
    }

    /// Asks the server for what the stage is about.
    fn request<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), RdsError> {
        let (full, open) = (u64::from(FULL), u64::from(OPEN));
        let waiting = self.next - self.first;
        let (kind, values) = match self.stage {
            Stage::HoldFull => (Kind::Hold, [full, FULL_BUFFER, 0, 0]),
            Stage::HoldOpen => (Kind::Hold, [open, OPEN_BUFFER, 0, 0]),
            Stage::ReadBeside => (Kind::Release, [open, BESIDE, LEN as u64, 0]),
            Stage::ReadFull | Stage::ReadAfter => (Kind::Release, [full, waiting, LEN as u64, self.first]),
            Stage::CloseFull => (Kind::Close, [full, 0, 0, 0]),
            Stage::CloseOpen => (Kind::Close, [open, 0, 0, 0]),
            _ => (Kind::Done, [0; 4]),
        };
        let message = Message::new(kind, self.report.times as u32, values);
        let to = SocketAddr::new(self.server, EXCHANGE_PORT);
        rds.sendmsg(adapter, self.sockets[0], Msg::to(to, &message.encode())).map(|_| ())
    }

    fn answered(&mut self, answer: Option<Message>) -> Result<Move, AppError> {
        let Some(answer) = answer.filter(|_| self.sent) else { return self.fault(CongestionFault::Answer) };
        let (kind, next) = match self.stage {
            Stage::HoldFull => (Kind::Hold, Stage::HoldOpen),
            Stage::HoldOpen => (Kind::Hold, Stage::Fill),
            Stage::ReadBeside => (Kind::Release, Stage::StillBlocked),
            Stage::ReadFull => (Kind::Release, Stage::Update),
            Stage::ReadAfter => (Kind::Release, Stage::FillAgain),
            Stage::CloseFull => (Kind::Close, Stage::UpdateAgain),
            Stage::CloseOpen => (Kind::Close, Stage::HoldFull),
            Stage::Done => (Kind::Done, Stage::Done),
            _ => return self.fault(CongestionFault::Answer),
        };
        let [errno, more, ..] = answer.values;
        if answer.kind != kind || u64::from(answer.number) != self.report.times & 0xffff_ffff {
            return self.fault(CongestionFault::Answer);
        }
        match kind {
            Kind::Release if (errno, more) != (0, 0) => {
                return self.fault(CongestionFault::Messages { wrong: errno, more: more != 0 });
            }
            _ if errno != 0 => return self.fault(CongestionFault::Refused { errno }),
            Kind::Done => return Ok(Move::Done),
            _ => {}
        }
        match self.stage {
            Stage::ReadAfter => self.first = self.next,
            Stage::CloseOpen => {
                self.first = self.next;
                self.report.times += 1;
                let over = self.report.times == self.rounds;
                self.enter(if over { Stage::Done } else { next });
                return Ok(Move::Again);
            }
            _ => {}
        }
        self.enter(next);
        Ok(Move::Again)
    }

    pub(super) fn close<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), AppError> {
        self.sockets.iter().try_for_each(|socket| rds.close(adapter, *socket).in_call("close"))
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Accepted,
    /// Own buffers are full.
    Full,
    /// The port is closed.
    Congested,
}
