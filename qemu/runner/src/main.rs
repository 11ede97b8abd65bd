//! `cargo xtask`: the project's commands.

use lexopt::prelude::*;
use runner::levels::{self, Level};
use runner::linux;
use runner::qemu::Output;
use runner::unikernel::{self, Verdict};
use runner::{Error, Result, kernel_image, process, setup};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
usage: cargo xtask COMMAND [OPTION]...

  test      the tests; LEVEL: lint, no-std, unit, in-process, boot, oracle, miri
              [LEVEL]...      these only
              --long          full lengths
  bench     instructions per operation
              --report FILE   as JSON
  boot      one unikernel
              [WORD]...       its command line, as in app=hello
              --memory MIB    guest memory (256)
  linux     a Linux guest that runs a shell script
              [SCRIPT]        the script (what the machine is)
  qemu      [ARGUMENT]...     QEMU with vfio-user-pci
  setup     what the others do first: Rust targets, QEMU
";

fn main() -> ExitCode {
    let result = process::clean_up_on_signals().and_then(|()| run());
    process::clean_up();
    match result {
        Ok(code) => code,
        Err(Error::Usage(message)) => {
            eprintln!("xtask: {message} (`cargo xtask --help` lists what there is)");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A mistake on the command line.
fn usage(error: lexopt::Error) -> Error {
    Error::Usage(error.to_string())
}

fn run() -> Result<ExitCode> {
    let mut arguments = lexopt::Parser::from_env();
    let command = match arguments.next().map_err(usage)? {
        Some(Value(word)) => word.string().map_err(usage)?,
        Some(Long("help") | Short('h')) => {
            print!("{USAGE}");
            return Ok(ExitCode::SUCCESS);
        }
        Some(other) => return Err(usage(other.unexpected())),
        None => {
            eprint!("xtask: a command is missing\n\n{USAGE}");
            return Ok(ExitCode::from(2));
        }
    };
    match command.as_str() {
        "setup" => set_up(arguments),
        "qemu" => run_qemu(arguments),
        "boot" => boot(arguments),
        "linux" => run_linux(arguments),
        "test" => test(arguments),
        "bench" => bench(arguments),
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

fn run_qemu(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let qemu = setup::qemu()?;
    let error = qemu.command().args(arguments.raw_args().map_err(usage)?).exec();
    Err(Error::Program(format!("cannot start QEMU: {error}")))
}

fn boot(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let mut words = Vec::new();
    let mut options = unikernel::Options::new("");
    while let Some(argument) = arguments.next().map_err(usage)? {
        match argument {
            Long("memory") => {
                options.memory_mib = arguments.value().and_then(|v| v.parse()).map_err(usage)?
            }
            Long("accel") => {
                options.accelerator = arguments.value().and_then(ValueExt::string).map_err(usage)?
            }
            Value(word) => words.push(word.string().map_err(usage)?),
            other => return Err(usage(other.unexpected())),
        }
    }
    options.words = if words.is_empty() { "app=hello".into() } else { words.join(" ") };
    let qemu = setup::all()?;
    let image = kernel_image::build()?;
    let transcript = unikernel::boot(&qemu, &image, &options, Duration::from_secs(600), |line| match line {
        Output::Console(line) => println!("{line}"),
        Output::Qemu(line) => eprintln!("qemu: {line}"),
    })?;
    for line in &transcript.log.lines {
        println!("log: {line}");
    }
    match transcript.verdict {
        Some(Verdict::Success) => Ok(ExitCode::SUCCESS),
        Some(verdict) => Err(Error::Guest(format!("the unikernel {verdict}"))),
        None => Err(Error::Guest("the unikernel did not end within 600 s".into())),
    }
}

fn run_linux(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let mut script = None;
    while let Some(argument) = arguments.next().map_err(usage)? {
        match argument {
            Value(text) if script.is_none() => script = Some(text.string().map_err(usage)?),
            other => return Err(usage(other.unexpected())),
        }
    }
    let script = script
        .unwrap_or_else(|| "uname -a; lspci -nn; modprobe mlx5_ib; ibv_devinfo; dmesg | grep -i mlx5".into());
    let qemu = setup::qemu()?;
    let image = linux::image(&linux::ORACLE)?;
    let options = linux::Options { show: true, ..linux::Options::default() };
    let transcript = linux::boot(&qemu, &image, &script, &options)?;
    println!(
        "status {}, boot {:.1} s, total {:.1} s",
        transcript.status,
        transcript.boot.as_secs_f64(),
        transcript.total.as_secs_f64()
    );
    Ok(ExitCode::from(transcript.status))
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

fn bench(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let mut report = None;
    while let Some(argument) = arguments.next().map_err(usage)? {
        match argument {
            Long("report") => report = Some(PathBuf::from(arguments.value().map_err(usage)?)),
            other => return Err(usage(other.unexpected())),
        }
    }
    levels::bench(report.as_deref())?;
    Ok(ExitCode::SUCCESS)
}
