//! What befalls HCAs in the lives of those who use them, from a seed: slow commands, page requests at any time, fatal errors, resets by
//! others, losses of the device.

use crate::World;
use crate::seeds::Random;
use hca_model::{Habits, Hca, Profile};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::HealthSyndrome;

const SECOND: u64 = 1_000_000_000;
/// Commands that bring-up and DAT's objects need.
const COMMANDS: [Opcode; 14] = [
    Opcode::ENABLE_HCA,
    Opcode::QUERY_HCA_CAP,
    Opcode::SET_HCA_CAP,
    Opcode::INIT_HCA,
    Opcode::MANAGE_PAGES,
    Opcode::ALLOC_UAR,
    Opcode::CREATE_EQ,
    Opcode::CREATE_MKEY,
    Opcode::CREATE_CQ,
    Opcode::CREATE_QP,
    Opcode::ALLOC_PD,
    Opcode::DESTROY_QP,
    Opcode::QUERY_HCA_VPORT_CONTEXT,
    Opcode::ACCESS_REG,
];

/// A device whose firmware is slow at something and asks for pages often.
pub fn profile(node: u16, random: &mut Random) -> Profile {
    let slow = (random.pick(&COMMANDS), 1_000 << random.below(22));
    Profile {
        objects_per_growth: 2 + random.below(20) as u32,
        growth_pages: 1 + random.below(40) as u32,
        habits: Habits { slow_command: Some(slow), ..Habits::default() },
        ..Profile::node(node)
    }
}

/// Something bad befalls a device in so many nanoseconds.
pub fn strike(world: &World, node: usize, delay: u64, random: &mut Random) {
    match random.below(4) {
        0 => world.later(node, delay, |hca| hca.fail(HealthSyndrome(1))),
        1 => world.later(node, delay, Hca::reset),
        _ => {
            world.later(node, delay, Hca::kill);
            world.later(node, delay + random.below(40 * SECOND), Hca::revive);
        }
    }
}
