//! A turn of a device at its end of a cable. Every scheduler gives turns by [`turn`], or by its halves:
//! `World::poll_node` borrows a node's neighbours only if the node has work, so that idle nodes are cheap.

use crate::hca::Hca;
use mlx5_prm::value::{PortPhysicalState, PortState};
use rdma_fabric::wire::Wire;

/// Packets that a device receives in one turn.
const DELIVERIES: usize = 64;

/// Gives a device one turn at `now`: receives packets, calls `poll`, and reports the state of the
/// link to both ends. Work of the switch for the device's packets is charged to the device. `poll`
/// calls [`Hca::work`], and is called for a lent device in any case. Returns its result, or `None`
/// if the device has no work, and whether a change of the link is more work.
#[inline]
pub fn turn<W: Wire, T>(
    hca: &mut Hca,
    wire: &mut W,
    now: u64,
    poll: impl FnOnce(&mut Hca, &mut W) -> T,
) -> (Option<T>, bool) {
    if !begin(hca, wire, now) && !hca.is_lent() {
        return (None, false);
    }
    let polled = poll(hca, wire);
    let more = follow_link(hca, wire);
    (Some(polled), more)
}

/// The part of a turn before the poll. Returns whether the device has work; a lent one has none.
#[inline]
pub(crate) fn begin(hca: &mut Hca, wire: &mut impl Wire, now: u64) -> bool {
    deliver(hca, wire);
    if hca.is_lent() {
        return false;
    }
    hca.device.meter.charge(wire.take_owed());
    !hca.pass(now)
}

/// Reports the state of the link and receives packets. Their senders' credit returns, even while
/// the device may not be polled.
#[inline]
pub(crate) fn deliver<W: Wire>(hca: &mut Hca, wire: &mut W) {
    follow_link(hca, wire);
    for _ in 0..DELIVERIES {
        let Some(packet) = wire.receive() else { break };
        hca.receive(packet);
    }
}

/// Reports to the port and to the switch whether the link is up, and whether it was down meanwhile.
/// Returns whether the port at the other end was enabled or disabled, an event for the device.
#[inline]
pub(crate) fn follow_link<W: Wire>(hca: &mut Hca, wire: &mut W) -> bool {
    let port = &hca.device.port;
    // A port that is Active has its physical link up, and the other end enabled.
    let unchanged = port.state == PortState::ACTIVE && !port.link_lost && !hca.is_killed();
    !(unchanged && wire.is_up() && wire.is_enabled()) && change_link(hca, wire)
}

/// Returns whether the next turn changes the state of the link at one of its ends.
pub(crate) fn link_changes(hca: &Hca, wire: &impl Wire) -> bool {
    let port = &hca.device.port;
    port.link_lost || port.far_end != wire.is_enabled() || has_link(hca) != wire.is_up()
}

/// Returns whether the device holds its end of the link up.
fn has_link(hca: &Hca) -> bool {
    hca.device.port.physical_state == PortPhysicalState::LINK_UP && !hca.is_killed()
}

#[cold]
fn change_link<W: Wire>(hca: &mut Hca, wire: &mut W) -> bool {
    if hca.is_lent() {
        return false;
    }
    let enabled = wire.is_enabled();
    let changes = hca.device.port.far_end != enabled;
    hca.device.port.set_far_end(enabled);
    if hca.take_link_loss() {
        wire.set_up(false);
    }
    let up = has_link(hca);
    if up != wire.is_up() {
        wire.set_up(up);
    }
    changes
}
