//! A node on a virtual function without a LID of its own: its packets are dropped unless they have a global routing header.

use crate::common;

use common::{Net, Options};
use dat_nostd::*;
use harness::WorldConfig;
use hca_model::{Habits, Profile};

/// A node whose packets need routes, or one that can do without.
fn node(number: u16, needs_routes: bool) -> Profile {
    Profile {
        habits: Habits { grh_required: needs_routes, unset_lid_is_ffff: needs_routes, ..Habits::default() },
        ..Profile::node(number)
    }
}

#[test]
fn a_port_that_needs_routes_finds_the_administrator_and_its_peers() {
    for other in [false, true] {
        let mut net = Net::with_profiles(&WorldConfig::new(31), vec![node(0, true), node(1, other)]);
        let sides = net.pair(&Options::default());
        for (from, to, message) in [(0, 1, 5), (1, 0, 6)] {
            sides[from].fill(0, 70_000, message);
            let none = CompletionFlags::empty();
            net.nodes[to].ep_post_recv(sides[to].ep, &[sides[to].segment(100_000, 70_000)], 1, none).unwrap();
            net.nodes[from].ep_post_send(sides[from].ep, &[sides[from].segment(0, 70_000)], 2, none).unwrap();
            assert_eq!(net.dto(to, sides[to].recv).status, DtoStatus::Success);
            assert_eq!(net.dto(from, sides[from].request).status, DtoStatus::Success);
            sides[to].check(100_000, 70_000, message);
        }
        net.assert_no_refusals();
    }
}

/// SRIOV_IB_ROUTING_MODE=GID: the subnet manager gives the function no LID at all.
#[test]
fn a_port_without_a_lid_is_active() {
    let routed = |number| {
        let mut profile = node(number, true);
        profile.habits.no_lid = true;
        profile
    };
    let mut net = Net::with_profiles(&WorldConfig::new(33), vec![routed(0), routed(1)]);
    net.pair(&Options::default());
    net.assert_no_refusals();
}

/// What the connection itself uses is as the asker said, which has the path from the administrator.
#[test]
fn who_asks_without_a_route_is_answered_with_one() {
    let mut net = Net::with_profiles(&WorldConfig::new(32), vec![node(0, false), node(1, true)]);
    net.pair(&Options::default());
    net.assert_no_refusals();
}
