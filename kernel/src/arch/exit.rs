//! Ends the machine: by QEMU's exit device, by ACPI, by reset, by halting, whichever works first.

use core::sync::atomic::{AtomicBool, Ordering};

use spin::Once;
use x86_64::instructions::{hlt, interrupts, port::Port};

use crate::acpi::Power;
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

/// Ends the machine with `code`, which QEMU's process ends with where it has the exit device. Elsewhere the machine is switched off, or
/// reset where that was asked for.
pub fn exit(code: ExitCode) -> ! {
    interrupts::disable();
    let failed = matches!(code, ExitCode::Panic | ExitCode::Fault);
    let reset = failed && RESET_AFTER_PANIC.load(Ordering::Relaxed);
    if !reset {
        // SAFETY: the port is the exit device's or nobody's.
        unsafe { Port::<u32>::new(DEBUG_EXIT).write(code as u32) };
    }
    if let Some(power) = POWER.get() {
        if !reset {
            switch_off(power);
        }
        if let Some((port, value)) = power.reset {
            write(port, value);
            wait();
        }
        // System reset, then with the CPU's reset too.
        write(RESET_CONTROL, 0x02);
        write(RESET_CONTROL, 0x06);
        wait();
        write(KEYBOARD.0, KEYBOARD.1);
        wait();
    }
    loop {
        hlt();
    }
}

/// ACPI's soft-off state.
fn switch_off(power: &Power) {
    let Some(types) = power.soft_off else { return };
    let ports = power.pm1_control.map(|port| port.map(Port::<u16>::new));
    let mut registers =
        ports.into_iter().zip(types).filter_map(|(port, sleep_type)| Some((port?, sleep_type)));
    let Some((mut first, sleep_type)) = registers.next() else { return };
    // SAFETY: FADT's PM1 control registers and SMI command port, written as ACPI 6.5 sections 4.8.3.2.1 and 16.1.6 say.
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
    wait();
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
