//! The frame of a program with commands: the trait of a command, the list, help and errors.

use crate::error::{Error, IoContext, Result};
use crate::process;
use hca_serve::product::options::{self, Argument, Request};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A command. Its options are collected in the type itself, whose default has none of them.
pub trait Command: Default {
    /// First word of the command line.
    const NAME: &'static str;
    /// Arguments after the name, for the usage line.
    const ARGUMENTS: &'static str;
    /// Purpose, in one line.
    const SUMMARY: &'static str;
    /// Exit statuses.
    const STATUSES: &'static str = STATUSES;

    /// Returns the table of options.
    fn table() -> Vec<Argument<Self>> {
        Vec::new()
    }

    /// Runs the command.
    ///
    /// # Errors
    /// A one-line reason why the command failed.
    fn run(self, host: &Host) -> Result<ExitCode>;
}

/// Exit statuses of most commands.
const STATUSES: &str =
    "0 success, 1 something failed, 2 a mistake on the command line, 128 + N ended by signal N";

/// The program that has the commands.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Words that start the program.
    pub name: &'static str,
    /// The unikernel that the program can build.
    pub own_image: Option<OwnImage>,
}

/// A unikernel that serves if the user names none.
#[derive(Clone, Copy, Debug)]
pub struct OwnImage {
    /// Builds the image and returns its path.
    pub build: fn() -> Result<PathBuf>,
    /// Its command line if the user gives none.
    pub words: &'static str,
}

impl Host {
    /// Checks the image that the user named, before any work.
    ///
    /// # Errors
    /// The file cannot be read; [`Error::Usage`]: there is neither a file nor an own image.
    pub(super) fn check_image(&self, named: Option<&Path>) -> Result<()> {
        match (named, self.own_image) {
            (Some(path), _) => std::fs::File::open(path).context("cannot read", path).map(drop),
            (None, Some(_)) => Ok(()),
            (None, None) => Err(no_image()),
        }
    }

    /// Returns the image that the user named, or the program's own, which is built now.
    pub(super) fn image(&self, named: Option<PathBuf>) -> Result<PathBuf> {
        match (named, self.own_image) {
            (Some(named), _) => Ok(named),
            (None, Some(own)) => (own.build)(),
            (None, None) => Err(no_image()),
        }
    }

    /// Returns the unikernel's command line: the user's words, or that of the program's own image.
    pub(super) fn words(&self, words: &[String], image: Option<&PathBuf>) -> String {
        match self.own_image {
            Some(own) if words.is_empty() && image.is_none() => own.words.into(),
            _ => words.join(" "),
        }
    }
}

fn no_image() -> Error {
    Error::Usage("which unikernel? --image ELF".into())
}

/// A command of a program's list.
#[derive(Clone, Copy)]
pub struct Entry {
    name: &'static str,
    summary: &'static str,
    start: Start,
}

#[derive(Clone, Copy)]
enum Start {
    /// The command's own parser. The second function returns its help.
    Parsed(fn(&Host, &mut lexopt::Parser) -> Result<Option<ExitCode>>, fn(&Host) -> String),
    /// The arguments belong to another program, including `--help`.
    Verbatim(fn(lexopt::Parser) -> Result<ExitCode>),
    /// A program with signals, errors and help of its own. It gets the words that start it.
    Program(fn(&str, lexopt::Parser) -> ExitCode),
}

impl Entry {
    /// Returns the entry of a command.
    #[must_use]
    pub fn of<C: Command>() -> Self {
        Self { name: C::NAME, summary: C::SUMMARY, start: Start::Parsed(start::<C>, help::<C>) }
    }

    /// Returns an entry for a program with signals, errors and help of its own. It gets the words
    /// that start it.
    #[must_use]
    pub fn program(
        name: &'static str,
        summary: &'static str,
        run: fn(&str, lexopt::Parser) -> ExitCode,
    ) -> Self {
        Self { name, summary, start: Start::Program(run) }
    }

    /// Returns an entry whose arguments belong to another program.
    #[must_use]
    pub fn verbatim(
        name: &'static str,
        summary: &'static str,
        run: fn(lexopt::Parser) -> Result<ExitCode>,
    ) -> Self {
        Self { name, summary, start: Start::Verbatim(run) }
    }
}

fn start<C: Command>(host: &Host, arguments: &mut lexopt::Parser) -> Result<Option<ExitCode>> {
    let mut command = C::default();
    match options::parse(&C::table(), &mut command, arguments)? {
        Request::Help => Ok(None),
        Request::Run => command.run(host).map(Some),
    }
}

fn help<C: Command>(host: &Host) -> String {
    let (program, name, arguments) = (host.name, C::NAME, C::ARGUMENTS);
    let usage = format!("{program} {name} {arguments}");
    let options = options::help(&C::table());
    let options = if options.is_empty() { options } else { options + "\n" };
    format!("usage: {}\n\n{}\n\n{options}exit status: {}\n", usage.trim_end(), C::SUMMARY, C::STATUSES)
}

/// A heading of the help, and the commands below it.
pub type Section = (&'static str, Vec<Entry>);

/// Runs the command that this process's arguments name.
#[must_use]
pub fn main(host: &Host, sections: &[Section]) -> ExitCode {
    let mut arguments = lexopt::Parser::from_env();
    let program = host.name;
    let name = match arguments.next() {
        Ok(Some(lexopt::Arg::Value(word))) => word.to_string_lossy().into_owned(),
        Ok(Some(lexopt::Arg::Long("help") | lexopt::Arg::Short('h'))) => {
            print!("{}", list(host, sections));
            return ExitCode::SUCCESS;
        }
        Ok(None) => {
            eprint!("{program}: a command is missing\n\n{}", list(host, sections));
            return ExitCode::from(2);
        }
        Ok(Some(other)) => return report(host, None, Error::Usage(other.unexpected().to_string())),
        Err(error) => return report(host, None, Error::Usage(error.to_string())),
    };
    let mut entries = sections.iter().flat_map(|(_, entries)| entries);
    let Some(entry) = entries.find(|entry| entry.name == name) else {
        return report(host, None, Error::Usage(format!("unknown command {name}")));
    };
    let begin = || process::clean_up_on_signals();
    let result = match entry.start {
        Start::Program(run) => return run(&format!("{program} {name}"), arguments),
        Start::Verbatim(run) => begin().and_then(|()| run(arguments)),
        Start::Parsed(run, help) => begin().and_then(|()| run(host, &mut arguments)).map(|code| {
            code.unwrap_or_else(|| {
                print!("{}", help(host));
                ExitCode::SUCCESS
            })
        }),
    };
    process::wait_if_ending();
    process::clean_up();
    result.unwrap_or_else(|error| report(host, Some(entry.name), error))
}

/// Prints an error in one line and returns its exit status.
fn report(host: &Host, command: Option<&str>, error: Error) -> ExitCode {
    let program = host.name;
    let Error::Usage(message) = error else {
        eprintln!("{program}: {error}");
        return ExitCode::FAILURE;
    };
    let command = command.map(|name| format!("{name} ")).unwrap_or_default();
    eprintln!("{program}: {message} (`{program} {command}--help` lists what there is)");
    ExitCode::from(2)
}

/// Returns the help of a program: its commands, in their order.
fn list(host: &Host, sections: &[Section]) -> String {
    let program = host.name;
    let mut text = format!("usage: {program} COMMAND [OPTION]...\n");
    for (heading, entries) in sections {
        text += &format!("\n{heading}:\n");
        for Entry { name, summary, .. } in entries {
            text += &format!("  {name:<8}{summary}\n");
        }
    }
    text + &format!("\n`{program} COMMAND --help` lists a command's options.\nexit status: {STATUSES}\n")
}
