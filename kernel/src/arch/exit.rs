//! Ends the machine: by QEMU's exit device, else by ACPI's soft-off, else by halting. Only
//! `panic=reset` resets it, because a reset boots the image again.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use spin::Once;
use x86_64::instructions::{hlt, interrupts, port::Port};

use crate::acpi::{NoSoftOff, Power};
use crate::console;
use crate::exit::ExitCode;

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

/// The machine is reset after a panic or a fault.
static RESET_AFTER_PANIC: AtomicBool = AtomicBool::new(false);

static POWER: Once<Power> = Once::new();

/// Keeps what ACPI says about the machine's end. Once.
pub fn set_power(power: Power) {
    POWER.call_once(|| power);
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
}

impl fmt::Display for StillOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Early => f.write_str("not switched off (ACPI's tables were not read yet)"),
            Self::NoSoftOff(reason) => write!(f, "not switched off ({reason})"),
            Self::SoftOff => f.write_str("not switched off (ACPI's soft-off has no effect)"),
            Self::Reset => f.write_str("not reset (no reset register has an effect)"),
        }
    }
}

/// Ends the machine with `code`, which becomes the status of QEMU's process where QEMU has the exit
/// device. Elsewhere the machine is switched off, or reset where that was asked for. If it stays
/// on, a line says why and the CPU halts.
pub fn exit(code: ExitCode) -> ! {
    interrupts::disable();
    let failed = matches!(code, ExitCode::Panic | ExitCode::Fault);
    let reason = if failed && RESET_AFTER_PANIC.load(Ordering::Relaxed) {
        reset(POWER.get().and_then(|power| power.reset))
    } else {
        // SAFETY: the port is the exit device's or nobody's.
        unsafe { Port::<u32>::new(DEBUG_EXIT).write(code as u32) };
        switch_off(POWER.get())
    };
    console::print_regardless(format_args!("machine: {reason}: switch it off\n"));
    loop {
        hlt();
    }
}

/// Resets the machine by FADT's register, then by the chipset's, then by the keyboard controller's.
/// Returns if none of them has an effect.
fn reset(register: Option<(u16, u8)>) -> StillOn {
    if let Some((port, value)) = register {
        write(port, value);
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
    let mut registers = match power.soft_off_registers() {
        Ok(registers) => registers.map(|(port, sleep_type)| (Port::<u16>::new(port), sleep_type)),
        Err(reason) => return StillOn::NoSoftOff(reason),
    };
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
    // Firmware may trap the write and take seconds.
    for _ in 0..SOFT_OFF_WAITS {
        wait();
    }
    StillOn::SoftOff
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
