//! Guests with private memory: the server requests every access from the client.

use crate::support::guest::{Guest, join};
use crate::support::serve;

#[test]
fn data_move_between_private_and_shared_memory() {
    let (_folder, served, sockets) = serve(2);
    let mut guests = join([Guest::bring_up_private(&sockets[0]), Guest::bring_up(&sockets[1])]);
    let targets = guests.each_ref().map(Guest::target);
    for round in 1..20 {
        for (from, to) in [(0, 1), (1, 0)] {
            guests[from].write(round, targets[to]).expect("data move");
            assert!(guests[to].written().iter().all(|byte| *byte == round), "round {round}");
        }
    }
    assert!(served.handle().states().expect("served").iter().all(|hca| hca.refusals == 0 && !hca.killed));
}
