//! IP over InfiniBand and RDMA-CM between Linux and Linux, and between Linux and a unikernel, each as server and as client:
//! pings, TCP, rdmacm-utils' programs; clients that are killed; a fabric that loses packets.

use crate::guests::{
    At, LIMIT, census_without_keys, kernels_are_content, listening_by_cm, pair, remove_drivers, run,
    run_everywhere,
};
use crate::node::{Pair, word};
use hca_model::Census;
use rdma_fabric::faults::Faults;
use rdma_fabric::losses::Kind as LossKind;
use rdma_lab::linux::{Kernel, Lab, Options};
use rdma_lab::unikernel::Verdict;
use runner::kernel_image;
use runner::linux::judge;
use runner::setup;
use std::path::{Path, PathBuf};
use std::time::Instant;

const PAIR: Pair = Pair::INFINIBAND;
const SEEDS: [u64; 5] = [1, 2, 3, 4, 5];
/// Sizes of rping, bytes.
const SIZES: [u32; 4] = [64, 1000, 4096, 65_535];
const KILLS: usize = 10;
/// The SHA-256 service of a unikernel, and its source of bytes.
const HASH_PORT: u16 = 256;
const SOURCE_PORT: u16 = 19;
const SINK_PORT: u16 = 5001;

/// IPoIB and RDMA-CM in every guest.
pub fn ip_up(lab: &mut Lab) {
    run_everywhere(
        lab,
        "dmesg -c > /dev/null; hcas-up && modprobe ib_ipoib && modprobe rdma_ucm || exit 1\n\
         ip address add 172.16.0.$((GUEST + 1))/24 dev ib0 && ip link set ib0 up || exit 1\n\
         mkfifo /tmp/hold\n\
         for wait in $(seq 300); do [ \"$(cat /sys/class/net/ib0/carrier 2> /dev/null)\" = 1 ] && exit 0; sleep 0.1; done\n\
         exit 1",
    );
    run(lab, 1, "ping -c 3 172.16.0.1 > /dev/null");
    // Neighbour discovery and the like come to rest.
    run(lab, 0, "sleep 2");
}

/// What the kernel says that programs hold.
pub fn resources(lab: &mut Lab, guests: usize) -> Vec<String> {
    (0..guests).map(|guest| run(lab, guest, "rdma resource show").text()).collect()
}

/// Pings, none of which may be lost. The first, which has to find the way, does not count: Linux keeps but three packets
/// while it asks for a path. Busybox's own ping has room for a few answers only, and loses more when it is not run in time.
pub fn none_lost(lab: &mut Lab, guest: usize, to: &str, count: u32) {
    let script = format!(
        "ping=/bin/ping; [ -x $ping ] || ping=ping\n\
         $ping -c 2 -i 0.5 -W 10 {to} > /dev/null; $ping -c {count} -i 0.05 -W 10 {to}"
    );
    let answer = run(lab, guest, &script).text();
    let all = [format!("{count} packets transmitted, {count} "), " 0% packet loss".to_owned()];
    assert!(all.iter().all(|words| answer.contains(words.as_str())), "{answer}");
}

/// The hexadecimal word of a line of `sha256sum`'s.
fn hash(lines: &[String], number: usize) -> String {
    let mut hashes = lines.iter().filter_map(|line| {
        let word = line.split_whitespace().next()?;
        (word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit())).then(|| word.to_owned())
    });
    hashes.nth(number).unwrap_or_else(|| panic!("no hash {number} in:\n{}", lines.join("\n")))
}

/// Starts what takes a TCP connection in a guest and hashes what comes.
fn sink(lab: &mut Lab, guest: usize) {
    let nc = format!("nc -l -p {SINK_PORT} 0<>/tmp/hold | sha256sum");
    run(lab, guest, &format!("background sink sh -c '{nc}' && listening sink {SINK_PORT}"));
}

/// Makes `bytes` bytes in a guest; their hash.
fn blob(lab: &mut Lab, guest: usize, bytes: u64) -> String {
    let answer =
        run(lab, guest, &format!("head -c {bytes} /dev/urandom > /tmp/blob && sha256sum < /tmp/blob"));
    hash(&answer.lines, 0)
}

fn tcp_between_guests(lab: &mut Lab, bytes: u64) {
    sink(lab, 0);
    let sent = blob(lab, 1, bytes);
    let answer = run(lab, 1, &format!("nc 172.16.0.1 {SINK_PORT} < /tmp/blob"));
    let received = run(lab, 0, "reap sink");
    assert_eq!(hash(&received.lines, 0), sent, "{bytes} bytes by TCP");
    println!("TCP, {bytes} bytes between two Linux: {:.1} s", answer.time.as_secs_f64());
}

fn linux_to_linux(lab: &mut Lab) {
    none_lost(lab, 1, "172.16.0.1", 100);
    none_lost(lab, 0, "172.16.0.2", 100);
    tcp_between_guests(lab, 16 << 20);
    let line = "rping -V -C 1000 -a 172.16.0.1";
    pair(lab, At::Cm, &format!("{line} -s"), &format!("{line} -c"));
    for program in ["ucmatose", "udaddy"] {
        for answer in pair(lab, At::Cm, program, &format!("{program} -s 172.16.0.1")) {
            assert!(answer.text().contains("return status 0"), "{program}:\n{}", answer.text());
        }
    }
}

/// The unikernel as an IP host: pings, and TCP both ways.
pub fn unikernel_serves_ip(lab: &mut Lab, image: &Path, pair: &Pair, pings: u32, bytes: u64) {
    let unikernel = pair.unikernel;
    let mut host = pair.start(lab, image, &format!("app=ip source={bytes}"));
    host.expect("@ip ");
    if pings > 0 {
        none_lost(lab, pair.guest, pair.unikernel, pings);
    }
    let sent = blob(lab, pair.guest, bytes);
    let answer = pair.run(lab, &format!("nc {unikernel} {HASH_PORT} < /tmp/blob"));
    assert_eq!(hash(&answer.lines, 0), sent, "{bytes} bytes by TCP to the unikernel");
    println!("TCP, {bytes} bytes to the unikernel: {:.1} s", answer.time.as_secs_f64());
    let answer = pair.run(lab, &format!("nc {unikernel} {SOURCE_PORT} 0<>/tmp/hold | sha256sum"));
    println!("TCP, {bytes} bytes from the unikernel: {:.1} s", answer.time.as_secs_f64());
    let served = host.expect("@served service=source ");
    assert_eq!(word(&served, "bytes"), bytes.to_string());
    assert_eq!(hash(&answer.lines, 0), word(&served, "sha256"));
    host.quit();
    host.finish();
}

/// The unikernel as a client of Linux: pings, TCP.
pub fn unikernel_uses_ip(lab: &mut Lab, image: &Path, pair: &Pair) {
    let mut ping = pair.start(lab, image, &format!("app=ping to={} count=100 size=56", pair.linux));
    let line = ping.expect("@ping ");
    assert_eq!((word(&line, "received"), word(&line, "lost")), ("100".to_owned(), "0".to_owned()));
    ping.finish();
    sink(lab, pair.guest);
    let mut client = pair.start(lab, image, &format!("app=tcp to={} port={SINK_PORT} send=16M", pair.linux));
    let line = client.expect("@tcp ");
    let received = pair.run(lab, "reap sink");
    assert_eq!(word(&line, "sent"), (16 << 20).to_string());
    assert_eq!(hash(&received.lines, 0), word(&line, "sent_sha256"));
    client.finish();
}

fn rping_client(lab: &mut Lab, pair: &Pair, size: u32, iterations: u32) {
    let unikernel = pair.unikernel;
    let began = Instant::now();
    pair.run(lab, &format!("timeout 170 rping -c -V -S {size} -C {iterations} -a {unikernel}"));
    println!(
        "rping to the unikernel, {iterations} times {size} bytes: {:.1} s",
        began.elapsed().as_secs_f64()
    );
}

/// Starts a client and kills it `pause` hundredths of a second after its third thread, which it starts right before its request.
fn killed_rping_client(lab: &mut Lab, pair: &Pair, size: u32, pause: usize) {
    let unikernel = pair.unikernel;
    let (seconds, hundredths) = (pause / 100, pause % 100);
    let script = format!(
        "rping -c -V -S {size} -C 1000000 -a {unikernel} > /tmp/killed.out 2>&1 &\n\
         while kill -0 $! && [ $(ls /proc/$!/task | wc -l) -lt 3 ]; do sleep 0.01; done\n\
         sleep {seconds}.{hundredths:02}; kill -9 $! || cat /tmp/killed.out; wait $!; [ $? = 137 ]"
    );
    pair.run(lab, &script);
}

/// rping's server in the unikernel: clients of all sizes, `kills` clients that are killed, and one more.
pub fn unikernel_serves_rping(lab: &mut Lab, image: &Path, pair: &Pair, kills: usize) {
    let sessions = SIZES.len() + kills + 1;
    let mut server = pair.start(lab, image, &format!("app=rping role=server sessions={sessions} stall=10"));
    for size in SIZES {
        server.expect("@rping listening ");
        rping_client(lab, pair, size, 1000);
        let line = server.expect("@rping iterations=");
        assert_eq!(word(&line, "iterations"), "1000", "{size} bytes");
    }
    for kill in 0..kills {
        server.expect("@rping listening ");
        // Kill some clients while they connect, others in the middle of a transfer. The server's session continues if its client
        // dies before the connection is up: kill another client later.
        let mut pause = kill * 8;
        loop {
            killed_rping_client(lab, pair, SIZES[kill % SIZES.len()], pause);
            if !server.expect("@rping ").contains("failed_attempt=") {
                break;
            }
            pause += 10;
        }
    }
    server.expect("@rping listening ");
    rping_client(lab, pair, 64, 100);
    server.finish();
}

/// rping's client in the unikernel.
pub fn unikernel_uses_rping(lab: &mut Lab, image: &Path, pair: &Pair) {
    for size in SIZES {
        pair.run(
            lab,
            &format!(
                "background server timeout 170 rping -s -V -S {size} -C 1000 -a {} && {}",
                pair.linux,
                listening_by_cm("rping")
            ),
        );
        let words = format!("app=rping role=client peer={} size={size} count=1000", pair.linux);
        let mut client = pair.start(lab, image, &words);
        let line = client.expect("@rping iterations=");
        assert_eq!(word(&line, "iterations"), "1000", "{size} bytes");
        println!("rping from the unikernel: {line}");
        client.finish();
        pair.run(lab, "reap server");
    }
}

/// Exit statuses of a program that `timeout` ended: coreutils' and busybox's.
const TIMED_OUT: [u8; 2] = [124, 143];
/// Times that rping goes around on a bad fabric.
const LOSSY_ITERATIONS: u32 = 50;

/// Datagrams to QP1 that the fabric lost so far: the CM's among them.
fn lost_to_gsi(lab: &Lab) -> u64 {
    let losses = lab.served().losses().expect("the fabric");
    losses.sum(|flow| flow.kind == LossKind::Datagram && flow.dest_qpn == 1).dropped
}

/// rping between Linux guests. The client ends right behind its DREQ, and nobody is left to repeat one that is lost: its server
/// may then wait for ever, after it has seen everything.
fn lossy_rping_between_guests(lab: &mut Lab) {
    let before = lost_to_gsi(lab);
    let rping = format!("rping -v -V -C {LOSSY_ITERATIONS} -a 172.16.0.1");
    run(lab, 0, &format!("background server timeout 30 {rping} -s && {}", listening_by_cm("rping")));
    run(lab, 1, &format!("timeout 120 {rping} -c"));
    let server = lab.run(0, "reap server", LIMIT).expect("the guest answers");
    let forgotten = TIMED_OUT.contains(&server.status) && lost_to_gsi(lab) > before;
    assert!(server.success() || forgotten, "status {}:\n{}", server.status, server.text());
    let last = format!("rdma-ping-{}", LOSSY_ITERATIONS - 1);
    assert!(server.text().contains(&last), "no {last}:\n{}", server.text());
}

/// The same with the server in the unikernel.
fn lossy_rping_to_the_unikernel(lab: &mut Lab, image: &Path) {
    let before = lost_to_gsi(lab);
    let mut server = PAIR.start(lab, image, "app=rping role=server wait=120");
    server.expect("@rping listening ");
    rping_client(lab, &PAIR, 4096, LOSSY_ITERATIONS);
    let line = server.expect("@rping iterations=");
    assert_eq!(word(&line, "iterations"), LOSSY_ITERATIONS.to_string());
    let (verdict, lines) = server.end();
    let text = lines.join("\n");
    let forgotten =
        text.contains(&format!(" ms in iteration {LOSSY_ITERATIONS}\n")) && lost_to_gsi(lab) > before;
    assert!(verdict == Verdict::Success || forgotten, "{verdict:?}:\n{text}");
}

/// The same on a fabric that loses one packet of a hundred.
fn lossy(lab: &mut Lab, image: &Path) {
    let faults: Faults = "loss=1%".parse().expect("faults");
    for seed in SEEDS {
        let began = Instant::now();
        lab.served().set_faults(faults, seed).expect("the fabric");
        lossy_rping_between_guests(lab);
        tcp_between_guests(lab, 1 << 20);
        lossy_rping_to_the_unikernel(lab, image);
        unikernel_serves_ip(lab, image, &PAIR, 0, 256 << 10);
        lab.served().set_faults(Faults::default(), seed).expect("the fabric");
        println!("seed {seed} with 1 % lost: {:.1} s", began.elapsed().as_secs_f64());
    }
}

/// Guests with IP on InfiniBand, and the unikernel's image.
struct Ground {
    lab: Lab,
    image: PathBuf,
    /// Objects in the HCAs, and what the kernels hold, before anything else.
    before: (Vec<Census>, Vec<String>),
    began: Instant,
}

impl Ground {
    /// `None` where there can be none.
    fn new(kernel: Kernel) -> Option<Self> {
        let mut lab = judge::lab_or_skip(Options { spare: 1, ..Options::new(kernel, 2) })?;
        println!("Linux {}", lab.version());
        setup::rust_targets().expect("the bare-metal target");
        let image = kernel_image::build().expect("the image builds");
        ip_up(&mut lab);
        let before = (census_without_keys(&lab), resources(&mut lab, 2));
        Some(Self { lab, image, before, began: Instant::now() })
    }

    /// Runs a part; afterwards nobody may hold more than before.
    fn part(&mut self, name: &str, part: fn(&mut Lab, &Path)) {
        part(&mut self.lab, &self.image);
        println!("{name}: done after {:.1} s", self.began.elapsed().as_secs_f64());
        let census = census_without_keys(&self.lab);
        assert_eq!(census, self.before.0, "objects in the HCAs before and after: {name}");
        let resources = resources(&mut self.lab, 2);
        assert_eq!(resources, self.before.1, "what the kernels hold before and after: {name}");
    }

    /// The guests go down and nobody has a complaint; `killed` processes did not end by themselves.
    fn end(mut self, killed: usize) {
        run_everywhere(&mut self.lab, "rmmod rdma_ucm rdma_cm ib_ipoib");
        remove_drivers(&mut self.lab);
        kernels_are_content(&mut self.lab, 2);
        // Linux takes a killed process's memory regions before its QPs, which were made earlier: a request that comes between
        // the two meets a free key, and both QPs fail.
        let (late, others): (Vec<String>, Vec<String>) =
            self.lab.complaints().into_iter().partition(|text| text.contains("remote access error: "));
        let met = late.iter().filter(|text| text.contains("mkc.free: ")).count();
        assert!(
            others.is_empty() && met <= killed && late.len() <= 3 * met,
            "the HCAs complain:\n{}",
            [others, late].concat().join("\n")
        );
        self.lab.stop().expect("they power off");
    }
}

#[test]
fn linux_and_a_unikernel_speak_ip_and_rdma_cm() {
    for kernel in judge::kernels() {
        let Some(mut ground) = Ground::new(*kernel) else { return };
        ground.part("Linux to Linux", |lab, _| linux_to_linux(lab));
        ground.part("the unikernel serves IP", |lab, image| {
            unikernel_serves_ip(lab, image, &PAIR, 100, 16 << 20)
        });
        ground.part("the unikernel uses IP", |lab, image| unikernel_uses_ip(lab, image, &PAIR));
        ground.part("the unikernel serves rping", |lab, image| {
            unikernel_serves_rping(lab, image, &PAIR, KILLS)
        });
        ground.part("the unikernel uses rping", |lab, image| unikernel_uses_rping(lab, image, &PAIR));
        ground.end(KILLS);
    }
}

#[test]
fn a_fabric_that_loses_packets_makes_ip_and_rdma_cm_slower_and_nothing_else() {
    if !runner::conditions::long() {
        return;
    }
    for kernel in judge::kernels() {
        let Some(mut ground) = Ground::new(*kernel) else { return };
        ground.part("one of a hundred packets lost", lossy);
        ground.end(0);
    }
}
