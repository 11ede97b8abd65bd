//! C programs, compiled as their users compile them, on emulated HCAs.

use capi_testing::{Compiler, Folder, Running, Suite, address, compilers, run};
use std::path::Path;
use std::process::Command;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const RDS: Suite = Suite { library: runner::install::RDS, here: HERE };

/// A program of the kernel's AF_RDS, unchanged, but for the header that the compiler is given first.
const UNCHANGED: [&str; 2] = ["-include", "rds/sockets.h"];
const MESSAGES: &str = "../../tests/guest/rds.c";
const RDMA: &str = "../../tests/guest/rds_rdma.c";

/// A program, on the HCA of this name.
fn on(name: &str, program: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.env("RDS_DEVICE", name).args(words);
    command
}

/// Two programs on two HCAs: the first is a server, which says so.
fn pair(name: &str, source: &str, server: (&[&str], &str), client: &[&str], check: impl Fn(&str)) {
    let folder = Folder::new(&RDS, name);
    let program = folder.path(name);
    let c: Compiler = compilers()[0];
    c.compile_with(&RDS, &UNCHANGED, &[source], &folder.shared_library(), &program);
    let fabric = folder.hcas(2);
    let mut served = Running::spawn(on(&fabric.name(0), &program, server.0));
    served.line(server.1);
    check(&run(&mut on(&fabric.name(1), &program, client)));
}

#[test]
fn a_program_of_linux_pings() {
    let (near, far) = (address(1), address(0));
    pair(
        "ping",
        MESSAGES,
        (&["echo", &far], "@rds listening port=4000"),
        &["ping", &near, &far, "100", "1"],
        |text| {
            assert!(text.contains("received=100"), "{text}");
        },
    );
}

#[test]
fn a_program_of_linux_sends_messages_of_all_sizes() {
    let (near, far) = (address(1), address(0));
    let words = ["4000", "7"];
    let receive = ["receive", &far, &near, words[0], words[1]];
    pair(
        "messages",
        MESSAGES,
        (&receive, "@rds listening port=4100"),
        &["send", &near, &far, words[0], words[1]],
        |text| {
            assert!(text.contains("messages=4000"), "{text}");
        },
    );
}

#[test]
fn a_program_of_linux_does_rdma_by_cookie() {
    let (near, far) = (address(1), address(0));
    pair("rdma", RDMA, (&["server", &far], "@rds server"), &["rdma", &near, &far, "1"], |text| {
        // Regions are exactly what was offered, to which the server's whole pages add nothing that fails. A failure that nobody asked for
        // is told as what it is.
        assert!(text.contains("@rdma done=390 ") && text.contains("failed=8 unasked=1\n"), "{text}");
    });
}

#[test]
fn a_program_of_linux_hears_of_congestion() {
    let (near, far) = (address(1), address(0));
    pair("congestion", RDMA, (&["server", &far], "@rds server"), &["congestion", &near, &far, "5"], |text| {
        assert!(text.contains("@congestion times=5 ") && text.contains("updates=10\n"), "{text}");
    });
}

/// What makes a compiler see the structures of either system.
const SYSTEMS: [&[&str]; 2] = [&[], &["-DRDS_SOLARIS"]];

#[test]
fn layouts_are_each_systems() {
    let folder = Folder::new(&RDS, "layout");
    let library = folder.shared_library();
    for compiler in compilers() {
        for options in SYSTEMS {
            let program = folder.path("layout");
            compiler.compile_with(&RDS, options, &["tests/c/layout.c"], &library, &program);
            run(&mut Command::new(program));
        }
    }
}

#[test]
fn two_processes_in_each_systems_layout() {
    let folder = Folder::new(&RDS, "exchange");
    let library = folder.shared_library();
    for compiler in compilers() {
        for options in SYSTEMS {
            let program = folder.path("exchange");
            compiler.compile_with(&RDS, options, &["tests/c/exchange.c"], &library, &program);
            let fabric = folder.hcas(2);
            let mut server = Running::spawn(on(&fabric.name(0), &program, &[&address(0)]));
            server.line("ready");
            run(&mut on(&fabric.name(1), &program, &[&address(1), &address(0)]));
            server.finish();
        }
    }
}
