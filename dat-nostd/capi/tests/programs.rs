//! C programs, compiled as their users compile them, on emulated HCAs.

use capi_testing::{
    Compiler, Folder, Opcode, Request, Running, Suite, address, archive, compilers, has_valgrind, run,
    static_library,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const DAT: Suite = Suite { library: runner::install::DAT, here: HERE };

const PING: [&str; 1] = ["examples/dat_ping.c"];
const CALLS: [&str; 4] =
    ["tests/c/calls.c", "tests/c/objects.c", "tests/c/endpoints.c", "tests/c/connections.c"];

const EXTENSIONS: [&str; 1] = ["tests/c/extensions.c"];

/// Headers of DAT 1.2's functions, and of the extensions.
const STANDARD: [&str; 3] = ["dat.h", "udat.h", "dat_registry.h"];
const EXTENDED: [&str; 1] = ["dat_ib_extensions.h"];

/// Has a program of each compiler's.
fn each(name: &str, files: &[&str], test: impl Fn(&Folder, &Path, Compiler)) {
    let folder = Folder::new(&DAT, name);
    let library = folder.shared_library();
    for compiler in compilers() {
        let program = folder.path(&format!("{name}-{}", compiler.program));
        compiler.compile(&DAT, files, &library, &program);
        test(&folder, &program, compiler);
    }
}

#[test]
fn layouts_are_the_headers() {
    each("layout", &["tests/c/layout.c"], |_, program, _| drop(run(&mut Command::new(program))));
}

#[test]
fn all_calls_in_one_process() {
    each("calls", &CALLS, |folder, program, _| {
        let fabric = folder.hcas(2);
        run(Command::new(program).args(["both", &fabric.name(0), &fabric.name(1), &address(1)]));
    });
}

#[test]
fn all_calls_in_two_processes() {
    each("pair", &CALLS, |folder, program, _| {
        let fabric = folder.hcas(2);
        let mut passive = Running::start(program, &["passive", &fabric.name(0), &address(0)]);
        passive.line("ready");
        run(Command::new(program).args(["active", &fabric.name(1), &address(0)]));
        passive.finish();
    });
}

#[test]
fn the_example_pings() {
    each("ping", &PING, |folder, program, _| {
        let fabric = folder.hcas(2);
        let mut server = Running::start(program, &[&fabric.name(0)]);
        server.line("ready");
        let text = run(Command::new(program).args([&fabric.name(1), &address(0), "100"]));
        assert!(text.ends_with("100 messages and answers\n"), "{text}");
        assert!(server.finish().ends_with("100 messages answered\n"));
    });
}

#[test]
fn a_program_with_the_names_of_dat_2() {
    each("dat2", &["tests/c/dat2.c"], |folder, program, _| {
        let fabric = folder.hcas(1);
        run(Command::new(program).arg(fabric.name(0)));
    });
}

#[test]
fn extensions_work_between_two_processes() {
    each("extensions", &EXTENSIONS, |folder, program, _| {
        let fabric = folder.hcas(2);
        let mut passive = Running::start(program, &["passive", &fabric.name(0)]);
        passive.line("ready");
        run(Command::new(program).args(["active", &fabric.name(1), &address(0)]));
        passive.finish();
        assert!(fabric.is_empty(), "no object remains on the HCAs");
    });
}

#[test]
fn the_static_library_links() {
    let folder = Folder::new(&DAT, "static");
    let program = folder.path("ping");
    compilers()[0].compile(&DAT, &PING, &static_library(&DAT.library), &program);
    let fabric = folder.hcas(1);
    Running::start(&program, &[&fabric.name(0)]).line("ready");
}

#[test]
fn threads_share_ias_and_evds() {
    let folder = Folder::new(&DAT, "threads");
    let program = folder.path("threads");
    compilers()[0].compile(&DAT, &["tests/c/threads.c"], &folder.shared_library(), &program);
    let fabric = folder.hcas(2);
    let rounds = if runner::conditions::long() { "5000" } else { "100" };
    run(Command::new(program).args([&fabric.name(0), &fabric.name(1), &address(1)]).arg(rounds));
}

/// Takes half a minute on two processors, ten minutes with `--long`.
#[test]
fn helgrind_finds_no_race() {
    if !has_valgrind() {
        return;
    }
    let folder = Folder::new(&DAT, "races");
    let program = folder.path("threads");
    compilers()[0].compile(&DAT, &["tests/c/threads.c"], &folder.shared_library(), &program);
    let fabric = folder.hcas(2);
    let rounds = if runner::conditions::long() { "1000" } else { "40" };
    run(Command::new("valgrind")
        .args(["-q", "--tool=helgrind", "--error-exitcode=9"])
        .arg(format!("--suppressions={HERE}/tests/c/helgrind.supp"))
        .env("DAT_DBG_LOCK", "1")
        .arg(program)
        .args([&fabric.name(0), &fabric.name(1), &address(1), rounds]));
}

#[test]
fn waits_end_by_signals_and_by_what_goes() {
    each("interruptions", &["tests/c/interruptions.c"], |folder, program, _| {
        let fabric = folder.hcas(1);
        run(Command::new(program).arg(fabric.name(0)));
    });
}

#[test]
fn waits_sleep_on_the_device_and_agents_may_wait() {
    each("waits", &["tests/c/waits.c"], |folder, program, _| {
        let fabric = folder.hcas(2);
        run(Command::new(program).args([&fabric.name(0), &fabric.name(1), &address(1)]));
    });
}

#[test]
fn others_have_the_device_while_firmware_works_on_a_region() {
    let folder = Folder::new(&DAT, "registrations");
    let program = folder.path("registrations");
    compilers()[0].compile(&DAT, &["tests/c/registrations.c"], &folder.shared_library(), &program);
    let slow =
        [("create", Opcode::CREATE_MKEY), ("free", Opcode::DESTROY_MKEY), ("close", Opcode::CREATE_MKEY)];
    for (call, command) in slow {
        let fabric = folder.hcas(1);
        fabric.slow_down(0, command);
        run(Command::new(&program).args([&fabric.name(0), call]));
        assert!(fabric.is_empty(), "{call}: nothing is left on the HCA");
    }
}

#[test]
fn others_have_the_device_while_memory_is_pinned() {
    let folder = Folder::new(&DAT, "pins");
    let program = folder.path("registrations");
    compilers()[0].compile(&DAT, &["tests/c/registrations.c"], &folder.shared_library(), &program);
    let withheld =
        [("create", Request::Pin), ("free", Request::Unpin), ("close", Request::Pin), ("both", Request::Pin)];
    for (call, request) in withheld {
        let fabric = folder.hcas(1);
        if call == "both" {
            fabric.slow_down(0, Opcode::CREATE_MKEY);
        }
        let relay = fabric.relay(0, request);
        let pinning = folder.path(call);
        let mut running = Running::start(&program, &[&relay.name(0), call, &pinning.display().to_string()]);
        let release = relay.wait();
        std::fs::write(&pinning, "").expect("written");
        running.line("served");
        release();
        running.finish();
        assert!(fabric.is_empty(), "{call}: nothing is left on the HCA");
        assert!(relay.is_balanced(), "{call}: nothing stays pinned");
        std::fs::remove_file(folder.path("hca0.relay")).expect("removed");
    }
}

#[test]
fn cancelled_threads_leave_objects_usable() {
    each("cancellation", &["tests/c/cancellation.c"], |folder, program, _| {
        let fabric = folder.hcas(1);
        run(Command::new(program).arg(fabric.name(0)));
    });
}

#[test]
fn devices_come_and_go() {
    each("lives", &["tests/c/lives.c"], |folder, program, compiler| {
        let fabric = folder.hcas(1);
        let (often, lives) = match compiler.program {
            "gcc" if runner::conditions::long() => ("6", "1000"),
            "gcc" => ("6", "20"),
            _ => ("1", "2"),
        };
        run(Command::new(program).args([&fabric.name(0), often, lives]));
        assert!(fabric.is_empty(), "nothing is left on the HCA");
    });
}

#[test]
fn a_peer_hears_of_a_program_that_leaves() {
    let folder = Folder::new(&DAT, "leave");
    let program = folder.path("leave");
    compilers()[0].compile(&DAT, &["tests/c/leave.c"], &folder.shared_library(), &program);
    let fabric = folder.hcas(2);
    let mut server = Running::start(&program, &[&fabric.name(0)]);
    server.line("ready");
    run(Command::new(&program).args([&fabric.name(1), &address(0)]));
    server.finish();
}

#[test]
fn a_device_that_fails_ends_every_wait() {
    let folder = Folder::new(&DAT, "failure");
    let program = folder.path("failure");
    compilers()[0].compile(&DAT, &["tests/c/failure.c"], &folder.shared_library(), &program);
    let fabric = folder.hcas(1);
    let mut running = Running::start(&program, &[&fabric.name(0)]);
    running.line("waiting");
    fabric.kill(0);
    running.line("closed");
    fabric.revive(0);
    running.finish();
}

#[test]
fn calls_go_to_a_provider_of_the_programs_own() {
    each("provider", &["tests/c/provider.c"], |folder, program, _| {
        let fabric = folder.hcas(1);
        run(Command::new(program).arg(fabric.name(0)));
    });
}

#[test]
fn wrong_arguments_are_answered() {
    let folder = Folder::new(&DAT, "misuse");
    let program = folder.path("misuse");
    compilers()[0].compile(&DAT, &["tests/c/misuse.c"], &folder.shared_library(), &program);
    let fabric = folder.hcas(1);
    for seed in ["1", "2"] {
        run(Command::new(&program).args([&fabric.name(0), seed, "10000"]));
    }
}

#[test]
fn names_come_from_a_file() {
    let folder = Folder::new(&DAT, "names");
    let program = folder.path("calls");
    compilers()[0].compile(&DAT, &CALLS, &folder.shared_library(), &program);
    let fabric = folder.hcas(2);
    let line = |name, index| {
        let parameters = fabric.name(index).replace('@', " ");
        format!("{name} u1.2 nonthreadsafe default libdat.so.1 mlx5.1.2 \"{parameters} framing=dat\" \"\"\n")
    };
    let file = folder.path("dat.conf");
    std::fs::write(&file, line("ib0", 0) + &line("OpenIB-cma", 1)).expect("written");
    let words = ["both", "ib0", "OpenIB-cma", &address(1)];
    run(Command::new(program).args(words).env("DAT_OVERRIDE", file));
}

#[test]
fn nothing_leaks() {
    if !has_valgrind() {
        return;
    }
    let folder = Folder::new(&DAT, "leaks");
    let program = folder.path("calls");
    compilers()[0].compile(&DAT, &CALLS, &folder.shared_library(), &program);
    let fabric = folder.hcas(2);
    run(Command::new("valgrind")
        .args(["-q", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect", "--error-exitcode=9"])
        // What the HCA writes Valgrind does not see.
        .arg("--undef-value-errors=no")
        .arg(program)
        .args(["both", &fabric.name(0), &fabric.name(1), &address(1)]));
}

#[test]
fn an_installation_is_whole() {
    let folder = Folder::new(&DAT, "install");
    let prefix = folder.path("prefix");
    runner::install::install_built(&DAT.library, &archive(&DAT.library), Path::new(HERE), &prefix)
        .expect("installed");
    let page = |name: &String| !prefix.join("share/man/man3").join(format!("{name}.3")).is_file();
    let missing: Vec<_> =
        [declared(&STANDARD), declared(&EXTENDED)].concat().into_iter().filter(page).collect();
    assert_eq!(missing, Vec::<String>::new());
    let text = std::fs::read_to_string(prefix.join("lib/pkgconfig/dat.pc")).expect("readable");
    assert!(text.contains(&format!("prefix={}\n", prefix.display())), "{text}");
    let program = folder.path("ping");
    let library = prefix.join("lib").display().to_string();
    run(Command::new(compilers()[0].program)
        .arg(Path::new(HERE).join(PING[0]))
        .args(["-I", &prefix.join("include").display().to_string(), "-L", &library, "-ldat"])
        .arg(format!("-Wl,-rpath,{library}"))
        .arg("-o")
        .arg(&program));
    let fabric = folder.hcas(1);
    Running::start(&program, &[&fabric.name(0)]).line("ready");
}

/// Functions that these headers declare.
fn declared(headers: &[&str]) -> Vec<String> {
    let text: String = headers
        .iter()
        .map(|name| {
            std::fs::read_to_string(Path::new(HERE).join("include/dat").join(name)).expect("readable")
        })
        .collect();
    let names = text.lines().filter_map(|line| line.strip_prefix("DAT_RETURN dat_")?.split('(').next());
    names.map(|name| format!("dat_{name}")).collect()
}

#[test]
fn the_library_exports_what_the_headers_declare() {
    let folder = Folder::new(&DAT, "exports");
    folder.shared_library();
    let text = run(Command::new("nm").args(["-D", "--defined-only"]).arg(folder.path("libdat.so.1")));
    let names = text.lines().filter_map(|line| line.split_whitespace().nth(2));
    let exported: BTreeSet<&str> = names.filter_map(|name| name.strip_suffix("@@DAT_1.2")).collect();
    let (standard, extended) = (declared(&STANDARD), declared(&EXTENDED));
    assert_eq!((standard.len(), extended.len()), (72, 9));
    let wanted = [standard, extended, vec!["dats_handle_to_provider".into()]].concat();
    assert_eq!(exported, wanted.iter().map(String::as_str).collect());
}

#[test]
fn the_tests_call_every_function() {
    let calls: Vec<&str> = CALLS.into_iter().chain(["tests/c/check.h"]).collect();
    let called = [
        (&calls[..], &STANDARD[..]),
        (&EXTENSIONS, &EXTENDED),
        (&["tests/c/misuse.c"], &STANDARD),
        (&["tests/c/misuse.c"], &EXTENDED),
    ];
    for (files, headers) in called {
        let read = |file: &&str| std::fs::read_to_string(Path::new(HERE).join(file)).expect("readable");
        let text: String = files.iter().map(read).collect();
        let is_called = |name: &String| text.contains(&format!("{name}("));
        let missing: Vec<_> = declared(headers).into_iter().filter(|name| !is_called(name)).collect();
        assert_eq!(missing, Vec::<String>::new(), "{files:?}");
    }
}
