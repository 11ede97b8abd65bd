//! What the emulated HCAs cost: instructions counted by callgrind, and the speed of one-way writes against `memcpy`'s.
//!
//! `cargo xtask bench model` prints a table; `--report FILE` (or the variable `MLX5_BENCH_REPORT`) also writes JSON. The program
//! starts itself under valgrind, and what happens inside the functions named `measured_*` is counted: the registers that a guest
//! writes, and `World::poll` until nothing more can be done. Posting and polling are the driver's and not counted. The
//! program fails if an operation takes more than its bar.
//!
//! | operation | what is counted |
//! |---|---|
//! | `model.write64` | for each of 16 signalled RC writes of 64 bytes under one doorbell, both HCAs' work until its CQE |
//! | `model.packet4k` | RC writes of 64 KiB at an MTU of 4096: both HCAs' work, for each packet |
//! | `model.roce64`, `model.roce4k` | the same two on Ethernet ports: at most 10 % more than on InfiniBand |
//! | `model.doorbell` | a send doorbell's write to BAR0, and the poll that finds nothing new posted |
//! | `model.beside2` | a doorbell as above in a world with 2 more HCAs, which are idle |
//! | `model.beside64` | the same with 64 idle HCAs: at most 5 % more or less than beside 2 |
//! | `model.stream` | 64 KiB RC writes in one process: bytes per second over those of `memcpy`, by turns in the same run |

mod bed;
#[path = "../instructions/callgrind.rs"]
mod callgrind;

use bed::{Fabric, Node};
use driver_mlx::Doorbell;
use hca_model::card::{CONNECTX_5, CONNECTX_5_EN, Card};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

/// Writes of 64 bytes that are counted.
const WRITES: usize = 8_192;
/// Of them under one doorbell.
const BATCH: usize = 16;
/// Packets of 4 KiB that are counted.
const PACKETS: usize = 4_096;
/// Doorbells that are counted.
const DOORBELLS: usize = 4_096;
/// Connections that the operations go round.
const QPS: usize = 8;
/// Bytes of a long write.
const LONG: usize = 64 << 10;

/// The operations: function, name, how many, and how many instructions each may take at most: 0.3 %
/// more than measured.
const COUNTED: [(&str, &str, usize, Option<f64>); 7] = [
    ("measured_write64", INFINIBAND[0], WRITES, Some(2_182.0)),
    ("measured_packet4k", INFINIBAND[1], PACKETS, Some(806.0)),
    ("measured_roce64", ROCE[0], WRITES, None),
    ("measured_roce4k", ROCE[1], PACKETS, None),
    ("measured_doorbell", "model.doorbell", DOORBELLS, Some(1_190.0)),
    ("measured_beside2", BESIDE[0], DOORBELLS, None),
    ("measured_beside64", BESIDE[1], DOORBELLS, None),
];
/// Operations that differ in the kind of port only, and how much more they may take on Ethernet.
const INFINIBAND: [&str; 2] = ["model.write64", "model.packet4k"];
const ROCE: [&str; 2] = ["model.roce64", "model.roce4k"];
const ROCE_COST: f64 = 0.10;
/// Operations that differ in the number of idle HCAs only, and how much their means may differ.
const BESIDE: [&str; 2] = ["model.beside2", "model.beside64"];
const IDLE_COST: f64 = 0.05;

/// Set in the process that is counted.
const CHILD: &str = "MLX5_BENCH_COUNTED";
/// Where to write the report.
const REPORT: &str = "MLX5_BENCH_REPORT";

#[inline(never)]
fn measured_write64(fabric: &RefCell<Fabric>, node: &mut Node, qp: usize, doorbell: Doorbell) {
    node.qps[qp].ring(doorbell);
    fabric.borrow_mut().settle();
}

// Each begins with something of its own, or the compiler makes one function of them.
#[inline(never)]
fn measured_packet4k(fabric: &RefCell<Fabric>, node: &mut Node, doorbell: Doorbell) {
    node.qps[0].ring(doorbell);
    fabric.borrow_mut().settle();
}

#[inline(never)]
fn measured_roce64(qp: usize, fabric: &RefCell<Fabric>, node: &mut Node, doorbell: Doorbell) {
    let _ = std::hint::black_box(qp + 3);
    node.qps[qp].ring(doorbell);
    fabric.borrow_mut().settle();
}

#[inline(never)]
fn measured_roce4k(node: &mut Node, fabric: &RefCell<Fabric>, doorbell: Doorbell) {
    let _ = std::hint::black_box(4);
    node.qps[0].ring(doorbell);
    fabric.borrow_mut().settle();
}

#[inline(never)]
fn measured_doorbell(fabric: &RefCell<Fabric>, qp: usize, node: &mut Node) {
    let _ = std::hint::black_box(qp);
    node.registers.write_again();
    fabric.borrow_mut().settle();
}

#[inline(never)]
fn measured_beside2(node: &mut Node, fabric: &RefCell<Fabric>, qp: usize) {
    let _ = std::hint::black_box(qp + 2);
    node.registers.write_again();
    fabric.borrow_mut().settle();
}

#[inline(never)]
fn measured_beside64(node: &mut Node, qp: usize, fabric: &RefCell<Fabric>) {
    let _ = std::hint::black_box(qp + 64);
    node.registers.write_again();
    fabric.borrow_mut().settle();
}

fn fill(node: &Node, seed: usize) {
    let bytes: Vec<u8> =
        (0..node.memory.len()).map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b1) >> 13) as u8).collect();
    node.memory.write(0, &bytes).expect("inside");
}

fn same(near: &Node, far: &Node, len: usize) {
    let (mut sent, mut received) = (vec![0; len], vec![0; len]);
    near.memory.read(0, &mut sent).expect("inside");
    far.memory.read(0, &mut received).expect("inside");
    assert!(sent == received, "the bytes arrived");
}

type Ringing<'a> = &'a dyn Fn(&RefCell<Fabric>, &mut Node, usize, Doorbell);

/// Makes and checks short and long writes, which the two functions ring for.
fn writes(card: &'static Card, short: Ringing<'_>, long: Ringing<'_>) -> (Rc<RefCell<Fabric>>, Node) {
    let (fabric, [mut near, far]) = bed::pair(card, QPS, BATCH * LONG);
    fill(&near, 1);
    for round in 0..WRITES / BATCH {
        let qp = round % QPS;
        let newest = (0..BATCH).map(|i| near.post_write(qp, &far.key, i * 64, 64, i as u64)).last();
        short(&fabric, &mut near, qp, newest.expect("some"));
        assert_eq!(near.drain(), BATCH);
    }
    same(&near, &far, BATCH * 64);
    for _ in 0..PACKETS / (LONG / 4096) / 8 {
        let newest = (0..8).map(|i| near.post_write(0, &far.key, i * LONG, LONG, i as u64)).last();
        long(&fabric, &mut near, 0, newest.expect("some"));
        assert_eq!(near.drain(), 8);
    }
    same(&near, &far, 8 * LONG);
    (fabric, near)
}

/// Makes and checks what is counted.
fn counted() {
    writes(
        &CONNECTX_5_EN,
        &|fabric, near, qp, doorbell| measured_roce64(qp, fabric, near, doorbell),
        &|fabric, near, _, doorbell| measured_roce4k(near, fabric, doorbell),
    );
    let (fabric, mut near) = writes(&CONNECTX_5, &measured_write64, &|fabric, near, _, doorbell| {
        measured_packet4k(fabric, near, doorbell);
    });
    for doorbell in 0..DOORBELLS {
        measured_doorbell(&fabric, doorbell % QPS, &mut near);
    }
    let doorbells_beside = |idle: usize, measured: &dyn Fn(&RefCell<Fabric>, &mut Node, usize)| {
        let (fabric, [mut near, far]) = bed::pair(&CONNECTX_5, 1, LONG);
        fabric.borrow_mut().add_idle(idle);
        let newest = near.post_write(0, &far.key, 0, 64, 0);
        near.qps[0].ring(newest);
        fabric.borrow_mut().settle();
        assert_eq!(near.drain(), 1);
        (0..DOORBELLS).for_each(|doorbell| measured(&fabric, &mut near, doorbell));
    };
    doorbells_beside(2, &|fabric, near, qp| measured_beside2(near, fabric, qp));
    doorbells_beside(64, &|fabric, near, qp| measured_beside64(near, qp, fabric));
}

/// Bytes per second of one-way writes and of `memcpy` between the same buffers: the best of some turns each.
fn stream() -> (f64, f64) {
    const TURNS: usize = 64;
    const MESSAGES: usize = 256;
    let (fabric, [mut near, far]) = bed::pair(&CONNECTX_5, 1, BATCH * LONG);
    fill(&near, 2);
    let (mut writes, mut copies) = (f64::MIN, f64::MIN);
    let (mut from, mut to) = (vec![1u8; BATCH * LONG], vec![2u8; BATCH * LONG]);
    for turn in 0..TURNS {
        let began = Instant::now();
        let (mut posted, mut done) = (0, 0);
        while done < MESSAGES {
            while posted < MESSAGES && posted - done < BATCH {
                let doorbell = near.post_write(0, &far.key, posted % BATCH * LONG, LONG, posted as u64);
                posted += 1;
                if posted == MESSAGES || posted - done == BATCH {
                    near.qps[0].ring(doorbell);
                }
            }
            fabric.borrow_mut().settle();
            done += near.drain();
        }
        writes = writes.max((MESSAGES * LONG) as f64 / began.elapsed().as_secs_f64());
        from[turn] = turn as u8;
        let began = Instant::now();
        for message in 0..MESSAGES {
            let at = message % BATCH * LONG;
            to[at..at + LONG].copy_from_slice(std::hint::black_box(&from[at..at + LONG]));
            std::hint::black_box(&mut to);
        }
        copies = copies.max((MESSAGES * LONG) as f64 / began.elapsed().as_secs_f64());
    }
    same(&near, &far, BATCH * LONG);
    (writes, copies)
}

/// The part of `memcpy`'s speed that one-way writes have at least.
const LEAST_STREAM: f64 = 0.25;

fn measure() -> Result<(), String> {
    let counts = callgrind::count(CHILD, 0, "*measured_*")?;
    println!("instructions per operation:");
    let (mut items, mut missed) = (vec![], vec![]);
    let mut means = BTreeMap::new();
    for (function, name, operations, bar) in COUNTED {
        let count = counts.get(function).ok_or(format!("callgrind saw nothing of {name}"))?;
        let mean = *count as f64 / operations as f64;
        println!("{name:<24} {mean:>8.1}");
        items.push(format!("\"{name}\": {mean:.2}"));
        means.insert(name, mean);
        if let Some(bar) = bar.filter(|bar| mean > *bar) {
            missed.push(format!("{name} takes {mean:.1}, more than {bar}"));
        }
    }
    for (infiniband, roce) in INFINIBAND.into_iter().zip(ROCE) {
        let more = means[roce] / means[infiniband] - 1.0;
        println!("{roce}: {:+.2} % from InfiniBand to Ethernet", more * 100.0);
        if more > ROCE_COST {
            missed.push(format!("{roce} takes {:.1}, {infiniband} {:.1}", means[roce], means[infiniband]));
        }
    }
    let [few, many] = BESIDE.map(|name| means[name]);
    let more = many / few - 1.0;
    println!("model.doorbell: {:+.2} % from 2 to 64 idle HCAs", more * 100.0);
    if more.abs() > IDLE_COST {
        missed.push(format!("a doorbell takes {few:.1} beside 2 idle HCAs, and {many:.1} beside 64"));
    }
    let (writes, copies) = stream();
    let part = writes / copies;
    println!("model.stream: {:.0} MB/s, memcpy {:.0} MB/s: {part:.3} of it", writes / 1e6, copies / 1e6);
    items.push(format!("\"model.stream\": {part:.3}"));
    if part < LEAST_STREAM {
        missed.push(format!("one-way writes have {part:.3} of memcpy's speed, less than {LEAST_STREAM}"));
    }
    if let Some(path) = std::env::var_os(REPORT) {
        let text = format!("{{\"instructions\": {{{}}}}}\n", items.join(", "));
        std::fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    if missed.is_empty() { Ok(()) } else { Err(missed.join("; ")) }
}

fn main() -> ExitCode {
    if std::env::var_os(CHILD).is_some() {
        counted();
        return ExitCode::SUCCESS;
    }
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
