//! Edges of the HCA's life: what a device shows late, early or falsely while it comes up, goes down
//! and recovers, and what it does not answer.

mod common;

use common::recovery::{SECOND, until_fatal, up, works, world};
use common::{Driver, World};
use driver_mlx::{
    Access, Bar, Base, Config, CqConfig, Error, FatalCause, Hca, HcaStorage, Platform, QpConfig,
};
use hca_model::card::{CONNECTX_5, Card};
use hca_model::device::Life;
use hca_model::fabric::FabricConfig;
use hca_model::profile::FalseDisable;
use hca_model::{Habits, Profile};
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::init_seg;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::RegisterId;
use std::rc::Rc;

fn world_of(habits: Habits) -> Rc<World> {
    World::new([Profile { habits, ..Profile::node(0) }], FabricConfig::default())
}

/// `nic_interface` 1 is what DISABLE_HCA is to lead to, and no failure before it completes.
#[test]
fn disable_hca_may_show_before_it_completes() {
    let slow = Some((Opcode::DISABLE_HCA, 5 * SECOND));
    let world = world_of(Habits { disabled_early: true, slow_command: slow, ..Habits::default() });
    let hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
    assert_eq!(hca.tear_down(), Ok(()));
    assert!(world.model(0, |m| m.bus_master()), "nothing failed");
}

#[test]
fn nic_interface_may_follow_enable_hca_late() {
    for late in [20_000_000, SECOND] {
        let world = world_of(Habits { enabled_late: Some(late), ..Habits::default() });
        let mut hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
        works(&world, &mut hca);
        hca.tear_down().expect("torn down");
    }
}

