//! An application of somebody else's: the template, copied out of the project, built there and booted as an image of its own.

use crate::ground::{Fabric, LIMIT, ground, serve, skip};
use hca_model::Profile;
use hca_model::card::{CONNECTX_5, CONNECTX_5_EN};
use rdma_lab::process::Temporary;
use rdma_lab::qemu::Output;
use rdma_lab::unikernel::{self, Options, Running, Verdict};
use runner::kernel_image::TARGET;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

/// Copies the template to `folder`, with the paths of its dependencies leading back here, and builds it there; as an application of that
/// name, with `main` in place of its own source and other features of the unikernel, where those are given.
fn build_in(folder: &Path, other: Option<(&str, &Path, &str)>) -> PathBuf {
    let project = project();
    let template = project.join("kernel/template");
    for name in ["src", ".cargo"] {
        std::fs::create_dir(folder.join(name)).expect("a folder");
    }
    for file in ["src/main.rs", ".cargo/config.toml", "build.rs"] {
        std::fs::copy(template.join(file), folder.join(file)).expect("copied");
    }
    let manifest = std::fs::read_to_string(template.join("Cargo.toml")).expect("the manifest");
    let (kernel, rds) = (project.join("kernel"), project.join("rds-nostd"));
    let moved = manifest
        .replace("path = \"..\"", &format!("path = {kernel:?}"))
        .replace("path = \"../../rds-nostd\"", &format!("path = {rds:?}"));
    let (name, moved) = match other {
        None => ("rds-echo", moved),
        Some((name, main, features)) => {
            std::fs::copy(main, folder.join("src/main.rs")).expect("copied");
            let moved = moved.replace("features = [\"rds\"]", &format!("features = {features}"));
            let moved = moved.replace("[dependencies]\n", "[dependencies]\ngetrandom = \"0.4\"\n");
            (name, moved.replace("name = \"rds-echo\"", &format!("name = {name:?}")))
        }
    };
    assert!(!moved.contains("\"..") && moved.contains("[workspace]"), "every path is known here: {manifest}");
    std::fs::write(folder.join("Cargo.toml"), moved).expect("written");
    // The versions that the project knows.
    std::fs::copy(project.join("Cargo.lock"), folder.join("Cargo.lock")).expect("copied");
    // Panics name their files. The image's size must not depend on where these lie.
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))).expect("Cargo's folder");
    let registries = std::fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
    let places = registries.map(|registry| registry.path()).chain([project.clone()]);
    let flags: Vec<String> =
        places.map(|place| format!("\"--remap-path-prefix={}=.\"", place.display())).collect();
    let remap = format!("target.{TARGET}.rustflags=[{}]", flags.join(", "));
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--config", &remap])
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", project.join("target/template"))
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo starts");
    assert!(built.status.success(), "it builds:\n{}", String::from_utf8_lossy(&built.stderr));
    project.join("target/template").join(TARGET).join("release").join(name)
}

/// Lines until one begins with `prefix`.
fn expect(running: &mut Running, deadline: Instant, prefix: &str) -> String {
    let mut console = Vec::new();
    loop {
        match running.next_line(deadline) {
            Ok(Some(Output::Console(line))) if line.starts_with(prefix) => return line,
            Ok(Some(Output::Console(line) | Output::Qemu(line))) => console.push(line),
            Ok(None) => panic!("it ended without {prefix:?}:\n{}", console.join("\n")),
            Err(error) => panic!("no {prefix:?}: {error}:\n{}", console.join("\n")),
        }
    }
}

#[test]
fn a_copy_of_the_template_elsewhere_echoes_every_byte() {
    let Some(ground) = ground() else { return skip() };
    let folder = Temporary::folder("template").expect("a folder");
    let template = build_in(folder.path(), None);
    let lines = std::fs::read_to_string(project().join("kernel/template/src/main.rs")).expect("the source");
    assert!(lines.lines().count() <= 35, "a newcomer reads it at a glance");
    assert!(!has_allocator(&template) && !has_allocator(&ground.image), "nobody asked for one");
    let stripped = loaded_bytes(&template);
    println!("{stripped} bytes are loaded from the template's image");
    assert!(stripped <= 456 << 10, "{stripped} bytes");

    let memory = memory_bytes(&template);
    println!("{memory} bytes of memory without the DMA memory");
    assert!(memory <= 2764 << 10, "{memory} bytes: the guide says 2.7 MiB");

    let fabric: Fabric = serve(vec![Profile::node(0), Profile::node(1)]);
    let options = |words: &str, node: usize| Options {
        hcas: vec![fabric.sockets[node].clone()],
        ..Options::new(words)
    };
    let deadline = Instant::now() + LIMIT;
    let mut server =
        unikernel::start(&ground.qemu, &template, &options("ip=10.0.0.1 port=4711", 0)).expect("QEMU starts");
    expect(&mut server, deadline, "echo: listening on 10.0.0.1:4711");
    let words = "app=echo ip=10.0.0.2 to=10.0.0.1 port=4711 count=50";
    let client =
        unikernel::boot(&ground.qemu, &ground.image, &options(words, 1), LIMIT, |_| {}).expect("QEMU starts");
    let text = client.console.join("\n");
    assert_eq!(client.verdict, Some(Verdict::Success), "{text}");
    assert!(client.console.iter().any(|line| line.starts_with("@echo messages=50 bytes=")), "{text}");
    server.kill(None).expect("it is killed");

    // What is wrong with its command line is one line; `help` lists what it takes.
    let wrong = unikernel::boot(&ground.qemu, &template, &Options::new("ip=10.0.0"), LIMIT, |_| {})
        .expect("QEMU starts");
    assert_eq!(wrong.verdict, Some(Verdict::Usage));
    assert_eq!(wrong.console, ["error: command line: ip=10.0.0 is not an IPv4 address"]);
    let help =
        unikernel::boot(&ground.qemu, &template, &Options::new("help"), LIMIT, |_| {}).expect("QEMU starts");
    assert_eq!(help.verdict, Some(Verdict::Success));
    assert!(
        help.console.iter().any(|line| line.starts_with("  port ") && line.contains("where to listen")),
        "{:?}",
        help.console
    );
}

/// The bytes of the image's segments that are loaded: what a stripped image has.
pub fn loaded_bytes(image: &Path) -> u64 {
    segments(image, 0x20)
}

/// The bytes of memory that they take, with what is zero at the start.
fn memory_bytes(image: &Path) -> u64 {
    segments(image, 0x28)
}

/// The sum of a field of all program headers of loaded segments.
fn segments(image: &Path, field_at: usize) -> u64 {
    let bytes = std::fs::read(image).expect("the image");
    let field =
        |at: usize, len: usize| bytes[at..at + len].iter().rev().fold(0u64, |n, b| (n << 8) | u64::from(*b));
    let (headers, size, count) = (field(0x20, 8) as usize, field(0x36, 2) as usize, field(0x38, 2) as usize);
    let loaded = (0..count).map(|i| headers + i * size).filter(|at| field(*at, 4) == 1);
    loaded.map(|at| field(at + field_at, 8)).sum()
}

/// Whether a heap's functions are among the image's symbols.
fn has_allocator(image: &Path) -> bool {
    let bytes = std::fs::read(image).expect("the image");
    bytes.windows(b"__rust_alloc".len()).any(|window| window == b"__rust_alloc")
}

#[test]
fn an_application_that_wants_alloc_gets_a_heap_and_its_end_is_a_report() {
    let Some(ground) = ground() else { return skip() };
    let folder = Temporary::folder("heap").expect("a folder");
    let main = project().join("tests/images/heap.rs");
    let image = build_in(folder.path(), Some(("heap", &main, "[\"alloc\"]")));
    assert!(has_allocator(&image), "what is looked for elsewhere is here");
    // With RDRAND. `getrandom` does not use that of older processors of AMD, which QEMU's claims to be.
    let options =
        Options { more: ["-cpu", "max,vendor=GenuineIntel"].map(str::to_owned).to_vec(), ..Options::new("") };
    let ran = unikernel::boot(&ground.qemu, &image, &options, LIMIT, |_| {}).expect("QEMU starts");
    let text = ran.console.join("\n");
    assert_eq!(ran.verdict, Some(Verdict::Panic), "{text}");
    let numbers: Vec<u64> = text
        .lines()
        .filter_map(|line| line.strip_prefix("@random "))
        .filter_map(|number| number.parse().ok())
        .collect();
    assert!(numbers.len() == 2 && numbers[0] != numbers[1], "{text}");
    for line in
        ["round 1: heap: it was given memory before", "@heap used=0 of=4194304 before=0", "3 blocks held"]
    {
        assert!(ran.console.iter().any(|found| found == line), "{line}: {text}");
    }
    let report = ran.console.iter().find(|line| line.starts_with("error: heap 0.1.0: panic at "));
    assert!(report.is_some_and(|line| line.contains("memory allocation of 2097152 bytes failed")), "{text}");
}

#[test]
fn an_application_with_ip_sockets_answers_on_both_media() {
    let Some(ground) = ground() else { return skip() };
    let folder = Temporary::folder("udp-echo").expect("a folder");
    let main = project().join("kernel/examples/udp_echo.rs");
    let image = build_in(folder.path(), Some(("udp-echo", &main, "[\"net\"]")));
    assert!(!has_allocator(&image), "nobody asked for one");
    println!("{} bytes are loaded", loaded_bytes(&image));
    for card in [&CONNECTX_5, &CONNECTX_5_EN] {
        let fabric: Fabric = serve(vec![Profile::of(card, 0), Profile::of(card, 1)]);
        let options = |words: &str, node: usize| Options {
            hcas: vec![fabric.sockets[node].clone()],
            ..Options::new(words)
        };
        let mut server =
            unikernel::start(&ground.qemu, &image, &options("ip=10.0.0.1", 0)).expect("QEMU starts");
        expect(&mut server, Instant::now() + LIMIT, "echo: listening on 10.0.0.1:7");
        let words = "app=ping ip=10.0.0.2 to=10.0.0.1 count=20 size=1400";
        let client = unikernel::boot(&ground.qemu, &ground.image, &options(words, 1), LIMIT, |_| {})
            .expect("QEMU starts");
        let text = client.console.join("\n");
        assert_eq!(client.verdict, Some(Verdict::Success), "{text}");
        assert!(text.contains("@ping sent=20 received=20 lost=0 wrong=0"), "{text}");
        server.kill(None).expect("it is killed");
    }
}
