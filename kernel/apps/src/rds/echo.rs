//! `mode=echo`: whatever arrives at 8 ports goes back to where it came from.

use core::net::SocketAddr;

use dat_nostd::{Adapter, Platform};
use rds_nostd::{Arrival, Msg, MsgFlags, Rds, RdsError, SocketHandle};

use super::work::{Move, bind_all};
use super::{AppError, ECHO_PORT, InCall, MAX_LEN, SOCKETS};

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EchoReport {
    /// Messages sent back.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages that were longer than the server takes, and were not sent back.
    pub too_long: u64,
}

/// A server.
pub(super) struct Echo {
    sockets: [SocketHandle; SOCKETS],
    /// A message that lies in the buffer because it could not be sent back yet: at which socket, to whom, how long.
    waiting: Option<(SocketHandle, SocketAddr, usize)>,
    /// Whose turn it is, so that none keeps the others waiting.
    turn: usize,
    report: EchoReport,
}

impl Echo {
    pub(super) fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<Self, AppError> {
        let sockets = bind_all(rds, adapter.address(), Some(ECHO_PORT))?;
        Ok(Self { sockets, waiting: None, turn: 0, report: EchoReport::default() })
    }

    pub(super) fn report(&self) -> EchoReport {
        self.report
    }

    pub(super) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
    ) -> Result<Move, AppError> {
        let mut result = Move::Wait(u64::MAX);
        for step in 0..SOCKETS {
            if self.waiting.is_none() {
                let index = (self.turn + step) % SOCKETS;
                let Some(socket) = self.sockets.get(index) else { continue };
                match rds.recvmsg(adapter, *socket, buffer, MsgFlags::empty()) {
                    Ok(Arrival::Message(message)) if message.message_len > message.len => {
                        self.report.too_long += 1
                    }
                    // What comes from port 0 is nobody's message.
                    Ok(Arrival::Message(message)) if message.from.port() == 0 => {}
                    Ok(Arrival::Message(message)) => {
                        self.waiting = Some((*socket, message.from, message.len))
                    }
                    Ok(_) | Err(RdsError::Again) => continue,
                    Err(error) => return Err(AppError::Rds { call: "recvmsg", error }),
                }
                result = Move::Again;
            }
            let Some((socket, to, len)) = self.waiting else { continue };
            match rds.sendmsg(adapter, socket, Msg::to(to, buffer.get(..len).unwrap_or_default())) {
                Ok(_) => {
                    self.waiting = None;
                    self.report.messages += 1;
                    self.report.bytes += len as u64;
                    result = Move::Again;
                }
                Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => break,
                Err(error) => return Err(AppError::Rds { call: "sendmsg", error }),
            }
        }
        self.turn = (self.turn + 1) % SOCKETS;
        Ok(result)
    }

    pub(super) fn close<P: Platform>(
        &self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
    ) -> Result<(), AppError> {
        self.sockets.iter().try_for_each(|socket| rds.close(adapter, *socket).in_call("close"))
    }
}
