//! Machine checks: switched on, because without CR4.MCE one shuts the processor down unreported.

use core::arch::x86_64::__cpuid;

use x86_64::registers::control::{Cr4, Cr4Flags};
use x86_64::registers::model_specific::Msr;

use crate::console;
use crate::machine_check::{Bank, GlobalStatus, MAX_BANKS, Register};

const GLOBAL_CAPABILITIES: u32 = 0x179;
const GLOBAL_STATUS: u32 = 0x17a;
const GLOBAL_CONTROL: u32 = 0x17b;
const HAS_GLOBAL_CONTROL: u64 = 1 << 8;
const FIRST_BANK: u32 = 0x400;
const REGISTERS_PER_BANK: u32 = 4;

// In EDX of CPUID leaf 1.
const MACHINE_CHECK_EXCEPTION: u32 = 1 << 7;
const MACHINE_CHECK_ARCHITECTURE: u32 = 1 << 14;

/// The banks of a processor that has the machine-check architecture.
#[derive(Clone, Copy)]
struct Banks {
    capabilities: u64,
}

impl Banks {
    /// `None` where CPUID does not name the architecture: then the registers do not exist.
    fn find() -> Option<Self> {
        let wanted = MACHINE_CHECK_EXCEPTION | MACHINE_CHECK_ARCHITECTURE;
        if __cpuid(1).edx & wanted != wanted {
            return None;
        }
        // SAFETY: CPUID names the machine-check architecture, which has this register.
        Some(Self { capabilities: unsafe { Msr::new(GLOBAL_CAPABILITIES).read() } })
    }

    fn numbers(self) -> core::ops::Range<u8> {
        0..(self.capabilities as u8).min(MAX_BANKS)
    }

    fn read(self, number: u8) -> Option<Bank> {
        Bank::read(number, |register| {
            let offset = match register {
                Register::Status => 1,
                Register::Address => 2,
                Register::Misc => 3,
            };
            // SAFETY: the capabilities count this bank, and `Bank::read` reads the registers that
            // its status names.
            unsafe { Msr::new(bank_register(number, offset)).read() }
        })
    }

    /// Prints the errors that banks report; `clear` lets them take new ones.
    fn report(self, clear: bool) {
        for number in self.numbers() {
            let Some(bank) = self.read(number) else { continue };
            console::print_regardless(format_args!("  {bank}\n"));
            if clear {
                // SAFETY: the bank exists, and 0 is what may be written to its status.
                unsafe { Msr::new(bank_register(number, 1)).write(0) };
            }
        }
    }
}

const fn bank_register(number: u8, offset: u32) -> u32 {
    FIRST_BANK + REGISTERS_PER_BANK * number as u32 + offset
}

/// Processors of family 6 up to Core 2, whose firmware alone writes bank 0's control register (SDM
/// volume 3, section 16.3.2.1).
fn firmware_has_bank_0() -> bool {
    let signature = __cpuid(1).eax;
    let (family, model) = (signature >> 8 & 0xf, signature >> 4 & 0xf | signature >> 12 & 0xf0);
    family == 6 && model < 0x1a
}

/// Lets hardware errors raise #MC. Once, after the interrupt descriptor table is loaded. Prints and
/// clears the errors that banks kept over a reset, which a later report would be mistaken for.
pub fn init() {
    if let Some(banks) = Banks::find() {
        if banks.numbers().any(|number| banks.read(number).is_some()) {
            console::print_regardless(format_args!("machine check: errors of before the boot:\n"));
            banks.report(true);
        }
        // SAFETY: initialization as SDM volume 3, section 16.8 has it, of registers that exist: all
        // errors of all banks are reported.
        unsafe {
            if banks.capabilities & HAS_GLOBAL_CONTROL != 0 {
                Msr::new(GLOBAL_CONTROL).write(u64::MAX);
            }
            for number in banks.numbers().skip(usize::from(firmware_has_bank_0())) {
                Msr::new(bank_register(number, 0)).write(u64::MAX);
            }
        }
    }
    if __cpuid(1).edx & MACHINE_CHECK_EXCEPTION != 0 {
        // SAFETY: the exception has a handler, with a stack of its own.
        unsafe { Cr4::update(|flags| flags.insert(Cr4Flags::MACHINE_CHECK_EXCEPTION)) };
    }
}

/// Prints what the processor says of a machine check. Takes no lock.
pub fn report() {
    let Some(banks) = Banks::find() else { return };
    // SAFETY: the machine-check architecture has this register.
    let status = GlobalStatus(unsafe { Msr::new(GLOBAL_STATUS).read() });
    console::print_regardless(format_args!("  {status}\n"));
    banks.report(false);
}
