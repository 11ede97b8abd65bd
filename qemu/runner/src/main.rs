//! `cargo xtask`: the project's commands.

use hca_model::DeviceSpec;
use lexopt::prelude::*;
use runner::levels::{self, Level};
use runner::linux;
use runner::passthrough::HandedOn;
use runner::qemu::Output;
use runner::unikernel::{self, Verdict};
use runner::{
    Error, Result, accelerator, demo, help, install, iso, kernel_image, process, rds_bench, serve, setup,
};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn main() -> ExitCode {
    let mut arguments = lexopt::Parser::from_env();
    let command = match arguments.next() {
        Ok(Some(Value(word))) => word.to_string_lossy().into_owned(),
        Ok(Some(Long("help") | Short('h'))) => {
            print!("{}", help::all());
            return ExitCode::SUCCESS;
        }
        Ok(None) => {
            eprint!("xtask: a command is missing\n\n{}", help::all());
            return ExitCode::from(2);
        }
        Ok(Some(other)) => {
            eprintln!("xtask: {} (`cargo xtask --help` lists what there is)", other.unexpected());
            return ExitCode::from(2);
        }
        Err(error) => {
            eprintln!("xtask: {error} (`cargo xtask --help` lists what there is)");
            return ExitCode::from(2);
        }
    };
    if command == "serve" {
        // `hca-serve` has its own options and exit codes.
        return hca_serve::product::command_line::main("cargo xtask serve", arguments);
    }
    // Arguments after `qemu` belong to QEMU, including `--help`.
    let wants_help = |word: OsString| word == "--help" || word == "-h";
    if command != "qemu"
        && std::env::args_os().skip(2).any(wants_help)
        && let Some(text) = help::of(&command)
    {
        print!("{text}");
        return ExitCode::SUCCESS;
    }
    let result = process::clean_up_on_signals().and_then(|()| run(&command, arguments));
    process::wait_if_ending();
    process::clean_up();
    match result {
        Ok(code) => code,
        Err(Error::Usage(message)) => {
            let command = if help::of(&command).is_some() { format!("{command} ") } else { String::new() };
            eprintln!("xtask: {message} (`cargo xtask {command}--help` lists what there is)");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Converts a command line error.
fn usage(error: lexopt::Error) -> Error {
    Error::Usage(error.to_string())
}

fn run(command: &str, arguments: lexopt::Parser) -> Result<ExitCode> {
    match command {
        "setup" => set_up(arguments),
        "qemu" => run_qemu(arguments),
        "boot" => boot(arguments),
        "iso" => make_iso(arguments),
        "guests" => run_guests(arguments),
        "demo" => run_demo(arguments),
        "test" => test(arguments),
        "install" => install_library(arguments),
        "bench" => bench(arguments),
        "graph" => graph(arguments),
        "prose" => prose(arguments),
        "ci" => ci(arguments),
        "linux" => Err(Error::Usage("unknown command linux; it is `guests --linux ''` now".into())),
        _ => Err(Error::Usage(format!("unknown command {command}"))),
    }
}

fn set_up(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    if let Some(other) = arguments.next().map_err(usage)? {
        return Err(usage(other.unexpected()));
    }
    let qemu = setup::all()?;
    println!("{}\n{}", qemu.version, qemu.words().join(" "));
    Ok(ExitCode::SUCCESS)
}

fn install_library(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let mut prefix = None;
    while let Some(argument) = arguments.next().map_err(usage)? {
        match argument {
            Long("prefix") => prefix = Some(PathBuf::from(arguments.value().map_err(usage)?)),
            other => return Err(usage(other.unexpected())),
        }
    }
    let prefix = prefix.ok_or_else(|| Error::Usage("where to? --prefix DIR".into()))?;
    install::install(&prefix)?.iter().for_each(|path| println!("{}", path.display()));
    Ok(ExitCode::SUCCESS)
}

fn run_qemu(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let qemu = setup::qemu()?;
    let error = qemu.command().args(arguments.raw_args().map_err(usage)?).exec();
    Err(Error::Program(format!("cannot start QEMU: {error}")))
}

/// Returns a new seed for each run. The seed is printed, so that the run can be replayed.
fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| u64::from(time.subsec_nanos()))
}

/// Serves HCAs of these kinds in a temporary directory.
fn serve_some(
    kinds: Vec<DeviceSpec>,
) -> Result<(process::Temporary, Option<hca_serve::Served>, Vec<PathBuf>)> {
    let folder = process::Temporary::folder("hca")?;
    let sockets: Vec<PathBuf> =
        (0..kinds.len()).map(|index| folder.path().join(format!("hca{index}.sock"))).collect();
    let served = match sockets.as_slice() {
        [] => None,
        sockets => {
            Some(serve::serve(hca_serve::Options { kinds, ..hca_serve::Options::new(sockets.to_vec()) })?)
        }
    };
    Ok((folder, served, sockets))
}

fn make_iso(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let (mut words, mut image, mut output) = (Vec::new(), None, PathBuf::from("unikernel.iso"));
    let mut network: Option<PathBuf> = None;
    while let Some(argument) = arguments.next().map_err(usage)? {
        match argument {
            Long("image") => image = Some(PathBuf::from(arguments.value().map_err(usage)?)),
            Long("output") => output = arguments.value().map_err(usage)?.into(),
            Long("network") => network = Some(arguments.value().map_err(usage)?.into()),
            Value(word) => words.push(word.string().map_err(usage)?),
            other => return Err(usage(other.unexpected())),
        }
    }
    let image = match image {
        Some(image) => image,
        None => {
            setup::rust_targets()?;
            kernel_image::build()?
        }
    };
    let words = if words.is_empty() { "app=hello".into() } else { words.join(" ") };
    if let Some(folder) = network {
        iso::make_network(&image, &words, &folder)?;
        println!("BIOS: {}, UEFI: {}, in {}", iso::PXE_BIOS, iso::PXE_UEFI, folder.display());
        return Ok(ExitCode::SUCCESS);
    }
    iso::make(&image, &words, &output)?;
    println!("{}", output.display());
    Ok(ExitCode::SUCCESS)
}

fn boot(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let (mut words, mut hcas, mut image, mut limit) = (Vec::new(), Vec::new(), None, 600);
    let mut kind = DeviceSpec::default();
    let mut options = unikernel::Options::new("");
    let mut accelerator = accelerator::AUTO.to_owned();
    // A profile that no HCA follows yet.
    let mut unused_profile = false;
    let mut functions = Vec::new();
    while let Some(argument) = arguments.next().map_err(usage)? {
        match argument {
            Long("hca") => {
                hcas.push(kind.clone());
                unused_profile = false;
            }
            Long("profile") => {
                kind = device_spec(&mut arguments)?;
                unused_profile = true;
            }
            Long("vfio") => {
                let text = arguments.value().and_then(ValueExt::string).map_err(usage)?;
                let named = vfio_functions::Function::named(&vfio_functions::Sysfs::default(), &text);
                let address = named.map_err(|error| Error::Usage(format!("--vfio: {error}")))?;
                if !functions.contains(&address) {
                    functions.push(address);
                }
            }
            Long("image") => image = Some(PathBuf::from(arguments.value().map_err(usage)?)),
            Long("limit") => limit = arguments.value().and_then(|v| v.parse()).map_err(usage)?,
            Long("memory") => {
                options.memory_mib = arguments.value().and_then(|v| v.parse()).map_err(usage)?
            }
            Long("accel") => {
                accelerator = arguments.value().and_then(ValueExt::string).map_err(usage)?;
            }
            Value(word) => words.push(word.string().map_err(usage)?),
            other => return Err(usage(other.unexpected())),
        }
    }
    if unused_profile {
        return Err(Error::Usage("--profile applies to each --hca that follows it, and none does".into()));
    }
    options.words = if words.is_empty() && image.is_none() { "app=hello".into() } else { words.join(" ") };
    // Check the passthrough first, because preparing takes minutes.
    let handed_on = match functions.as_slice() {
        [] => None,
        functions => Some(HandedOn::take(functions, options.memory_mib)?),
    };
    options.devices.extend(handed_on.iter().flat_map(HandedOn::devices));
    let device = if hcas.is_empty() && handed_on.is_some() { "vfio-pci" } else { "vfio-user-pci" };
    let qemu = setup::qemu_with(device)?;
    options.accelerator = accelerator::choose_for(&accelerator, || Ok(qemu.clone()))?;
    let image = match image {
        Some(image) => image,
        None => {
            setup::rust_targets()?;
            kernel_image::build()?
        }
    };
    let (_folder, _served, sockets) = serve_some(hcas)?;
    options.hcas = sockets;
    let transcript =
        unikernel::boot(&qemu, &image, &options, Duration::from_secs(limit), |line| match line {
            Output::Console(line) => println!("{line}"),
            Output::Qemu(line) => eprintln!("qemu: {line}"),
        })?;
    for line in &transcript.log.lines {
        println!("log: {line}");
    }
    match transcript.verdict {
        Some(Verdict::Success) => Ok(ExitCode::SUCCESS),
        Some(verdict) => Err(Error::Guest(format!("the unikernel {verdict}"))),
        None => Err(Error::Guest(format!("the unikernel did not end within {limit} s"))),
    }
}

fn run_guests(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let mut fabric = FabricOptions::new();
    let mut run = linux::Run {
        // User-space programs fill key fields that firmware ignores.
        lab: linux::Options { strict: false, ..linux::Options::of(Vec::new()) },
        script: None,
        unikernels: Vec::new(),
        image: None,
        limit: Duration::from_secs(600),
    };
    let mut accelerator = accelerator::AUTO.to_owned();
    while let Some(argument) = arguments.next().map_err(usage)? {
        match argument {
            Long("linux") => {
                let group: linux::Group =
                    arguments.value().and_then(ValueExt::string).map_err(usage)?.parse()?;
                run.lab.guests.extend(std::iter::repeat_n(group.kind, group.count));
            }
            Long("unikernel") => {
                run.unikernels.push(arguments.value().and_then(ValueExt::string).map_err(usage)?);
            }
            Long("image") => run.image = Some(arguments.value().map_err(usage)?.into()),
            Long("program") => {
                let file = PathBuf::from(arguments.value().map_err(usage)?);
                let is_source = file.extension().is_some_and(|extension| extension == "c");
                if is_source { &mut run.lab.programs } else { &mut run.lab.binaries }.push(file);
            }
            Long("strict") => run.lab.strict = true,
            Long("no-sm") => run.lab.no_subnet_manager = true,
            Long("accel") => accelerator = arguments.value().and_then(ValueExt::string).map_err(usage)?,
            Long("limit") => {
                run.limit = Duration::from_secs(arguments.value().and_then(|v| v.parse()).map_err(usage)?);
            }
            Long(name) => {
                let name = name.to_owned();
                if !fabric_option(&name, &mut arguments, &mut fabric)? {
                    return Err(Error::Usage(format!("unknown option --{name}")));
                }
            }
            Value(text) if run.script.is_none() => run.script = Some(text.string().map_err(usage)?),
            other => return Err(usage(other.unexpected())),
        }
    }
    match (run.lab.guests.is_empty(), run.unikernels.is_empty()) {
        (true, true) => {
            return Err(Error::Usage("which guests? --linux 'WORDS', --unikernel 'WORDS'".into()));
        }
        (true, false)
            if run.script.is_some() || !run.lab.programs.is_empty() || !run.lab.binaries.is_empty() =>
        {
            return Err(Error::Usage("only Linux guests run scripts and programs: --linux 'WORDS'".into()));
        }
        (_, true) if run.image.is_some() => {
            return Err(Error::Usage("--image is the unikernels', and there is no --unikernel".into()));
        }
        _ => {}
    }
    run.lab.spare_kind = fabric.kind;
    run.lab.capture = fabric.capture;
    run.lab.faults = fabric.faults;
    run.lab.seed = fabric.seed;
    run.lab.open_fabric = fabric.open;
    run.lab.accelerator = accelerator::choose(&accelerator)?;
    linux::run(&run).map(ExitCode::from)
}

/// Parses an option that `demo` and `guests` share. Returns whether `name` is such an option.
fn fabric_option(name: &str, arguments: &mut lexopt::Parser, fabric: &mut FabricOptions) -> Result<bool> {
    match name {
        "profile" => fabric.kind = device_spec(arguments)?,
        "pcap" => fabric.capture = Some(arguments.value().map_err(usage)?.into()),
        "faults" => {
            let text = arguments.value().map_err(usage)?.string().map_err(usage)?;
            fabric.faults = text.parse().map_err(|error| Error::Usage(format!("--faults: {error}")))?;
        }
        "open-fabric" => fabric.open = true,
        "seed" => fabric.seed = arguments.value().map_err(usage)?.parse().map_err(usage)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Parses the value of `--profile`.
fn device_spec(arguments: &mut lexopt::Parser) -> Result<DeviceSpec> {
    let text = arguments.value().and_then(ValueExt::string).map_err(usage)?;
    text.parse().map_err(|error| Error::Usage(format!("--profile: {error}")))
}

struct FabricOptions {
    kind: DeviceSpec,
    capture: Option<PathBuf>,
    faults: hca_model::fabric::Faults,
    seed: u64,
    /// Lets every node manage the fabric.
    open: bool,
}

impl FabricOptions {
    fn new() -> Self {
        Self {
            kind: DeviceSpec::default(),
            capture: None,
            faults: hca_model::fabric::Faults::default(),
            seed: fresh_seed(),
            open: false,
        }
    }
}

fn run_demo(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let mut fabric = FabricOptions::new();
    let mut report = None;
    let mut accelerator = accelerator::AUTO.to_owned();
    let (mut log, mut with_linux) = (false, false);
    let mut limit = 600;
    let mut divide = 1;
    while let Some(argument) = arguments.next().map_err(usage)? {
        match argument {
            Long("report") => report = Some(PathBuf::from(arguments.value().map_err(usage)?)),
            Long("accel") => accelerator = arguments.value().and_then(ValueExt::string).map_err(usage)?,
            Long("log") => log = true,
            Long("with-linux") => with_linux = true,
            Long("divide") => divide = arguments.value().and_then(|value| value.parse()).map_err(usage)?,
            Long("limit") => limit = arguments.value().and_then(|value| value.parse()).map_err(usage)?,
            Long(name) => {
                let name = name.to_owned();
                if !fabric_option(&name, &mut arguments, &mut fabric)? {
                    return Err(Error::Usage(format!("unknown option --{name}")));
                }
            }
            other => return Err(usage(other.unexpected())),
        }
    }
    let FabricOptions { kind, capture, faults, seed, open: open_fabric } = fabric;
    let limit = Duration::from_secs(limit);
    let accelerator = accelerator::choose(&accelerator)?;
    let options = demo::Options {
        report,
        capture,
        kind,
        faults,
        seed,
        open_fabric,
        accelerator,
        log,
        divide,
        with_linux,
        limit,
    };
    demo::run(&options)?;
    Ok(ExitCode::SUCCESS)
}

fn test(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let (mut levels, mut long) = (Vec::new(), false);
    while let Some(argument) = arguments.next().map_err(usage)? {
        match argument {
            Long("long") => long = true,
            Value(name) => levels.push(name.string().map_err(usage)?.parse::<Level>()?),
            other => return Err(usage(other.unexpected())),
        }
    }
    if levels.is_empty() {
        levels.extend(levels::DEFAULT);
    }
    levels::test(&levels, long)?;
    Ok(ExitCode::SUCCESS)
}

fn prose(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let mut write = false;
    while let Some(argument) = arguments.next().map_err(usage)? {
        match argument {
            Long("write") => write = true,
            other => return Err(usage(other.unexpected())),
        }
    }
    runner::prose::run(write)?;
    Ok(ExitCode::SUCCESS)
}

fn graph(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let mut files = Vec::new();
    while let Some(argument) = arguments.next().map_err(usage)? {
        match argument {
            Value(name) => files.push(name.string().map_err(usage)?),
            other => return Err(usage(other.unexpected())),
        }
    }
    runner::graph::print(&files)?;
    Ok(ExitCode::SUCCESS)
}

fn ci(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    if let Some(other) = arguments.next().map_err(usage)? {
        return Err(usage(other.unexpected()));
    }
    runner::ci::run()?;
    Ok(ExitCode::SUCCESS)
}

fn bench(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let mut report = None;
    let mut bench = Some(levels::Bench::Instructions);
    let mut rds = rds_bench::Options::default();
    let mut of_rds = None;
    while let Some(argument) = arguments.next().map_err(usage)? {
        if let Long(name @ ("rounds" | "seconds" | "check" | "accel" | "rds-stress")) = argument {
            of_rds = Some(name.to_owned());
        }
        match argument {
            Long("report") => report = Some(PathBuf::from(arguments.value().map_err(usage)?)),
            Long("rounds") => rds.rounds = at_least_one(&mut arguments)?,
            Long("seconds") => rds.seconds = at_least_one(&mut arguments)?,
            Long("check") => rds.check = true,
            Long("rds-stress") => rds.rds_stress = Some(arguments.value().map_err(usage)?.into()),
            Long("accel") => {
                rds.accelerator = arguments.value().and_then(ValueExt::string).map_err(usage)?;
            }
            Value(name) if name == "model" => bench = Some(levels::Bench::Model),
            Value(name) if name == "rds" => bench = None,
            other => return Err(usage(other.unexpected())),
        }
    }
    match (bench, of_rds) {
        (Some(_), Some(option)) => return Err(Error::Usage(format!("--{option} is for `bench rds`"))),
        (Some(bench), None) => levels::bench(bench, report.as_deref())?,
        (None, _) => {
            let accelerator = accelerator::choose(&rds.accelerator)?;
            rds_bench::run(&rds_bench::Options { accelerator, report, ..rds })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses an option's number, which must not be 0.
fn at_least_one(arguments: &mut lexopt::Parser) -> Result<u32> {
    let number: std::num::NonZeroU32 = arguments.value().and_then(|value| value.parse()).map_err(usage)?;
    Ok(number.get())
}
