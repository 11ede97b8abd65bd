//! The applications of the image, and of the test partners, unikernel to unikernel under QEMU: verbs, IP with ping and TCP, rping, rds-stress. Where no QEMU can be
//! had the tests say SKIPPED; `MLX5_TESTS_REQUIRE=1` makes that a failure.

use crate::ground::{Fabric, Ground, LIMIT, ground, joined, serve, skip};
use hca_model::card::VIRTUAL_FUNCTION;
use hca_model::log::Level;
use hca_model::{DeviceSpec, Profile};
use rdma_lab::qemu::Output;
use rdma_lab::unikernel::{self, Options, Running, Verdict};
use std::time::Instant;
use workload::verbs::{PROGRAM, Step};

/// Two HCAs.
pub fn two() -> Fabric {
    serve(vec![Profile::node(0), Profile::node(1)])
}

/// A unikernel and what it has said.
pub struct Node {
    running: Running,
    console: Vec<String>,
    deadline: Instant,
}

impl Node {
    pub fn start(ground: &Ground, fabric: &Fabric, node: usize, words: &str) -> Self {
        let options = Options { hcas: vec![fabric.sockets[node].clone()], ..Options::new(words) };
        let running = unikernel::start(&ground.qemu, ground.image_for(words), &options).expect("QEMU starts");
        Self { running, console: Vec::new(), deadline: Instant::now() + LIMIT }
    }

    /// It has as much time again, from now on.
    pub fn go_on(&mut self) {
        self.deadline = Instant::now() + LIMIT;
    }

    fn text(&self) -> String {
        self.console.join("\n")
    }

    /// The next line that begins with `prefix`, without it.
    pub fn expect(&mut self, prefix: &str) -> String {
        loop {
            match self.running.next_line(self.deadline) {
                Ok(Some(Output::Console(line))) => {
                    self.console.push(line.clone());
                    if let Some(rest) = line.strip_prefix(prefix) {
                        return rest.to_string();
                    }
                }
                Ok(Some(Output::Qemu(line))) => self.console.push(line),
                Ok(None) => panic!("it ended without {prefix:?}:\n{}", self.text()),
                Err(error) => panic!("no {prefix:?}: {error}:\n{}", self.text()),
            }
        }
    }

    fn write(&mut self, line: &str) {
        self.running.write_line(line).expect("the console takes a line");
    }

    /// Its end, with success; all that it said.
    pub fn finish(self) -> Vec<String> {
        let (verdict, console) = self.end();
        let text = console.join("\n");
        assert_eq!(verdict, Verdict::Success, "{text}");
        assert_eq!(console.last().map(String::as_str), Some("@done verified=true"), "{text}");
        console
    }

    /// Its end, however it comes; all that it said.
    pub fn end(mut self) -> (Verdict, Vec<String>) {
        while let Some(line) = self.running.next_line(self.deadline).expect("it ends in time") {
            if let Output::Console(line) = line {
                self.console.push(line);
            }
        }
        (self.running.finish(None).expect("it ended").verdict, self.console)
    }
}

/// The number behind `key=` in the only line that begins with `prefix`.
pub fn number(console: &[String], prefix: &str, key: &str) -> u64 {
    let line = console.iter().find(|line| line.starts_with(prefix));
    let line = line.unwrap_or_else(|| panic!("no {prefix:?} in:\n{}", console.join("\n")));
    let value = word(line, key).unwrap_or_else(|| panic!("no {key}= in {line}"));
    value.parse().unwrap_or_else(|_| panic!("{key}={value}"))
}

pub fn word<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// The HCAs forgive no mistake of the driver.
#[test]
fn verbs_move_data_by_every_operation_both_ways() {
    let Some(ground) = ground() else { return skip() };
    let fabric = serve([0, 1].map(|node| DeviceSpec::adversarial(Profile::node(node))).into());
    let mut nodes = [(0, "server"), (1, "client")]
        .map(|(node, role)| Node::start(ground, &fabric, node, &format!("program=verbs role={role}")));
    let lines = nodes.each_mut().map(|node| node.expect("@verbs "));
    // Other lines are reported and ignored.
    let [server, client] = &mut nodes;
    server.write("hello");
    server.expect("console input: not a @peer line");
    server.write("@peer qpn=zz");
    server.expect("console input: @peer: `qpn=zz` is none of");
    server.write(&"x".repeat(100_000));
    server.expect("console input: a line longer than");
    server.write(&format!("@peer {}", lines[1]));
    client.write(&format!("@peer {}", lines[0]));
    for console in nodes.map(Node::finish) {
        for Step { op, count } in PROGRAM {
            let prefix = format!("@result op={} ", op.name());
            assert_eq!(number(&console, &prefix, "messages"), u64::from(count));
            assert_eq!(number(&console, &prefix, "verified"), u64::from(count));
        }
    }
    fabric.assert_empty();
}

/// The words of a node at 10.0.0.`host`.
pub fn at(host: u8, app: &str) -> String {
    format!("{app} ip=10.0.0.{host}/24 seed=1")
}

/// Boots of one node whose real-time clock runs, is set back, and runs on: numbers grow, and the log says why where the clock does not
/// make them.
#[test]
fn rds_numbers_grow_over_boots_though_the_clock_is_set_back() {
    const RAISED: &str = "rds: a peer expects numbers of an earlier boot";
    let Some(ground) = ground() else { return skip() };
    let fabric = two();
    let mut server = Node::start(ground, &fabric, 0, &at(1, "app=rds mode=echo"));
    server.expect("@rds listening ");
    let mut before = 0;
    for (year, raised) in [(2031, false), (2011, true), (2011, true), (2032, false)] {
        let words = at(2, "app=rds mode=ping to=10.0.0.1 count=20 interval=1");
        let more = vec!["-rtc".into(), format!("base={year}-05-01T12:00:00")];
        let options = Options { hcas: vec![fabric.sockets[1].clone()], more, ..Options::new(&words) };
        let client =
            unikernel::boot(&ground.qemu, &ground.image, &options, LIMIT, |_| {}).expect("QEMU starts");
        assert_eq!(client.verdict, Some(Verdict::Success), "{}", client.console.join("\n"));
        assert_eq!(number(&client.console, "@rds ping ", "received"), 20);
        let said = client.log.lines.iter().any(|line| line.contains(RAISED));
        assert_eq!(said, raised, "{year}: {:?}", client.log.lines);
        // What the peer expects next.
        server.write("@info");
        const BETWEEN: &str = "       10.0.0.1        10.0.0.2 ";
        server.expect("Connections:");
        let line = server.expect(BETWEEN);
        server.expect("InfiniBand connections:");
        server.expect(BETWEEN);
        let next: u64 = line.split_whitespace().nth(2).expect("NextRX").parse().expect("a number");
        assert!(next > before, "{year}: {next} after {before}");
        before = next;
    }
    server.write("@quit");
    server.finish();
    fabric.assert_empty();
}

#[test]
fn ip_hosts_ping_each_other_and_move_16_mib_by_tcp_both_ways() {
    let Some(ground) = ground() else { return skip() };
    ping_and_tcp(ground, &two());
}

#[test]
fn ip_hosts_at_two_servers_that_are_joined_do_so_too() {
    if !runner::conditions::long() {
        return;
    }
    let Some(ground) = ground() else { return skip() };
    ping_and_tcp(ground, &joined());
}

fn ping_and_tcp(ground: &Ground, fabric: &Fabric) {
    let mut server = Node::start(ground, fabric, 0, &at(1, "app=ip source=16M"));
    server.expect("@ip address=10.0.0.1/24 ");
    let ping = Node::start(ground, fabric, 1, &at(2, "app=ping to=10.0.0.1 count=100 size=1000")).finish();
    assert_eq!(number(&ping, "@ping ", "received"), 100);
    assert_eq!(number(&ping, "@ping ", "lost"), 0);
    for (service, port, words, sent, received) in [
        ("hash", 256, "port=256 send=16M", 16 << 20, 68),
        ("source", 19, "port=19", 0, 16 << 20),
        ("echo", 7, "port=7 send=1M", 1 << 20, 1 << 20),
    ] {
        // The client compares what comes back with what the service at that port answers.
        let client = Node::start(ground, fabric, 1, &at(2, &format!("app=tcp to=10.0.0.1 {words}"))).finish();
        assert_eq!(number(&client, "@tcp ", "sent"), sent, "{port}");
        assert_eq!(number(&client, "@tcp ", "received"), received, "{port}");
        println!("{service}: {} ms", number(&client, "@tcp ", "ns") / 1_000_000);
        let served = server.expect(&format!("@served service={service} "));
        let line = client.iter().find(|line| line.starts_with("@tcp ")).expect("the report");
        let side = if sent == 0 { "received_sha256" } else { "sent_sha256" };
        assert_eq!(word(&served, "sha256"), word(line, side), "{served}\n{line}");
        assert_eq!(word(&served, "peer"), Some("10.0.0.2"));
    }
    server.write("@quit");
    server.finish();
    fabric.assert_empty();
}

#[test]
fn rping_runs_in_both_roles_at_all_sizes() {
    let Some(ground) = ground() else { return skip() };
    let fabric = two();
    let mut server = Node::start(ground, &fabric, 0, &at(1, "app=rping role=server sessions=3"));
    for (size, count) in [(64, 1000), (4096, 200), (65_535, 200)] {
        server.expect("@rping listening port=7174");
        let words = format!("app=rping role=client peer=10.0.0.1 size={size} count={count}");
        let client = Node::start(ground, &fabric, 1, &at(2, &words)).finish();
        assert_eq!(number(&client, "@rping iterations", "iterations"), count);
        assert_eq!(number(&client, "@rping iterations", "bytes"), count * size);
        let ended = server.expect("@rping iterations=");
        assert_eq!(ended.split(' ').next(), Some(count.to_string().as_str()), "{ended}");
    }
    server.finish();
    fabric.assert_empty();
}

/// The second of two HCAs is taken by its address; one that is not there is told, with what is.
#[test]
fn an_hca_is_chosen_by_its_address_or_guid() {
    let Some(ground) = ground() else { return skip() };
    let fabric = two();
    let boot = |words: &str| {
        let options = Options { hcas: fabric.sockets.clone(), ..Options::new(words) };
        let image = ground.image_for(words);
        let running = unikernel::start(&ground.qemu, image, &options).expect("QEMU starts");
        Node { running, console: Vec::new(), deadline: Instant::now() + LIMIT }.end()
    };
    let (verdict, console) = boot("app=hca hca=7f:00.0");
    assert_eq!(verdict, Verdict::NoDevice, "{console:?}");
    let listed: Vec<&String> = console.iter().filter(|line| line.contains("15b3:1017 class 0207")).collect();
    assert!(
        listed.len() >= 2 && console.iter().any(|line| line.contains("no HCA at 0000:7f:00.0")),
        "{console:?}"
    );
    let address =
        listed[listed.len() - 1].split(' ').nth(1).expect("an address").trim_end_matches(':').to_owned();
    let guid = |choice: &str| {
        let (verdict, console) = boot(&format!("app=hca hca={choice}"));
        assert_eq!(verdict, Verdict::Success, "{console:?}");
        console
            .iter()
            .find_map(|line| line.split_once("guid ")?.1.split(',').next().map(str::to_owned))
            .expect("a GUID")
    };
    assert_eq!(guid(&address), guid("1"));
    assert_eq!(guid("1"), format!("{:#018x}", Profile::port_guid_of(1)));
    // By its port's GUID: others are asked before it. RDS answers its own node's pings.
    let ping =
        |guid: u64| boot(&format!("app=rds mode=ping ip=10.0.0.1/24 peer=10.0.0.1 count=3 hca={guid:#018x}"));
    let says = |console: &[String], words: &str| console.iter().any(|line| line.contains(words));
    let (verdict, console) = ping(Profile::port_guid_of(1));
    assert_eq!(verdict, Verdict::Success, "{console:?}");
    assert!(
        says(&console, "hca 0: not taken: its port's GUID is") && !says(&console, "hca 1: not"),
        "{console:?}"
    );
    let (verdict, console) = ping(7);
    assert_eq!(verdict, Verdict::NoDevice, "{console:?}");
    assert!(says(&console, "no HCA with the port GUID 0x0000000000000007"), "{console:?}");
    let second = format!("hca={:#018x}", Profile::port_guid_of(1));
    for (app, end, line) in [
        ("app=hca", Verdict::Success, "guid 0x506b4b0300a00010"),
        ("app=selftest", Verdict::Success, "guid=0x506b4b0300a00010"),
        // No peer line arrives.
        ("program=verbs role=server wait=1", Verdict::Failed, "gid=fe80::506b:4b03:a0:10"),
    ] {
        let (verdict, console) = boot(&format!("{app} {second}"));
        assert_eq!(verdict, end, "{app}: {console:?}");
        assert!(
            says(&console, line) && says(&console, "hca 0: not taken: its port's GUID is"),
            "{console:?}"
        );
        let (verdict, console) = boot(&format!("{app} hca=0x0000000000000007"));
        assert_eq!(verdict, Verdict::NoDevice, "{app}: {console:?}");
        assert!(says(&console, "no HCA with the port GUID 0x0000000000000007"), "{console:?}");
    }
}

/// It is sent nothing that it would refuse.
#[test]
fn a_virtual_function_is_driven_as_one() {
    let Some(ground) = ground() else { return skip() };
    let fabric = serve(vec![Profile::of(&VIRTUAL_FUNCTION, 0)]);
    Node::start(ground, &fabric, 0, "app=hca").finish();
    let refused = fabric.served.with_world(|world, _| {
        let refused = world.nodes()[0].hca.log().entries().filter(|entry| entry.level != Level::Info);
        refused.map(ToString::to_string).collect::<Vec<_>>()
    });
    assert_eq!(refused.expect("served"), [""; 0]);
    fabric.assert_empty();
}

/// rds-stress between two nodes: the columns of each side's average.
fn stress(ground: &Ground, fabric: &Fabric, switches: &str) -> [Vec<f64>; 2] {
    let mut passive = Node::start(ground, fabric, 0, &at(1, "app=rds mode=stress"));
    passive.expect("waiting for incoming connection on 0.0.0.0:4000");
    let words = format!("app=rds mode=stress to=10.0.0.1 switches={switches}");
    let active = Node::start(ground, fabric, 1, &at(2, &words)).finish();
    [passive.finish(), active].map(|console| {
        let average = console.iter().find_map(|line| line.strip_suffix("  (average)"));
        let average = average.unwrap_or_else(|| panic!("no average in:\n{}", console.join("\n")));
        println!("{switches}: {average}");
        average.split_whitespace().map(|column| column.parse().expect("a number")).collect()
    })
}

#[test]
fn rds_stress_runs_with_messages_and_with_rdma() {
    let Some(ground) = ground() else { return skip() };
    let fabric = two();
    for columns in stress(ground, &fabric, "-q1K,-a200,-t2,-d4,-T1,-v") {
        let [tasks, sent, received, kib, rdma_in, rdma_out, ..] = columns[..] else { panic!("{columns:?}") };
        assert!(tasks == 2.0 && sent > 0.0 && received > 0.0 && kib > 0.0, "{columns:?}");
        assert_eq!((rdma_in, rdma_out), (0.0, 0.0));
    }
    for columns in stress(ground, &fabric, "-D64K,-d2,-I2,-T1,-v,-c") {
        let [_, sent, received, _, rdma_in, rdma_out, ..] = columns[..] else { panic!("{columns:?}") };
        assert!(sent > 0.0 && received > 0.0 && rdma_in > 0.0 && rdma_out > 0.0, "{columns:?}");
    }
    fabric.assert_empty();
}
