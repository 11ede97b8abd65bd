//! The main function of an image that wants `alloc` and random numbers: what a heap is for, its end, and what comes after it.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::hint::black_box;

use unikernel::{ExitCode, Machine, heap, println};

unikernel::entry!(main);

const BYTES: u64 = 4 << 20;

fn main(machine: &mut Machine) -> ExitCode {
    for round in 0..2 {
        if let Err(error) = heap::give(machine, BYTES) {
            println!("round {round}: {error}");
        }
    }
    for _ in 0..2 {
        println!("@random {}", getrandom::u64().expect("the processor has RDRAND"));
    }
    let before = heap::usage();
    for round in 0..100u8 {
        // A quarter of the heap: it comes back.
        let block = vec![round; 1 << 20];
        let names: BTreeMap<u32, String> = (0..500).map(|n| (n, format!("name {n}"))).collect();
        let sum: usize = names.values().map(String::len).sum();
        assert!(block.iter().all(|byte| *byte == round) && sum == 10 * 6 + 90 * 7 + 400 * 8);
    }
    println!("@heap used={} of={} before={}", heap::usage().0, heap::usage().1, before.0);
    let held: Vec<Vec<u8>> = (0..3).map(|_| black_box(Vec::with_capacity(1 << 20))).collect();
    println!("{} blocks held", black_box(&held).len());
    // Does not fit any more.
    let more: Vec<u8> = black_box(Vec::with_capacity(2 << 20));
    println!("{} bytes more", more.capacity());
    ExitCode::Failed
}
