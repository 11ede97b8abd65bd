//! A machine with UEFI whose HCA has `rdmaboot.efi` in its option ROM. Linux's tests use it, too.

use hca_serve::product::qemu::hca_argument;
use rdma_lab::process::Temporary;
use rdma_lab::qemu::Output;
use rdma_lab::setup::Qemu;
use rdma_lab::unikernel::{self, Options, Running};
use rdma_lab::{iso, option_rom};
use runner::{conditions, kernel_image};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// From QEMU's start to its end, on a machine that is busy with other things.
const LIMIT: Duration = Duration::from_secs(180);

/// Runs a program of mtools on the stick; its output.
pub fn mtools(program: &str, arguments: &[&str], stick: &Path) -> String {
    let mut command = Command::new(program);
    command.args(arguments.iter().take(1)).arg("-i").arg(stick).args(&arguments[1..]);
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A running machine, and the lines that it has printed.
pub struct Node {
    pub running: Running,
    lines: Vec<String>,
}

impl Node {
    pub fn new(running: Running) -> Self {
        Self { running, lines: Vec::new() }
    }

    /// Waits for a line with this text. OVMF's console has other characters before it.
    pub fn expect(&mut self, text: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.running.next_line(deadline) {
                Ok(Some(Output::Console(line))) => {
                    self.lines.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Ok(Some(Output::Qemu(line))) => eprintln!("qemu: {line}"),
                Ok(None) => panic!("it ended before {text:?}:\n{}", self.lines.join("\n")),
                Err(error) => panic!("{error}, without {text:?}:\n{}", self.lines.join("\n")),
            }
        }
    }
}

/// A machine with an HCA that has the driver in its option ROM, and with variables that outlive it.
pub struct Machine<'a> {
    qemu: &'a Qemu,
    pub folder: Temporary,
    pub memory_mib: u32,
    flash: [PathBuf; 2],
    rom: PathBuf,
    bootset: PathBuf,
    socket: &'a Path,
}

impl<'a> Machine<'a> {
    /// `None` where there is no OVMF.
    pub fn new(qemu: &'a Qemu, socket: &'a Path) -> Option<Self> {
        let Some([code, empty]) = iso::ovmf_flash().filter(|_| iso::missing_packages().is_empty()) else {
            assert!(!conditions::required(), "the Debian packages ovmf and mtools are required here");
            conditions::skip("no OVMF or no mtools on this machine");
            return None;
        };
        let folder = Temporary::folder("rdmaboot-test").expect("a folder");
        let [driver, bootset] =
            ["rdmaboot", "bootset"].map(|name| kernel_image::build_efi(name).expect("the program builds"));
        let (rom, variables) = (folder.path().join("rdmaboot.rom"), folder.path().join("variables"));
        let driver = std::fs::read(driver).expect("the driver");
        std::fs::write(&rom, option_rom::wrap(&driver, 0x15b3, 0x1017).expect("a ROM")).expect("written");
        std::fs::copy(empty, &variables).expect("variables");
        Some(Self { qemu, folder, memory_mib: 512, flash: [code, variables], rom, bootset, socket })
    }

    /// Starts it with a stick whose script the firmware's shell runs, as the last boot option.
    pub fn start(&self, script: &str) -> Node {
        let stick = self.folder.path().join("stick.img");
        let file = self.folder.path().join("startup.nsh");
        std::fs::write(&file, format!("fs0:\r\n{script}\r\nreset -s\r\n")).expect("the script");
        let _ = std::fs::remove_file(&stick);
        mtools("mformat", &["-C", "-T", "65536", "-h", "64", "-s", "32", "-v", "STICK", "::"], &stick);
        for (file, name) in [(&file, "::/startup.nsh"), (&self.bootset, "::/bootset.efi")] {
            mtools("mcopy", &["-o", file.to_str().expect("text"), name], &stick);
        }
        let [code, variables] = self.flash.each_ref().map(|path| path.display());
        let rom = format!("{{\"romfile\":\"{}\",", self.rom.display());
        let options = Options {
            stick: Some(stick),
            devices: vec![hca_argument(self.socket).replacen('{', &rom, 1)],
            more: vec![
                "-drive".into(),
                format!("if=pflash,unit=0,format=raw,readonly=on,file={code}"),
                "-drive".into(),
                format!("if=pflash,unit=1,format=raw,file={variables}"),
            ],
            memory_mib: self.memory_mib,
            ..Options::new("")
        };
        Node::new(unikernel::start(self.qemu, &self.rom, &options).expect("QEMU starts"))
    }
}
