//! `cargo xtask demo`: two unikernels on two emulated HCAs move verified data. Progress is shown
//! live and a report follows.

use crate::console::Line;
use crate::kernel_image;
use crate::linux;
use crate::report::{Node, Packets, Report};
use crate::setup;
use hca_model::{DeviceSpec, Profile};
use hca_serve::Served;
use rdma_fabric::faults::Faults;
use rdma_lab::accelerator;
use rdma_lab::defmt_log::Decoder;
use rdma_lab::error::{Error, IoContext, Result};
use rdma_lab::process::Temporary;
use rdma_lab::qemu::Output;
use rdma_lab::serve::serve;
use rdma_lab::setup::Qemu;
use rdma_lab::unikernel::{self, Finished, Running, Verdict};
use std::io::{IsTerminal, Write};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Options of the user.
#[derive(Debug, Clone)]
pub struct Options {
    /// File for the report in JSON.
    pub report: Option<PathBuf>,
    /// File for all packets, in pcapng.
    pub capture: Option<PathBuf>,
    /// Card and quirks of both HCAs.
    pub kind: DeviceSpec,
    /// Packet faults to inject.
    pub faults: Faults,
    /// Seed of the faults. A random seed is chosen and printed if the user gives none.
    pub seed: u64,
    /// Let every node manage the fabric.
    pub open_fabric: bool,
    /// QEMU's accelerator, or [`accelerator::AUTO`].
    pub accelerator: String,
    /// Show the unikernels' logs too.
    pub log: bool,
    /// Divisor of the volume.
    pub divide: u64,
    /// Run the second half: a Linux guest and a unikernel exchange RDS messages and RDMA.
    pub with_linux: bool,
    /// Time limit of the complete run.
    pub limit: Duration,
}

/// Time without output after which a unikernel counts as hung. A running one reports progress far
/// more often.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// Time for a unikernel to notice and report the failure of its peer.
const PARTNER_LIMIT: Duration = Duration::from_secs(30);

/// Roles of the nodes, in the order of the HCAs.
const ROLES: [&str; 2] = ["server", "client"];

fn address(node: usize) -> String {
    format!("10.0.0.{}", node + 1)
}

/// Prefix of the GIDs that the emulated fabric's subnet manager assigns.
const GID_PREFIX: u128 = 0xfe80 << 112;

/// Returns the command line of node `node`.
fn words(node: usize, options: &Options) -> String {
    let other = 1 - node.min(1);
    let guid = Profile::port_guid_of(u16::try_from(other).unwrap_or(0));
    let gid = Ipv6Addr::from_bits(GID_PREFIX | u128::from(guid));
    let (role, ip, peer) = (ROLES[node.min(1)], address(node), address(other));
    let (seed, divide) = (options.seed, options.divide);
    // Ethernet ports find each other by ARP.
    let neighbours =
        if options.kind.card().is_ethernet() { String::new() } else { format!("neighbours={peer}/{gid} ") };
    format!("app=demo role={role} ip={ip} peer={peer} {neighbours}seed={seed} divide={divide}")
}

/// Runs the demo and prints its report.
///
/// # Errors
/// A one-line reason why the run did not end with every byte verified.
pub fn run(options: &Options) -> Result<()> {
    // Check the output files first: the work takes minutes.
    let linux_capture = options.capture.as_deref().filter(|_| options.with_linux).map(linux_capture);
    for path in options.report.iter().chain(&options.capture).chain(&linux_capture) {
        std::fs::File::create(path).context("cannot write", path)?;
    }
    accelerator::check(&options.accelerator)?;
    let (qemu, image) = prepare()?;
    let accelerator = accelerator::choose_for(&options.accelerator, || Ok(qemu.clone()))?;
    let options = &Options { accelerator, ..options.clone() };
    let mut report = run_image(&qemu, &image, options)?;
    if options.with_linux {
        add_linux(&mut report, &qemu, &image, options, linux_capture)?;
    }
    print!("{}", report.table());
    if let Some(path) = &options.report {
        report.write_json(path)?;
    }
    if report.verified { Ok(()) } else { Err(Error::Guest("the demo's data was not verified".into())) }
}

/// Returns QEMU and the unikernel's image. Cargo compiles while QEMU comes over the network.
fn prepare() -> Result<(Qemu, PathBuf)> {
    setup::rust_targets()?;
    println!("building the unikernel");
    std::thread::scope(|scope| {
        let image = scope.spawn(kernel_image::build);
        let qemu = setup::qemu();
        let image =
            image.join().unwrap_or_else(|_| Err(Error::Program("the unikernel does not build".into())));
        Ok((qemu?, image?))
    })
}

/// Returns the capture file of the fabric with Linux, next to that of the unikernels:
/// `x.linux.pcapng` for `x.pcapng`.
fn linux_capture(path: &Path) -> PathBuf {
    match path.extension() {
        Some(extension) => {
            let mut linux = std::ffi::OsString::from("linux.");
            linux.push(extension);
            path.with_extension(linux)
        }
        None => path.with_extension("linux"),
    }
}

/// Runs the half with Linux and adds its results to the report.
fn add_linux(
    report: &mut Report,
    qemu: &Qemu,
    image: &Path,
    options: &Options,
    capture: Option<PathBuf>,
) -> Result<()> {
    let lab = rdma_lab::linux::Options {
        capture,
        faults: options.faults,
        seed: options.seed,
        accelerator: options.accelerator.clone(),
        show: options.log,
        ..linux::Demo::lab()
    };
    let demo = linux::Demo {
        qemu,
        image,
        workload: &kernel_image::build_workload()?,
        lab,
        divide: options.divide,
        seed: options.seed,
    };
    let started = Instant::now();
    let (nodes, summary) = demo.run()?;
    if let Some(error) = summary.capture_error {
        return Err(Error::Serve(format!("the capture is not complete: {error}")));
    }
    report.verified &= nodes.iter().all(|node| node.verified);
    report.nodes.extend(nodes);
    report.seconds += started.elapsed().as_secs_f64();
    report.packets.add(&summary);
    Ok(())
}

/// Runs the demo with `image` and returns its report.
///
/// # Errors
/// A unikernel failed, crashed, or exceeded the time limit.
pub fn run_image(qemu: &Qemu, image: &Path, options: &Options) -> Result<Report> {
    let folder = Temporary::folder("demo")?;
    let sockets: Vec<PathBuf> =
        (0..ROLES.len()).map(|node| folder.path().join(format!("hca{node}.sock"))).collect();
    let mut serving = hca_serve::Options::new(sockets.clone());
    serving.capture.clone_from(&options.capture);
    serving.kinds = vec![options.kind.clone(); ROLES.len()];
    serving.faults = options.faults;
    serving.seed = options.seed;
    serving.open_fabric = options.open_fabric;
    serving.strict = true;
    // The unikernels see a pipelined wire, as on hardware.
    serving.packets_only = true;
    let served = serve(serving)?;
    println!("{}", qemu.version);
    println!(
        "two emulated {} HCAs, seed {}, faults {}",
        options.kind.card().title,
        options.seed,
        options.faults
    );
    let started = Instant::now();
    let mut nodes = Vec::new();
    let (sender, events) = mpsc::channel();
    let mut followers = Followers::default();
    for (index, socket) in sockets.iter().enumerate() {
        let mut boot = unikernel::Options::new(&words(index, options));
        boot.hcas = vec![socket.clone()];
        boot.accelerator.clone_from(&options.accelerator);
        println!("{}: {}", ROLES[index], boot.words);
        let running = unikernel::start(qemu, image, &boot)?;
        followers.follow(index, running, image, options.limit, sender.clone())?;
        nodes.push(Node { role: ROLES[index].into(), ..Node::default() });
    }
    drop(sender);
    let mut run = Run { nodes, ended: [false; 2], failure: None, screen: Screen::new(options.log), started };
    let outcome = run.watch(&events, &served, options.limit);
    run.screen.clear();
    drop(followers);
    let summary = served.stop();
    outcome?;
    let summary = summary?;
    if let Some(error) = summary.capture_error {
        return Err(Error::Serve(format!("the capture is not complete: {error}")));
    }
    let mut packets = Packets::default();
    packets.add(&summary);
    Ok(Report {
        verified: run.nodes.iter().all(|node| node.verified),
        seconds: started.elapsed().as_secs_f64(),
        seed: options.seed,
        faults: options.faults.to_string(),
        accelerator: options.accelerator.clone(),
        qemu: qemu.version.clone(),
        nodes: run.nodes,
        packets,
    })
}

/// Event of a console follower.
enum Event {
    Line(usize, Output),
    End(usize, Result<Finished>),
}

/// Threads that follow the unikernels' consoles. Dropping it stops all unikernels.
#[derive(Default)]
struct Followers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Interval at which a follower checks the stop flag.
const STOP_CHECK: Duration = Duration::from_millis(200);

impl Followers {
    /// Follows a unikernel's console on a separate thread until the unikernel exits.
    fn follow(
        &mut self,
        index: usize,
        mut running: Running,
        image: &Path,
        limit: Duration,
        events: Sender<Event>,
    ) -> Result<()> {
        let decoder = Decoder::for_image(image)?;
        let stop = Arc::clone(&self.stop);
        let thread = std::thread::Builder::new()
            .name(format!("node {index}"))
            .spawn(move || {
                let deadline = Instant::now() + limit;
                // Dropping the unikernel kills it.
                while !stop.load(Ordering::Acquire) {
                    let end = match running.next_line(deadline.min(Instant::now() + STOP_CHECK)) {
                        Ok(Some(line)) => {
                            if events.send(Event::Line(index, line)).is_err() {
                                return;
                            }
                            continue;
                        }
                        Err(Error::Timeout { .. }) if Instant::now() < deadline => continue,
                        Ok(None) => running.finish(decoder.as_ref()),
                        Err(error) => Err(error),
                    };
                    // An error means that the receiver has stopped listening.
                    let _ = events.send(Event::End(index, end));
                    return;
                }
            })
            .map_err(|error| Error::Program(format!("cannot start a thread: {error}")))?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Followers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // A follower that panicked has dropped its unikernel too.
            let _ = thread.join();
        }
    }
}

struct Run {
    nodes: Vec<Node>,
    ended: [bool; 2],
    /// First failure and its time.
    failure: Option<(String, Instant)>,
    screen: Screen,
    started: Instant,
}

impl Run {
    fn fail(&mut self, reason: String) {
        self.failure.get_or_insert((reason, Instant::now()));
    }

    /// Processes events until both unikernels have exited, or one has failed and its peer had time
    /// to notice.
    fn watch(&mut self, events: &mpsc::Receiver<Event>, served: &Served, limit: Duration) -> Result<()> {
        let mut heard = Instant::now();
        while self.ended.contains(&false) {
            let until_end = (self.started + limit).saturating_duration_since(Instant::now());
            match events.recv_timeout(until_end.min(Duration::from_millis(500))) {
                Ok(event) => {
                    heard = Instant::now();
                    self.event(event);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    if !served.is_alive() {
                        self.fail("the emulated HCAs' server ended in the middle of the run".into());
                    }
                }
            }
            let waiting: Vec<&str> =
                ROLES.iter().zip(self.ended).filter(|(_, ended)| !ended).map(|(role, _)| *role).collect();
            if let Some((_, since)) = &self.failure {
                if since.elapsed() > PARTNER_LIMIT {
                    break;
                }
            } else if heard.elapsed() > SILENCE_LIMIT {
                self.fail(format!(
                    "{} said nothing for {} s",
                    waiting.join(" and "),
                    SILENCE_LIMIT.as_secs()
                ));
                break;
            }
            if self.started.elapsed() > limit {
                self.fail(format!("{} did not end within {} s", waiting.join(" and "), limit.as_secs()));
                break;
            }
        }
        match self.failure.take() {
            Some((reason, _)) => Err(Error::Guest(reason)),
            None => Ok(()),
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Line(index, Output::Qemu(line)) => {
                self.screen.line(&format!("{}: qemu: {line}", ROLES[index]));
            }
            Event::Line(index, Output::Console(line)) => self.console(index, &line),
            Event::End(index, Ok(finished)) => {
                self.ended[index] = true;
                if let Some(node) = self.nodes.get_mut(index) {
                    node.seconds = finished.seconds;
                    // Its own verdict counts only together with its exit status.
                    node.verified &= finished.verdict == Verdict::Success;
                }
                self.screen.log(ROLES[index], &finished.log.lines);
                if finished.verdict != Verdict::Success {
                    self.fail(format!("{} {}", ROLES[index], finished.verdict));
                }
            }
            Event::End(index, Err(error)) => {
                self.ended[index] = true;
                self.fail(format!("{}: {error}", ROLES[index]));
            }
        }
    }

    fn console(&mut self, index: usize, line: &str) {
        let role = ROLES[index];
        let Some(node) = self.nodes.get_mut(index) else { return };
        match Line::parse(line) {
            Line::Step(step) => {
                self.screen.line(&format!("{role}: {:<28} {:>10.3} ms", step.name, step.us as f64 / 1e3));
                node.steps.push(step);
            }
            Line::Progress { op, done, of } => self.screen.progress(index, &op, done, of),
            Line::Result(operation) => {
                self.screen.line(&format!(
                    "{role}: {}: {} messages, {} bytes, {:.2} MB/s, {} verified",
                    operation.op,
                    operation.messages,
                    operation.bytes,
                    operation.megabytes_per_second(),
                    operation.verified
                ));
                node.operations.push(operation);
            }
            Line::Done { verified } => node.verified = verified,
            Line::Error(text) => {
                self.screen.line(&format!("{role}: error: {text}"));
                self.fail(format!("{role}: {text}"));
            }
            Line::Log(text) => self.screen.line(&format!("{role}: {text}")),
        }
    }
}

/// Output to the user: lines and, on a terminal, a progress line below them.
struct Screen {
    terminal: bool,
    show_log: bool,
    progress: [String; 2],
    shown: [Option<(String, Instant)>; 2],
}

impl Screen {
    fn new(show_log: bool) -> Self {
        let terminal = std::io::stdout().is_terminal();
        Self { terminal, show_log, progress: Default::default(), shown: Default::default() }
    }

    fn clear(&self) {
        if self.terminal {
            print!("\r\x1b[K");
        }
    }

    fn line(&mut self, text: &str) {
        self.clear();
        println!("{text}");
        self.redraw();
    }

    fn redraw(&self) {
        if self.terminal {
            print!("\r\x1b[K{}", self.progress.join("   "));
            let _ = std::io::stdout().flush();
        }
    }

    fn progress(&mut self, index: usize, op: &str, done: u64, of: u64) {
        let percent = done.saturating_mul(100) / of.max(1);
        let text = format!("{}: {op} {done} of {of} ({percent} %)", ROLES[index]);
        if self.terminal {
            self.progress[index] = text;
            self.redraw();
            return;
        }
        // Without a terminal, print a line every two seconds, and when an operation begins or
        // completes.
        let (finished, stage) = (done >= of, format!("{op} {}", done >= of));
        let due = match &self.shown[index] {
            Some((shown, at)) => *shown != stage || (!finished && at.elapsed() >= Duration::from_secs(2)),
            None => true,
        };
        if due {
            println!("{text}");
            self.shown[index] = Some((stage, Instant::now()));
        }
    }

    fn log(&mut self, role: &str, lines: &[String]) {
        if self.show_log {
            for line in lines {
                self.line(&format!("{role}: log: {line}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fabric_with_linux_has_its_own_capture() {
        for (path, linux) in
            [("/a/x.pcapng", "/a/x.linux.pcapng"), ("x", "x.linux"), ("x.y.z", "x.y.linux.z")]
        {
            assert_eq!(linux_capture(Path::new(path)), Path::new(linux));
        }
    }

    #[test]
    fn each_node_knows_the_other() {
        let options = Options {
            report: None,
            capture: None,
            kind: DeviceSpec::default(),
            faults: Faults::default(),
            open_fabric: false,
            seed: 7,
            accelerator: "tcg".into(),
            log: false,
            divide: 8,
            with_linux: false,
            limit: Duration::from_secs(1),
        };
        assert_eq!(
            words(0, &options),
            "app=demo role=server ip=10.0.0.1 peer=10.0.0.2 \
             neighbours=10.0.0.2/fe80::506b:4b03:a0:10 seed=7 divide=8"
        );
        assert_eq!(
            words(1, &options),
            "app=demo role=client ip=10.0.0.2 peer=10.0.0.1 \
             neighbours=10.0.0.1/fe80::506b:4b03:a0:0 seed=7 divide=8"
        );
    }
}
