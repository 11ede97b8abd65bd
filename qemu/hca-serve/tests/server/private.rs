//! Guests with private memory: the server requests every access from the client.

use crate::support::client::{BAR0, CONFIG, Client, DMA_MAP, DMA_READ, REGION_READ, access, map};
use crate::support::guest::{DEVICE_BASE, Guest, join};
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

#[test]
fn register_reads_are_served_and_requests_wait_while_a_client_is_asked() {
    let (_folder, served, sockets) = serve(1);
    let mut client = Client::new(&sockets[0]);
    assert!(!client.ask(DMA_MAP, &map(3, 0, DEVICE_BASE, 1 << 30)).is_error());
    client.write(CONFIG, 4, &6u16.to_le_bytes());
    while client.read(BAR0, 0x1fc, 4)[0] & 0x80 != 0 {
        std::thread::yield_now();
    }
    client.write(BAR0, 0x10, &[(DEVICE_BASE >> 32) as u32, 0].map(u32::to_be_bytes).concat());
    client.write(BAR0, 0x18, &1u32.to_be_bytes());
    assert_eq!(client.receive().expect("asked").command, DMA_READ);
    let id = client.post(REGION_READ, 0, &access(BAR0, 0x1000, 4), &[]);
    let reply = client.receive().expect("answered");
    assert_eq!((reply.id, reply.command, reply.is_error()), (id, REGION_READ, false));
    // The request needs the device itself, and not what stands in for it during the access.
    let lent = served.with_world(|world, _| world.nodes()[0].hca.is_lent());
    assert_eq!(lent, Some(false));
    assert_eq!(served.activity().expect("served").clients[0].failures, 1, "the client was late");
}
