//! Probes whether KVM is usable on this machine, by running a guest. An accessible `/dev/kvm` is
//! not enough: a hypervisor without nested virtualization emulates what its processor cannot do.
//! There a guest is slower than under TCG, or hangs.

use crate::cache;
use crate::error::{Error, Result};
use crate::process::Temporary;
use crate::qemu::{End, Guest, Machine, Output, write_file};
use crate::setup::{self, Qemu};
use std::fs::{self, File};
use std::time::{Duration, Instant};

/// Name that selects KVM if it is usable, otherwise TCG.
pub const AUTO: &str = "auto";
/// QEMU's accelerators that can be selected.
const NAMES: [&str; 2] = ["tcg", "kvm"];

/// Returns QEMU's accelerator for `name`. For [`AUTO`] it probes the machine and prints why KVM is
/// unusable.
///
/// # Errors
/// - [`Error::Usage`]: `name` is unknown.
/// - Any error of providing QEMU.
pub fn choose(name: &str) -> Result<String> {
    choose_for(name, setup::qemu)
}

/// Checks a name, before any work.
///
/// # Errors
/// [`Error::Usage`]: `name` is unknown.
pub fn check(name: &str) -> Result<()> {
    if name == AUTO || NAMES.contains(&name) {
        return Ok(());
    }
    Err(Error::Usage(format!("unknown accelerator {name}; there are {AUTO}, {}", NAMES.join(", "))))
}

/// As [`choose`], for another QEMU than [`setup::qemu`]'s.
///
/// # Errors
/// As [`choose`].
pub fn choose_for(name: &str, qemu: impl FnOnce() -> Result<Qemu>) -> Result<String> {
    check(name)?;
    if name != AUTO {
        return Ok(name.into());
    }
    match usable(&qemu()?)? {
        Ok(()) => Ok("kvm".into()),
        Err(reason) => {
            println!("KVM is not used: {reason}; --accel kvm forces it");
            Ok("tcg".into())
        }
    }
}

/// Reason why KVM is unusable, if it is.
type Verdict = std::result::Result<(), String>;

/// Returns whether KVM is usable. The result is cached until the next start of this machine.
fn usable(qemu: &Qemu) -> Result<Verdict> {
    const DEVICE: &str = "/dev/kvm";
    // Permissions can change without a restart, so they are checked on every call.
    if let Err(error) = File::options().read(true).write(true).open(DEVICE) {
        let remedy = match error.kind() {
            std::io::ErrorKind::PermissionDenied => ", which is the group kvm's: `usermod -aG kvm USER`",
            _ => "",
        };
        return Ok(Err(format!("{DEVICE}{remedy}: {error}")));
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let entry = cache::entry(&format!("kvm-{}", boot.trim()), |path| {
        let verdict = try_guest(qemu, "kvm")?;
        fs::write(path, verdict.err().unwrap_or_default()).map_err(|source| Error::Io {
            action: "cannot write",
            path: path.into(),
            source,
        })
    })?;
    let reason = fs::read_to_string(&entry).map_err(|source| Error::Io {
        action: "cannot read",
        path: entry,
        source,
    })?;
    Ok(if reason.is_empty() { Ok(()) } else { Err(reason) })
}

/// Time limit of the guest, firmware included. Takes 0.1 s on a processor that runs nothing else.
const LIMIT: Duration = Duration::from_secs(8);
/// Time limit of the fastest loop of a million rounds, and of the fastest 1000 port accesses. They
/// take about 1 ms and 10 ms on a processor that runs guests.
const PART: Duration = Duration::from_millis(50);

/// Boots a guest that loops and reads a port, and judges the times that it takes.
fn try_guest(qemu: &Qemu, accelerator: &str) -> Result<Verdict> {
    let folder = Temporary::folder("kvm")?;
    let kernel = write_file(folder.path(), "guest", &image())?;
    let mut machine = Machine::new(&kernel);
    machine.accelerator = accelerator.into();
    let mut guest = Guest::start(qemu, &machine)?;
    let deadline = Instant::now() + LIMIT;
    let (mut marks, mut words) = (Vec::new(), String::new());
    loop {
        match guest.next_line(deadline) {
            Ok(Some(Output::Console(line))) => marks.push((line, Instant::now())),
            Ok(Some(Output::Qemu(line))) => words = line,
            Ok(None) => break,
            Err(_) => {
                guest.kill();
                return Ok(Err(format!("a guest does not end within {} s", LIMIT.as_secs())));
            }
        }
    }
    Ok(match guest.end()? {
        End::Exit(DONE) => judge(&marks),
        _ if words.is_empty() => Err("a guest ends before its time".into()),
        _ => Err(format!("QEMU says: {words}")),
    })
}

/// Value that the guest writes to `isa-debug-exit`.
const DONE: u8 = 0x10;

/// Judges the times at which a guest printed `a` (loop begins), `b` (port accesses begin) and `c`
/// (accesses are done), in each round.
fn judge(marks: &[(String, Instant)]) -> Verdict {
    let best = |from: &str, to: &str| {
        let parts = marks.windows(2).filter(|pair| matches!(pair, [a, b] if a.0 == from && b.0 == to));
        parts.filter_map(|pair| Some(pair.last()?.1 - pair.first()?.1)).min()
    };
    for (part, what) in
        [(best("a", "b"), "a million rounds of a loop"), (best("b", "c"), "1000 accesses to a port")]
    {
        match part {
            None => return Err("a guest does not say what it does".into()),
            Some(time) if time > PART => {
                return Err(format!("{what} take a guest {:.0} ms", time.as_secs_f64() * 1e3));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Load address of the guest.
const BASE: u32 = 0x10_0000;
/// Bytes of memory from `BASE` on, including the page tables.
const SIZE: u32 = 0x8000;
/// Offset of the code in the guest's file.
const OFFSET: usize = 0x80;

/// The guest's code. PVH enters it in protected mode. It switches to long mode, prints on COM1 and
/// exits by `isa-debug-exit`.
#[rustfmt::skip]
const CODE: [u8; 0xae] = [
    0xbf, 0x00, 0x40, 0x10, 0x00,                               // mov edi, 0x104000: page tables
    // lea eax, [edi + 0x1003]; mov [edi], eax
    0x8d, 0x87, 0x03, 0x10, 0x00, 0x00, 0x89, 0x07,
    0x8d, 0x87, 0x03, 0x20, 0x00, 0x00,                         // lea eax, [edi + 0x2003]
    0x89, 0x87, 0x00, 0x10, 0x00, 0x00,                         // mov [edi + 0x1000], eax
    // mov dword ptr [edi + 0x2000], 0x83: 2 MiB
    0xc7, 0x87, 0x00, 0x20, 0x00, 0x00, 0x83, 0x00, 0x00, 0x00,
    0x0f, 0x22, 0xdf,                                           // mov cr3, edi
    0x0f, 0x20, 0xe0, 0x83, 0xc8, 0x20, 0x0f, 0x22, 0xe0,       // cr4 |= PAE
    0xb9, 0x80, 0x00, 0x00, 0xc0, 0x0f, 0x32,                   // mov ecx, EFER; rdmsr
    0x0d, 0x00, 0x01, 0x00, 0x00, 0x0f, 0x30,                   // or eax, LME; wrmsr
    0x0f, 0x20, 0xc0, 0x0d, 0x00, 0x00, 0x00, 0x80, 0x0f, 0x22, 0xc0, // cr0 |= PG
    0x0f, 0x01, 0x15, 0xa8, 0x00, 0x10, 0x00,                   // lgdt [BASE + 0xa8]
    0xea, 0x56, 0x00, 0x10, 0x00, 0x08, 0x00,                   // jmp 8:BASE + 0x56
    0xbb, 0x03, 0x00, 0x00, 0x00,                               // mov ebx, 3: rounds
    0x66, 0xba, 0xf8, 0x03,                                     // mov dx, COM1
    0xb0, b'a', 0xee, 0xb0, b'\n', 0xee,                        // "a\n"
    0xb9, 0x40, 0x42, 0x0f, 0x00, 0xff, 0xc9, 0x75, 0xfc,       // mov ecx, 1000000; dec ecx; jnz
    0xb0, b'b', 0xee, 0xb0, b'\n', 0xee,                        // "b\n"
    // mov ecx, 1000; in al, 0x80; dec ecx; jnz
    0xb9, 0xe8, 0x03, 0x00, 0x00, 0xe4, 0x80, 0xff, 0xc9, 0x75, 0xfa,
    0xb0, b'c', 0xee, 0xb0, b'\n', 0xee,                        // "c\n"
    0xff, 0xcb, 0x75, 0xd2,                                     // dec ebx; jnz to "a"
    // mov eax, DONE; mov edx, 0xf4; out dx, eax
    0xb8, DONE, 0x00, 0x00, 0x00, 0xba, 0xf4, 0x00, 0x00, 0x00, 0xef,
    0xf4, 0xeb, 0xfd, 0x90,                                     // hlt, for ever
    0, 0, 0, 0, 0, 0, 0, 0,                                     // GDT, at 0x98
    0xff, 0xff, 0x00, 0x00, 0x00, 0x9b, 0xaf, 0x00,             // code of 64 bits
    // limit and address of the GDT, at 0xa8
    0x0f, 0x00, 0x98, 0x00, 0x10, 0x00,
];

/// Returns the guest's file: an ELF with a PVH note (Xen, include/public/elfnote.h).
fn image() -> Vec<u8> {
    let mut file = b"\x7fELF\x01\x01\x01".to_vec();
    file.resize(16, 0);
    let halves =
        |file: &mut Vec<u8>, values: &[u16]| values.iter().for_each(|v| file.extend(v.to_le_bytes()));
    let words = |file: &mut Vec<u8>, values: &[u32]| values.iter().for_each(|v| file.extend(v.to_le_bytes()));
    // Executable, i386, version; entry, program headers at 52, no sections, no flags; sizes and
    // counts.
    halves(&mut file, &[2, 3]);
    words(&mut file, &[1, BASE, 52, 0, 0]);
    halves(&mut file, &[52, 32, 2, 0, 0, 0]);
    let (offset, length) = (OFFSET as u32, CODE.len() as u32);
    // PT_LOAD and PT_NOTE: type, offset, addresses, sizes, flags, alignment.
    words(&mut file, &[1, offset, BASE, BASE, length, SIZE, 7, 4]);
    let note = (offset + length).next_multiple_of(4);
    words(&mut file, &[4, note, 0, 0, 20, 20, 4, 4]);
    file.resize(OFFSET, 0);
    file.extend(CODE);
    file.resize(note as usize, 0);
    // XEN_ELFNOTE_PHYS32_ENTRY.
    words(&mut file, &[4, 4, 18, u32::from_le_bytes(*b"Xen\0"), BASE]);
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn names_are_taken_as_they_are_and_others_refused() {
        for name in NAMES {
            assert_eq!(choose(name).ok().as_deref(), Some(name));
        }
        let refused = choose("fast").expect_err("unknown").to_string();
        assert_eq!(refused, "unknown accelerator fast; there are auto, tcg, kvm");
    }

    #[test]
    fn slow_guests_are_of_no_use() {
        let start = Instant::now();
        let marks = |times: [u64; 6]| -> Vec<(String, Instant)> {
            let names = ["a", "b", "c", "a", "b", "c"].map(str::to_owned);
            names.into_iter().zip(times.map(|time| start + Duration::from_millis(time))).collect()
        };
        // A busy host disturbs one round.
        assert_eq!(judge(&marks([0, 300, 310, 311, 312, 322])), Ok(()));
        let reason = judge(&marks([0, 1200, 1210, 1211, 2400, 2410])).expect_err("slow");
        assert_eq!(reason, "a million rounds of a loop take a guest 1189 ms");
        let reason = judge(&marks([0, 1, 300, 301, 302, 500])).expect_err("slow");
        assert_eq!(reason, "1000 accesses to a port take a guest 198 ms");
        assert!(judge(&[]).is_err());
    }

    #[test]
    fn the_guest_runs() {
        let Ok(qemu) = setup::qemu() else {
            // Past the test harness, which shows the output of failed tests only.
            let _ = std::io::stderr().write_all(b"SKIPPED: no QEMU\n");
            return;
        };
        // Checks output and exit under TCG, which every QEMU has. The time depends on the load of
        // the host.
        let verdict = try_guest(&qemu, "tcg").expect("QEMU starts");
        assert!(
            verdict.is_ok() || verdict.is_err_and(|reason| reason.contains(" ms") || reason.contains(" s"))
        );
        let refused = try_guest(&qemu, "none").expect("QEMU starts").expect_err("no such accelerator");
        assert!(refused.starts_with("QEMU says: "), "{refused}");
    }
}
