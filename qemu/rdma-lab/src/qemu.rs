//! QEMU's arguments, process and console.

use crate::error::{Error, IoContext, Result};
use crate::iso::{PXE_BIOS, PXE_UEFI};
use crate::process::{Supervised, stolen_time};
use crate::setup::Qemu;
use hca_serve::product::qemu::{hca_argument, memory_arguments};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A virtual machine: a q35 with memory that the emulated HCA can access.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Guest memory in MiB.
    pub memory_mib: u32,
    /// QEMU's accelerator: "tcg", "kvm".
    pub accelerator: String,
    /// Number of processors.
    pub cpus: u32,
    /// QEMU's CPU model; "max" enables all features of the accelerator.
    pub cpu: String,
    /// The kernel: an ELF with a PVH note, or Linux's bzImage.
    pub kernel: PathBuf,
    /// Disk with its own boot loader, booted instead of the kernel.
    pub disk: Option<PathBuf>,
    /// Writable USB stick with its own boot loader, booted by UEFI instead of the kernel.
    pub stick: Option<PathBuf>,
    /// Directory filled by [`crate::iso::make_network`], booted over a network instead of the
    /// kernel.
    pub network: Option<PathBuf>,
    /// Firmware that replaces QEMU's default.
    pub firmware: Option<PathBuf>,
    /// Number of serial ports before the console. Without any, COM1 is the console.
    pub ports_before: u8,
    /// Adds `isa-debug-exit`.
    pub exit_device: bool,
    /// The kernel's command line.
    pub command_line: String,
    /// The initramfs, if any.
    pub initramfs: Option<PathBuf>,
    /// Files in QEMU's firmware configuration, by name.
    pub firmware_files: Vec<(String, PathBuf)>,
    /// Sockets of emulated HCAs, one device each.
    pub hcas: Vec<PathBuf>,
    /// Adds an emulated Intel IOMMU between devices and memory, so that the guest can assign
    /// devices to nested guests and processes.
    pub iommu: bool,
    /// Additional devices, as values of `-device`.
    pub devices: Vec<String>,
    /// Additional arguments of QEMU.
    pub more: Vec<String>,
    /// File for the bytes written to the debug console (port 0xe9).
    pub debug_console: Option<PathBuf>,
}

impl Machine {
    /// Returns a machine with `kernel` and without devices.
    pub fn new(kernel: &Path) -> Self {
        Self {
            memory_mib: 256,
            accelerator: "tcg".into(),
            cpus: 1,
            cpu: "max".into(),
            kernel: kernel.to_path_buf(),
            disk: None,
            stick: None,
            network: None,
            firmware: None,
            ports_before: 0,
            exit_device: true,
            command_line: String::new(),
            initramfs: None,
            firmware_files: Vec::new(),
            hcas: Vec::new(),
            iommu: false,
            devices: Vec::new(),
            more: Vec::new(),
            debug_console: None,
        }
    }

    /// Returns QEMU's arguments. COM1 is the standard output; `isa-debug-exit` at port 0xf4 sets
    /// the exit status.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
        add(&["-accel", &self.accelerator, "-cpu", &self.cpu, "-smp", &self.cpus.to_string()]);
        for words in memory_arguments(self.memory_mib) {
            add(&[&words]);
        }
        add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        for _ in 0..self.ports_before {
            add(&["-serial", "none"]);
        }
        add(&["-serial", "stdio"]);
        if self.exit_device {
            add(&["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        }
        if self.iommu {
            // The IOMMU must precede the devices behind it. Interrupt remapping and caching mode
            // let QEMU map VFIO devices for nested guests.
            add(&["-machine", "kernel-irqchip=split"]);
            add(&["-device", "intel-iommu,intremap=on,caching-mode=on"]);
        }
        for socket in &self.hcas {
            add(&["-device", &hca_argument(socket)]);
        }
        for device in &self.devices {
            add(&["-device", device]);
        }
        for word in &self.more {
            add(&[word]);
        }
        if let Some(folder) = &self.network {
            let file = if self.firmware.is_some() { PXE_UEFI } else { PXE_BIOS };
            let folder = escape_commas(folder).to_string_lossy().into_owned();
            let net = format!("user,id=boot,restrict=on,tftp={folder},bootfile={file}");
            // UEFI needs a random number generator to boot over a network.
            add(&[
                "-boot",
                "n",
                "-netdev",
                &net,
                "-device",
                "virtio-net-pci,netdev=boot",
                "-device",
                "virtio-rng-pci",
            ]);
        }
        let own_loader = self.disk.is_some() || self.stick.is_some() || self.network.is_some();
        if !own_loader {
            add(&["-append", &self.command_line]);
        }
        if let Some(firmware) = &self.firmware {
            arguments.extend(["-bios".into(), firmware.clone().into_os_string()]);
        }
        for (name, file) in &self.firmware_files {
            let mut value = OsString::from(format!("name={name},file="));
            value.push(escape_commas(file));
            arguments.extend(["-fw_cfg".into(), value]);
        }
        if let Some(file) = &self.debug_console {
            let mut value = OsString::from("file:");
            value.push(file);
            arguments.extend(["-debugcon".into(), value]);
        }
        if let Some(disk) = &self.disk {
            let mut value = OsString::from("if=virtio,format=raw,readonly=on,file=");
            value.push(escape_commas(disk));
            arguments.extend(["-drive".into(), value]);
        }
        if let Some(stick) = &self.stick {
            let mut value = OsString::from("if=none,id=stick,format=raw,file=");
            value.push(escape_commas(stick));
            arguments.extend(["-drive".into(), value]);
            arguments
                .extend(["-device", "qemu-xhci", "-device", "usb-storage,drive=stick"].map(OsString::from));
        }
        if own_loader {
            return arguments;
        }
        arguments.extend(["-kernel".into(), self.kernel.clone().into_os_string()]);
        if let Some(file) = &self.initramfs {
            arguments.extend(["-initrd".into(), file.clone().into_os_string()]);
        }
        arguments
    }
}

/// Doubles commas, which separate options in QEMU's option lists.
fn escape_commas(path: &Path) -> OsString {
    path.to_string_lossy().replace(',', ",,").into()
}

/// Reason why a guest exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The guest wrote this value to `isa-debug-exit`.
    Exit(u8),
    /// The guest powered off or crashed: with `-no-reboot`, QEMU exits in the same way after a
    /// triple fault.
    PowerOff,
    /// QEMU itself failed or was killed.
    Failure(Option<i32>),
}

impl End {
    /// Converts QEMU's exit status. A value v written to `isa-debug-exit` becomes 2v + 1.
    pub fn from_status(status: std::process::ExitStatus) -> Self {
        match status.code() {
            Some(0) => Self::PowerOff,
            Some(code) if code & 1 == 1 => {
                u8::try_from(code >> 1).map_or(Self::Failure(Some(code)), Self::Exit)
            }
            code => Self::Failure(code),
        }
    }
}

/// Output of a running guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A line on COM1, without its line feed.
    Console(String),
    /// A line printed by QEMU itself.
    Qemu(String),
}

/// Limit of console lines, in bytes. Longer lines are cut, so that a guest cannot fill the host's
/// memory with one line.
const LONGEST_LINE: usize = 16 * 1024;

/// A running QEMU. Killed when dropped.
#[derive(Debug)]
pub struct Guest {
    child: Supervised,
    /// [`stolen_time`] at power on.
    stolen_before: Duration,
    /// Input of COM1.
    input: Option<ChildStdin>,
    output: Receiver<Output>,
}

/// Messages of QEMU for these devices that indicate no fault.
const HARMLESS: [&str; 2] =
    ["Could not enable error recovery for the device", "iommu map to non memory area"];

impl Guest {
    /// Starts `machine`.
    ///
    /// # Errors
    /// QEMU cannot be started. Invalid arguments appear later, as [`Output::Qemu`] and
    /// [`End::Exit`]`(0)`.
    pub fn start(qemu: &Qemu, machine: &Machine) -> Result<Self> {
        let mut command = qemu.command();
        command.args(machine.arguments());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let stolen_before = stolen_time();
        let mut child = Supervised::spawn(command)?;
        // Bounded, so that a guest that floods its console waits for the host, as on a slow serial
        // line.
        let (sender, output) = mpsc::sync_channel(4096);
        let streams = child.streams();
        if let Some(stdout) = streams.stdout.take() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for_each_line(stdout, |line| sender.send(Output::Console(line)).is_ok());
            });
        }
        if let Some(stderr) = streams.stderr.take() {
            std::thread::spawn(move || {
                for_each_line(stderr, |line| {
                    HARMLESS.iter().any(|text| line.contains(text)) || sender.send(Output::Qemu(line)).is_ok()
                });
            });
        }
        let input = streams.stdin.take();
        Ok(Self { child, stolen_before, input, output })
    }

    /// Sends `line` and a line feed to COM1. QEMU buffers it until the guest reads it.
    ///
    /// # Errors
    /// The guest has exited.
    pub fn write_line(&mut self, line: &str) -> Result<()> {
        let written = match &mut self.input {
            Some(input) => input.write_all(format!("{line}\n").as_bytes()).and_then(|()| input.flush()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        written.map_err(|error| Error::Guest(format!("the guest's console takes no input: {error}")))
    }

    /// Returns the next line, waiting until `deadline`. Returns `Ok(None)` if the guest has exited
    /// and all its lines were returned.
    ///
    /// Time in which the machine's CPUs waited for a host processor does not count, because a busy
    /// host makes a guest slow, not wrong.
    ///
    /// # Errors
    /// [`Error::Timeout`]: no line arrived in time.
    pub fn next_line(&mut self, deadline: Instant) -> Result<Option<Output>> {
        let limit = deadline.saturating_duration_since(Instant::now());
        loop {
            match self.line_within(self.left(deadline)) {
                Err(Error::Timeout { .. }) if !self.left(deadline).is_zero() => {}
                Err(Error::Timeout { what, .. }) => return Err(Error::Timeout { what, limit }),
                result => return result,
            }
        }
    }

    /// Like [`Guest::next_line`], but waits at most `limit` of the host's time.
    ///
    /// # Errors
    /// [`Error::Timeout`]: no line arrived in time.
    pub fn line_within(&mut self, limit: Duration) -> Result<Option<Output>> {
        match self.output.recv_timeout(limit) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                Err(Error::Timeout { what: "the guest said nothing more".into(), limit })
            }
        }
    }

    /// Returns the time until `deadline`. After the deadline has passed, it is extended by the time
    /// that the machine's CPUs have waited for host processors since power on.
    pub fn left(&self, deadline: Instant) -> Duration {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        match left(deadline) {
            Duration::ZERO => {
                let stolen = stolen_time().saturating_sub(self.stolen_before);
                left(deadline + self.child.thread_delay("CPU ") + stolen)
            }
            time => time,
        }
    }

    /// Returns how the guest exited. Call it after [`Guest::next_line`] has returned `None`.
    ///
    /// # Errors
    /// QEMU closed its outputs but does not exit.
    pub fn end(mut self) -> Result<End> {
        let limit = Duration::from_secs(10);
        match self.child.wait_until(Instant::now() + limit)? {
            Some(status) => Ok(End::from_status(status)),
            None => Err(Error::Timeout { what: "QEMU closed its console but did not end".into(), limit }),
        }
    }

    /// Returns the processor time of QEMU's CPU threads since power on. Excludes the time that QEMU
    /// needs to start itself.
    ///
    /// # Errors
    /// QEMU has exited.
    pub fn cpu_time(&self) -> Result<Duration> {
        self.child.thread_time("CPU ")
    }

    /// Kills QEMU.
    pub fn kill(mut self) {
        self.child.kill();
    }

    /// Runs the guest to its exit and passes each line to `each` on arrival.
    ///
    /// # Errors
    /// [`Error::Timeout`]: the guest did not exit within `limit` and was killed.
    pub fn run(mut self, limit: Duration, mut each: impl FnMut(&Output)) -> Result<End> {
        let deadline = Instant::now() + limit;
        loop {
            match self.next_line(deadline) {
                Ok(Some(line)) => each(&line),
                Ok(None) => return self.end(),
                Err(Error::Timeout { .. }) => {
                    return Err(Error::Timeout { what: "the guest did not end".into(), limit });
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Splits a stream into lines until it ends or `each` returns false. Invalid text is replaced.
fn for_each_line(mut stream: impl Read, mut each: impl FnMut(String) -> bool) {
    let mut pending: Vec<u8> = Vec::new();
    let mut block = [0; 4096];
    loop {
        let count = match stream.read(&mut block) {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        for &byte in &block[..count] {
            if byte == b'\n' || pending.len() >= LONGEST_LINE {
                if !each(clean(&pending)) {
                    return;
                }
                pending.clear();
            }
            if byte != b'\n' {
                pending.push(byte);
            }
        }
    }
    if !pending.is_empty() {
        each(clean(&pending));
    }
}

/// Returns a guest's line without characters that move the cursor or change the terminal.
pub(crate) fn clean(line: &[u8]) -> String {
    String::from_utf8_lossy(line)
        .trim_end_matches('\r')
        .chars()
        .filter(|c| *c == '\t' || !c.is_control())
        .collect()
}

/// Writes a file for a guest into `folder`, and returns its path.
///
/// # Errors
/// The file cannot be written.
pub fn write_file(folder: &Path, name: &str, content: &[u8]) -> Result<PathBuf> {
    let path = folder.join(name);
    std::fs::write(&path, content).context("cannot write", &path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn exit_statuses_are_told_apart() {
        let end = |code: i32| End::from_status(ExitStatus::from_raw(code << 8));
        assert_eq!(end(0), End::PowerOff);
        assert_eq!(end(1), End::Exit(0));
        assert_eq!(end(33), End::Exit(16));
        assert_eq!(end(255), End::Exit(127));
        assert_eq!(end(2), End::Failure(Some(2)));
        assert_eq!(End::from_status(ExitStatus::from_raw(9)), End::Failure(None));
    }

    #[test]
    fn lines_are_split_cleaned_and_cut() {
        let mut input = b"one\r\n\x1b[2Jtwo\x07\nno end \xff".to_vec();
        let mut lines = Vec::new();
        for_each_line(&*input, |line| {
            lines.push(line);
            true
        });
        assert_eq!(lines, ["one", "[2Jtwo", "no end \u{fffd}"]);
        input = vec![b'x'; LONGEST_LINE + 5];
        lines.clear();
        for_each_line(&*input, |line| {
            lines.push(line);
            true
        });
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [LONGEST_LINE, 5]);
    }
}
