//! The program `hca-serve`: its options, and its run from start to exit.

use super::control::Control;
use super::output::Lines;
use super::qemu::{hca_argument, memory_arguments};
use super::ready::ReadyFd;
use super::report;
use crate::error::{Error, IoContext, Result};
use crate::link::Address;
use crate::server::{LogSink, Options, serve, to_stderr};
use hca_model::DeviceSpec;
use lexopt::prelude::*;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Options, as listed by `--help`.
pub const OPTIONS: &str = "  --socket PATH     one HCA there, for one QEMU at a time; may be given many times
  --profile CARD[,HABIT[=VALUE]]...
                    what the HCAs of the sockets behind this option are, below (cx-5)
  --guid-base GUID  port GUID of the first HCA (0x506b4b0300a00000); the others follow at a distance of 0x10
  --faults SPEC     as in loss=1%,dup=1%,reorder=1%,corrupt=0.1%,delay=10us..1ms,cuts=20/1000..5000/100ms..5s
  --seed N          replays a run's faults
  --pcap FILE       all packets, for Wireshark; `-` is standard output, as in --pcap - | wireshark -k -i -
                    (a pipe whose reader is slow loses packets, which are counted; a file loses none)
  --control SOCKET  takes commands while it runs, one line of JSON each: {\"do\":\"help\"} lists them
  --report FILE     at the end: refusals, losses, counters, objects, as JSON
  --ready-fd N      writes a line to descriptor N when clients can connect, and closes it
  --log FORM        warnings and refusals on standard error as text, or everything as json, or none
  --listen ADDRESS  other servers' HCAs have their cables here: unix:PATH or tcp:HOST:PORT, of this machine
  --listen-anywhere the address may be one that other machines reach: whoever reaches it is part of the fabric
  --uplink ADDRESS  the fabric is that of the server that listens there; GUIDs are chosen by it, unless --guid-base is given
  --no-sm           no subnet manager in the fabric: a guest's, as OpenSM, gives LIDs and brings ports up
  --open-fabric     every client may configure the switch and everybody's ports, as with `ibportstate`, and send under any LID and
                    P_Key; otherwise only who knows the M_Key, which {\"do\":\"state\"} tells
  --strict          refuse what the PRM calls reserved or illegal, for tests of drivers; otherwise it is taken with a warning
                    where firmware takes it
  --packets-only    RC requests between HCAs go as packets always; otherwise payload is copied from one client's memory to the
                    other's where no fault, latency or capture could tell the difference
  --warm            HCAs stay as they are when their client resets or leaves, as at a kexec: the next one finds what was left
  --file-io         memory of clients may be in files on disks, overlayfs, FUSE or network file systems, and in files that cannot be
                    mapped, such as /proc/self/mem; otherwise only in memfd, tmpfs, hugetlbfs and ramfs. Only for clients that
                    you trust: an access to such a file can stop all HCAs for ever, and then not even SIGKILL ends the server
";

/// Exit statuses, as listed by `--help`.
pub const STATUSES: &str = "\
exit status: 0 after SIGTERM, SIGINT or SIGHUP, 1 when something cannot be served or the report or capture is not whole, 2 for
             a mistake on the command line
";

/// Parsed command line.
pub struct Arguments {
    /// HCAs and fabric to serve.
    pub options: Options,
    control: Option<PathBuf>,
    report: Option<PathBuf>,
    ready: Option<i32>,
}

/// Converts a command line error.
fn usage(error: lexopt::Error) -> Error {
    Error::Usage(error.to_string())
}

/// Returns a new seed for each run. The seed is printed, so that the run can be replayed.
fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| u64::from(time.subsec_nanos()))
}

/// Parses a GUID such as `0x506b4b0300a00000`.
fn guid(text: &str) -> Result<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text).replace(':', "");
    match u64::from_str_radix(&digits, 16) {
        Ok(guid) if guid != 0 && guid.checked_add(1 << 16).is_some() => Ok(guid),
        _ => Err(Error::Usage(format!("--guid-base {text}: give up to 16 hexadecimal digits, not all zero"))),
    }
}

fn address(option: &str, text: &str) -> Result<Address> {
    text.parse().map_err(|error| Error::Usage(format!("{option} {error}")))
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogForm {
    Text,
    Json,
    None,
}

impl FromStr for LogForm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            "none" => Ok(Self::None),
            _ => Err(Error::Usage(format!("--log {text}: give text, json or none"))),
        }
    }
}

impl LogForm {
    fn sink(self) -> LogSink {
        match self {
            Self::Text => to_stderr(),
            Self::None => Arc::new(|_, _| {}),
            Self::Json => {
                let lines = Lines::stderr();
                Arc::new(move |node, entry| lines.print(report::log_line(node, entry).to_string()))
            }
        }
    }

    /// Prints a line of the program itself.
    fn print(self, text: &str) {
        match self {
            Self::Text => Lines::stderr().print(format!("hca-serve: {text}")),
            Self::Json => Lines::stderr().print(serde_json::json!({ "message": text }).to_string()),
            Self::None => {}
        }
    }
}

/// Parses the options. Returns `None` if only help was requested.
///
/// # Errors
/// [`Error::Usage`].
fn parse(mut parser: lexopt::Parser) -> Result<Option<(Arguments, LogForm)>> {
    let mut options = Options { seed: fresh_seed(), ..Options::new(Vec::new()) };
    let mut kind = DeviceSpec::default();
    // The profile that no socket follows yet.
    let mut unused_profile = None;
    let (mut control, mut report, mut ready, mut log) = (None, None, None, LogForm::Text);
    while let Some(argument) = parser.next().map_err(usage)? {
        let Long(name) = argument else {
            if argument == Short('h') {
                return Ok(None);
            }
            return Err(usage(argument.unexpected()));
        };
        let name = name.to_owned();
        match name.as_str() {
            "help" => return Ok(None),
            "file-io" => {
                options.file_io = true;
                continue;
            }
            "no-sm" => {
                options.no_subnet_manager = true;
                continue;
            }
            "open-fabric" => {
                options.open_fabric = true;
                continue;
            }
            "strict" => {
                options.strict = true;
                continue;
            }
            "warm" => {
                options.warm = true;
                continue;
            }
            "packets-only" => {
                options.packets_only = true;
                continue;
            }
            "listen-anywhere" => {
                options.listen_anywhere = true;
                continue;
            }
            _ => {}
        }
        let mut text = || parser.value().and_then(ValueExt::string).map_err(usage);
        match name.as_str() {
            "socket" => {
                options.sockets.push(text()?.into());
                options.kinds.push(kind.clone());
                unused_profile = None;
            }
            "profile" => {
                let spec = text()?;
                if spec == "help" {
                    return Ok(None);
                }
                kind = spec.parse().map_err(|error| Error::Usage(format!("--profile: {error}")))?;
                unused_profile = Some(spec);
            }
            "guid-base" => options.guid_base = Some(guid(&text()?)?),
            "listen" => options.listen = Some(address("--listen", &text()?)?),
            "uplink" => options.uplink = Some(address("--uplink", &text()?)?),
            "faults" => {
                let spec = text()?;
                options.faults = spec.parse().map_err(|error| Error::Usage(format!("--faults: {error}")))?;
            }
            "seed" => {
                let seed = text()?;
                options.seed =
                    seed.parse().map_err(|_| Error::Usage(format!("--seed {seed}: give a number")))?;
            }
            "pcap" => options.capture = Some(text()?.into()),
            "control" => control = Some(text()?.into()),
            "report" => report = Some(text()?.into()),
            "ready-fd" => {
                let number = text()?;
                ready = Some(number.parse().map_err(|_| {
                    Error::Usage(format!("--ready-fd {number}: give the number of an open descriptor"))
                })?);
            }
            "log" => log = text()?.parse()?,
            _ => return Err(Error::Usage(format!("unknown option --{name}"))),
        }
    }
    if let Some(spec) = unused_profile {
        return Err(Error::Usage(format!(
            "--profile {spec} applies to each --socket that follows it, and none does"
        )));
    }
    if options.uplink.is_some() {
        let fabric = [
            ("--listen", options.listen.is_some()),
            ("--faults", !options.faults.is_none()),
            ("--pcap", options.capture.is_some()),
            ("--no-sm", options.no_subnet_manager),
            ("--open-fabric", options.open_fabric),
        ];
        if let Some((option, _)) = fabric.iter().find(|(_, given)| *given) {
            return Err(Error::Usage(format!(
                "{option} is for the server that has the fabric: give it there, not beside --uplink"
            )));
        }
    }
    if options.sockets.is_empty() && options.listen.is_none() {
        return Err(Error::Usage("serve needs --socket PATH, once for each HCA".into()));
    }
    options.log = log.sink();
    options.notices = Arc::new(move |line| log.print(line));
    Ok(Some((Arguments { options, control, report, ready }, log)))
}

/// Returns the help text of a program called `name`.
fn help(name: &str) -> String {
    format!(
        "usage: {name} --socket PATH [--socket PATH]... [OPTION]...\n\n\
         Serves emulated ConnectX HCAs on one InfiniBand fabric over vfio-user, to any QEMU and any guest.\n\n\
         {OPTIONS}\n{}\n{STATUSES}",
        DeviceSpec::help()
    )
}

/// Runs the program, called `name`, with these arguments.
#[must_use]
pub fn main(name: &str, parser: lexopt::Parser) -> ExitCode {
    let outcome = match parse(parser) {
        Ok(None) => {
            print!("{}", help(name));
            return ExitCode::SUCCESS;
        }
        Ok(Some((arguments, log))) => run(arguments, log),
        Err(error) => Err(error),
    };
    Lines::stderr().flush();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Usage(text)) => {
            eprintln!("{name}: {text} (`{name} --help` lists what there is)");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until a signal arrives.
fn run(arguments: Arguments, log: LogForm) -> Result<()> {
    let Arguments { options, control, report: report_path, ready } = arguments;
    let ready = ready.map(ReadyFd::new).transpose()?;
    let cannot = |error: std::io::Error| Error::Serve(format!("cannot handle signals: {error}"));
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(cannot)?;
    // Open the report first: an error must not appear only after the run.
    let report_file = match &report_path {
        Some(path) => Some(File::create(path).context("cannot write the report", path)?),
        None => None,
    };
    let (sockets, seed, faults) = (options.sockets.clone(), options.seed, options.faults);
    let what = titles(&options.kinds);
    let capture = options.capture.clone();
    let served = serve(options)?;
    let control = control.map(|path| Control::start(&path, served.handle().clone())).transpose()?;
    announce(&sockets, &what, seed, &faults.to_string(), capture.as_deref());
    if let Some(ready) = ready {
        ready.tell();
    }
    let (ending, end) = mpsc::channel();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                // The first signal stops gracefully; a second one exits immediately.
                if ending.send(signal).is_err() {
                    std::process::exit(128 + signal);
                }
            }
        })
        .map_err(cannot)?;
    while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(Duration::from_secs(1)) {
        if !served.is_alive() {
            return Err(Error::Serve("the emulated HCAs' thread ended before its time".into()));
        }
    }
    drop(end);
    drop(control);
    let summary = served.stop()?;
    if let (Some(mut file), Some(path)) = (report_file, &report_path) {
        let value = report::whole(&summary, &sockets, seed, &faults);
        writeln!(file, "{value:#}").context("cannot write the report", path)?;
    }
    let refusals: u64 = summary.refusals.iter().sum();
    log.print(&format!(
        "served for {:.1} s: {} packets delivered, {} lost, {refusals} refusals",
        summary.seconds,
        summary.fabric.delivered,
        summary.losses.sum(|_| true).lost()
    ));
    match summary.capture_error {
        Some(error) => Err(Error::Serve(format!("the capture is not whole: {error}"))),
        None => Ok(()),
    }
}

/// Returns the titles of the HCAs, without duplicates.
fn titles(kinds: &[DeviceSpec]) -> String {
    let mut titles: Vec<&str> = kinds.iter().map(|kind| kind.card().title).collect();
    titles.dedup();
    titles.join(", ")
}

/// Prints how to connect to the HCAs, on standard output unless the capture is written there.
fn announce(sockets: &[PathBuf], what: &str, seed: u64, faults: &str, capture: Option<&Path>) {
    let mut lines =
        vec![format!("serving {} emulated {what} HCAs, seed {seed}, faults {faults}", sockets.len())];
    let to_stdout = capture == Some(Path::new("-"));
    if let Some(path) = capture.filter(|_| !to_stdout) {
        lines.push(format!("capturing to {}", path.display()));
    }
    lines.push("guest memory has to be shared; for 1 GiB of it:".into());
    lines.push(format!("  {}", memory_arguments(1024).join(" ")));
    lines.push("and for each guest the device (QEMU 10.1 or later; `-accel kvm` works too):".into());
    lines.extend(sockets.iter().map(|socket| format!("  -device '{}'", hca_argument(socket))));
    lines.push("end with Ctrl-C".into());
    let text = lines.join("\n") + "\n";
    // A closed stream needs no output.
    if to_stdout {
        Lines::stderr().print(text.trim_end().to_owned());
    } else {
        let _ = std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Option<(Arguments, LogForm)>> {
        parse(lexopt::Parser::from_args(words.iter().copied()))
    }

    #[test]
    fn every_option_is_in_the_help_and_taken() {
        let words = "--socket a --profile cx-7,lid-ffff --socket b --guid-base 0x0002c90300000010 --faults loss=1% --seed 5 --pcap c \
                     --control d --report e --ready-fd 9 --log json --strict --no-sm --warm --packets-only \
                     --file-io --open-fabric \
                     --listen /x --listen-anywhere";
        let words: Vec<&str> = words.split_whitespace().collect();
        let (arguments, log) = parsed(&words).expect("right").expect("no help");
        assert_eq!(log, LogForm::Json);
        let options = arguments.options;
        assert_eq!(options.sockets, [PathBuf::from("a"), PathBuf::from("b")]);
        assert_eq!((options.guid_base, options.seed), (Some(0x0002_c903_0000_0010), 5));
        assert!(
            options.file_io
                && options.listen_anywhere
                && options.strict
                && options.warm
                && options.packets_only
                && options.no_subnet_manager
                && options.open_fabric
        );
        assert_eq!(options.profile(1).port_guid, 0x0002_c903_0000_0020);
        let ids = [0, 1].map(|index| options.profile(index).card.device_id);
        assert_eq!((ids, titles(&options.kinds)), ([0x1017, 0x1021], "ConnectX-5, ConnectX-7".to_owned()));
        assert_eq!(options.faults.loss, 10_000);
        assert_eq!((arguments.ready, arguments.control), (Some(9), Some("d".into())));
        let text = help("hca-serve");
        for word in words.iter().filter(|word| word.starts_with("--")) {
            assert!(text.contains(&format!("  {word} ")), "{word} is not in {text}");
        }
        assert!(parsed(&["--socket", "a", "--help"]).expect("help").is_none());
        assert!(parsed(&["-h"]).expect("help").is_none());
    }

    #[test]
    fn mistakes_are_named() {
        for (words, named) in [
            (&["--frob"][..], "unknown option --frob"),
            (&[], "--socket"),
            (&["--socket"], "--socket"),
            (&["--socket", "a", "b"], "b"),
            (&["--socket", "a", "--guid-base", "zebra"], "hexadecimal"),
            (&["--socket", "a", "--guid-base", "0"], "not all zero"),
            (&["--socket", "a", "--guid-base", "ffffffffffffffff"], "hexadecimal"),
            (&["--socket", "a", "--faults", "fire=1%"], "unknown fault `fire`"),
            (&["--socket", "a", "--seed", "many"], "many"),
            (&["--socket", "a", "--log", "xml"], "text, json or none"),
            (
                &["--socket", "a", "--profile", "cx-7"],
                "--profile cx-7 applies to each --socket that follows it",
            ),
            (&["--socket", "a", "--ready-fd", "x"], "descriptor"),
            (&["--socket", "a", "--file-io=yes"], "yes"),
            (&["--socket", "a", "--listen", "here"], "tcp:HOST:PORT"),
            (
                &["--socket", "a", "--uplink", "/x", "--pcap", "c"],
                "--pcap is for the server that has the fabric",
            ),
        ] {
            match parsed(words) {
                Err(Error::Usage(text)) => assert!(text.contains(named), "{words:?}: {text}"),
                Err(other) => panic!("{words:?}: {other}"),
                Ok(_) => panic!("{words:?} was taken"),
            }
        }
    }
}
