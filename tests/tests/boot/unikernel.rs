//! The unikernel under stock QEMU: the image, its exceptions, interrupts and clock, the emulated HCA over vfio-user, and what it
//! says when something is wrong. Where no QEMU can be had the tests say SKIPPED; `MLX5_TESTS_REQUIRE=1` makes that a failure.

use crate::ground::{Fabric, Ground, LIMIT, ground, joined, serve, skip};
use crate::slots::Monitor;
use crate::template::loaded_bytes;
use hca_model::Profile;
use rdma_lab::defmt_log::{Decoded, Decoder};
use rdma_lab::process::Temporary;
use rdma_lab::qemu::Output;
use rdma_lab::unikernel::{self, Options, Transcript, Verdict};
use std::time::Instant;

impl Ground {
    fn boot(&self, options: &Options) -> Transcript {
        let image = self.image_for(&options.words);
        unikernel::boot(&self.qemu, image, options, LIMIT, |_| {}).expect("QEMU starts")
    }

    fn run(&self, words: &str) -> Transcript {
        self.boot(&Options::new(words))
    }
}

fn demo(role: &str, fabric: &Fabric, more: &str) -> Options {
    let (own, other): (u16, u16) = if role == "server" { (0, 1) } else { (1, 0) };
    // The other is found by its IP address.
    let words = format!("app=demo role={role} ip=10.0.0.{} peer=10.0.0.{} {more}", own + 1, other + 1);
    Options { hcas: vec![fabric.sockets[usize::from(own)].clone()], ..Options::new(&words) }
}

fn text(transcript: &Transcript) -> String {
    transcript.console.join("\n")
}

/// Looks for all of these in the log, in this order.
fn assert_logged(log: &Decoded, expected: &[&str]) {
    let mut lines = log.lines.iter();
    for words in expected {
        assert!(lines.any(|line| line.contains(words)), "{words:?} is not in its place in {:#?}", log.lines);
    }
    assert_eq!(log.lost_bytes, 0);
}

/// The one line that says what was wrong.
fn error_line(transcript: &Transcript) -> &str {
    let errors: Vec<&String> = transcript.console.iter().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "one line says what is wrong:\n{}", text(transcript));
    errors[0]
}

#[test]
fn it_boots_with_little_and_much_memory() {
    let Some(ground) = ground() else { return skip() };
    for memory_mib in [256, 3072] {
        let transcript = ground.boot(&Options { memory_mib, ..Options::new("app=hello") });
        assert_eq!(transcript.verdict, Some(Verdict::Success), "{}", text(&transcript));
    }
}

#[test]
fn the_image_is_small() {
    let Some(ground) = ground() else { return skip() };
    let loaded = loaded_bytes(&ground.image);
    println!("{loaded} bytes are loaded from the image");
    assert!((50_000..1 << 20).contains(&loaded), "{loaded} bytes");
}

#[test]
fn wrong_command_lines_are_one_line_and_a_status() {
    let Some(ground) = ground() else { return skip() };
    for (words, expected) in [
        ("app=nonsense", "app=nonsense is not one of"),
        ("app=hello colour=red", "unknown key `colour`"),
        ("", "app= is missing"),
        ("app=demo ip=10.0.0.1 peer=10.0.0.2", "role= is missing"),
    ] {
        let transcript = ground.run(words);
        assert_eq!(transcript.verdict, Some(Verdict::Usage), "{words}: {}", text(&transcript));
        assert!(error_line(&transcript).contains(expected), "{words}: {}", text(&transcript));
    }
}

#[test]
fn exceptions_and_panics_are_reported() {
    let Some(ground) = ground() else { return skip() };
    for (kind, expected) in [
        ("divide", "#DE"),
        ("opcode", "#UD"),
        ("protection", "#GP"),
        ("page-write", "#PF"),
        ("execute", "#PF"),
        ("stack", "#DF"),
    ] {
        let transcript = ground.run(&format!("app=fault kind={kind}"));
        assert_eq!(transcript.verdict, Some(Verdict::Fault), "{kind}: {}", text(&transcript));
        let text = text(&transcript);
        assert!(text.contains(expected) && text.contains("rip"), "{kind}: {text}");
    }
    let transcript = ground.run("app=fault kind=panic");
    assert_eq!(transcript.verdict, Some(Verdict::Panic), "{}", text(&transcript));
    assert!(text(&transcript).contains(".rs:"), "file and line: {}", text(&transcript));
}

#[test]
fn a_fault_names_the_application_and_stops_dma() {
    let Some(ground) = ground() else { return skip() };
    for (kind, verdict, expected) in [
        ("panic", Verdict::Panic, "panic at "),
        ("stack", Verdict::Fault, "#DF double fault, error code 0x0 (stack overflow)"),
        ("double", Verdict::Fault, "#DF double fault"),
        ("page-write", Verdict::Fault, "(write, page not present, address 0x7fffdeadb000)"),
        ("rodata", Verdict::Fault, "(write, protected page, address "),
    ] {
        let fabric = serve(vec![Profile::node(0)]);
        let options =
            Options { hcas: fabric.sockets.clone(), ..Options::new(&format!("app=fault kind={kind}")) };
        let transcript = ground.boot(&options);
        let text = text(&transcript);
        assert_eq!(transcript.verdict, Some(verdict), "{kind}: {text}");
        assert!(text.contains("fault: HCA masters the bus: true"), "{kind}: {text}");
        let line = error_line(&transcript);
        assert!(line.starts_with("error: kernel 0.1.0: ") && line.contains(expected), "{kind}: {line}");
        let dma = transcript.console.iter().filter(|line| line.contains("DMA: bus mastering is off in "));
        assert!(dma.count() == 1 && !text.contains("STILL ON"), "{kind}: {text}");
    }
}

#[test]
fn without_a_tsc_that_keeps_its_pace_the_pm_timer_is_the_clock() {
    let Some(ground) = ground() else { return skip() };
    let transcript = ground.run("app=hello clock=pm");
    assert!(text(&transcript).contains("clock: by PM timer, tsc "), "{}", text(&transcript));
    // A processor that does not say that its TSC is invariant, and no hypervisor, whose TSC is taken to be.
    let more = ["-cpu", "max,-invtsc,-hypervisor"].map(str::to_owned).to_vec();
    let transcript = ground.boot(&Options { more, ..Options::new("app=hello") });
    assert!(text(&transcript).contains("clock: by PM timer, tsc "), "{}", text(&transcript));
    // References for the TSC. Under TCG, CPUID has no frequency.
    for (word, name) in [("pit", "PIT"), ("hpet", "HPET")] {
        let transcript = ground.run(&format!("app=hello clock={word}"));
        assert!(text(&transcript).contains(&format!("by {name}")), "{}", text(&transcript));
    }
    let transcript = ground.run("app=idle clock=pm");
    assert_eq!(transcript.verdict, Some(Verdict::Success), "{}", text(&transcript));
    let fabric = serve(vec![Profile::node(0)]);
    let options = Options { hcas: fabric.sockets.clone(), ..Options::new("app=hca clock=pm") };
    let transcript = ground.boot(&options);
    assert_eq!(transcript.verdict, Some(Verdict::Success), "{}", text(&transcript));
}

#[test]
fn timer_and_message_signalled_interrupts_wake_it() {
    let Some(ground) = ground() else { return skip() };
    let transcript = ground.run("app=idle");
    assert_eq!(transcript.verdict, Some(Verdict::Success), "{}", text(&transcript));
    let options = Options { devices: vec!["e1000e,romfile=".into()], ..Options::new("app=msix") };
    let transcript = ground.boot(&options);
    assert_eq!(transcript.verdict, Some(Verdict::Success), "{}", text(&transcript));
}

#[test]
fn waits_of_the_driver_leave_other_devices_their_interrupts() {
    let Some(ground) = ground() else { return skip() };
    let fabric = serve(vec![Profile::node(0)]);
    let devices = vec!["e1000e,romfile=".into()];
    let options = Options { devices, hcas: fabric.sockets.clone(), ..Options::new("app=msix") };
    let transcript = ground.boot(&options);
    assert_eq!(transcript.verdict, Some(Verdict::Success), "{}", text(&transcript));
}

#[test]
fn a_machine_check_is_reported_with_its_banks() {
    let Some(ground) = ground() else { return skip() };
    let folder = Temporary::folder("machine-check").expect("a folder");
    let socket = folder.path().join("monitor");
    let monitor = format!("unix:{},server=on,wait=off", socket.display());
    let more = vec!["-qmp".into(), monitor];
    let options = Options { more, ..Options::new("app=fault kind=wait") };
    let mut running = unikernel::start(&ground.qemu, &ground.image, &options).expect("QEMU starts");
    let mut lines = Vec::new();
    running.follow(&mut lines, Some("fault: waiting"), LIMIT).expect("it waits");
    let mut monitor = Monitor::connect(&socket, Instant::now() + LIMIT);
    let check = "mce 0 9 0xbd00000000000134 0x5 0x12345000 0x8c";
    monitor.call("human-monitor-command", &format!("{{\"command-line\":\"{check}\"}}"));
    running.follow(&mut lines, None, LIMIT).expect("it ends");
    let end = running.finish(None).expect("QEMU ends");
    assert_eq!(end.verdict, Verdict::Fault, "{lines:#?}");
    for expected in [
        "exception 18 #MC machine check",
        "machine check: status 0x5: not at this instruction, program could go on",
        "bank 9: status 0xbd00000000000134: cache, uncorrected, address 0x12345000, misc 0x8c",
        "DMA: bus mastering is off",
    ] {
        assert!(lines.iter().any(|line| line.contains(expected)), "{expected}: {lines:#?}");
    }
}

#[test]
fn without_an_hca_it_says_so() {
    let Some(ground) = ground() else { return skip() };
    let transcript = ground.run("app=hca");
    assert_eq!(transcript.verdict, Some(Verdict::NoDevice), "{}", text(&transcript));
    assert!(error_line(&transcript).contains("no HCA"), "{}", text(&transcript));
}

#[test]
fn the_hca_comes_up_and_goes_down_again_and_again() {
    let Some(ground) = ground() else { return skip() };
    let fabric = serve(vec![Profile::node(0)]);
    for round in 0..3 {
        let options = Options { hcas: fabric.sockets.clone(), ..Options::new("app=hca") };
        let transcript = ground.boot(&options);
        assert_eq!(transcript.verdict, Some(Verdict::Success), "round {round}: {}", text(&transcript));
        assert!(text(&transcript).contains("Active"), "{}", text(&transcript));
        let steps = ["hca: enable_hca", "hca: init_hca", "hca: port", "hca: running", "hca: tear_down"];
        assert_logged(&transcript.log, &steps);
    }
}

#[test]
fn an_hca_that_does_not_come_up_is_reset_once() {
    let Some(ground) = ground() else { return skip() };
    let mut profile = Profile::node(0);
    profile.habits.refused_commands = vec![mlx5_prm::opcode::Opcode::ENABLE_HCA];
    let fabric = serve(vec![profile]);
    for words in ["app=hca", "program=verbs role=server", "app=ping ip=10.0.0.1/24 peer=10.0.0.2"] {
        let transcript = ground.boot(&Options { hcas: fabric.sockets.clone(), ..Options::new(words) });
        let text = text(&transcript);
        assert_eq!(transcript.verdict, Some(Verdict::Failed), "{words}: {text}");
        assert!(error_line(&transcript).contains("HCA: ENABLE_HCA"), "{words}: {text}");
        assert_eq!(text.matches(": function-level reset").count(), 1, "{words}: {text}");
        assert_eq!(transcript.console.last().map(String::as_str), Some("@done verified=false"));
    }
}

#[test]
fn the_self_test_tells_what_a_card_can_do() {
    let Some(ground) = ground() else { return skip() };
    let fabric = serve(vec![Profile::node(0)]);
    let options = Options { hcas: fabric.sockets.clone(), ..Options::new("app=selftest") };
    let transcript = ground.boot(&options);
    let text = text(&transcript);
    assert_eq!(transcript.verdict, Some(Verdict::Success), "{text}");
    for level in ["found", "commands", "objects", "nop", "data", "dat", "rds"] {
        assert!(text.contains(&format!("@level name={level} verdict=\"passed\"")), "{level}: {text}");
    }
    assert!(text.contains("ConnectX5, physical function, BAR0 32 MiB") && text.contains("round=2"), "{text}");
    // What stops it is told with the device's own words and the last commands.
    let mut profile = Profile::node(0);
    profile.habits.refused_commands = vec![mlx5_prm::opcode::Opcode::CREATE_CQ];
    let fabric = serve(vec![profile]);
    let options = Options { hcas: fabric.sockets.clone(), ..Options::new("app=selftest") };
    let transcript = ground.boot(&options);
    let text = transcript.console.join("\n");
    assert_eq!(transcript.verdict, Some(Verdict::Failed), "{text}");
    for words in [
        "@level name=commands verdict=\"passed\"",
        "@level name=objects verdict=\"FAILED\"",
        "failed: CREATE_CQ",
        "health: synd ",
        "CREATE_CQ op_mod 0x0: status ",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn firmware_that_wants_more_pages_than_there_are_is_refused_with_both_numbers() {
    let Some(ground) = ground() else { return skip() };
    let mut profile = Profile::node(0);
    profile.misbehaviour.starve_pages = Some(1_000_000);
    let fabric = serve(vec![profile]);
    let transcript = ground.boot(&Options { hcas: fabric.sockets.clone(), ..Options::new("app=hca") });
    assert_eq!(transcript.verdict, Some(Verdict::Failed), "{}", text(&transcript));
    let line = error_line(&transcript);
    let numbers: Vec<u64> =
        line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    assert!(numbers.contains(&1_000_000), "what is asked for: {line}");
    assert!(numbers.iter().any(|n| (1000..20_000).contains(n)), "what is there: {line}");
}

#[test]
fn an_hca_without_a_needed_capability_is_refused_by_its_name() {
    let Some(ground) = ground() else { return skip() };
    let mut profile = Profile::node(0);
    let bit = mlx5_prm::caps::cmd_hca_cap::rc.bit_offset;
    profile.misbehaviour.hidden_capabilities.push((bit as usize / 32 * 4, 0x8000_0000 >> (bit % 32)));
    let fabric = serve(vec![profile]);
    let transcript = ground.boot(&Options { hcas: fabric.sockets.clone(), ..Options::new("app=hca") });
    assert_eq!(transcript.verdict, Some(Verdict::Failed), "{}", text(&transcript));
    assert!(error_line(&transcript).contains("rc"), "{}", text(&transcript));
    assert_logged(
        &transcript.log,
        &["hca: capabilities", "bring-up ends in step capabilities: MissingCapability"],
    );
}

#[test]
fn two_nodes_move_verified_data() {
    let Some(ground) = ground() else { return skip() };
    move_verified_data(ground, &serve(vec![Profile::node(0), Profile::node(1)]));
}

#[test]
fn two_nodes_at_two_servers_that_are_joined_move_verified_data() {
    let Some(ground) = ground() else { return skip() };
    move_verified_data(ground, &joined());
}

fn move_verified_data(ground: &Ground, fabric: &Fabric) {
    let transcripts: Vec<Transcript> = std::thread::scope(|scope| {
        ["server", "client"]
            .map(|role| {
                let options = demo(role, fabric, "divide=200 seed=3");
                scope.spawn(move || ground.boot(&options))
            })
            .map(|thread| thread.join().expect("the thread"))
            .into()
    });
    for transcript in &transcripts {
        assert_eq!(transcript.verdict, Some(Verdict::Success), "{}", text(transcript));
        assert_eq!(transcript.console.last().map(String::as_str), Some("@done verified=true"));
        let life = [
            "hca: running",
            "dat: ib0 open: port active true",
            "Established",
            "Disconnected",
            "hca: tear_down",
        ];
        assert_logged(&transcript.log, &life);
    }
    // Whatever one side sent the other has verified.
    for operation in ["send_recv", "rdma_write", "rdma_read", "rds"] {
        let sum = |name: &str| -> u64 {
            let prefix = format!("@result op={operation} ");
            let lines = transcripts.iter().flat_map(|t| &t.console).filter(|line| line.starts_with(&prefix));
            lines
                .flat_map(|line| line.split(' '))
                .filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok())
                .sum()
        };
        assert!(sum("messages") > 0, "{operation} moved something");
        assert_eq!(sum("messages"), sum("verified"), "{operation}");
    }
    fabric.assert_empty();
}

#[test]
fn a_peer_that_never_comes_is_reported() {
    let Some(ground) = ground() else { return skip() };
    let fabric = serve(vec![Profile::node(0), Profile::node(1)]);
    let transcript = ground.boot(&demo("client", &fabric, "wait=3"));
    assert_eq!(transcript.verdict, Some(Verdict::Failed), "{}", text(&transcript));
    assert!(error_line(&transcript).contains("the peer never came up"), "{}", text(&transcript));
}

#[test]
fn hcas_that_fall_off_the_bus_in_the_middle_are_reported_in_bounded_time() {
    let Some(ground) = ground() else { return skip() };
    let fabric = serve(vec![Profile::node(0), Profile::node(1)]);
    let sockets = fabric.sockets.clone();
    let options = ["server", "client"].map(|role| demo(role, &fabric, "divide=1 seed=3"));
    let mut running =
        options.map(|options| unikernel::start(&ground.qemu, &ground.image, &options).expect("QEMU starts"));
    let deadline = Instant::now() + LIMIT;
    let [server, client] = &mut running;
    // Data is moving.
    loop {
        match client.next_line(deadline).expect("a line in time") {
            Some(Output::Console(line)) if line.starts_with("@progress") => break,
            Some(_) => {}
            None => panic!("the client ended before anything was to be lost"),
        }
    }
    // The server stays: of one that is gone QEMU itself dies at once.
    let killed = fabric.served.with_world(|world, _| {
        (0..world.nodes().len()).for_each(|node| world.hca_mut(node).expect("served").kill())
    });
    assert!(killed.is_some());
    for node in [server, client] {
        let mut errors = 0;
        let mut last = None;
        while let Some(line) = node.next_line(deadline).expect("it stops in bounded time") {
            if let Output::Console(line) = line {
                errors += usize::from(line.starts_with("error: "));
                last = Some(line);
            }
        }
        assert_eq!(errors, 1, "one line says what is wrong");
        assert_eq!(last.as_deref(), Some("@done verified=false"));
    }
    let decoder = Decoder::for_image(&ground.image).expect("the image's log table").expect("it logs");
    for node in running {
        let ended = node.finish(Some(&decoder)).expect("it ended");
        let verdict = ended.verdict;
        assert!(matches!(verdict, Verdict::DeviceLost | Verdict::Failed), "{verdict}");
        if verdict == Verdict::DeviceLost {
            assert_logged(&ended.log, &["Established", "ERROR hca:", "IaCatastrophic", "Broken"]);
        }
    }
    drop(fabric);
    assert!(sockets.iter().all(|socket| !socket.exists()), "stopping leaves no socket");
}
