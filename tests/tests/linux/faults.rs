//! Two Linux guests on a fabric that loses packets: reliable connections end right, and of unreliable messages exactly those
//! are missing that the fabric lost.

use crate::guests::{
    At, any_pair, both, census_without_keys, hcas_complain_of_silence_only, kernels_are_content, pair,
    remove_drivers, run, run_everywhere,
};
use rdma_fabric::faults::Faults;
use rdma_fabric::losses::{Kind, Losses};
use rdma_lab::linux::{Answer, Kernel, Lab, Options};
use runner::conditions;
use runner::linux::judge;
use std::path::PathBuf;
use std::time::Instant;

const SEEDS: [u64; 5] = [1, 2, 3, 4, 5];

fn seeds() -> &'static [u64] {
    if conditions::long() { &SEEDS } else { &SEEDS[..2] }
}

/// TCP ports at which rdma-core's programs and ours exchange addresses.
const PINGPONG_PORT: u16 = 18515;
const SEQUENCE_PORT: u16 = 18600;
/// What our program waits for an acknowledgement: 4.096 us times two to the power of this, 134 ms.
const ACK_TIMEOUT: u8 = 15;
/// Messages of a run of ours, each of one packet.
const MESSAGES: u64 = 3000;

fn program(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("guest").join(name)
}

fn one_percent() -> Faults {
    "loss=1%".parse().expect("faults")
}

/// Runs `work` on a fabric that loses 1 %, and answers what happened to packets of `kind` meanwhile.
fn with_losses(lab: &mut Lab, seed: u64, kind: Kind, work: impl FnOnce(&mut Lab)) -> Losses {
    let sum = |lab: &Lab| lab.served().losses().expect("the fabric").sum(|flow| flow.kind == kind);
    let before = sum(lab);
    lab.served().set_faults(one_percent(), seed).expect("the fabric");
    work(lab);
    lab.served().set_faults(Faults::default(), seed).expect("the fabric");
    let after = sum(lab);
    Losses { dropped: after.dropped - before.dropped, overflow: after.overflow - before.overflow, ..after }
}

/// Packets that the HCAs have sent again so far.
fn retransmitted(lab: &Lab) -> u64 {
    let sum = lab
        .served()
        .with_world(|world, _| world.nodes().iter().map(|node| node.hca.counters().retransmitted).sum());
    sum.expect("the devices' thread runs")
}

/// A program of reliable connections moves `size` bytes `iterations` times each way; seconds that it took, as it says.
///
/// These programs do not agree on their end: where the acknowledgement of the last message is lost after all data has come,
/// and the other side has ended, the retries of this side find nobody. So one side always ends right, which says that all of
/// the other's messages have come, and the other may find it gone.
fn reliable(lab: &mut Lab, program: &str, size: u64, iterations: u64, lossy: bool) -> f64 {
    let line = format!("{program} -s {size} -n {iterations}");
    let client = format!("{line} guest0");
    let answers = any_pair(lab, At::Tcp(PINGPONG_PORT), &line, &client);
    let text = both(&line, &client, &answers);
    let moved = format!("{} bytes in ", size * iterations * 2);
    let right = |answer: &&Answer| answer.success() && answer.text().contains(&moved);
    let found_nobody = |answer: &Answer| answer.text().contains("transport retry counter exceeded");
    assert!(!text.contains("invalid data"), "{text}");
    let seconds = answers.iter().find(right).and_then(|answer| {
        answer.text().split(&moved).nth(1).and_then(|rest| rest.split_whitespace().next()?.parse().ok())
    });
    let ends = answers.iter().all(|answer| right(&answer) || (lossy && found_nobody(answer)));
    match seconds {
        Some(seconds) if ends => seconds,
        _ => panic!("{text}"),
    }
}

/// Messages, writes, reads and atomics both ways in lockstep between the guests, every byte checked, with an end that both
/// agree on: it has to be right on both sides.
fn lockstep(lab: &mut Lab) {
    let roles = ["server", "client"];
    let mut values = Vec::new();
    for (guest, role) in roles.into_iter().enumerate() {
        let begin = format!(
            "rm -f /tmp/peer && mkfifo /tmp/peer && background verbs sh -c 'ACK_TIMEOUT={ACK_TIMEOUT} verbs {role} < /tmp/peer'\n\
             sleep 100 > /tmp/peer 2> /dev/null < /dev/null &\n\
             echo $! > /tmp/opener\n\
             listening verbs says '@verbs '"
        );
        let lines = run(lab, guest, &begin).lines;
        let line = lines.iter().find_map(|line| line.strip_prefix("@verbs ").map(str::to_owned));
        values.push(line.unwrap_or_else(|| panic!("no values: {lines:?}")));
    }
    for (guest, line) in values.iter().rev().enumerate() {
        run(lab, guest, &format!("echo '{line}' > /tmp/peer"));
    }
    for (guest, role) in roles.into_iter().enumerate() {
        let answer = run(lab, guest, "reap verbs; status=$?; kill $(cat /tmp/opener); exit $status");
        assert!(answer.text().contains("@done verified=true"), "{role}:\n{}", answer.text());
    }
}

fn reliable_programs(lab: &mut Lab) {
    for (program, size, iterations) in [
        ("ibv_rc_pingpong -c -m 1024", 65_536, 30),
        ("ibv_rc_pingpong -c -e -m 4096", 1 << 20, 3),
        ("ibv_srq_pingpong -c -m 1024", 4096, 100),
    ] {
        let clean = reliable(lab, program, size, iterations, false);
        let mut lossy = Vec::new();
        let before = retransmitted(lab);
        for &seed in seeds() {
            let mut seconds = 0.0;
            let losses = with_losses(lab, seed, Kind::Reliable, |lab| {
                seconds = reliable(lab, program, size, iterations, true);
            });
            assert!(losses.dropped > 0, "{program}, seed {seed}: nothing was lost");
            lossy.push(seconds);
        }
        // Slower by what is sent again; the seconds depend on who else uses this machine.
        let again = retransmitted(lab) - before;
        println!("{program}: {clean} s without loss, {lossy:?} with 1 %, {again} packets sent again");
        assert!(again >= seeds().len() as u64, "{program}: {again} packets sent again");
    }
}

/// The same in lockstep, where each loss costs the wait for it.
fn reliable_lockstep(lab: &mut Lab) {
    let began = Instant::now();
    lockstep(lab);
    let clean = began.elapsed();
    println!("lockstep: {:.1} s without loss", clean.as_secs_f64());
    let began = Instant::now();
    for &seed in seeds() {
        let before = retransmitted(lab);
        let losses = with_losses(lab, seed, Kind::Reliable, lockstep);
        let again = retransmitted(lab) - before;
        println!("lockstep, seed {seed}: {again} packets sent again, {losses:?}");
        assert!(losses.dropped > 0 && again > 0, "seed {seed}: {losses:?}, {again} packets sent again");
    }
    let mean = began.elapsed() / seeds().len() as u32;
    println!("lockstep: {:.1} s with 1 % loss on average", mean.as_secs_f64());
}

/// The number behind `name=` in the line that a program of ours ended with.
fn told(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with("@sequence ")).unwrap_or_else(|| panic!("{text}"));
    let word = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no {name} in {line}"))
}

/// What arrived is right, and what is missing the fabric has lost.
fn unreliable(lab: &mut Lab, service: &str, kind: Kind, size: usize) {
    for &seed in seeds() {
        let (mut received, mut wrong) = (0, 0);
        let losses = with_losses(lab, seed, kind, |lab| {
            let server = format!("sequence {service} receive {MESSAGES} {size}");
            let client = format!("sequence {service} send {MESSAGES} {size} guest0");
            let [server, client] = pair(lab, At::Tcp(SEQUENCE_PORT), &server, &client);
            assert_eq!(told(&client.text(), "sent"), MESSAGES);
            received = told(&server.text(), "received");
            wrong = told(&server.text(), "wrong");
            assert_eq!(wrong, 0, "{}", server.text());
        });
        println!("{service}, {size} bytes, seed {seed}: {received} of {MESSAGES} arrived, {losses:?}");
        assert!(losses.dropped > 0 && received < MESSAGES, "{service}, seed {seed}: nothing was lost");
        assert_eq!(received + losses.dropped, MESSAGES, "{service}, seed {seed}: {losses:?}");
    }
}

fn lose(kernel: Kernel) {
    let options =
        Options { programs: vec![program("sequence.c"), program("verbs.c")], ..Options::new(kernel, 2) };
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    println!("Linux {}", lab.version());
    run_everywhere(&mut lab, "dmesg -c > /dev/null; hcas-up");
    let before = census_without_keys(&lab);
    reliable_programs(&mut lab);
    reliable_lockstep(&mut lab);
    unreliable(&mut lab, "ud", Kind::Datagram, 1000);
    unreliable(&mut lab, "uc", Kind::Unreliable, 1000);
    assert_eq!(census_without_keys(&lab), before, "objects before and after the programs");
    remove_drivers(&mut lab);
    kernels_are_content(&mut lab, 2);
    hcas_complain_of_silence_only(&lab);
    lab.stop().expect("they power off");
}

#[test]
fn reliable_connections_end_right_and_unreliable_losses_are_the_fabrics() {
    for kernel in judge::kernels() {
        lose(*kernel);
    }
}
