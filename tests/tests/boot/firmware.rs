//! Firmware in C: the example, compiled and linked without libc, booted, and its peer.

use crate::ground::{LIMIT, ground, serve, skip};
use hca_model::Profile;
use rdma_lab::process::Temporary;
use rdma_lab::qemu::Output;
use rdma_lab::unikernel::{self, Options, Verdict};
use runner::conditions;
use runner::install::{FIRMWARE_FOLDER, coff_firmware_library, firmware_library};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

/// Runs a tool; its output.
fn tool(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The example's image: a compiler, which has no headers but its own, and `ld`.
fn build(compiler: &str, library: &Path, folder: &Path) -> PathBuf {
    let example = project().join(FIRMWARE_FOLDER).join("examples");
    // gcc and clang name the folder of their headers differently.
    let own = match compiler {
        "gcc" => tool(Command::new("gcc").arg("-print-file-name=include")),
        _ => tool(Command::new(compiler).arg("-print-resource-dir")).trim().to_owned() + "/include",
    };
    let object = |name: &str| {
        let object = folder.join(name).with_extension("o");
        let mut command = Command::new(compiler);
        command.args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2", "-nostdinc"]);
        command.args(["-ffreestanding", "-fno-pic", "-mno-red-zone", "-mgeneral-regs-only"]);
        command.args(["-isystem", own.trim()]);
        for package in [FIRMWARE_FOLDER, "rds-nostd/capi", "dat-nostd/capi"] {
            command.arg("-I").arg(project().join(package).join("include"));
        }
        tool(command.arg("-c").arg(example.join(name)).arg("-o").arg(&object));
        object
    };
    let image = folder.join(format!("ping-{compiler}"));
    tool(
        Command::new("ld")
            .args(["-static", "--gc-sections", "-T"])
            .arg(example.join("image.ld"))
            .arg("-o")
            .arg(&image)
            .args([object("start.S"), object("ping.c")])
            .arg(library),
    );
    image
}

#[test]
fn firmware_library_is_position_independent() {
    let library = firmware_library().expect("the library builds");
    let text = tool(Command::new("readelf").args(["--relocs", "--wide"]).arg(library));
    // Addresses of 32 bits, relative to nothing: an image that is loaded elsewhere cannot have them, and EDK2's GenFw refuses them.
    // Debug information has offsets of this kind.
    let (mut in_debug, mut absolute, mut relative) = (false, Vec::new(), 0);
    for line in text.lines() {
        if line.starts_with("Relocation section") {
            in_debug = line.contains(".debug_");
        } else if !in_debug {
            relative += u32::from(line.contains(" R_X86_64_PC32"));
            absolute.extend(Some(line).filter(|line| line.contains(" R_X86_64_32")));
        }
    }
    assert!(relative > 100, "relocations are listed");
    assert!(absolute.is_empty(), "{} absolute relocations: {:?}", absolute.len(), absolute.first());
}

#[test]
fn firmware_library_for_uefi_has_no_std() {
    let library = std::fs::read(coff_firmware_library().expect("the library builds")).expect("the library");
    let names = |text: &str| library.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(names("dat_ia_openv") && names("library/core/src"), "calls, and the places of panics");
    assert!(!names("library/std/src"), "a prebuilt std exists for UEFI targets");
}

#[test]
fn firmware_in_c_pings_an_rds_peer() {
    let Some(ground) = ground() else { return skip() };
    let source = std::fs::read_to_string(project().join(FIRMWARE_FOLDER).join("examples/ping.c"));
    assert!(source.expect("the example").lines().count() <= 200);
    let library = firmware_library().expect("the library builds");
    let folder = Temporary::folder("firmware").expect("a folder");
    let fabric = serve(vec![Profile::node(0), Profile::node(1)]);
    let options = |words: &str, node: usize| Options {
        hcas: vec![fabric.sockets[node].clone()],
        ..Options::new(words)
    };
    let words = options("app=rds mode=echo ip=10.0.0.1", 0);
    let mut peer = unikernel::start(&ground.qemu, &ground.image, &words).expect("QEMU starts");
    let deadline = Instant::now() + LIMIT;
    while !matches!(peer.next_line(deadline).expect("in time"),
        Some(Output::Console(line)) if line.starts_with("@rds listening"))
    {}
    for compiler in ["gcc", "clang"] {
        let there = Command::new(compiler).arg("--version").stdout(Stdio::null()).status().is_ok();
        if !there && !conditions::required() {
            conditions::skip(&format!("{compiler} is missing"));
            continue;
        }
        let image = build(compiler, &library, folder.path());
        let symbols = tool(Command::new("nm").arg(&image));
        assert!(!symbols.contains("__rust_alloc"), "it needs no heap");
        let ran = unikernel::boot(&ground.qemu, &image, &options("", 1), LIMIT, |_| {}).expect("QEMU starts");
        let text = ran.console.join("\n");
        assert_eq!(ran.verdict, Some(Verdict::Success), "{text}");
        // It opens the HCA twice.
        let answered = ran.console.iter().filter(|line| *line == "pings answered, every byte right");
        assert_eq!(answered.count(), 2, "{text}");
        // What it opened it has closed.
        let census = fabric.served.census().expect("the devices' thread runs");
        assert_eq!(census[1], hca_model::Census::default(), "objects are left");
    }
    peer.kill(None).expect("it is killed");
    // Without an HCA it says so.
    let image = build("gcc", &library, folder.path());
    let alone = unikernel::boot(&ground.qemu, &image, &Options::new(""), LIMIT, |_| {}).expect("QEMU starts");
    assert_eq!(alone.verdict, Some(Verdict::NoDevice));
}
