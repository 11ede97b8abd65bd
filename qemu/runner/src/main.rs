//! `cargo xtask`: the project's commands.

use runner::{Error, process, setup};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <command> [options]

  setup    the Rust targets and a QEMU with vfio-user-pci (done by the other commands too)
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
    let mut arguments = lexopt::Parser::from_env();
    match arguments.next() {
        Ok(Some(lexopt::Arg::Value(command))) => match command.to_str() {
            Some("setup") => {
                let qemu = setup::all()?;
                println!("{}\n{}", qemu.version, qemu.words().join(" "));
                Ok(())
            }
            _ => Err(Error::Usage(format!("unknown command {}", command.to_string_lossy()))),
        },
        Ok(Some(_)) | Err(_) => Err(Error::Usage("unknown option".into())),
        Ok(None) => Err(Error::Usage("a command is missing".into())),
    }
}
