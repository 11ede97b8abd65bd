//! What befalls HCAs in the lives of those who use them, from a seed: slow commands, answers out of order, page requests at any time,
//! refusals, fatal errors, resets by others, losses of the device.

use crate::World;
use crate::seeds::Random;
use hca_model::habits::CommandTime;
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

/// A device whose firmware is slow at something, may answer out of order, and asks for pages often.
pub fn profile(node: u16, random: &mut Random) -> Profile {
    let slow = (random.pick(&COMMANDS), 1_000 << random.below(22));
    let times = CommandTime { seed: random.next(), range: (1_000, 2_000 << random.below(12)) };
    Profile {
        objects_per_growth: 2 + random.below(20) as u32,
        growth_pages: 1 + random.below(40) as u32,
        habits: Habits {
            slow_command: Some(slow),
            command_time: random.one_in(2).then_some(times),
            page_requests: random.below(3) as u32,
            ..Habits::default()
        },
        ..Profile::node(node)
    }
}

/// Something bad befalls a device in so many nanoseconds.
pub fn strike(world: &World, node: usize, delay: u64, random: &mut Random) {
    match random.below(5) {
        // Firmware fails, and refuses a command for a while when it is brought up again.
        4 => {
            // Not one that ends an object: who closes just then would be told so.
            let opcode = random
                .pick(&COMMANDS.map(|one| if one == Opcode::DESTROY_QP { Opcode::ALLOC_PD } else { one }));
            world.later(node, delay, move |hca| {
                hca.habits_mut().refused_commands = vec![opcode];
                hca.fail(HealthSyndrome(1));
            });
            world.later(node, delay + random.below(5 * SECOND), |hca| {
                hca.habits_mut().refused_commands.clear()
            });
        }
        0 => world.later(node, delay, |hca| hca.fail(HealthSyndrome(1))),
        1 => world.later(node, delay, Hca::reset),
        _ => {
            world.later(node, delay, Hca::kill);
            world.later(node, delay + random.below(40 * SECOND), Hca::revive);
        }
    }
}
