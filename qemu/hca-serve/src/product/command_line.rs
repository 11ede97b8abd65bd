//! The program `hca-serve`: its options, and its run from start to exit.

use super::control::Control;
use super::options::{self, Argument, Request, Value};
use super::output::Lines;
use super::qemu::{hca_argument, memory_arguments};
use super::ready::ReadyFd;
use super::report;
use crate::error::{Error, IoContext, Result};
use crate::link::Address;
use crate::server::{LogSink, Options, serve, to_stderr};
use hca_model::DeviceSpec;
use rdma_fabric::infiniband::FabricConfig;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Meaning of `--faults` and of `--seed`, wherever they are options.
pub const FAULTS: &str =
    "as in loss=1%,dup=1%,reorder=1%,corrupt=0.1%,delay=10us..1ms,cuts=20/1000..5000/100ms..5s";
/// See [`FAULTS`].
pub const SEED: &str = "replays a run's faults";

/// Exit statuses, as listed by `--help`.
pub const STATUSES: &str = "\
exit status: 0 after SIGTERM, SIGINT or SIGHUP, 1 when something cannot be served or the report or capture is not whole, 2 for
             a mistake on the command line
";

/// Returns a new seed for each run. The seed is printed, so that the run can be replayed.
#[must_use]
pub fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| u64::from(time.subsec_nanos()))
}

/// Parses a GUID such as `0x506b4b0300a00000`.
fn guid(value: Value) -> Result<u64> {
    let refused = value.clone().refused("give up to 16 hexadecimal digits, not all zero");
    let text = value.text()?;
    let digits = text.strip_prefix("0x").unwrap_or(&text).replace(':', "");
    match u64::from_str_radix(&digits, 16) {
        Ok(guid) if guid != 0 && guid.checked_add(1 << 16).is_some() => Ok(guid),
        _ => Err(refused),
    }
}

/// Parses a size in bytes, with an optional suffix.
fn size(value: Value) -> Result<u64> {
    let refused = value.clone().refused("give a number of bytes, or one followed by K, M, G or T");
    let text = value.text()?;
    let (digits, shift) = match text.char_indices().last() {
        Some((at, suffix)) => match "KMGT".find(suffix) {
            Some(power) => (text.get(..at).unwrap_or_default(), 10 * (power as u32 + 1)),
            None => (text.as_str(), 0),
        },
        None => (text.as_str(), 0),
    };
    digits.parse().ok().and_then(|number: u64| number.checked_mul(1 << shift)).ok_or(refused)
}

/// Parses the code of a packet lifetime.
fn packet_life_time(value: Value) -> Result<u8> {
    let refused = value.clone().refused("give a number from 0 to 31");
    value.number().ok().filter(|code| *code < 32).ok_or(refused)
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

/// A command line.
struct CommandLine {
    /// HCAs and fabric to serve.
    options: Options,
    /// Card and quirks of the HCAs whose sockets follow.
    kind: DeviceSpec,
    /// The last `--profile`, until a socket follows it.
    unused_profile: Option<String>,
    control: Option<PathBuf>,
    report: Option<PathBuf>,
    ready: Option<i32>,
    log: LogForm,
    /// True after `--profile help`, which lists the cards.
    wants_cards: bool,
}

impl CommandLine {
    fn new() -> Self {
        Self {
            options: Options { seed: fresh_seed(), ..Options::new(Vec::new()) },
            kind: DeviceSpec::default(),
            unused_profile: None,
            control: None,
            report: None,
            ready: None,
            log: LogForm::Text,
            wants_cards: false,
        }
    }

    fn add_socket(&mut self, path: PathBuf) {
        self.options.sockets.push(path);
        self.options.kinds.push(self.kind.clone());
        self.unused_profile = None;
    }

    fn set_profile(&mut self, value: Value) -> Result<()> {
        let spec = value.clone().text()?;
        self.wants_cards |= spec == "help";
        if !self.wants_cards {
            self.kind = value.parse()?;
            self.unused_profile = Some(spec);
        }
        Ok(())
    }
}

/// Returns the options.
fn table() -> Vec<Argument<CommandLine>> {
    let flag = Argument::<CommandLine>::flag;
    let value = Argument::<CommandLine>::value;
    vec![
        value(
            "--socket PATH",
            "one HCA there, for one QEMU at a time; may be given many times",
            |line, value| {
                line.add_socket(value.path());
                Ok(())
            },
        ),
        value(
            "--profile CARD[,HABIT[=VALUE]]...",
            "what the HCAs of the sockets behind this option are, below (cx-5)",
            CommandLine::set_profile,
        ),
        value(
            "--guid-base GUID",
            "port GUID of the first HCA (0x506b4b0300a00000); the others follow at a distance of 0x10",
            |line, value| {
                line.options.guid_base = Some(guid(value)?);
                Ok(())
            },
        ),
        value("--faults SPEC", FAULTS, |line, value| {
            line.options.faults = value.parse()?;
            Ok(())
        }),
        value("--seed N", SEED, |line, value| {
            line.options.seed = value.number()?;
            Ok(())
        }),
        value(
            "--pcap FILE",
            "all packets, for Wireshark; `-` is standard output, as in --pcap - | wireshark -k -i - \
             (a pipe whose reader is slow loses packets, which are counted; a file loses none)",
            |line, value| {
                line.options.capture = Some(value.path());
                Ok(())
            },
        ),
        value(
            "--control SOCKET",
            "takes commands while it runs, one line of JSON each: {\"do\":\"help\"} lists them",
            |line, value| {
                line.control = Some(value.path());
                Ok(())
            },
        ),
        value("--report FILE", "at the end: refusals, losses, counters, objects, as JSON", |line, value| {
            line.report = Some(value.path());
            Ok(())
        }),
        value(
            "--ready-fd N",
            "writes a line to descriptor N when clients can connect, and closes it",
            |line, value| {
                let refused = value.clone().refused("give the number of an open descriptor");
                line.ready = Some(value.number().map_err(|_| refused)?);
                Ok(())
            },
        ),
        value(
            "--log FORM",
            "warnings and refusals on standard error as text, or everything as json, or none",
            |line, value| {
                line.log = value.text()?.parse()?;
                Ok(())
            },
        ),
        value(
            "--listen ADDRESS",
            "other servers' HCAs and Ethernet switches have their cables here: unix:PATH or tcp:HOST:PORT, of this \
             machine",
            |line, value| {
                line.options.listen = Some(address("--listen", &value.text()?)?);
                Ok(())
            },
        ),
        value(
            "--netdev ADDRESS",
            "guests' ordinary network devices join the Ethernet switch here, by `-netdev stream,server=off` of QEMU: \
             unix:PATH or tcp:HOST:PORT, of this machine",
            |line, value| {
                line.options.netdev = Some(address("--netdev", &value.text()?)?);
                Ok(())
            },
        ),
        value(
            "--netdev-dgram LOCAL,REMOTE",
            "one such device, by `-netdev dgram` of QEMU, which receives at REMOTE and sends to LOCAL: unix:PATH or \
             udp:HOST:PORT, both of one kind; may be given many times",
            |line, value| {
                line.options.netdev_datagrams.push(value.parse()?);
                Ok(())
            },
        ),
        flag(
            "--listen-anywhere",
            "the addresses may be such that other machines reach: whoever reaches one is part of the network",
            |line| line.options.listen_anywhere = true,
        ),
        value(
            "--uplink ADDRESS",
            "the fabric is that of the server that listens there, and its Ethernet switch is connected to this one's; \
             GUIDs are chosen by it, unless --guid-base is given",
            |line, value| {
                line.options.uplink = Some(address("--uplink", &value.text()?)?);
                Ok(())
            },
        ),
        value(
            "--packet-lifetime N",
            "of paths, as connection managers wait: 4.096 us << N, N from 0 to 31; otherwise 8, OpenSM's is 18",
            |line, value| {
                line.options.packet_life_time = packet_life_time(value)?;
                Ok(())
            },
        ),
        flag(
            "--no-sm",
            "no subnet manager in the fabric: a guest's, as OpenSM, gives LIDs and brings ports up",
            |line| line.options.no_subnet_manager = true,
        ),
        flag(
            "--open-fabric",
            "every client may configure the switch and everybody's ports, as with `ibportstate`, and send under any \
             LID and P_Key; otherwise only who knows the M_Key, which {\"do\":\"state\"} tells",
            |line| line.options.open_fabric = true,
        ),
        flag(
            "--strict",
            "refuse what the PRM calls reserved or illegal, for tests of drivers; otherwise it is taken with a \
             warning where firmware takes it",
            |line| line.options.strict = true,
        ),
        flag(
            "--packets-only",
            "RC requests between HCAs go as packets always; otherwise payload is copied from one client's memory to \
             the other's where no fault, latency or capture could tell the difference",
            |line| line.options.packets_only = true,
        ),
        flag(
            "--warm",
            "HCAs stay as they are when their client resets or leaves, as at a kexec: the next one finds what was left",
            |line| line.options.warm = true,
        ),
        value(
            "--memory-limit SIZE",
            "most memory that each client may map, as 4G (K, M, G and T are powers of 1024); otherwise the machine's RAM",
            |line, value| {
                line.options.memory_limit = size(value)?;
                Ok(())
            },
        ),
        flag(
            "--file-io",
            "memory of clients may be in files on disks, overlayfs, FUSE or network file systems, and in files that \
             cannot be mapped, such as /proc/self/mem; otherwise only in memfd, tmpfs, hugetlbfs and ramfs. Only for \
             clients that you trust: an access to such a file can stop all HCAs for ever, and then not even SIGKILL \
             ends the server",
            |line| line.options.file_io = true,
        ),
    ]
}

/// Parses the options. Returns `None` if only help was requested.
///
/// # Errors
/// [`Error::Usage`].
fn parse(mut parser: lexopt::Parser) -> Result<Option<CommandLine>> {
    let mut line = CommandLine::new();
    let request = options::parse(&table(), &mut line, &mut parser)?;
    if request == Request::Help || line.wants_cards {
        return Ok(None);
    }
    if let Some(spec) = &line.unused_profile {
        return Err(Error::Usage(format!(
            "--profile {spec} applies to each --socket that follows it, and none does"
        )));
    }
    let options = &mut line.options;
    if options.uplink.is_some() {
        let fabric = [
            ("--listen", options.listen.is_some()),
            ("--faults", !options.faults.is_none()),
            ("--pcap", options.capture.is_some() && !options.has_ethernet()),
            ("--packet-lifetime", options.packet_life_time != FabricConfig::default().packet_life_time),
            ("--no-sm", options.no_subnet_manager),
            ("--open-fabric", options.open_fabric),
        ];
        if let Some((option, _)) = fabric.iter().find(|(_, given)| *given) {
            return Err(Error::Usage(format!(
                "{option} is for the server that has the fabric: give it there, not beside --uplink"
            )));
        }
    }
    if options.sockets.is_empty() && options.listen.is_none() && !options.has_netdevs() {
        return Err(Error::Usage("serve needs --socket PATH, once for each HCA".into()));
    }
    let log = line.log;
    options.log = log.sink();
    options.notices = Arc::new(move |text| log.print(text));
    Ok(Some(line))
}

/// Returns the help text of a program called `name`.
fn help(name: &str) -> String {
    format!(
        "usage: {name} --socket PATH [--socket PATH]... [OPTION]...\n\n\
         Serves emulated ConnectX HCAs on one InfiniBand fabric over vfio-user, to any QEMU and any guest.\n\n\
         {}\n{}\n{STATUSES}",
        options::help(&table()),
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
        Ok(Some(line)) => run(line),
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
fn run(line: CommandLine) -> Result<()> {
    let CommandLine { options, control, report: report_path, ready, log, .. } = line;
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
    let failures: u64 = summary.hcas.iter().map(|hca| hca.qp_failures.total()).sum();
    let ethernet = &summary.ethernet;
    log.print(&format!(
        "served for {:.1} s: {} packets delivered, {} lost, {refusals} refusals, {failures} failed QPs",
        summary.seconds,
        summary.fabric.delivered + ethernet.counters.delivered,
        summary.losses.sum(|_| true).lost() + ethernet.losses.sum(|_| true).lost()
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
    use rdma_fabric::infiniband::OPENSM_PACKET_LIFE_TIME;

    fn parsed(words: &[&str]) -> Result<Option<CommandLine>> {
        parse(lexopt::Parser::from_args(words.iter().copied()))
    }

    #[test]
    fn every_option_is_in_the_help_and_taken() {
        let words = "--socket a --profile cx-7,lid-ffff --socket b --guid-base 0x0002c90300000010 --faults loss=1% --seed 5 --pcap c \
                     --control d --report e --ready-fd 9 --log json --strict --no-sm --warm --packets-only \
                     --file-io --open-fabric --memory-limit 3G \
                     --listen /x --netdev /y --netdev-dgram /z,/w --listen-anywhere --packet-lifetime 18";
        let words: Vec<&str> = words.split_whitespace().collect();
        let line = parsed(&words).expect("right").expect("no help");
        assert_eq!(line.log, LogForm::Json);
        assert_eq!((line.ready, line.control, line.report), (Some(9), Some("d".into()), Some("e".into())));
        let options = line.options;
        assert_eq!(options.sockets, [PathBuf::from("a"), PathBuf::from("b")]);
        assert_eq!((options.guid_base, options.seed), (Some(0x0002_c903_0000_0010), 5));
        assert_eq!((options.memory_limit, options.packet_life_time), (3 << 30, OPENSM_PACKET_LIFE_TIME));
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
        let text = help("hca-serve");
        for word in words.iter().filter(|word| word.starts_with("--")) {
            assert!(text.contains(&format!("  {word} ")), "{word} is not in {text}");
        }
        assert!(parsed(&["--socket", "a", "--help"]).expect("help").is_none());
        assert!(parsed(&["-h"]).expect("help").is_none());
        assert!(parsed(&["--profile", "help"]).expect("help").is_none());
    }

    #[test]
    fn mistakes_are_named() {
        for (words, named) in [
            (&["--frob"][..], "--frob"),
            (&[], "--socket"),
            (&["--socket"], "--socket"),
            (&["--socket", "a", "b"], "b"),
            (&["--socket", "a", "--guid-base", "zebra"], "hexadecimal"),
            (&["--socket", "a", "--guid-base", "0"], "not all zero"),
            (&["--socket", "a", "--guid-base", "ffffffffffffffff"], "hexadecimal"),
            (&["--socket", "a", "--faults", "fire=1%"], "unknown fault `fire`"),
            (&["--socket", "a", "--seed", "many"], "many"),
            (&["--socket", "a", "--memory-limit", "4X"], "followed by K, M, G or T"),
            (&["--socket", "a", "--memory-limit", "99999999999T"], "number of bytes"),
            (&["--socket", "a", "--log", "xml"], "text, json or none"),
            (&["--socket", "a", "--packet-lifetime", "32"], "0 to 31"),
            (
                &["--socket", "a", "--profile", "cx-7"],
                "--profile cx-7 applies to each --socket that follows it",
            ),
            (&["--socket", "a", "--ready-fd", "x"], "descriptor"),
            (&["--socket", "a", "--file-io=yes"], "yes"),
            (&["--socket", "a", "--listen", "here"], "tcp:HOST:PORT"),
            (&["--netdev-dgram", "here"], "--netdev-dgram: here: give unix:PATH,unix:PATH"),
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
