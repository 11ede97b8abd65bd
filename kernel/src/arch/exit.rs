//! Ends the machine as `end=` says. By default QEMU's exit device does it, else ACPI's soft-off. A
//! real machine with a screen halts, so that the result can be read. Only `end=reset` and
//! `panic=reset` reset it, because a reset boots the image again.

use core::arch::x86_64::__cpuid;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use spin::Once;
use x86_64::instructions::{hlt, interrupts, port::Port};

use crate::acpi::register::Register;
use crate::acpi::{NoSoftOff, Power, SoftOff};
use crate::arch::screen;
use crate::exit::{End, ExitCode};
use crate::paging::Caching;
use crate::{console, mem};

/// I/O port of QEMU's `isa-debug-exit`.
const DEBUG_EXIT: u16 = 0xf4;
/// The reset control register of Intel's chipsets, and most others'.
const RESET_CONTROL: u16 = 0xcf9;
/// The keyboard controller's command port, and its command that pulses the CPU's reset line.
const KEYBOARD: (u16, u8) = (0x64, 0xfe);

const SLEEP_TYPE_SHIFT: u8 = 10;
const SLEEP_TYPE_MASK: u16 = 7 << SLEEP_TYPE_SHIFT;
const SLEEP_ENABLE: u16 = 1 << 13;
const SCI_ENABLED: u16 = 1;
/// Reads of a port, of some 1 us each, before the next way is tried.
const PATIENCE: u32 = 500_000;
/// Half seconds that soft-off may take.
const SOFT_OFF_WAITS: u32 = 10;

/// Fields of the sleep control register (ACPI 6.5 section 4.8.3.7).
const SLEEP_CONTROL_TYPE_SHIFT: u8 = 2;
const SLEEP_CONTROL_ENABLE: u8 = 1 << 5;

/// End chosen on the command line.
static END: Once<End> = Once::new();
/// The machine is reset after a panic or a fault.
static RESET_AFTER_PANIC: AtomicBool = AtomicBool::new(false);

static POWER: Once<Power> = Once::new();
/// Virtual addresses of the sleep control and reset registers that are in memory.
static MAPPED: Once<[Option<usize>; 2]> = Once::new();

/// Keeps what ACPI says about the machine's end. Once.
pub fn set_power(power: Power) {
    POWER.call_once(|| power);
}

/// Maps the registers that are in memory. Once, after the page tables are made.
pub fn map_power() {
    let Some(power) = POWER.get() else { return };
    let map = |register: Option<Register>| match register {
        Some(Register::Memory(address)) => {
            let page = address & !0xfff;
            let mapped = mem::map_device(page, 4096, Caching::Uncached).ok()?;
            Some(mapped + (address - page) as usize)
        }
        _ => None,
    };
    MAPPED.call_once(|| [map(power.sleep_control), map(power.reset.map(|(register, _)| register))]);
}

/// Chooses the machine's end. Once.
pub fn set_end(end: End) {
    END.call_once(|| end);
}

/// From now on the machine is reset after a panic or a fault, in place of being switched off.
pub fn reset_after_panic() {
    RESET_AFTER_PANIC.store(true, Ordering::Relaxed);
}

/// Why the machine is still on.
#[derive(Clone, Copy, Debug)]
enum StillOn {
    /// The end came before ACPI's tables were read.
    Early,
    /// ACPI does not say how.
    NoSoftOff(NoSoftOff),
    /// The registers were written, without effect.
    SoftOff,
    /// No way to reset it had an effect.
    Reset,
    /// As the command line says.
    Halted,
    /// The screen shows the result.
    Shown,
}

impl fmt::Display for StillOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Early => f.write_str("not switched off (ACPI's tables were not read yet)"),
            Self::NoSoftOff(reason) => write!(f, "not switched off ({reason})"),
            Self::SoftOff => f.write_str("not switched off (ACPI's soft-off has no effect)"),
            Self::Reset => f.write_str("not reset (no reset register has an effect)"),
            Self::Halted => f.write_str("halted (end=halt)"),
            Self::Shown => f.write_str("halted, so that the screen can be read (end=off switches it off)"),
        }
    }
}

/// Ends the machine with `code`, which becomes the status of QEMU's process where QEMU has the exit
/// device. If the machine stays on, a line says why and the CPU halts.
pub fn exit(code: ExitCode) -> ! {
    interrupts::disable();
    let failed = matches!(code, ExitCode::Panic | ExitCode::Fault);
    let reset_now = failed && RESET_AFTER_PANIC.load(Ordering::Relaxed);
    let chosen = if reset_now { Some(End::Reset) } else { END.get().copied() };
    let reason = match chosen {
        Some(End::Reset) => reset(POWER.get().and_then(|power| power.reset)),
        Some(End::Halt) => StillOn::Halted,
        Some(End::Off) => switch_off(POWER.get()),
        None if is_virtual() => {
            // SAFETY: a hypervisor has the exit device at this port, or nothing.
            unsafe { Port::<u32>::new(DEBUG_EXIT).write(code as u32) };
            switch_off(POWER.get())
        }
        None if screen::is_present() => StillOn::Shown,
        None => switch_off(POWER.get()),
    };
    console::print_regardless(format_args!("machine: {reason}: switch it off\n"));
    loop {
        hlt();
    }
}

/// Returns whether a hypervisor runs the machine: others may have any device at the exit device's
/// port.
fn is_virtual() -> bool {
    const HYPERVISOR: u32 = 1 << 31;
    __cpuid(1).ecx & HYPERVISOR != 0
}

/// Resets the machine by FADT's register, then by the chipset's, then by the keyboard controller's.
/// Returns if none of them has an effect.
fn reset(register: Option<(Register, u8)>) -> StillOn {
    if let Some((register, value)) = register {
        write_register(register, 1, value);
        wait();
    }
    // System reset, then with the CPU's reset too.
    write(RESET_CONTROL, 0x02);
    write(RESET_CONTROL, 0x06);
    wait();
    write(KEYBOARD.0, KEYBOARD.1);
    wait();
    StillOn::Reset
}

/// Enters ACPI's soft-off state. Returns why the machine is still on.
fn switch_off(power: Option<&Power>) -> StillOn {
    let Some(power) = power else { return StillOn::Early };
    let registers = match power.soft_off_registers() {
        Ok(SoftOff::Pm1(registers)) => registers,
        Ok(SoftOff::SleepControl(register, sleep_type)) => {
            let value = sleep_type << SLEEP_CONTROL_TYPE_SHIFT | SLEEP_CONTROL_ENABLE;
            write_register(register, 0, value);
            wait_for_soft_off();
            return StillOn::SoftOff;
        }
        Err(reason) => return StillOn::NoSoftOff(reason),
    };
    let registers = registers.into_iter().flatten();
    let mut registers = registers.map(|(port, sleep_type)| (Port::<u16>::new(port), sleep_type));
    let Some((mut first, sleep_type)) = registers.next() else {
        return StillOn::NoSoftOff(NoSoftOff::Register);
    };
    // SAFETY: FADT's PM1 control registers and SMI command port, written as ACPI 6.5 sections
    // 4.8.3.2.1 and 16.1.6 say.
    unsafe {
        if first.read() & SCI_ENABLED == 0
            && let Some((command, enable)) = power.enable
        {
            Port::<u8>::new(command).write(enable);
            for _ in 0..PATIENCE {
                if first.read() & SCI_ENABLED != 0 {
                    break;
                }
            }
        }
        let value = |old: u16, sleep_type: u8| {
            old & !SLEEP_TYPE_MASK | u16::from(sleep_type) << SLEEP_TYPE_SHIFT | SLEEP_ENABLE
        };
        let old = first.read();
        first.write(value(old, sleep_type));
        if let Some((mut second, sleep_type)) = registers.next() {
            let old = second.read();
            second.write(value(old, sleep_type));
        }
    }
    wait_for_soft_off();
    StillOn::SoftOff
}

/// Firmware may trap the write and take seconds.
fn wait_for_soft_off() {
    for _ in 0..SOFT_OFF_WAITS {
        wait();
    }
}

/// Writes a register, which is number `index` of [`MAPPED`] if it is in memory.
fn write_register(register: Register, index: usize, value: u8) {
    match register {
        Register::Port(port) => write(port, value),
        Register::Memory(_) => {
            if let Some(address) = MAPPED.get().and_then(|mapped| mapped.get(index).copied().flatten()) {
                // SAFETY: mapped uncached by `map_power`, for good. The register's only effect is
                // the end of the machine, which is wanted here.
                unsafe { core::ptr::write_volatile(address as *mut u8, value) };
            }
        }
    }
}

fn write(port: u16, value: u8) {
    // SAFETY: a register whose only effect is the machine's reset, which is wanted here.
    unsafe { Port::<u8>::new(port).write(value) };
}

/// Lets half a second pass, without a clock, which need not be there yet.
fn wait() {
    for _ in 0..PATIENCE {
        // SAFETY: the port of power-on self tests: a read has no effect and takes a bus cycle.
        unsafe { Port::<u8>::new(0x80).read() };
    }
}
