//! The connection of an endpoint: progress of its set-up and its end, both ends, private data.

use driver_mlx::Psn;
use ib_port::ib_mgmt::cm::ConnId;

use crate::base::attr::MAX_PRIVATE_DATA_ANY;
use crate::base::types::IaAddress;
use crate::conn::attempt::Attempt;
use crate::conn::closing::{Closing, Phase};

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) local_port: u64,
    pub(crate) remote_address: IaAddress,
    pub(crate) remote_port: u64,
}

impl Ends {
    /// Without a connection. `unspecified` is the address of no port.
    pub(crate) fn none(unspecified: IaAddress) -> Self {
        Self { local_port: 0, remote_address: unspecified, remote_port: 0 }
    }
}

/// The connection state of an endpoint, with or without a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    ends: Ends,
    attempt: Attempt,
    closing: Option<Closing>,
    /// Starting PSN of this side, new for every attempt.
    psn: Psn,
    /// On an SRQ: no more of its buffers will complete here.
    last_receive: bool,
    /// The consumer's request data, until the peer's data replace them.
    private_data: [u8; MAX_PRIVATE_DATA_ANY],
    private_data_size: u8,
    /// The private data are the peer's.
    is_peers: bool,
}

impl Connection {
    /// Returns the state without a connection.
    pub(crate) fn new(unspecified: IaAddress) -> Self {
        Self {
            ends: Ends::none(unspecified),
            attempt: Attempt::None,
            closing: None,
            psn: Psn::new(0),
            last_receive: false,
            private_data: [0; MAX_PRIVATE_DATA_ANY],
            private_data_size: 0,
            is_peers: false,
        }
    }

    /// Clears all state of the last connection.
    pub(crate) fn forget(&mut self, unspecified: IaAddress) {
        self.attempt = Attempt::None;
        self.ends = Ends::none(unspecified);
        self.set_private_data(&[], false);
    }

    /// Resets the state that belongs to a QP, for a new one.
    pub(crate) fn restart(&mut self, psn: Psn) {
        self.psn = psn;
        self.last_receive = false;
    }

    pub(crate) fn psn(&self) -> Psn {
        self.psn
    }

    pub(crate) fn ends(&self) -> Ends {
        self.ends
    }

    pub(crate) fn set_ends(&mut self, ends: Ends) {
        self.ends = ends;
    }

    pub(crate) fn attempt(&self) -> Attempt {
        self.attempt
    }

    pub(crate) fn attempt_mut(&mut self) -> &mut Attempt {
        &mut self.attempt
    }

    /// Returns the connection manager's ID of the connection.
    pub(crate) fn id(&self) -> Option<ConnId> {
        self.attempt.conn()
    }

    /// Returns the progress of its end, or `None` if that has not begun.
    pub(crate) fn closing(&self) -> Option<Closing> {
        self.closing
    }

    pub(crate) fn begin_closing(&mut self, closing: Closing) {
        self.closing = Some(closing);
    }

    pub(crate) fn end_closing(&mut self) -> Option<Closing> {
        self.closing.take()
    }

    /// Records that a DREQ for a graceful disconnect was sent.
    pub(crate) fn leave(&mut self) {
        if let Some(closing) = &mut self.closing {
            closing.phase = Phase::Leaving;
        }
    }

    /// Returns whether the QP is in ERROR and its flushes are pending.
    pub(crate) fn is_flushing(&self) -> bool {
        self.closing.is_some_and(|closing| !closing.is_alive())
    }

    pub(crate) fn last_receive(&self) -> bool {
        self.last_receive
    }

    /// Latches that no more SRQ buffers will complete here, if `is_last`.
    pub(crate) fn note_last_receive(&mut self, is_last: bool) {
        self.last_receive |= is_last;
    }

    /// Returns the private data of the peer's reply or rejection, empty if none was received.
    pub(crate) fn peers_data(&self) -> &[u8] {
        if self.is_peers { self.private_data() } else { &[] }
    }

    /// Returns the stored private data, of either side.
    pub(crate) fn private_data(&self) -> &[u8] {
        self.private_data.get(..usize::from(self.private_data_size)).unwrap_or_default()
    }

    /// Replaces the private data. Bytes beyond the longest private data of any message are cut off.
    pub(crate) fn set_private_data(&mut self, data: &[u8], is_peers: bool) {
        let size = data.len().min(self.private_data.len());
        self.private_data[..size].copy_from_slice(&data[..size]);
        (self.private_data_size, self.is_peers) = (size as u8, is_peers);
    }
}
