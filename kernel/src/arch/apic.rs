//! The local APIC, by memory-mapped registers or, where there is one, by the x2APIC's model-specific ones.

use core::arch::x86_64::__cpuid;

use spin::Once;
use x86_64::registers::model_specific::Msr;

use crate::arch::vectors::{SPURIOUS, TIMER};
use crate::clock::Scale;
use crate::mem;
use crate::paging::{Caching, MapError};

const BASE_MSR: u32 = 0x1b;
const BASE_ENABLE: u64 = 1 << 11;
const BASE_X2APIC: u64 = 1 << 10;
const X2APIC_MSRS: u32 = 0x800;

// Register offsets (SDM volume 3, table 11-1).
const ID: u16 = 0x20;
const TASK_PRIORITY: u16 = 0x80;
const END_OF_INTERRUPT: u16 = 0xb0;
const SPURIOUS_VECTOR: u16 = 0xf0;
const INTERRUPT_COMMAND: u16 = 0x300;
const INTERRUPT_COMMAND_HIGH: u16 = 0x310;
const LVT_TIMER: u16 = 0x320;
const LVT_THERMAL: u16 = 0x330;
const LVT_PERFORMANCE: u16 = 0x340;
const LVT_LINT0: u16 = 0x350;
const LVT_LINT1: u16 = 0x360;
const LVT_ERROR: u16 = 0x370;
const TIMER_INITIAL: u16 = 0x380;
const TIMER_CURRENT: u16 = 0x390;
const TIMER_DIVIDE: u16 = 0x3e0;

const LVT_MASKED: u32 = 1 << 16;
const LVT_DELIVERY: u32 = 0b111 << 8;
const LVT_SMI: u32 = 0b010 << 8;
const LVT_NMI: u32 = 0b100 << 8;
const SOFTWARE_ENABLE: u32 = 1 << 8;
const DIVIDE_BY_1: u32 = 0b1011;

#[derive(Clone, Copy)]
enum Access {
    Memory(usize),
    Msr,
}

static APIC: Once<Access> = Once::new();
static TIMER_SCALE: Once<Scale> = Once::new();

impl Access {
    fn read(self, offset: u16) -> u32 {
        match self {
            // SAFETY: the APIC's page is mapped uncached at this address, and the offset is a register's.
            Access::Memory(base) => unsafe {
                core::ptr::read_volatile((base + usize::from(offset)) as *const u32)
            },
            // SAFETY: the x2APIC is on, and this is one of its registers.
            Access::Msr => unsafe { Msr::new(X2APIC_MSRS + u32::from(offset >> 4)).read() as u32 },
        }
    }

    fn write(self, offset: u16, value: u32) {
        match self {
            // SAFETY: as for reading; the values written here raise only the vectors that have handlers.
            Access::Memory(base) => unsafe {
                core::ptr::write_volatile((base + usize::from(offset)) as *mut u32, value)
            },
            // SAFETY: as for reading.
            Access::Msr => unsafe { Msr::new(X2APIC_MSRS + u32::from(offset >> 4)).write(value.into()) },
        }
    }
}

/// Turns the local APIC on with its own sources masked, but for non-maskable interrupts and
/// firmware's thermal ones. Uses the x2APIC where there is one, unless firmware wants it to stay off
/// (`no_x2apic`) and has it off.
pub fn init(no_x2apic: bool) -> Result<(), MapError> {
    let has_x2apic = __cpuid(1).ecx & (1 << 21) != 0;
    let mut base_msr = Msr::new(BASE_MSR);
    // SAFETY: every x86-64 CPU has this register.
    let base = unsafe { base_msr.read() } | BASE_ENABLE;
    // There is no way back from the x2APIC but by a reset.
    let access = if has_x2apic && (base & BASE_X2APIC != 0 || !no_x2apic) {
        // SAFETY: the CPU says that it has an x2APIC, and going to it from either state is allowed.
        unsafe {
            base_msr.write(base);
            base_msr.write(base | BASE_X2APIC);
        }
        Access::Msr
    } else {
        // SAFETY: sets the global enable bit and leaves the address alone.
        unsafe { base_msr.write(base) };
        Access::Memory(mem::map_device(base & 0x000f_ffff_ffff_f000, 4096, Caching::Uncached)?)
    };
    for lvt in [LVT_TIMER, LVT_PERFORMANCE, LVT_LINT0, LVT_ERROR] {
        access.write(lvt, LVT_MASKED);
    }
    // Firmware may throttle the processor in system management mode.
    if access.read(LVT_THERMAL) & LVT_DELIVERY != LVT_SMI {
        access.write(LVT_THERMAL, LVT_MASKED);
    }
    // A management controller's NMI arrives here.
    access.write(LVT_LINT1, LVT_NMI);
    access.write(TASK_PRIORITY, 0);
    access.write(TIMER_DIVIDE, DIVIDE_BY_1);
    access.write(SPURIOUS_VECTOR, SOFTWARE_ENABLE | u32::from(SPURIOUS));
    APIC.call_once(|| access);
    Ok(())
}

/// Whether the x2APIC is in use, and this CPU's APIC ID.
pub fn identity() -> (bool, u32) {
    match APIC.get() {
        Some(Access::Msr) => (true, Access::Msr.read(ID)),
        Some(access) => (false, access.read(ID) >> 24),
        None => (false, 0),
    }
}

/// Says that the handler is done.
pub fn end_of_interrupt() {
    if let Some(access) = APIC.get() {
        access.write(END_OF_INTERRUPT, 0);
    }
}

/// Starts the timer from its largest count, masked, to be measured.
pub fn start_counting() {
    if let Some(access) = APIC.get() {
        access.write(LVT_TIMER, LVT_MASKED | u32::from(TIMER));
        access.write(TIMER_INITIAL, u32::MAX);
    }
}

/// Ticks since [`start_counting`].
pub fn counted() -> u32 {
    APIC.get().map_or(0, |access| u32::MAX - access.read(TIMER_CURRENT))
}

/// Sets the timer's frequency as measured, and stops it.
pub fn set_timer_scale(scale: Scale) {
    TIMER_SCALE.call_once(|| scale);
    stop_timer();
}

/// The timer's frequency in Hz; 0 before it was measured.
pub fn timer_hz() -> u64 {
    TIMER_SCALE.get().map_or(0, |scale| scale.hz())
}

/// Lets the timer interrupt once after `nanos`, or as late as its counter allows.
pub fn set_timer(nanos: u64) {
    if let (Some(access), Some(scale)) = (APIC.get(), TIMER_SCALE.get()) {
        let ticks = scale.ticks(nanos).clamp(1, u32::MAX.into()) as u32;
        access.write(LVT_TIMER, u32::from(TIMER));
        access.write(TIMER_INITIAL, ticks);
    }
}

/// Stops the timer.
fn stop_timer() {
    if let Some(access) = APIC.get() {
        access.write(TIMER_INITIAL, 0);
        access.write(LVT_TIMER, LVT_MASKED | u32::from(TIMER));
    }
}

/// Sends this CPU a non-maskable interrupt.
pub fn self_nmi() {
    const DELIVER_NMI: u32 = 0b100 << 8;
    const ASSERT: u32 = 1 << 14;
    let (_, id) = identity();
    match APIC.get() {
        // SAFETY: the x2APIC's interrupt command register: destination in the upper half. The NMI ends in a report.
        Some(Access::Msr) => unsafe {
            Msr::new(X2APIC_MSRS + u32::from(INTERRUPT_COMMAND >> 4))
                .write(u64::from(id) << 32 | u64::from(DELIVER_NMI | ASSERT));
        },
        Some(access) => {
            access.write(INTERRUPT_COMMAND_HIGH, id << 24);
            access.write(INTERRUPT_COMMAND, DELIVER_NMI | ASSERT);
        }
        None => {}
    }
}
