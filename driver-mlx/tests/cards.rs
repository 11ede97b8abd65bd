//! Every kind of card that the emulated HCA can be: it comes up, is used, fails, recovers, and is left with nothing.

use crate::common;

use common::World;
use common::recovery::{SECOND, ready, until_fatal, works};
use driver_mlx::{Config, Duration, Hca, HcaStorage, pci};
use hca_model::Profile;
use hca_model::card::Card;
use mlx5_prm::status::HealthSyndrome;
use rdma_fabric::infiniband::FabricConfig;

/// Of 4 KiB: newer firmware takes tens of MiB.
const BLOCKS: usize = 32_768;

#[test]
fn every_kind_of_card_comes_up_and_recovers() {
    for &card in Card::ALL {
        let world = World::with_memory([Profile::of(card, 0)], FabricConfig::default(), BLOCKS * 4096);
        let identity = pci::identify(0x15b3, card.device_id).expect("known");
        let config = Config {
            physical_function: !identity.virtual_function,
            recovery_grace: Duration::ZERO,
            ..Config::DEFAULT
        };
        let storage = Box::leak(Box::new(HcaStorage::<BLOCKS>::new()));
        let (platform, region) = (world.platform(0), world.region(0));
        let mut hca = Hca::bring_up(platform, region, common::host_region(), storage.parts(), &config)
            .unwrap_or_else(|error| panic!("{}: {error}", card.title));
        assert_eq!(u32::from(hca.firmware_version().0), card.firmware.0);
        assert!(hca.firmware_pages() >= card.boot_pages + card.init_pages, "{}", card.title);
        for round in 0..3 {
            ready(&world, &mut hca);
            works(&world, &mut hca);
            world.model(0, |m| match round {
                0 => m.kill(),
                1 => m.fail(HealthSyndrome(1)),
                _ => m.reset(),
            });
            until_fatal(&world, &mut hca, 5 * SECOND);
            world.later(0, 3 * SECOND, hca_model::Hca::revive);
            // A virtual function leaves the reset of the firmware to the physical one, which does not come.
            let began = world.now();
            hca.recover().unwrap_or_else(|error| panic!("{}: {error}", card.title));
            assert!(world.now() - began < 70 * SECOND, "{}", card.title);
        }
        works(&world, &mut hca);
        hca.tear_down().expect("torn down");
        assert_eq!(world.model(0, |m| m.pages().given()), 0, "{}", card.title);
        let complaints = world.complaints(0);
        let ordered = |line: &String| line.contains("killed") || line.contains("the device stops");
        assert!(complaints.iter().all(ordered), "{}: {complaints:?}", card.title);
    }
}
