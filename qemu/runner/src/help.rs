//! Texts of `cargo xtask --help` and `cargo xtask COMMAND --help`.

/// A command.
struct Command {
    name: &'static str,
    /// Arguments after the name.
    arguments: &'static str,
    summary: &'static str,
    /// Name and description of each option.
    options: &'static [(&'static str, &'static str)],
}

const FAULTS: (&str, &str) = (
    "--faults SPEC",
    "as in loss=1%,dup=1%,reorder=1%,corrupt=0.1%,delay=10us..1ms,cuts=20/1000..5000/100ms..5s",
);
const SEED: (&str, &str) = ("--seed N", "replays a run's faults");
const OPEN_FABRIC: (&str, &str) =
    ("--open-fabric", "everybody may configure the switch and all ports, as with `ibportstate`");
const PROFILE: (&str, &str) = (
    "--profile CARD[,HABIT[=VALUE]]...",
    "what the HCAs are, as in cx-7,command-time=1us..5ms (cx-5); `serve --help` lists all",
);
const PCAP: (&str, &str) = ("--pcap FILE", "all packets, for Wireshark");
const ACCEL: (&str, &str) = (
    "--accel NAME",
    "QEMU's accelerator: auto (KVM where a guest runs well under it, TCG elsewhere), kvm, tcg (auto)",
);

const COMMANDS: &[Command] = &[
    Command {
        name: "demo",
        arguments: "[OPTION]...",
        summary: "two unikernels on two emulated ConnectX-5 HCAs move verified data",
        options: &[
            ("--report FILE", "the report as JSON"),
            PROFILE,
            PCAP,
            FAULTS,
            SEED,
            OPEN_FABRIC,
            ACCEL,
            ("--log", "the unikernels' logs as well"),
            ("--divide N", "a Nth of the volume"),
            (
                "--with-linux",
                "afterwards Linux and a unikernel exchange RDS messages and RDMA (--pcap FILE.linux.pcapng)",
            ),
            ("--limit SECONDS", "the whole run at most (600)"),
        ],
    },
    Command {
        name: "serve",
        arguments: "--socket PATH [--socket PATH]... [OPTION]...",
        summary: "emulated HCAs on one fabric, for any QEMU: hca-serve, whose help `serve --help` prints",
        options: &[],
    },
    Command {
        name: "test",
        arguments: "[LEVEL]... [--long]",
        summary: "the tests; without LEVEL all that need no more than a Rust toolchain and QEMU",
        options: &[
            ("LEVEL", "lint, no-std, unit, in-process, boot, oracle, linux, miri: these only"),
            ("--long", "full lengths"),
        ],
    },
    Command {
        name: "install",
        arguments: "--prefix DIR",
        summary: "libdat and librds, DAT 1.2 and RDS for C programs: headers, libraries, manual pages, files of pkg-config",
        options: &[("--prefix DIR", "below which they go: include, lib, share/man/man3")],
    },
    Command {
        name: "bench",
        arguments: "[model | rds] [OPTION]...",
        summary: "instructions per operation; RDS against Linux's",
        options: &[
            ("model", "of the emulated HCA in place of driver, DAT and RDS; and its speed against memcpy's"),
            (
                "rds",
                "messages and RDMA from Linux to Linux and from unikernel to unikernel, in turn, and their ratios",
            ),
            ("--report FILE", "as JSON"),
            ("--rounds N", "rds: everything so many times (3)"),
            ("--seconds N", "rds: so long each time (3)"),
            ("--check", "rds: both sides compare all bytes, not headers alone"),
            (
                "--rds-stress FILE",
                "rds: rds-stress of rds-tools, linked statically, is measured on Linux, too",
            ),
            ACCEL,
        ],
    },
    Command {
        name: "ci",
        arguments: "",
        summary: "all that a change has to pass: lint, bench, Miri, the tests",
        options: &[],
    },
    Command {
        name: "graph",
        arguments: "[FILE]...",
        summary: "the import circles among the source files of the driver, of DAT and of the unikernel",
        options: &[("FILE", "in place of that what these files use and are used by, as in ep/mod.rs")],
    },
    Command {
        name: "prose",
        arguments: "[--write]",
        summary: "shares of sentences that are hard to read, by crate, against the recorded ones",
        options: &[("--write", "records them; refused if the whole project has more")],
    },
    Command {
        name: "boot",
        arguments: "[WORD]... [OPTION]...",
        summary: "one unikernel without HCA, or with one",
        options: &[
            ("WORD", "its command line, as in app=hello"),
            ("--image ELF", "an application of yours, in place of the project's own"),
            PROFILE,
            ("--hca", "with an emulated HCA of the kind named before; may be given many times"),
            (
                "--vfio HCA",
                "with an HCA of this machine, as in 3b:00.0, mlx5_0, ib0 or by GUID: taken from its driver, given back at the end",
            ),
            ("--limit SECONDS", "at most (600)"),
            ("--memory MIB", "guest memory (256)"),
            ACCEL,
        ],
    },
    Command {
        name: "iso",
        arguments: "[WORD]... [OPTION]...",
        summary: "an image that boots the unikernel by BIOS and UEFI, from CD, disk and USB stick",
        options: &[
            ("WORD", "its command line (app=hello)"),
            ("--image ELF", "an application of yours, in place of the project's own"),
            ("--output FILE", "where it is written (unikernel.iso)"),
            ("--network FOLDER", "for network cards (PXE), in place of an image: what a TFTP server serves"),
        ],
    },
    Command {
        name: "guests",
        arguments: "[--linux 'WORDS']... [--unikernel 'WORDS']... [SCRIPT] [OPTION]...",
        summary: "Linux guests that run a shell script, unikernels, or both, with emulated HCAs on one fabric",
        options: &[
            (
                "--linux 'WORDS'",
                "Linux guests, of Debian's packages; may be given many times, '' for one with all as usual",
            ),
            ("  count=N", "so many of them (1)"),
            (
                "  kernel=NAME",
                "6.1 (Debian 12's), 6.12 (Debian 13's) or backports (the latest for Debian 13) (6.1)",
            ),
            ("  packages=A,B", "with Debian packages beside rdma-core, perftest and infiniband-diags"),
            ("  modules=A,B", "with kernel modules beside mlx5, IP over InfiniBand, RDMA-CM and RDS"),
            ("  files=/A,/B", "with files and folders of packages that are left out, as documentation is"),
            ("  hcas=N", "emulated HCAs of each (1)"),
            ("  profile=CARD,HABIT", "what these are (cx-5); `serve --help` lists all"),
            ("  vcpus=N", "processors of each (1)"),
            ("  memory=MIB", "memory of each (what the image needs, 1024 at least)"),
            ("  iommu", "with an IOMMU, so that the guest can hand its HCA on"),
            (
                "SCRIPT",
                "what all of them run, at the same time (shows what the machine is); $GUEST is the guest's number, $GUESTS \
                        how many there are; by Ethernet they are guest0, guest1, ...",
            ),
            ("--unikernel 'WORDS'", "a unikernel with an HCA on the same fabric; may be given many times"),
            ("--profile CARD,HABIT", "what the unikernels' HCAs are (cx-5)"),
            ("--image ELF", "an application of yours as the unikernels, in place of the project's own"),
            (
                "--program FILE",
                "a program for the Linux guests, in /usr/bin: a C file, compiled now, or one linked statically",
            ),
            ("--no-sm", "no subnet manager in the fabric: a guest runs one"),
            ("--strict", "the HCAs refuse what the PRM calls reserved or illegal"),
            ("--limit SECONDS", "scripts and unikernels at most (600)"),
            ACCEL,
            PCAP,
            FAULTS,
            SEED,
            OPEN_FABRIC,
        ],
    },
    Command {
        name: "qemu",
        arguments: "[ARGUMENT]...",
        summary: "QEMU with vfio-user-pci; all arguments are QEMU's",
        options: &[],
    },
    Command {
        name: "setup",
        arguments: "",
        summary: "what the others do first: Rust targets, QEMU",
        options: &[],
    },
];

/// Commands for developers of this project; all others are for users.
const FOR_DEVELOPERS: [&str; 5] = ["test", "bench", "ci", "graph", "prose"];

const STATUSES: &str = "\
exit status: 0 success, 1 something failed, 2 a mistake on the command line, 128 + N ended by signal N
";

/// Returns the list of commands.
#[must_use]
pub fn all() -> String {
    let mut text = "usage: cargo xtask COMMAND [OPTION]...\n\n".to_owned();
    let listed = |for_developers: bool| -> String {
        let chosen =
            COMMANDS.iter().filter(|command| FOR_DEVELOPERS.contains(&command.name) == for_developers);
        chosen.map(|Command { name, summary, .. }| format!("  {name:<8}{summary}\n")).collect()
    };
    text += &listed(false);
    text += "\nfor developers of this project:\n";
    text += &listed(true);
    text + "\n`cargo xtask COMMAND --help` lists a command's options.\n" + STATUSES
}

/// Returns the help of the command `name`, or `None` if it does not exist.
#[must_use]
pub fn of(name: &str) -> Option<String> {
    let Command { name, arguments, summary, options } =
        COMMANDS.iter().find(|command| command.name == name)?;
    let mut text = format!("usage: cargo xtask {name} {arguments}\n\n{summary}\n\n");
    for (option, meaning) in *options {
        text.push_str(&format!("  {option:<21} {meaning}\n"));
    }
    if !options.is_empty() {
        text.push('\n');
    }
    let own = "exit status: 0 when every script ended with 0 and no unikernel failed, otherwise the highest of the scripts', 1 when \
               something failed, 2 a mistake on the command line\n";
    Some(text + if *name == "guests" { own } else { STATUSES })
}
