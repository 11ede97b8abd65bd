//! Fairness on a server with many HCAs, measured on a clock that counts work.

use crate::shares::Scene;
use crate::support::client::Client;
use std::time::Duration;

/// HCAs without work, with and without a client.
const IDLE: usize = 64;
/// Time between two changes of a device's health counter.
const HEALTH_PERIOD: Duration = Duration::from_millis(100);

#[test]
fn work_of_two_clients_visits_no_idle_device() {
    let mut scene = Scene::of(2 + IDLE, |options| options);
    let _clients: Vec<_> = (2..2 + IDLE / 2).map(|index| Client::stepping(&scene.server, index)).collect();
    let visits = |scene: &Scene| {
        let visits: Vec<_> =
            scene.server.borrow().activity().clients.iter().map(|work| work.visits).collect();
        (visits[0] + visits[1], visits[2..].iter().sum::<u64>(), scene.server.borrow().time())
    };
    let before = visits(&scene);
    // An idle clock stands still.
    scene.run(|until| until.set(Duration::ZERO));
    let after = visits(&scene);
    let (busy, idle) = (after.0 - before.0, after.1 - before.1);
    // Each device counts its health up.
    let ticks = (after.2 - before.2).as_nanos() / HEALTH_PERIOD.as_nanos() + 1;
    println!("{busy} visits of 2 busy devices, {idle} of {IDLE} idle ones in {ticks} periods");
    assert!(u128::from(idle) <= IDLE as u128 * ticks, "{idle} visits in {ticks} periods");
    assert!(busy > 50 * idle / IDLE as u64, "{busy} visits are not busy");
}
