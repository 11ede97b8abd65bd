//! A guest that does not know what it does: whatever it writes, the device stays up and answers the next good command.

use super::guest::{Failed, Guest, Input, Memory};
use crate::device::Life;
use crate::profile::{Profile, Strictness};
use crate::seams::GuestMemory;
use mlx5_prm::opcode::{COMMANDS, Opcode};
use mlx5_prm::status::{CmdStatus, HealthSyndrome};
use mlx5_prm::{Field, Kind};
use rdma_fabric::random::Random;

/// A number that may mean something: small, of an object, of a page, at an edge.
fn number(random: &mut Random, guest: &Guest) -> u64 {
    match random.below(10) {
        0..=3 => random.below(8),
        4 => u64::from(guest.uar),
        5 => u64::from(guest.pd),
        6 => {
            [0x10, 0x11, 0x400, 0x401, 0x40, 0x41, 0x100, 0xff_ffff, 0xffff, 0x700][random.below(10) as usize]
        }
        7 => Memory::BASE + (random.below(4096) << 12),
        8 => random.next_u64() >> random.below(64),
        _ => u64::MAX,
    }
}

/// An input of `opcode` with some of its fields filled in, and sometimes a list behind it.
fn input(random: &mut Random, guest: &Guest, opcode: Opcode) -> Input {
    let mut input = Input::new(opcode);
    let layout = opcode.input_layout().unwrap();
    let density = 1 + random.below(6);
    layout.visit(&mut |leaf| {
        let Kind::Field(_) = leaf.kind else { return };
        let field = Field { bit_offset: leaf.bit_offset, bit_width: leaf.bit_width };
        if leaf.path.name != "opcode" && leaf.path.name != "uid" && random.below(density) == 0 {
            field.set(&mut input.0, number(random, guest) & field.max());
        }
    });
    if random.below(2) == 0 {
        let pages: Vec<u64> =
            (0..random.below(6)).map(|_| Memory::BASE + (0x800 + random.below(0x800)) * 4096).collect();
        input = input.pas(&pages);
    }
    if random.below(40) == 0 {
        let len = random.below(input.0.len() as u64 + 1) as usize;
        input.0.truncate(len);
    }
    input
}

fn command(random: &mut Random, guest: &mut Guest) -> Result<(), Failed> {
    let known: Vec<Opcode> = COMMANDS.iter().filter(|c| c.layouts.is_some()).map(|c| c.opcode).collect();
    let opcode = known[random.below(known.len() as u64) as usize];
    // What ends the device's life is tried rarely.
    if matches!(opcode, Opcode::TEARDOWN_HCA | Opcode::DISABLE_HCA) && random.below(20) != 0 {
        return Ok(());
    }
    let input = input(random, guest, opcode);
    let len = opcode.output_layout().unwrap().size + 8 * random.below(20) as usize;
    match guest.command_len(&input, len) {
        Ok(_) | Err(Failed::Status(_) | Failed::Delivery(_)) => Ok(()),
        Err(Failed::Pending) => Err(Failed::Pending),
    }
}

fn register_write(random: &mut Random, guest: &mut Guest) {
    let offset = match random.below(4) {
        0 => guest.uar as usize * 4096 + [0x20, 0x40, 0x48, 0x800, 0x808, 0x900][random.below(6) as usize],
        1 => guest.uar as usize * 4096 + random.below(4096) as usize,
        2 => 0x18 + random.below(0x3000) as usize,
        _ => random.below(crate::bar::BAR0_SIZE as u64) as usize,
    };
    // The queue's address stays; losing it is a test of its own.
    let offset = if offset < 0x18 { 0x18 } else { offset };
    let bytes = number(random, guest).to_be_bytes();
    guest.bar.write(offset, &bytes[..1 + random.below(8) as usize]);
    guest.poll();
}

fn run(seed: u64, strictness: Strictness) -> usize {
    let mut random = Random::new(seed);
    let mut profile = Profile::node(0);
    profile.strictness = strictness;
    profile.objects_per_growth = 1 << 20;
    let mut guest = Guest::up(profile.clone());
    let (events, ring, record) = (guest.page(), guest.page(), guest.page());
    guest.create_eq(events, 4, 0, 0).unwrap();
    guest.create_cq(ring, 4, record, 0x10).unwrap();
    let mut made = 0;
    for step in 0..1500 {
        let before = guest.hca.census().total();
        let outcome = if random.below(5) == 0 {
            register_write(&mut random, &mut guest);
            Ok(())
        } else {
            command(&mut random, &mut guest)
        };
        made += guest.hca.census().total().saturating_sub(before);
        let healthy = guest.hca.device.health.syndrome == HealthSyndrome::HEALTHY;
        assert!(outcome.is_ok() || !healthy, "seed {seed}, step {step}: a command was lost");
        if !healthy || guest.hca.device.life != Life::Initialized {
            // A guest may wreck its own device, and then resets it.
            guest = Guest::up(profile.clone());
            let (events, ring, record) = (guest.page(), guest.page(), guest.page());
            guest.create_eq(events, 4, 0, 0).unwrap();
            guest.create_cq(ring, 4, record, 0x10).unwrap();
        }
    }
    assert_eq!(guest.status(&Input::new(Opcode::NOP)), CmdStatus::OK);
    made
}

#[test]
fn random_commands_and_registers() {
    let made: usize =
        (0..6).map(|seed| run(seed, Strictness::Lenient) + run(seed + 100, Strictness::Strict)).sum();
    assert!(made > 100, "some of it was meaningful: {made} objects");
}

#[test]
fn random_command_entries() {
    let mut random = Random::new(77);
    let mut guest = Guest::up(Profile::node(0));
    let queue = guest.cmdq;
    for _ in 0..3000 {
        // A good entry with a few bytes changed, in its mailboxes too.
        let slot = random.below(32) as u8;
        guest.post(slot, &Input::new(Opcode::QUERY_HCA_CAP).0, 4112);
        let block = guest.memory.load64(queue + 64 * u64::from(slot) + 0x30).unwrap();
        for _ in 0..random.below(4) {
            let at = match random.below(2) {
                0 => queue + 64 * u64::from(slot) + random.below(63),
                _ => block + random.below(2048),
            };
            guest.memory.write(at, &[random.next_u64() as u8]).unwrap();
        }
        guest.poll();
        assert_eq!(guest.memory.bytes(queue + 64 * u64::from(slot) + 63, 1)[0] & 1, 0, "given back");
        guest.rewind(block);
    }
    assert_eq!(guest.status(&Input::new(Opcode::NOP)), CmdStatus::OK);
}

#[test]
fn random_configuration_space() {
    let mut random = Random::new(5);
    let mut guest = Guest::new(Profile::node(0));
    for _ in 0..5000 {
        let bytes = random.next_u64().to_le_bytes();
        let len = 1 + random.below(8) as usize;
        let offset = random.below(4200) as usize;
        guest.hca.config_write(offset, &bytes[..len]);
        let mut read = [0; 8];
        guest.hca.config_read(offset, &mut read[..len]);
        if random.below(50) == 0 {
            guest.poll();
        }
    }
    let mut identity = [0; 4];
    guest.hca.config_read(0, &mut identity);
    assert_eq!(identity, [0xb3, 0x15, 0x17, 0x10]);
    guest.hca.reset();
    guest.attach();
    guest.initialize();
}
