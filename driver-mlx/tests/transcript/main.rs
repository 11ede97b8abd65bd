//! The driver against what a real card answered: its start as it was recorded, to where the recording ends and the Ethernet port begins.

mod player;

use driver_mlx::{Config, Error, Hca, HcaStorage, HostRegion, Step};
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use player::{Card, Transcript};

const RECORDED: &str = include_str!("connectx4_lx.txt");
/// Enough for the 50 MiB that the card's firmware takes.
const BYTES: usize = 64 << 20;
const BLOCKS: usize = BYTES / 4096;
/// Of UAR page 10 (hexadecimal): the doorbell that arms an event queue.
const ARM: usize = 0x10 * 4096 + 0x40;

/// Brings a card up, which ends where the recording does at the latest.
fn bring_up(transcript: Transcript) -> (&'static Card, Error) {
    let (card, region) = Card::new(transcript, BYTES);
    let storage = Box::leak(Box::new(HcaStorage::<BLOCKS>::new()));
    let host = HostRegion::from_static(Box::leak(vec![0; 1 << 17].into_boxed_slice())).expect("large enough");
    // As Linux asked for at the time.
    let config = Config { log_max_qp: 0x11, ..Config::DEFAULT };
    let error = Hca::bring_up(card, region, host, storage.parts(), &config).err();
    (card, error.expect("the recording ends before bring-up does"))
}

#[test]
fn the_start_goes_as_it_was_recorded() {
    let transcript = Transcript::read(RECORDED);
    let before = transcript.now().to_vec();
    let (card, error) = bring_up(transcript);
    // The recording ends before the port, and its first command is one of Ethernet ports.
    assert_eq!(card.rest(), None, "{error}");
    let Error::Command(refused) = error else { panic!("{error}") };
    assert_eq!(
        (refused.opcode, refused.status, refused.step),
        (Opcode::QUERY_NIC_VPORT_CONTEXT, CmdStatus::BAD_OP, Step::Port)
    );
    card.played(|played| {
        assert_eq!(played.refused, [Opcode::QUERY_NIC_VPORT_CONTEXT.0]);
        assert_eq!((played.disabled, played.pages.len()), (true, 0), "it was let go of again");
        for eqn in [0x10, 0x11] {
            assert!(
                played.doorbells.contains(&(ARM, eqn << 24)),
                "EQ {eqn:#x} is armed: {:x?}",
                played.doorbells
            );
        }
        // The first command, to the byte, but for token and signature.
        let entry = played.first_entry.expect("one came");
        let recorded: [u32; 15] = [0x0700_0000, 0x10, 0, 0, 0x0104_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10];
        let words: Vec<u32> =
            entry.chunks(4).map(|word| u32::from_be_bytes(word.try_into().expect("4"))).collect();
        assert_eq!(words[..15], recorded);
        assert_eq!(entry.iter().fold(0, |all, byte| all ^ byte), 0xff, "the signature holds");
        // As Linux set them: what held, with bits that have no name, UAR pages of 4 KiB, and the queue pairs that memory was given for.
        let set = played.set_capabilities.as_ref().expect("set");
        let mut wanted = before;
        cmd_hca_cap::log_max_qp.set(&mut wanted, 0x11u32);
        cmd_hca_cap::log_uar_page_sz.set(&mut wanted, 0u32);
        assert_eq!(set[..0x100], wanted[..0x100]);
        assert_eq!(set[0x41] & 0x06, 0x06, "bits that firmware has set stay");
    });
}
