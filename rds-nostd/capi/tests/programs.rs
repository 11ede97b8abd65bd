//! C programs, compiled as their users compile them, on emulated HCAs.

use capi_testing::{Compiler, Folder, Running, Suite, address, archive, compilers, run};
use runner::install::install_built;
use std::path::Path;
use std::process::Command;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const RDS: Suite = Suite { library: runner::install::RDS, here: HERE };

/// An AF_RDS program of the kernel, unchanged except for a header that the compiler includes first.
const UNCHANGED: [&str; 2] = ["-include", "rds/sockets.h"];
const MESSAGES: &str = "../../tests/guest/rds.c";
const RDMA: &str = "../../tests/guest/rds_rdma.c";

/// Returns a command that runs a program on the HCA with this name.
fn on(name: &str, program: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.env("RDS_DEVICE", name).args(words);
    command
}

/// Runs two programs on two HCAs. The first is a server and prints when it is ready.
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
        // Regions are exactly the offered bytes, and adding the server's whole pages fails nothing.
        // A failure without a request for notification is reported as a failure.
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

#[test]
fn what_a_program_sent_arrives_though_it_leaves() {
    let folder = Folder::new(&RDS, "leave");
    let program = folder.path("leave");
    compilers()[0].compile_with(&RDS, &[], &["tests/c/leave.c"], &folder.shared_library(), &program);
    for count in ["2", "5", "64"] {
        let fabric = folder.hcas(2);
        let mut server = Running::spawn(on(&fabric.name(0), &program, &[&address(0), count]));
        server.line("ready");
        run(&mut on(&fabric.name(1), &program, &[&address(1), count, &address(0)]));
        server.finish();
    }
}

#[test]
fn one_process_has_sockets_on_two_hcas() {
    let folder = Folder::new(&RDS, "hcas");
    let library = folder.shared_library();
    for options in SYSTEMS {
        let program = folder.path("hcas");
        compilers()[0].compile_with(&RDS, options, &["tests/c/hcas.c"], &library, &program);
        let fabric = folder.hcas(2);
        let names = format!("{},{}", fabric.name(0), fabric.name(1));
        run(&mut on(&names, &program, &[&address(0), &address(1)]));
    }
}

#[test]
fn threads_of_a_process_do_not_hinder_each_other() {
    let folder = Folder::new(&RDS, "threads");
    let program = folder.path("threads");
    compilers()[0].compile_with(&RDS, &[], &["tests/c/threads.c"], &folder.shared_library(), &program);
    let fabric = folder.hcas(2);
    let silent = folder.path("silent").display().to_string();
    let names = format!("{},{},{silent}@10.0.0.99", fabric.name(0), fabric.name(1));
    run(&mut on(&names, &program, &[&address(0), &address(1), &silent]));
}

#[test]
fn cancelled_threads_leave_sockets_usable() {
    let folder = Folder::new(&RDS, "cancellation");
    let program = folder.path("cancellation");
    let source = ["tests/c/cancellation.c"];
    compilers()[0].compile_with(&RDS, &[], &source, &folder.shared_library(), &program);
    let fabric = folder.hcas(1);
    run(&mut on(&fabric.name(0), &program, &[&address(0), "10.0.0.77"]));
}

#[test]
fn what_does_not_come_up_leaves_no_memory_behind() {
    let folder = Folder::new(&RDS, "refused");
    let program = folder.path("threads");
    compilers()[0].compile_with(&RDS, &[], &["tests/c/threads.c"], &folder.shared_library(), &program);
    let nobody = format!("{}@10.0.0.1", folder.path("nobody").display());
    run(&mut on(&nobody, &program, &["refused"]));
}

#[test]
fn an_hca_that_fails_and_comes_back_interrupts_nobody() {
    let folder = Folder::new(&RDS, "recovered");
    let program = folder.path("failure");
    compilers()[0].compile_with(&RDS, &[], &["tests/c/failure.c"], &folder.shared_library(), &program);
    let fabric = folder.hcas(2);
    let file = folder.path("go");
    let words = ["echo", &address(0), &file.display().to_string()];
    let mut echo = Running::spawn(on(&fabric.name(0), &program, &words));
    echo.line("ready");
    let words = ["recovered", &address(1), &address(0)];
    let mut recovered = Running::spawn(on(&fabric.name(1), &program, &words));
    recovered.line("begun");
    fabric.kill(1);
    recovered.line("failed");
    fabric.revive(1);
    std::fs::write(file, "").expect("written");
    recovered.finish();
    echo.finish();
}

#[test]
fn an_hca_that_is_gone_for_good_ends_every_call() {
    let folder = Folder::new(&RDS, "gone");
    let program = folder.path("failure");
    compilers()[0].compile_with(&RDS, &[], &["tests/c/failure.c"], &folder.shared_library(), &program);
    let fabric = folder.hcas(1);
    let mut gone = Running::spawn(on(&fabric.name(0), &program, &["gone", &address(0)]));
    gone.line("begun");
    drop(fabric);
    gone.finish();
}

#[test]
fn an_hca_that_is_gone_for_good_is_passed_over_for_another() {
    let (folder, other) = (Folder::new(&RDS, "passed"), Folder::new(&RDS, "other"));
    let program = folder.path("failure");
    compilers()[0].compile_with(&RDS, &[], &["tests/c/failure.c"], &folder.shared_library(), &program);
    let (fabric, stays) = (folder.hcas(1), other.hcas(3));
    // The replacements are on a fabric of their own. Its first HCA has the address of the lost one
    // and is not used; another never opens.
    let silent = other.path("silent").display().to_string();
    let names = format!("{},{silent}@10.0.0.99,{},{}", fabric.name(0), stays.name(1), stays.name(2));
    let words = ["passed", &address(0), &address(1), &address(2)];
    let mut passed = Running::spawn(on(&names, &program, &words));
    passed.line("begun");
    drop(fabric);
    passed.finish();
}

#[test]
fn a_program_of_linux_has_other_descriptors_beside() {
    let folder = Folder::new(&RDS, "beside");
    let library = folder.shared_library();
    for compiler in compilers() {
        let program = folder.path("beside");
        compiler.compile_with(&RDS, &UNCHANGED, &["tests/c/beside.c"], &library, &program);
        let fabric = folder.hcas(1);
        let file = folder.path("file").display().to_string();
        run(&mut on(&fabric.name(0), &program, &[&address(0), &file]));
    }
}

#[test]
fn a_program_in_cpp_has_streams_beside() {
    let folder = Folder::new(&RDS, "streams");
    let library = folder.shared_library();
    for compiler in compilers().into_iter().filter(|compiler| compiler.program.ends_with("++")) {
        for options in [&["-O0"][..], &["-O2", "-D_FORTIFY_SOURCE=2"]] {
            let options = [&UNCHANGED[..], options].concat();
            let program = folder.path("streams");
            compiler.compile_with(&RDS, &options, &["tests/c/streams.cc"], &library, &program);
            let fabric = folder.hcas(1);
            let file = folder.path("file").display().to_string();
            run(&mut on(&fabric.name(0), &program, &[&address(0), &file]));
        }
    }
}

/// [`UNCHANGED`], and all that the C library declares.
const UNCHANGED_GNU: [&str; 3] = ["-include", "rds/sockets.h", "-D_GNU_SOURCE"];

#[test]
fn numbers_that_the_library_does_not_have_any_more_are_left_alone() {
    let folder = Folder::new(&RDS, "numbers");
    let library = folder.shared_library();
    for compiler in compilers() {
        let program = folder.path("numbers");
        let options = if compiler.program.ends_with("++") { &UNCHANGED[..] } else { &UNCHANGED_GNU };
        compiler.compile_with(&RDS, options, &["tests/c/numbers.c"], &library, &program);
        let fabric = folder.hcas(2);
        let names = format!("{},{}", fabric.name(0), fabric.name(1));
        let file = folder.path("file").display().to_string();
        run(&mut on(&names, &program, &[&address(0), &address(1), &file]));
    }
}

#[test]
fn options_requests_and_what_they_refuse() {
    let folder = Folder::new(&RDS, "options");
    let library = folder.shared_library();
    for compiler in compilers() {
        for options in SYSTEMS {
            let program = folder.path("options");
            compiler.compile_with(&RDS, options, &["tests/c/options.c"], &library, &program);
            let fabric = folder.hcas(2);
            let names = format!("{},{}", fabric.name(0), fabric.name(1));
            run(&mut on(&names, &program, &[&address(0), &address(1)]));
        }
    }
}

/// Returns the functions that a header declares with this prefix.
fn declared(header: &str, prefix: &str) -> Vec<String> {
    let text = std::fs::read_to_string(Path::new(HERE).join(header)).expect("readable");
    let name = |line: &str| {
        let (kind, rest) = line.split_once(' ')?;
        let name = rest.split('(').next().filter(|name| name.starts_with(prefix))?;
        matches!(kind, "int" | "ssize_t" | "uint64_t").then(|| name.to_owned())
    };
    text.lines().filter_map(name).collect()
}

#[test]
fn the_library_exports_what_its_header_declares_and_every_function_has_a_manual_page() {
    let folder = Folder::new(&RDS, "exports");
    let prefix = folder.path("installed");
    install_built(&RDS.library, &archive(&RDS.library), Path::new(HERE), &prefix).expect("installed");
    let text = run(Command::new("nm").args(["-D", "--defined-only"]).arg(prefix.join("lib/librds.so.1")));
    let names = text.lines().filter_map(|line| line.split_whitespace().nth(2));
    let mut exported: Vec<_> = names.filter_map(|name| name.strip_suffix("@@RDS_1.0")).collect();
    exported.sort_unstable();
    let mut wanted = declared("include/rds/rds.h", "rds_");
    wanted.sort_unstable();
    assert_eq!((exported, wanted.len()), (wanted.iter().map(String::as_str).collect(), 19));
    let has_page = |folder: &Path, name: &String| folder.join(format!("{name}.3")).is_file();
    let missing: Vec<_> =
        wanted.iter().filter(|name| !has_page(&prefix.join("share/man/man3"), name)).collect();
    assert_eq!(missing, Vec::<&String>::new());
    let firmware = declared("firmware/include/mlx/firmware.h", "mlx_");
    assert_eq!(firmware.len(), 3);
    assert!(firmware.iter().all(|name| has_page(&Path::new(HERE).join("firmware/man/man3"), name)));
}

/// Compiler flags that select the structures of either system.
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
fn layouts_are_the_same_without_a_system() {
    for compiler in ["gcc", "g++", "clang", "clang++"] {
        if !compilers().iter().any(|there| there.program == compiler) {
            continue;
        }
        let language: &[&str] = if compiler.ends_with("++") { &["-x", "c++"] } else { &["-std=c99"] };
        run(Command::new(compiler)
            .args(["-fsyntax-only", "-ffreestanding", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .args(language)
            .args(
                ["include", "firmware/include", "../../dat-nostd/capi/include"]
                    .map(|folder| format!("-I{}", Path::new(HERE).join(folder).display())),
            )
            .arg(Path::new(HERE).join("tests/c/freestanding.c")));
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
            for shared in [false, true] {
                let fabric = folder.hcas(2);
                let mut server = Running::spawn(on(&fabric.name(0), &program, &[&address(0)]));
                server.line("ready");
                let mut client = on(&fabric.name(1), &program, &[&address(1), &address(0)]);
                client.envs(shared.then_some(("RDS_SHARED_KEYS", "1")));
                run(&mut client);
                server.finish();
            }
        }
    }
}
