//! RDMA in a run: what was offered to whom, and what was done with it.

use ib_types::Payload;
use rds_nostd::{RdmaCookie, RdmaStatus};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A message: from, to, its number.
pub type Name = (SocketAddr, SocketAddr, usize);

/// What the peer is to do with what it is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Add,
}

/// Memory that was offered by a message.
#[derive(Debug)]
pub struct Offer {
    pub server: usize,
    pub incarnation: u32,
    pub cookie: RdmaCookie,
    pub kind: Kind,
    pub len: usize,
    /// Access was revoked without the peer having said that it used it.
    pub revoked: bool,
    /// That access has ended: operations that begin from now on are denied.
    pub ended: bool,
    /// Access ended because a peer said that it used it. If that peer died before its acknowledgement of the offer was heard, its next
    /// incarnation is offered the same.
    pub used: bool,
}

/// What a peer did, or tried to.
#[derive(Debug)]
pub struct Operation {
    pub offer: usize,
    /// Which part of it.
    pub offset: usize,
    pub len: usize,
    /// Access had ended when it began.
    pub is_denied: bool,
    pub status: Option<RdmaStatus>,
}

#[derive(Debug, Default)]
pub struct Ledger {
    pub offers: Vec<Offer>,
    pub operations: Vec<Operation>,
    /// Offers and operations by the message that went with them.
    pub offered: BTreeMap<Name, usize>,
    pub done: BTreeMap<Name, usize>,
}

impl Ledger {
    /// Whether another operation may have been done to the region: one meant for another region that has the same key, that of a
    /// server which died or of a region that was revoked, because keys come again; or one of the peer's next incarnation, which
    /// was offered the same.
    pub fn is_disturbed(&self, offer: usize) -> bool {
        let meant = &self.offers[offer];
        let same = |operation: &&Operation| {
            let other = &self.offers[operation.offer];
            other.server == meant.server && other.cookie.rkey() == meant.cookie.rkey()
        };
        self.operations.iter().filter(same).count() > 1
    }

    /// Whether another region of the server had or has the same key.
    pub fn key_comes_again(&self, offer: usize) -> bool {
        let meant = &self.offers[offer];
        self.offers.iter().enumerate().any(|(index, other)| {
            index != offer && other.server == meant.server && other.cookie.rkey() == meant.cookie.rkey()
        })
    }

    /// Whether the operation of this message was told to be done, or the message has none.
    pub fn must_arrive(&self, message: &Name) -> bool {
        let operation = self.done.get(message).map(|index| &self.operations[*index]);
        operation.is_none_or(|operation| operation.status == Some(RdmaStatus::Success))
    }

    /// Returns the numbers of operations that succeeded, of those that did not, and of those that were denied.
    pub fn counts(&self) -> (u64, u64, u64) {
        let done =
            self.operations.iter().filter(|operation| operation.status == Some(RdmaStatus::Success)).count();
        let denied = self.operations.iter().filter(|operation| operation.is_denied).count();
        (done as u64, (self.operations.len() - done) as u64, denied as u64)
    }
}

/// Returns the first `len` bytes of the memory that offer or operation `index` filled.
pub fn payload(is_offer: bool, index: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Payload::new(0, is_offer.into(), index as u64).fill(0, &mut bytes);
    bytes
}
