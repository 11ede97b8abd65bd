//! [`Rds`], which connects the protocol to the adapter: posts, completions, connection events, and
//! DAT objects.

mod connect;
mod held;
mod identity;
mod latency;
mod lend;
mod message;
mod node;
mod objects;
mod offers;
mod options;
mod poll;
mod post;
mod rdma;
mod recovery;
mod start;
mod windows;
mod within;
mod zone;

use dat_nostd::{Adapter, Platform};

use crate::protocol::Protocol;
use held::Held;
use objects::Objects;

pub(crate) use connect::service_level;

/// Reliable Datagram Sockets on one adapter.
///
/// Makes progress only in calls, so an application calls [`poll`](Self::poll) in its loop.
pub struct Rds<'s> {
    protocol: Protocol<'s>,
    /// The DAT objects of the node.
    objects: Objects,
    /// Connection requests whose senders' addresses are being resolved.
    held: Held,
}

/// A node and its adapter, while a call runs.
pub(crate) struct Node<'n, 's, 'a, P: Platform> {
    protocol: &'n mut Protocol<'s>,
    objects: &'n mut Objects,
    held: &'n mut Held,
    adapter: &'n mut Adapter<'a, P>,
}

impl<'s> Rds<'s> {
    pub(crate) const fn protocol(&self) -> &Protocol<'s> {
        &self.protocol
    }

    #[inline]
    const fn node<'n, 'a, P: Platform>(&'n mut self, adapter: &'n mut Adapter<'a, P>) -> Node<'n, 's, 'a, P> {
        let Self { protocol, objects, held } = self;
        Node { protocol, objects, held, adapter }
    }
}
