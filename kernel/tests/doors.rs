//! Every safe door to configuration space and physical memory is shut: applications that try one do
//! not compile, and fail with the error that is expected.
//!
//! The API exists on bare metal only, where there is no test harness. The tests therefore run on
//! the host and call the compiler for the bare-metal target. A snippet that only lacks `unsafe`
//! must compile with it, so that it cannot fail for another reason.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const TARGET: &str = "x86_64-unknown-none";

/// Code of an application that must not compile.
struct Door {
    /// Thing that the code reaches.
    to: &'static str,
    code: &'static str,
    /// The compiler's error.
    error: &'static str,
}

const fn door(to: &'static str, code: &'static str, error: &'static str) -> Door {
    Door { to, code, error }
}

/// A call that needs `unsafe`.
const UNSAFE: &str = "E0133";
/// A private function, trait, constructor or method.
const PRIVATE: &str = "E0603";
const PRIVATE_METHOD: &str = "E0624";
/// A private field, by construction or by assignment.
const PRIVATE_FIELDS: &str = "E0451";
const PRIVATE_FIELD: &str = "E0616";
/// No such function, and no such trait implementation.
const NO_FUNCTION: &str = "E0599";
const NO_TRAIT: &str = "E0277";

const DOORS: &[Door] = &[
    door("configuration space", "machine.config_space().write(function.address(), 0x10, 0x10_0000);", UNSAFE),
    door("configuration space of a device", "device.write_config(4, 6);", UNSAFE),
    door("configuration space", "use unikernel::pci::ConfigAccess;", PRIVATE),
    door("bus mastering", "device.enable_bus_master();", UNSAFE),
    door("bus mastering of any function", "function.enable(machine.config_space());", PRIVATE_METHOD),
    door("bus mastering", "function.enable_bus_master(machine.config_space());", PRIVATE_METHOD),
    door("memory decoding", "function.decode_memory(machine.config_space());", PRIVATE_METHOD),
    door(
        "configuration space of long ago",
        "function.restore(machine.config_space(), any());",
        PRIVATE_METHOD,
    ),
    door("a reset under a driver", "function.reset(machine.config_space(), |_| {}).ok();", PRIVATE_METHOD),
    door(
        "MSI-X of any function",
        "if let Ok(msix) = function.msix(machine.config_space()) {
            function.set_msix(machine.config_space(), &msix, true, false);
        }",
        PRIVATE_METHOD,
    ),
    door(
        "interrupts of another function",
        "vectors.switch_on(machine.config_space(), function).ok();",
        PRIVATE_METHOD,
    ),
    door("an HCA's configuration space", "hca.platform().write_config(0x10, 0x10_0000);", UNSAFE),
    door("an HCA's configuration space", "hca.platform().restore_function();", UNSAFE),
    door("an HCA's bus mastering", "hca.platform().set_bus_master(true);", UNSAFE),
    door("an HCA's registers", "hca.platform().bar().write32(0x10, 0x10_0000);", UNSAFE),
    door("an HCA's doorbells", "hca.platform().bar().doorbell_register(0x1800, 8);", UNSAFE),
    door("an HCA's reset under its driver", "hca.platform().reset_function();", UNSAFE),
    door("an HCA's reset under its driver", "hca.reset().ok();", PRIVATE_METHOD),
    door(
        "the platform of an HCA at work",
        "fn lent(hca: &driver_mlx::Hca<'_, unikernel::hca::BareMetal>) { hca.platform(); }",
        NO_FUNCTION,
    ),
    door("bridges", "unikernel::pci::open_bridges(machine.config_space(), &[], function);", PRIVATE),
    door(
        "BARs of any function",
        "let room = unikernel::pci::assign::Room::default();
        unikernel::pci::assign::assign(machine.config_space(), &[], &room, function, 0).ok();",
        PRIVATE,
    ),
    door("BARs of any function", "machine.assign_bars(function).ok();", PRIVATE_METHOD),
    door(
        "a function that nobody found",
        "unikernel::pci::Function { address: function.address(), vendor: 1, device: 1, class: 1, revision: 1,
            secondary_bus: None };",
        PRIVATE_FIELDS,
    ),
    door("another function", "let mut other = *function; other.address = function.address();", PRIVATE_FIELD),
    door(
        "physical memory by a BAR",
        "unikernel::pci::MemoryBar { address: 0x100_0000, len: 4096, prefetchable: false };",
        PRIVATE_FIELDS,
    ),
    door(
        "physical memory by a BAR",
        "if let Ok(mut bar) = device.bar(0) { bar.address = 0x100_0000; }",
        PRIVATE_FIELD,
    ),
    door(
        "registers of any function",
        "if let Ok(bar) = machine.memory_bar(function, 0) { unikernel::device::Registers::map(&bar).ok(); }",
        NO_FUNCTION,
    ),
    door("physical memory", "unikernel::device::Registers::foreign(0x100_0000, 4096).ok();", UNSAFE),
    door(
        "physical memory",
        "unikernel::device::Registers { base: core::ptr::NonNull::dangling(), len: 4096 };",
        PRIVATE_FIELDS,
    ),
    door(
        "registers of any function",
        "let range = unikernel::memory_map::Range { start: 0x100_0000, end: 0x100_1000 };
        unikernel::device::Registers::claim(range, any()).ok();",
        PRIVATE_METHOD,
    ),
    door("registers of the chipset", "use unikernel::mem::registers::Units;", PRIVATE),
    door("physical memory", "use unikernel::mem::map_device;", PRIVATE),
    door("physical memory", "driver_mlx::MmioBar::new(core::ptr::NonNull::dangling(), 4096);", UNSAFE),
    door(
        "physical memory by an HCA",
        "unikernel::hca::BareMetal { bar: 0, ..hca.platform() };",
        PRIVATE_FIELDS,
    ),
    door("physical memory by an HCA", "let mut other = hca.platform(); other.bar = 0;", PRIVATE_FIELD),
    door("physical memory by MSI-X", "Vectors { table: 0, first: 0, count: 1 };", PRIVATE_FIELDS),
    door("physical memory by MSI-X", "let mut other = *vectors; other.table = 0;", PRIVATE_FIELD),
    door(
        "physical memory as configuration space",
        "unikernel::device::ConfigSpace::new(&[]).ok();",
        PRIVATE_METHOD,
    ),
    door(
        "physical memory as configuration space",
        "unikernel::device::ConfigSpace::open(&[]).ok();",
        PRIVATE_METHOD,
    ),
    door(
        "physical memory as configuration space",
        "unikernel::device::ConfigSpace { windows: any() };",
        PRIVATE_FIELDS,
    ),
    door("physical memory for DMA", "unikernel::memory::DmaMemory::new(any());", PRIVATE_METHOD),
    door("physical memory for DMA", "unikernel::memory::DmaMemory(any());", PRIVATE),
    door("physical memory for DMA", "hca.platform().map(0x10_0000, 4096, true).ok();", UNSAFE),
    door(
        "physical memory for DMA",
        "driver_mlx::DmaRegion::new(0x10_0000 as *mut u8, 0x10_0000, 4096);",
        UNSAFE,
    ),
    door(
        "physical memory for DMA",
        "driver_mlx::DmaSlice::from_raw(0x10_0000 as *mut u8, 0x10_0000, 4096);",
        UNSAFE,
    ),
    door("physical memory for DMA", "driver_mlx::DmaSlice::foreign(0x10_0000 as *mut u8, 4096);", UNSAFE),
    door("physical memory", "driver_mlx::HostRegion::new(0x10_0000 as *mut u8, 4096);", UNSAFE),
    door(
        "memory for DMA twice",
        "fn twice(memory: &unikernel::memory::DmaMemory) {
            let other: unikernel::memory::DmaMemory = Clone::clone(memory);
        }",
        NO_TRAIT,
    ),
    door("memory twice", "let other: Machine = Clone::clone(machine);", NO_TRAIT),
    door("memory twice", "let free = &machine.free;", PRIVATE_FIELD),
    door(
        "memory twice",
        "Machine::new(any(), any(), 0, any(), machine.config_space(), any(), any(), any(), any(), any());",
        PRIVATE_METHOD,
    ),
    door(
        "a function in use",
        "unikernel::device::Device { access: machine.config_space(), function: *function };",
        PRIVATE_FIELDS,
    ),
    door(
        "a function in use",
        "unikernel::device::Device::new(machine.config_space(), *function);",
        PRIVATE_METHOD,
    ),
    door("a function in use", "let functions = &mut machine.functions;", PRIVATE_FIELD),
    door(
        "a function in use",
        "unikernel::hca::Hardware::open(machine.config_space(), *function, 0, 1).ok();",
        PRIVATE_METHOD,
    ),
    door("a device twice", "let other: Device = Clone::clone(device);", NO_TRAIT),
    door("flags of other devices", "use unikernel::arch::interrupts::take_fired;", PRIVATE),
];

/// The crate's metadata for bare metal, and the directories of its dependencies.
struct Compiled {
    root: PathBuf,
    unikernel: PathBuf,
    driver: PathBuf,
}

fn compiled() -> &'static Compiled {
    static COMPILED: OnceLock<Compiled> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf();
        let output = Command::new(env!("CARGO"))
            .current_dir(&root)
            .args(["check", "--quiet", "--package", "unikernel", "--package", "driver-mlx"])
            .args(["--target", TARGET, "--message-format", "json-render-diagnostics"])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo starts");
        assert!(output.status.success(), "the unikernel does not build for {TARGET}");
        let messages = String::from_utf8(output.stdout).expect("JSON is UTF-8");
        let metadata = |name: &str| {
            let found = messages
                .lines()
                .filter(|line| {
                    line.contains(&format!(
                        "\"kind\":[\"lib\"],\"crate_types\":[\"lib\"],\"name\":\"{name}\""
                    ))
                })
                .filter_map(|line| line.split("\"filenames\":[\"").nth(1)?.split('"').next())
                .find(|file| file.ends_with(".rmeta") && file.contains(TARGET));
            PathBuf::from(found.unwrap_or_else(|| panic!("cargo names no metadata of {name}:\n{messages}")))
        };
        Compiled { unikernel: metadata("unikernel"), driver: metadata("driver_mlx"), root }
    })
}

/// Compiles an application around `code` and returns the compiler's errors.
fn errors(code: &str) -> String {
    let compiled = compiled();
    let source = format!(
        "#![no_std]
        #![allow(unused, path_statements)]
        use driver_mlx::{{Bar as _, Platform as _}};
        use unikernel::Machine;
        use unikernel::device::{{Device, Vectors}};
        use unikernel::hca::Hardware;
        use unikernel::pci::Function;
        /// Stands for a value of any type.
        fn any() -> ! {{ loop {{}} }}
        pub fn application(
            machine: &mut Machine, function: &Function, device: &Device, vectors: &Vectors, hca: &Hardware,
        ) {{
            {code}
        }}"
    );
    let dependencies = compiled.unikernel.parent().expect("a directory");
    // Procedural macros are the host's.
    let host = dependencies.ancestors().nth(3).expect("the target directory").join("debug/deps");
    let with = |name: &str, file: &Path| format!("{name}={}", file.display());
    // Each compilation has its own file, because the tests run in parallel.
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("door-{number}.rmeta"));
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .current_dir(&compiled.root)
        .args(["--edition", "2024", "--crate-type", "lib", "--crate-name", "application", "--target", TARGET])
        .args(["--emit", "metadata", "--error-format", "short", "-"])
        // A file, not `/dev/null`: rustc renames its output into place, and root may replace devices.
        .arg("-o")
        .arg(&output)
        .args(["--extern", &with("unikernel", &compiled.unikernel)])
        .args(["--extern", &with("driver_mlx", &compiled.driver)])
        .args(["-L", &with("dependency", dependencies), "-L", &with("dependency", &host)])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("rustc starts");
    rustc.stdin.take().expect("piped").write_all(source.as_bytes()).expect("rustc reads");
    let output = rustc.wait_with_output().expect("rustc ends");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), !errors.contains("error"), "{code}\n{errors}");
    errors
}

#[test]
fn safe_code_opens_no_door_to_config_space_and_physical_memory() {
    assert_eq!(errors(""), "", "what surrounds the code compiles");
    for Door { to, code, error } in DOORS {
        let found = errors(code);
        let codes: Vec<&str> =
            found.lines().filter_map(|line| line.split("error[").nth(1)?.split(']').next()).collect();
        assert_eq!(codes, [*error], "to {to}: {code}\n{found}");
        if *error == UNSAFE {
            // The code lacks `unsafe`, and nothing else.
            assert_eq!(errors(&format!("unsafe {{ {code} }}")), "", "to {to}: {code}");
        }
    }
}

#[test]
fn applications_drive_devices_without_unsafe_but_for_dma() {
    let code = "
        let card = *function;
        let Some(device) = machine.device(&card) else { return };
        let Ok(registers) = device.registers(0) else { return };
        registers.write32(0, registers.read32(4));
        let Ok(vectors) = machine.enable_msix(&device, 2) else { return };
        device.reset().ok();
        device.disable_bus_master();
        machine.clock().idle(machine.clock().now());
        let fired: u64 = vectors.take_fired();
        let id = (device.read_config(0), machine.config_space().read(card.address(), 0));
        let on = card.masters_bus(machine.config_space());
    ";
    assert_eq!(errors(code), "");
}
