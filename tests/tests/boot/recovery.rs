//! HCAs that fall off the bus and come back under two unikernels that exchange RDS messages: none is lost, none comes twice.

use crate::apps::{Node, at, number, two};
use crate::ground::{Fabric, ground, skip};
use harness::seeds::long;
use mlx5_prm::status::HealthSyndrome;
use rdma_lab::unikernel::Verdict;
use std::time::Duration;

/// Packets that an HCA has sent since it got power.
fn sent(fabric: &Fabric, hca: usize) -> u64 {
    let sent = fabric.served.with_world(move |world, _| world.nodes()[hca].hca.counters().packets_sent);
    sent.expect("served")
}

fn with_hca(fabric: &Fabric, hca: usize, change: fn(&mut hca_model::Hca)) {
    fabric.served.with_world(move |world, _| change(world.hca_mut(hca).expect("served"))).expect("served");
}

/// Waits until messages move again.
fn traffic(fabric: &Fabric, hca: usize) {
    let until = sent(fabric, hca) + 200;
    while sent(fabric, hca) < until {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn messages_survive_ends_of_the_hcas() {
    let Some(ground) = ground() else { return skip() };
    let (fabric, ends) = (two(), if long() { 100 } else { 12 });
    let count = 400 * ends;
    let words = |role, ip, peer| {
        format!(
            "program=rds_messages role={role} ip=10.0.0.{ip} to=10.0.0.{peer} count={count} seed=5 grace=0 stall=60"
        )
    };
    let mut nodes = [
        Node::start(ground, &fabric, 0, &words("server", 1, 2)),
        Node::start(ground, &fabric, 1, &words("client", 2, 1)),
    ];
    nodes[0].expect("@rds listening");
    for end in 0..ends {
        let victim = end % 2;
        traffic(&fabric, victim);
        match end % 5 {
            // Firmware that asks for a reset; a function-level reset by somebody else.
            3 => with_hca(&fabric, victim, |hca| hca.fail(HealthSyndrome(1))),
            4 => with_hca(&fabric, victim, hca_model::Hca::reset),
            _ => {
                with_hca(&fabric, victim, hca_model::Hca::kill);
                std::thread::sleep(Duration::from_millis(700 * (end as u64 % 4)));
                with_hca(&fabric, victim, hca_model::Hca::revive);
            }
        }
        nodes[victim].expect("@recovered ");
        nodes.iter_mut().for_each(Node::go_on);
    }
    for console in nodes.map(Node::finish) {
        assert_eq!(number(&console, "@result op=rds_messages ", "verified"), count as u64);
    }
    fabric.assert_empty();
}

/// Those that do not bring it back say what has failed, with the device's own words, and end.
#[test]
fn an_application_whose_hca_fails_says_so_and_ends() {
    let Some(ground) = ground() else { return skip() };
    let asserted: fn(&mut hca_model::Hca) = |hca| hca.fail(HealthSyndrome(1));
    let gone: fn(&mut hca_model::Hca) = hca_model::Hca::kill;
    for (server, client, busy, end, words) in [
        // While it waits for its peer's numbers on the console.
        ("program=verbs role=server".into(), None, "@verbs ", gone, "all registers read as all ones"),
        ("program=verbs role=server".into(), None, "@verbs ", asserted, "asks for a reset (rfr)"),
        // While nobody has come, and in the middle of it.
        (
            at(1, "app=rping role=server sessions=1000"),
            None,
            "@rping listening",
            asserted,
            "asks for a reset (rfr)",
        ),
        (
            at(1, "app=rping role=server sessions=1000"),
            Some("app=rping role=client peer=10.0.0.1 size=4096 count=1000000000"),
            "@rping listening",
            gone,
            "all registers read as all ones",
        ),
        (
            at(1, "app=demo role=server peer=10.0.0.2"),
            Some("app=demo role=client peer=10.0.0.1"),
            "@progress op=send_recv",
            asserted,
            "asks for a reset (rfr)",
        ),
    ] {
        let fabric = two();
        let mut first = Node::start(ground, &fabric, 0, &server);
        let _second = client.map(|client| Node::start(ground, &fabric, 1, &at(2, client)));
        first.expect(busy);
        if client.is_some() {
            traffic(&fabric, 0);
        }
        with_hca(&fabric, 0, end);
        let (verdict, console) = first.end();
        let text = console.join("\n");
        assert_eq!(verdict, Verdict::DeviceLost, "{server}: {text}");
        assert_eq!(console.last().map(String::as_str), Some("@done verified=false"), "{text}");
        for part in ["failed: the device", words, " op_mod 0x", "error: HCA: the device"] {
            assert!(text.contains(part), "{server}: no {part:?} in:\n{text}");
        }
        assert!(console.iter().filter(|line| line.starts_with("@session")).count() <= 1, "{text}");
    }
}
