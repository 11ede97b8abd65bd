//! What a boot leaves in memory for the next one, over resets of the machine.

use crate::ground::{Ground, LIMIT, ground, skip};
use crate::machines::{disk, ovmf};
use rdma_lab::process::Temporary;
use rdma_lab::qemu::Output;
use rdma_lab::unikernel::{self, Options};
use std::time::Instant;

/// What panics and resets the machine.
const WORDS: &str = "app=fault kind=panic panic=reset";

/// Boots an image that panics and resets the machine, until it panics for the `count`th time; its lines.
fn panics(ground: &Ground, options: Options, count: usize) -> Vec<String> {
    let options = Options {
        // Else the machine would end there; and QEMU, which is told elsewhere that no reset is wanted.
        exit_device: false,
        more: vec!["-action".into(), "reboot=reset".into()],
        ..options
    };
    let mut running = unikernel::start(&ground.qemu, &ground.image, &options).expect("QEMU starts");
    let deadline = Instant::now() + LIMIT;
    let (mut lines, mut seen) = (Vec::new(), 0);
    while seen < count {
        match running.next_line(deadline) {
            Ok(Some(Output::Console(line))) => {
                seen += usize::from(line.starts_with(PANIC));
                lines.push(line);
            }
            Ok(Some(Output::Qemu(line))) => lines.push(line),
            Ok(None) => panic!("it ended:\n{}", lines.join("\n")),
            Err(error) => panic!("{error}:\n{}", lines.join("\n")),
        }
    }
    running.kill(None).expect("it ran");
    lines
}

const PANIC: &str = "error: kernel 0.1.0: panic at ";

#[test]
fn the_report_of_a_panic_is_there_after_the_reset_that_follows_it() {
    let Some(ground) = ground() else { return skip() };
    assert_logs(&panics(ground, Options::new(WORDS), 3));
}

#[test]
fn under_uefi_it_is_there_too() {
    let Some(ground) = ground() else { return skip() };
    let folder = Temporary::folder("uefi-log").expect("a folder");
    let Some(disk) = disk(ground, folder.path(), WORDS) else { return };
    let Some(firmware) = ovmf() else { return };
    assert_logs(&panics(
        ground,
        Options { disk: Some(disk), firmware: Some(firmware), ..Options::new("") },
        3,
    ));
}

/// Of three boots.
fn assert_logs(lines: &[String]) {
    let logs: Vec<usize> =
        (0..lines.len()).filter(|at| lines[*at].starts_with("log of the previous boot (0 bytes")).collect();
    assert_eq!(logs.len(), 2, "not before the first boot, and after each panic: {lines:#?}");
    for at in logs {
        let log: Vec<&String> = lines[at + 1..].iter().take_while(|line| line.starts_with("| ")).collect();
        let reports = log.iter().filter(|line| line.starts_with(&format!("| {PANIC}"))).count();
        // Of that boot alone: what it told of the one before is not in its own log.
        assert_eq!(reports, 1, "{lines:#?}");
        assert!(log.iter().any(|line| line.contains("DMA: bus mastering is off")), "{lines:#?}");
    }
}

#[test]
fn a_machine_that_keeps_no_log_says_nothing_of_the_boot_before() {
    let Some(ground) = ground() else { return skip() };
    let lines = panics(ground, Options::new(&format!("{WORDS} log=off")), 2);
    assert!(!lines.iter().any(|line| line.contains("previous boot") || line.starts_with('|')), "{lines:#?}");
}
