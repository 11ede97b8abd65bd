//! `cargo xtask`: the project's commands.

use runner::{Error, linux, process, setup};
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <command> [options]

  setup                the Rust targets and a QEMU with vfio-user-pci (done by the other commands too)
  qemu ARGUMENT...     that QEMU, with these arguments
  linux [SCRIPT]       a Linux guest that runs a shell script (default: what it is)
";

fn main() -> ExitCode {
    let result = process::clean_up_on_signals().and_then(|()| run());
    process::clean_up();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Usage(message)) => {
            eprintln!("xtask: {message}\n\n{USAGE}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> runner::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().as_deref().and_then(|word| word.to_str()) {
        Some("setup") => {
            let qemu = setup::all()?;
            println!("{}\n{}", qemu.version, qemu.words().join(" "));
            Ok(())
        }
        Some("qemu") => {
            let qemu = setup::qemu()?;
            let error = qemu.command().args(arguments).exec();
            Err(Error::Program(format!("cannot start QEMU: {error}")))
        }
        Some("linux") => {
            let qemu = setup::qemu()?;
            let image = linux::image(&linux::ORACLE)?;
            let script = arguments.next().map_or("uname -a; modprobe mlx5_ib && lsmod".into(), |word| {
                word.to_string_lossy().into_owned()
            });
            let options = linux::Options { show: true, ..linux::Options::default() };
            let transcript = linux::boot(&qemu, &image, &script, &options)?;
            println!(
                "status {}, boot {:.1} s, total {:.1} s",
                transcript.status,
                transcript.boot.as_secs_f64(),
                transcript.total.as_secs_f64()
            );
            Ok(())
        }
        Some(other) => Err(Error::Usage(format!("unknown command {other}"))),
        None => Err(Error::Usage("a command is missing".into())),
    }
}
