//! A running Linux guest: its console, and the serial line on which it receives scripts.

use super::image::Image;
use super::overlay::Settings;
use super::ready::Ready;
use crate::error::{Error, IoContext, Result};
use crate::process::Temporary;
use crate::qemu::{self, Machine, Output};
use crate::setup::Qemu;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Start options of a guest.
#[derive(Debug, Clone)]
pub struct Options {
    /// Sockets of its emulated HCAs.
    pub hcas: Vec<PathBuf>,
    /// Settings in addition to the image.
    pub settings: Settings,
    /// Adds an IOMMU between its devices and its memory.
    pub iommu: bool,
    /// Number of processors.
    pub cpus: u32,
    /// Additional arguments of QEMU.
    pub more: Vec<String>,
    /// Guest memory in MiB.
    pub memory_mib: u32,
    /// QEMU's accelerator.
    pub accelerator: String,
    /// Words added to the kernel's command line.
    pub command_line: String,
    /// Prefix for printing every line on arrival; `None` prints nothing.
    pub show: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hcas: Vec::new(),
            settings: Settings::default(),
            iommu: false,
            cpus: 1,
            more: Vec::new(),
            memory_mib: 1024,
            accelerator: "tcg".into(),
            command_line: String::new(),
            show: None,
        }
    }
}

/// Result of a script.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Lines of standard output and standard error.
    pub lines: Vec<String>,
    /// Exit status.
    pub status: u8,
    /// Run time.
    pub time: Duration,
}

impl Answer {
    /// Returns the lines as one text.
    pub fn text(&self) -> String {
        self.lines.join("\n")
    }

    /// Returns whether the script exited with status 0.
    pub fn success(&self) -> bool {
        self.status == 0
    }
}

/// A message of the kernel's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelMessage {
    /// Syslog level: 4 is a warning, lower levels are more severe.
    pub level: u8,
    /// Text, with its time stamp.
    pub text: String,
}

/// A running Linux guest. Killed when dropped.
#[derive(Debug)]
pub struct Guest {
    machine: qemu::Guest,
    line: UnixStream,
    answers: Receiver<String>,
    console: Vec<String>,
    show: Option<String>,
    started: Instant,
    /// Number of the last script, and the time it was sent if it still runs.
    script: u64,
    running: Option<Instant>,
    /// Owns the guest's files.
    _folder: Temporary,
}

/// Interval at which a wait for the serial line polls the console.
const LOOK: Duration = Duration::from_millis(20);
/// Most console lines that are retained.
const CONSOLE_LINES: usize = 10_000;

impl Guest {
    /// Starts a guest. [`Guest::wait_ready`] waits until it accepts scripts.
    ///
    /// # Errors
    /// QEMU cannot be started or rejects its arguments.
    pub fn start(qemu: &Qemu, image: &Image, options: &Options) -> Result<Self> {
        let folder = Temporary::folder("linux")?;
        let initramfs = folder.path().join("initramfs.cpio");
        image.write_initramfs(&options.settings, &initramfs)?;
        let socket = folder.path().join("line.sock");
        let listener = UnixListener::bind(&socket).context("cannot make the socket", &socket)?;
        let mut machine = Machine::new(&image.kernel);
        machine.memory_mib = options.memory_mib;
        machine.accelerator.clone_from(&options.accelerator);
        machine.initramfs = Some(initramfs);
        machine.hcas.clone_from(&options.hcas);
        machine.iommu = options.iommu;
        machine.cpus = options.cpus;
        let iommu = if options.iommu { " intel_iommu=on" } else { "" };
        // Only warnings and errors go to the console; dmesg has everything.
        machine.command_line = format!(
            "console=ttyS0 loglevel=5 panic=-1 nokaslr mitigations=off no_timer_check random.trust_cpu=on{iommu} {}",
            options.command_line
        );
        let path = socket.to_string_lossy().replace(',', ",,");
        machine.more = vec![
            "-chardev".into(),
            format!("socket,id=line,server=off,path={path}"),
            "-serial".into(),
            "chardev:line".into(),
        ];
        machine.more.extend(options.more.iter().cloned());
        let mut machine = qemu::Guest::start(qemu, &machine)?;
        let line = accept(&listener, &mut machine)?;
        let reading = line.try_clone().context("cannot read", &socket)?;
        let (sender, answers) = mpsc::channel();
        std::thread::Builder::new()
            .name("guest line".into())
            .spawn(move || {
                for line in BufReader::new(reading).split(b'\n').map_while(std::result::Result::ok) {
                    if sender.send(qemu::clean(&line)).is_err() {
                        return;
                    }
                }
            })
            .map_err(|error| Error::Program(format!("cannot start a thread: {error}")))?;
        Ok(Self {
            machine,
            line,
            answers,
            console: Vec::new(),
            show: options.show.clone(),
            started: Instant::now(),
            script: 0,
            running: None,
            _folder: folder,
        })
    }

    /// Waits until the guest accepts scripts. Returns the boot time.
    ///
    /// # Errors
    /// The guest did not boot within `limit`, or QEMU exited.
    pub fn wait_ready(&mut self, limit: Duration) -> Result<Duration> {
        let deadline = self.started + limit;
        loop {
            match self.next_answer(deadline)? {
                Some(line) if line == "@ready" => return Ok(self.started.elapsed()),
                Some(_) => {}
                None => return Err(self.timeout("the Linux guest did not come up", limit)),
            }
        }
    }

    /// Returns the time since power on.
    ///
    /// # Errors
    /// QEMU has exited.
    pub fn spent(&self) -> Result<Ready> {
        let cpu_seconds = self.machine.cpu_time()?.as_secs_f64();
        Ok(Ready { seconds: self.started.elapsed().as_secs_f64(), cpu_seconds })
    }

    /// Sends a script; [`Guest::end`] waits for its completion. The guest starts the script after
    /// the running one has completed.
    ///
    /// # Errors
    /// The guest has exited.
    pub fn begin(&mut self, script: &str) -> Result<()> {
        self.script += 1;
        let text = script.trim().replace('\\', "\\\\").replace('\n', "\\n");
        let line = format!("{} {text}\n", self.script);
        self.running = Some(Instant::now());
        match self.line.write_all(line.as_bytes()) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.ended()),
        }
    }

    /// Waits until the script sent by [`Guest::begin`] completes.
    ///
    /// # Errors
    /// The script did not complete within `limit` of being sent, or the guest exited. The error
    /// contains the last lines of script and console.
    pub fn end(&mut self, limit: Duration) -> Result<Answer> {
        let Some(began) = self.running.take() else {
            return Err(Error::Guest("no script runs in the Linux guest".into()));
        };
        let mark = format!("@end {} ", self.script);
        let mut lines: Vec<String> = Vec::new();
        loop {
            let Some(line) = self.next_answer(began + limit)? else {
                let last = last_lines(&lines, 20);
                return Err(
                    self.timeout(&format!("a script in the Linux guest did not end:\n{last}\n"), limit)
                );
            };
            if let Some(status) = line.strip_prefix(&mark) {
                // Drop the line feed that the guest prints before the mark if the output ended with
                // a line feed.
                if lines.last().is_some_and(String::is_empty) {
                    lines.pop();
                }
                let status = status
                    .trim()
                    .parse()
                    .map_err(|_| Error::Format(format!("the Linux guest says `{line}`")))?;
                return Ok(Answer { lines, status, time: began.elapsed() });
            }
            if let Some(name) = &self.show {
                println!("{name}: {line}");
            }
            lines.push(line);
        }
    }

    /// Runs a script.
    ///
    /// # Errors
    /// As [`Guest::begin`] and [`Guest::end`].
    pub fn run(&mut self, script: &str, limit: Duration) -> Result<Answer> {
        self.begin(script)?;
        self.end(limit)
    }

    /// Takes the kernel's log so far and empties it.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn take_kernel_log(&mut self) -> Result<Vec<KernelMessage>> {
        let show = self.show.take();
        let answer = self.run("dmesg -r -c", Duration::from_secs(60));
        self.show = show;
        let lines = answer?.lines;
        Ok(lines
            .iter()
            .filter_map(|line| {
                let (level, text) = line.strip_prefix('<')?.split_once('>')?;
                let level = u8::try_from(level.parse::<u32>().ok()? & 7).ok()?;
                Some(KernelMessage { level, text: text.to_owned() })
            })
            .collect())
    }

    /// Returns the console's lines so far.
    pub fn console(&mut self) -> &[String] {
        self.read_console();
        &self.console
    }

    /// Powers the guest off and waits until QEMU exits.
    ///
    /// # Errors
    /// QEMU does not exit.
    pub fn power_off(mut self) -> Result<()> {
        let limit = Duration::from_secs(60);
        if self.line.write_all(b"0 @off\n").is_err() {
            return Err(self.ended());
        }
        let deadline = Instant::now() + limit;
        while !self.machine.left(deadline).is_zero() {
            match self.machine.next_line(deadline) {
                Ok(Some(line)) => self.take(line),
                Ok(None) => return self.machine.end().map(drop),
                Err(_) => break,
            }
        }
        Err(self.timeout("the Linux guest did not power off", limit))
    }

    /// Kills QEMU, like a crash of the host.
    pub fn kill(self) {
        self.machine.kill();
    }

    /// Returns the guest's next line, or `None` at `deadline`. Delays of the guest extend the
    /// deadline as in [`next_line`](crate::qemu::Guest::next_line).
    fn next_answer(&mut self, deadline: Instant) -> Result<Option<String>> {
        loop {
            self.read_console();
            match self.answers.recv_timeout(LOOK) {
                Ok(line) => return Ok(Some(line)),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
                Err(RecvTimeoutError::Timeout) if self.machine.left(deadline).is_zero() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Reads the available console output. A guest whose console is not read blocks.
    fn read_console(&mut self) {
        while let Ok(Some(line)) = self.machine.line_within(Duration::ZERO) {
            self.take(line);
        }
    }

    fn take(&mut self, line: Output) {
        match line {
            Output::Console(line) => {
                if let Some(name) = &self.show {
                    println!("{name}: console: {line}");
                }
                if self.console.len() < CONSOLE_LINES {
                    self.console.push(line);
                }
            }
            Output::Qemu(line) => eprintln!("qemu: {line}"),
        }
    }

    fn ended(&mut self) -> Error {
        // The last console lines arrive shortly after the serial line closes.
        let deadline = Instant::now() + Duration::from_secs(2);
        while let Ok(Some(line)) = self.machine.next_line(deadline) {
            self.take(line);
        }
        let last = last_lines(&self.console, 30);
        Error::Guest(format!("the Linux guest ended before its time; its last lines:\n{last}"))
    }

    fn timeout(&mut self, what: &str, limit: Duration) -> Error {
        self.read_console();
        let last = last_lines(&self.console, 30);
        Error::Timeout { what: format!("{what}; the console's last lines:\n{last}\n"), limit }
    }
}

fn last_lines(lines: &[String], count: usize) -> String {
    lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().join("\n")
}

/// Accepts QEMU's connection to the serial line. QEMU connects before the guest starts.
fn accept(listener: &UnixListener, machine: &mut qemu::Guest) -> Result<UnixStream> {
    let limit = Duration::from_secs(30);
    let deadline = Instant::now() + limit;
    let failed = |error: std::io::Error| Error::Program(format!("the guest's line: {error}"));
    listener.set_nonblocking(true).map_err(failed)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(failed)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(failed(error)),
        }
        match machine.line_within(LOOK) {
            Ok(None) => return Err(Error::Program("QEMU ended at once".into())),
            Ok(Some(Output::Qemu(line))) => eprintln!("qemu: {line}"),
            _ => {}
        }
        if Instant::now() > deadline {
            return Err(Error::Timeout { what: "QEMU does not connect the guest's line".into(), limit });
        }
    }
}
