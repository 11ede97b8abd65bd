//! `app=fault kind=...`: raises one fault, whose report ends the machine. For tests of the reports.

use core::fmt;

use unikernel::ExitCode;

use unikernel::fault as raise;
use unikernel::{Machine, println};

use crate::cmdline::Options;

const KINDS: [(&str, fn()); 17] = [
    ("divide", raise::divide),
    ("debug", raise::debug),
    ("nmi", raise::nmi),
    ("breakpoint", raise::breakpoint),
    ("opcode", raise::opcode),
    ("device", raise::device),
    ("double", raise::double),
    ("protection", raise::general_protection),
    ("page-read", raise::page_read),
    ("page-write", raise::page_write),
    ("rodata", raise::rodata),
    ("execute", raise::execute),
    ("stack", || {
        core::hint::black_box(raise::stack_overflow(0));
    }),
    ("print", || println!("before {}", Bomb)),
    ("wait", || {
        println!("fault: waiting for one from outside");
        loop {
            core::hint::spin_loop();
        }
    }),
    ("panic", || panic!("asked for by kind=panic")),
    ("index", || {
        let index = core::hint::black_box(3);
        core::hint::black_box([0; 3][index]);
    }),
];

/// Panics while the console is locked.
struct Bomb;

impl fmt::Display for Bomb {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("while printing")
    }
}

pub fn run(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    // With HCAs in the machine the first one masters the bus when the fault comes.
    if machine.hcas().next().is_some() {
        match machine.open_hca(0, 1) {
            Ok(hardware) => println!(
                "fault: HCA masters the bus: {}",
                hardware.function().masters_bus(machine.config_space())
            ),
            Err(error) => println!("fault: {error}"),
        }
    }
    let wanted = options.kind.unwrap_or("");
    let Some((_, fault)) = KINDS.iter().find(|(name, _)| *name == wanted) else {
        unikernel::console::print(format_args!("error: command line: kind={wanted} is not one of"));
        for (name, _) in KINDS {
            unikernel::console::print(format_args!(" {name}"));
        }
        println!();
        return ExitCode::Usage;
    };
    fault();
    println!("error: kind={wanted} came back without a fault");
    ExitCode::Failed
}
