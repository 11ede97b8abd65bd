//! Two DAT adapters on every kind of card, with every habit of real ones: a connection and messages each way.

use dat_nostd::EpAttributes;
use harness::pair::Pair;
use harness::{World, WorldConfig};
use hca_model::{Card, DeviceSpec};

fn ping(spec: &DeviceSpec, seed: u64) {
    let world = World::new(&WorldConfig::new(seed));
    let profiles = [0, 1].map(|node| spec.clone().seeded(seed).profile(node));
    let mut pair = Pair::of_kinds(world, seed, "ib0", profiles);
    let eps = pair.connect(7001, &EpAttributes::DEFAULT, |sides, eps| {
        for (side, ep) in sides.iter_mut().zip(eps) {
            side.receive(ep, 0x10_0000, 0x1000, 1).expect("receive");
        }
    });
    for (from, to) in [(0, 1), (1, 0)] {
        let pattern = [0xa0 + from as u8; 900];
        pair.sides[from].memory.write(0, &pattern).expect("inside");
        pair.sides[from].send(eps[from], 0, 900, 2).expect("send");
        assert_eq!(pair.success(to, true, 1), 900, "{spec}");
        pair.success(from, false, 2);
        let mut seen = [0; 900];
        pair.sides[to].memory.read(0x10_0000, &mut seen).expect("inside");
        assert_eq!(seen, pattern, "{spec}");
    }
    pair.disconnect(eps);
    pair.finish(&[eps]);
}

#[test]
fn every_card_with_every_habit_pings() {
    // The stack drives InfiniBand ports only.
    for (number, card) in Card::ALL.iter().enumerate().filter(|(_, card)| !card.is_ethernet()) {
        let few = format!("{},init-pages=64", card.name);
        for habit in DeviceSpec::habits() {
            ping(&format!("{few},{habit}").parse().expect("right"), 0xca4d + number as u64);
        }
    }
}
