//! `app=fault kind=...`: raises one fault, whose report ends the machine. For tests of the reports.

use core::fmt;

use unikernel::ExitCode;

use unikernel::fault as raise;
use unikernel::println;

use crate::cmdline::Options;

const KINDS: [(&str, fn()); 16] = [
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

pub fn run(options: &Options<'_>) -> ExitCode {
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
