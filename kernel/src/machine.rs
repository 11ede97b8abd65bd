//! What an application finds.

use core::fmt;
use core::mem::MaybeUninit;
use core::time::Duration;

use driver_mlx::Instant;
use heapless::Vec;

use crate::arch::clock::{self, Reference};
use crate::arch::config_space::ConfigSpace;
use crate::arch::entropy::Identity;
use crate::arch::msix::{self, Vectors};
use crate::arch::{apic, debug_log, exit, interrupts, layout};
use crate::choice::Choice;
use crate::console::println;
use crate::device::{self, Device};
use crate::exit::ExitCode;
use crate::hca::{self, Hardware};
use crate::mem;
use crate::memory::{DmaMemory, NoMemory};
use crate::memory_map::{MemoryMap, Range};
use crate::modules::Module;
use crate::options::{Error, Help, Key, Options};
use crate::pci::assign::{Room, assign};
use crate::pci::{self, Function, Inventory, MAX_FUNCTIONS, MemoryBar, open_bridges};
use crate::seed::BootNumber;

/// The machine, as the application finds it: there is one, and it is the application's alone.
pub struct Machine {
    command_line: &'static str,
    modules: &'static [Module],
    ram_bytes: u64,
    free: MemoryMap,
    config_space: &'static ConfigSpace,
    functions: Inventory,
    /// Where BARs may be put that firmware gave no address.
    room: Room,
    identity: Identity,
    reference: Reference,
    steps: Steps,
    next_vector: u8,
}

/// Nothing is handed out below: firmware's and loaders' habits, and what a null pointer may reach.
const LOWEST: u64 = 1 << 20;
/// A clock of seconds that does not move for so long stands still.
const BOOT_SECOND_NANOS: u64 = 2_000_000_000;
const LARGE_PAGE: u64 = 2 << 20;

impl Machine {
    #[allow(clippy::too_many_arguments, reason = "called once, by the start")]
    pub(crate) fn new(
        command_line: &'static str,
        modules: &'static [Module],
        ram_bytes: u64,
        free: MemoryMap,
        config_space: &'static ConfigSpace,
        functions: Vec<Function, MAX_FUNCTIONS>,
        room: Room,
        identity: Identity,
        reference: Reference,
        steps: Steps,
    ) -> Self {
        let next_vector = 0;
        Self {
            command_line,
            modules,
            ram_bytes,
            free,
            config_space,
            functions: Inventory::new(functions),
            room,
            identity,
            reference,
            steps,
            next_vector,
        }
    }

    /// The command line, as the loader passed it.
    #[must_use]
    pub fn command_line(&self) -> &'static str {
        self.command_line
    }

    /// The command line's words, which may have these keys. Where one of them is `help`, prints the list of keys and ends the machine.
    ///
    /// # Errors
    /// The first word that is wrong.
    pub fn options(&self, keys: &'static [Key]) -> Result<Options<'static>, Error<'static>> {
        let wants_help = self.command_line.split_ascii_whitespace().any(|word| word == crate::options::HELP);
        if wants_help {
            println!("{}", Help(keys));
            self.end(ExitCode::Success);
        }
        Options::parse(self.command_line, keys)
    }

    /// The files that the loader put into memory (QEMU's `-initrd`, GRUB's `module2`), by name, at most four.
    pub fn modules(&self) -> impl Iterator<Item = (&'static str, &'static [u8])> {
        self.modules.iter().map(|module| (module.name(), mem::file(module.pages(), module.place())))
    }

    /// The clock, for whoever wants time or waits.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        Clock(())
    }

    /// 128 random bits, others at each boot. Not a cryptographic key.
    #[must_use]
    pub const fn seed(&self) -> u128 {
        self.identity.seed
    }

    /// Larger than that of an earlier boot, if the wall clock works.
    #[must_use]
    pub const fn boot_generation(&self) -> u64 {
        self.identity.boot_generation
    }

    /// Returns the time since 1970 by the real-time clock, in whole seconds. `None` if there is no clock, or if its registers are
    /// no date.
    #[must_use]
    pub fn wall_clock(&self) -> Option<Duration> {
        clock::unix_seconds().map(Duration::from_secs)
    }

    /// When this boot began by the wall clock: whole seconds since 1970, which no other boot has. For that it waits until the second is
    /// over in which the boot read the clock. None if there is no clock, or if it stands still.
    #[must_use]
    pub fn boot_time(&self) -> Option<Duration> {
        let began = clock::now();
        loop {
            match self.identity.boot_second.number(clock::unix_seconds()) {
                BootNumber::Seconds(seconds) => return Some(Duration::from_secs(seconds)),
                BootNumber::NotYet if clock::now() - began < BOOT_SECOND_NANOS => core::hint::spin_loop(),
                BootNumber::NotYet | BootNumber::Unknown => return None,
            }
        }
    }

    /// The PCI functions found.
    #[must_use]
    pub fn pci(&self) -> &[Function] {
        self.functions.found()
    }

    /// Returns address and size of memory BAR `index` of a function. Sizing turns the function's
    /// memory decoding off for some microseconds.
    ///
    /// # Errors
    /// [`pci::Error`]: there is no such BAR, or firmware gave it no address.
    pub fn memory_bar(&self, function: &Function, index: u8) -> Result<MemoryBar, pci::Error> {
        function.memory_bar(self.config_space, index)
    }

    /// Hands out one of [`Machine::pci`] to an application that drives it itself. Its BARs have
    /// addresses then, the bridges above it pass accesses on, and bus mastering is off.
    ///
    /// Returns `None` for a bridge, and for a function that was handed out before, as an opened HCA
    /// was.
    pub fn device(&mut self, function: &Function) -> Option<Device> {
        if !self.functions.take(function) {
            return None;
        }
        function.wake(self.config_space, interrupts::wait);
        if let Err(error) = self.assign_bars(function) {
            println!("pci {}: {error}", function.address());
        }
        // The boot turned it off everywhere; an HCA that failed to open may have it on.
        function.stop_bus_master(self.config_space);
        open_bridges(self.config_space, self.functions.found(), function);
        Some(Device::new(self.config_space, *function))
    }

    /// PCI configuration space.
    #[must_use]
    pub const fn config_space(&self) -> &'static ConfigSpace {
        self.config_space
    }

    /// The HCAs: functions of the mlx5 family, in the order in which they were found.
    pub fn hcas(&self) -> impl Iterator<Item = &Function> {
        self.pci().iter().filter(|function| hca::is_hca(function))
    }

    /// Which of [`Machine::hcas`] is meant.
    ///
    /// # Errors
    /// [`hca::Error::NoHca`]; what there is of Mellanox's, and why it is or is not taken, is printed then. [`hca::Error::Guid`]: nobody knows
    /// a port's GUID before the HCA is up; [`verbs::open`](crate::verbs::open) asks.
    pub fn find_hca(&self, choice: Choice) -> Result<usize, hca::Error> {
        if let Choice::Port(_) = choice {
            return Err(hca::Error::Guid);
        }
        let meant = |(nth, function): &(usize, &Function)| match choice {
            Choice::Nth(wanted) => *nth == wanted,
            Choice::At(address) => function.address() == address,
            Choice::Port(_) => false,
        };
        let found = self.hcas().enumerate().find(meant).map(|(nth, _)| nth);
        if found.is_none() {
            self.list_hcas();
        }
        found.ok_or(hca::Error::NoHca(choice))
    }

    /// Prints every function of Mellanox's, and whether and why it is taken.
    pub fn list_hcas(&self) {
        for function in self.pci().iter().filter(|function| function.vendor() == pci::VENDOR_MELLANOX) {
            println!("{}", hca::Candidate::of(self.config_space, function));
        }
    }

    /// Switches one of [`Machine::hcas`] on; its MSI-X vectors 0 to `vectors` - 1 end [`Clock::idle`]. Once for each HCA.
    ///
    /// # Errors
    /// [`hca::Error`].
    pub fn open_hca(&mut self, choice: impl Into<Choice>, vectors: u16) -> Result<Hardware, hca::Error> {
        let choice = choice.into();
        let nth = self.find_hca(choice)?;
        let function = *self.hcas().nth(nth).ok_or(hca::Error::NoHca(choice))?;
        if !self.functions.take(&function) {
            return Err(hca::Error::InUse);
        }
        let opened = self.open_function(function, vectors);
        match &opened {
            Ok(_) => self.next_vector += vectors as u8,
            Err(_) => self.functions.give_back(&function),
        }
        opened
    }

    fn open_function(&self, function: Function, vectors: u16) -> Result<Hardware, hca::Error> {
        self.assign_bars(&function).map_err(hca::Error::Pci)?;
        open_bridges(self.config_space, self.functions.found(), &function);
        Hardware::open(self.config_space, function, self.next_vector, vectors)
    }

    /// Assigns addresses to those memory BARs of `function` that firmware left without one, and
    /// prints them. Setups have an option for BARs that find no room ("above 4G decoding").
    fn assign_bars(&self, function: &Function) -> Result<(), pci::Error> {
        for index in 0..6 {
            if self.memory_bar(function, index) != Err(pci::Error::NotAssigned(index)) {
                continue;
            }
            let bar = assign(self.config_space, self.functions.found(), &self.room, function, index)?;
            println!(
                "pci {}: firmware gave BAR{index} no address: {} KiB at {:#x} are its own now",
                function.address(),
                bar.bytes() >> 10,
                bar.address()
            );
        }
        Ok(())
    }

    /// Takes memory for devices out of what is free.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn dma(&mut self, bytes: u64) -> Result<DmaMemory, NoMemory> {
        self.take(bytes, LARGE_PAGE).map(DmaMemory::new)
    }

    /// Takes memory out of what is free, in whole pages, for good: for an allocator, or for tables whose size is known at run time only.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn memory(&mut self, bytes: u64) -> Result<&'static mut [MaybeUninit<u8>], NoMemory> {
        self.take(bytes, 4096).map(mem::lend)
    }

    fn take(&mut self, bytes: u64, align: u64) -> Result<Range, NoMemory> {
        let longest_bytes = self.free.longest_bytes(LOWEST);
        let none = NoMemory { wanted_bytes: bytes, longest_bytes };
        if bytes == 0 { Err(none) } else { self.free.take(bytes, align, LOWEST).ok_or(none) }
    }

    /// Lets the first `count` entries of a device's MSI-X table end [`Clock::idle`];
    /// [`Vectors::take_fired`] says which did. Interrupts arrive once bus mastering is on
    /// ([`Device::enable_bus_master`]).
    ///
    /// # Errors
    /// [`device::Error`].
    pub fn enable_msix(&mut self, device: &Device, count: u16) -> Result<Vectors, device::Error> {
        device.decode_memory()?;
        let vectors = msix::enable(self.config_space, device.function(), self.next_vector, count)?;
        self.next_vector += count as u8;
        Ok(vectors)
    }

    /// What the machine is, for people.
    #[must_use]
    pub const fn about(&self) -> About<'_> {
        About(self)
    }

    /// The boot's steps and what each took, in microseconds.
    pub fn steps(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.steps.micros()
    }

    /// Ends the machine without going back to [`entry!`](crate::entry)'s caller.
    pub fn end(&self, code: ExitCode) -> ! {
        crate::arch::emergency::stop_dma();
        exit::exit(code)
    }
}

/// Displays the machine: memory, interrupts, clock, seed, log.
#[derive(Clone, Copy)]
pub struct About<'a>(&'a Machine);

impl fmt::Display for About<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = self.0;
        let image = layout::image();
        writeln!(f, "memory: {} MiB usable", machine.ram_bytes >> 20)?;
        writeln!(f, "  image {:#x}..{:#x} ({} KiB)", image.start, image.end, image.len() >> 10)?;
        for range in machine.free.ranges() {
            writeln!(f, "  free  {:#x}..{:#x} ({} KiB)", range.start, range.end, range.len() >> 10)?;
        }
        let (x2apic, apic_id) = apic::identity();
        let kind = if x2apic { "x2APIC" } else { "xAPIC" };
        writeln!(f, "apic: {kind} id {apic_id}, timer {} Hz", apic::timer_hz())?;
        let source = if clock::longest_wait_nanos() == u64::MAX { "TSC" } else { "PM timer" };
        writeln!(f, "clock: by {source}, tsc {} Hz, calibrated by {}", clock::tsc_hz(), machine.reference)?;
        let random = if machine.identity.hardware_random { "RDRAND" } else { "no RDRAND" };
        writeln!(
            f,
            "seed: {:#034x}, generation {:#x}, {random}",
            machine.identity.seed, machine.identity.boot_generation
        )?;
        writeln!(f, "log: debug console {}", if debug_log::is_present() { "present" } else { "absent" })?;
        let (used, all) = mem::table_usage();
        write!(f, "page tables: {used} of {all}")
    }
}

/// Time since the CPU's reset, and waiting. Whoever has the machine has it, and copies of it.
#[derive(Clone, Copy, Debug)]
pub struct Clock(());

impl Clock {
    /// The time: monotonic.
    #[must_use]
    #[inline]
    pub fn now(self) -> Instant {
        Instant::from_nanos(clock::now())
    }

    /// Waits until a device's interrupt or until `deadline` of [`Clock::now`]; may return earlier.
    /// Halts the CPU unless the deadline is close. Each device's owner takes its flags by
    /// [`Vectors::take_fired`].
    pub fn idle(self, deadline: Instant) {
        interrupts::idle(deadline.as_nanos(), u64::MAX);
    }

    /// Timer interrupts since boot, and interrupts that nobody asked for.
    #[must_use]
    pub fn interrupt_counts(self) -> (u32, u32) {
        interrupts::counts()
    }
}

/// Names of steps, each with the TSC at its end.
pub(crate) struct Steps {
    start_tsc: u64,
    ends: Vec<(&'static str, u64), 8>,
}

impl Steps {
    pub(crate) fn new() -> Self {
        Self { start_tsc: clock::tsc(), ends: Vec::new() }
    }

    pub(crate) fn done(&mut self, name: &'static str) {
        // Steps beyond the list's room are not timed.
        let _ = self.ends.push((name, clock::tsc()));
    }

    fn micros(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let starts = core::iter::once(self.start_tsc).chain(self.ends.iter().map(|(_, end)| *end));
        starts.zip(&self.ends).map(|(start, (name, end))| (*name, clock::nanos(end - start) / 1000))
    }
}
