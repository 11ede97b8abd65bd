//! Congestion of RoCE v2: marks on packets, and notifications of their senders (IBTA A17.9).
//!
//! ```text
//! sender                      switch                     receiver
//!    | packet, ECT(0) -----------> packet, CE -------------->|  counts the mark
//!    |<------------------------------------------------ CNP--|  at most one in 4 us and QP
//! counts it
//! ```
//!
//! Senders do not slow down: the model has no rates.

use mlx5_prm::value::ServiceType;
use rdma_fabric::infiniband::packet::{Bth, Transport};

use super::data_path::DataPath;
use crate::object::qp::Qp;
use crate::object::qps::Qps;

/// Nanoseconds between two notifications of a QP, as ConnectX cards are set up.
const INTERVAL: u64 = 4_000;

impl DataPath<'_, '_> {
    /// Counts a packet with a mark, and notifies its sender if it is the peer of a connected QP.
    pub(super) fn take_mark(&mut self, qps: &mut Qps, bth: &Bth, is_peer: impl FnOnce(&Qp) -> bool) {
        self.state().congestion.marked += 1;
        let now = self.now();
        let fits = |qp: &Qp| {
            matches!(
                (bth.opcode.transport(), qp.service()),
                (Transport::Rc, ServiceType::RC)
                    | (Transport::Xrc, ServiceType::XRC)
                    | (Transport::Uc, ServiceType::UC)
            )
        };
        let Some(qp) = qps.by_wire_number(bth.dest_qpn).filter(|qp| fits(qp) && is_peer(qp)) else { return };
        if now >= qp.transport.next_notification {
            qp.transport.next_notification = now.saturating_add(INTERVAL);
            self.state().congestion.sent += 1;
            self.output().notify(qp);
        }
    }

    /// Takes a notification for QP `qpn`.
    pub(super) fn take_notification(&mut self, qps: &mut Qps, qpn: u32, is_peer: impl FnOnce(&Qp) -> bool) {
        let is_connected =
            |qp: &Qp| matches!(qp.service(), ServiceType::RC | ServiceType::XRC | ServiceType::UC);
        let taken = qps.by_wire_number(qpn).is_some_and(|qp| is_connected(qp) && is_peer(qp));
        let counters = &mut self.state().congestion;
        *(if taken { &mut counters.handled } else { &mut counters.ignored }) += 1;
    }
}
