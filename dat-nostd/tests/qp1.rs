//! QP1 after failures of its queue pairs: each is started again, and no datagram buffer is lost.

use crate::common;
use crate::ports::{MS, Member, Ports, SECOND, request, set_partitions};

use common::{Net, Options, Side};
use dat_nostd::*;
use hca_model::GuestMemory;
use ib_port::GsiCounters;

/// Datagrams that QP1 sends at once.
const SENDS: u32 = 32;
/// Receives that QP1 keeps posted, and their length: a GRH and a datagram.
const RECEIVES: usize = 64;
const RECEIVE_LEN: u32 = 40 + 256;

fn counters(ports: &Ports) -> GsiCounters {
    ports.members[0].port.counters().gsi
}

/// Has port 0 send a datagram that gets a reply: a query for the path to port 1.
fn ask(ports: &mut Ports) {
    let (now, gid) = (ports.now(), ports.info(1).gid);
    ports.members[0].port.forget_path(gid);
    let _ = ports.members[0].port.resolve(now, gid);
}

/// Two ports that have nothing in flight.
fn quiet(seed: u64) -> Ports {
    let mut ports = Ports::new(seed, 2);
    ports.run(100 * MS);
    assert_eq!(counters(&ports).restarts, 0);
    ports
}

/// A device that cannot read a doorbell record raises an event, without a completion.
#[test]
fn an_event_starts_it_again() {
    let mut ports = quiet(321);
    ports.world.with_hca(0, |hca| hca.toggle_management_records());
    ask(&mut ports);
    ports.run(50 * MS);
    assert_eq!(counters(&ports).restarts, 1);
    ports.world.with_hca(0, |hca| hca.toggle_management_records());
    assert!(ports.path(0, 1).is_some());
    let restarts = counters(&ports).restarts;
    ports.run(SECOND);
    assert_eq!(counters(&ports).restarts, restarts);
}

/// The datagrams of a failed queue pair complete no more. Their buffers serve again.
#[test]
fn buffers_of_lost_datagrams_serve_again() {
    let mut ports = quiet(322);
    let path = ports.path(0, 1).expect("a path");
    ports.world.with_hca(0, |hca| hca.toggle_management_records());
    let (now, before) = (ports.now(), counters(&ports));
    for number in 0..SENDS {
        ports.members[0].port.cm().connect(now, &request(path, 0x100 + number), &[], 1).unwrap();
    }
    ports.run(50 * MS);
    let after = counters(&ports);
    assert_eq!((after.restarts, after.sent - before.sent), (1, u64::from(SENDS)));
    assert_eq!(after.send_failed - before.send_failed, u64::from(SENDS));
    ports.world.with_hca(0, |hca| hca.toggle_management_records());
    ask(&mut ports);
    assert!(ports.path(0, 1).is_some());
}

/// A datagram that the device refuses completes with an error and stops the send queue, without an
/// event: here its P_Key table entry has become empty.
#[test]
fn a_failed_send_starts_it_again() {
    let mut ports = Ports::with(323, &[&[0x7fff, 0xffff], &[0xffff]], false);
    ports.run(100 * MS);
    ports.follow = false;
    set_partitions(&ports.world, &[&[0xffff]]);
    ports.run(100 * MS);
    ask(&mut ports);
    ports.run(50 * MS);
    assert_eq!(counters(&ports).restarts, 1);
    // The port learns of its new table.
    let Member { hca, port } = &mut ports.members[0];
    port.refresh(hca, false).unwrap();
    assert!(ports.path(0, 1).is_some());
}

/// A queue pair that fails over and over is not restarted in a loop.
#[test]
fn restarts_keep_their_distance() {
    let mut ports = Ports::with(324, &[&[0x7fff, 0xffff], &[0xffff]], false);
    ports.run(100 * MS);
    let path = ports.path(0, 1).expect("a path");
    ports.follow = false;
    set_partitions(&ports.world, &[&[0xffff]]);
    ports.run(100 * MS);
    for number in 0..50 {
        let now = ports.now();
        ports.members[0].port.cm().connect(now, &request(path, 0x100 + number), &[], 1).unwrap();
        ports.run(10 * MS);
    }
    let restarts = counters(&ports).restarts;
    assert!((4..=6).contains(&restarts), "{restarts} restarts in 500 ms");
}

/// A receive that completes with an error stops the queue pair, without an event.
#[test]
fn a_failed_receive_starts_it_again() {
    let mut ports = quiet(325);
    // The receives name a key that does not exist.
    let memory = ports.world.memory(0);
    let all = memory.as_slice();
    let entries = (0..all.len() as u64).step_by(16).map(|offset| all.device_address() + offset);
    let receives: Vec<u64> = entries.filter(|at| memory.load32(*at) == Ok(RECEIVE_LEN)).collect();
    assert_eq!(receives.len(), RECEIVES);
    receives.iter().for_each(|at| memory.store32(at + 4, 0xdead_be00).unwrap());
    ask(&mut ports);
    ports.run(50 * MS);
    assert_eq!(counters(&ports).restarts, 1);
    assert!(ports.path(0, 1).is_some());
    ports.run(SECOND);
    assert_eq!(counters(&ports).restarts, 1);
}

/// QP1 of either side fails, with datagrams in flight and without: it is started again, and
/// connections are made as before.
#[test]
fn a_connection_is_made_after_qp1_has_failed() {
    for (seed, node) in [(901, 0), (902, 1)] {
        let mut net = Net::new(seed, 2);
        let [active, passive] = [net.side(0, &Options::default()), net.side(1, &Options::default())];
        net.connect(&[active, passive]);
        // The next datagram does not find its doorbell record.
        net.world.with_hca(node, |hca| hca.toggle_management_records());
        let psp = net.nodes[1].psp_create(passive.ia, 9, passive.cr, PspFlags::Consumer).unwrap();
        let again = net.nodes[0].ep_create(
            active.ia,
            Some(active.pz),
            Some(active.recv),
            Some(active.request),
            Some(active.connect),
            None,
        );
        let second = Side { ep: again.unwrap(), ..active };
        net.ask(&second, 9, TIMEOUT_INFINITE, b"");
        if node == 1 {
            let cr = net.request(&passive, psp);
            net.nodes[1].cr_reject(cr).unwrap();
        }
        net.pass(500_000_000);
        net.world.with_hca(node, |hca| hca.toggle_management_records());
        if node == 0 {
            let cr = net.request(&passive, psp);
            net.nodes[1].cr_reject(cr).unwrap();
        }
        assert_eq!(net.connection(0, &second), ConnectionEvent::PeerRejected);
        let counters = net.nodes[node].port_counters().gsi;
        assert!(counters.restarts >= 1, "{counters:?}");
        // Existing connections remain.
        assert_eq!(net.nodes[0].ep_get_status(active.ep).unwrap().state, EpState::Connected);
        net.nodes[0].ep_disconnect(active.ep, CloseFlags::Abrupt).unwrap();
        assert_eq!(net.connection(1, &passive), ConnectionEvent::Disconnected);
    }
}
