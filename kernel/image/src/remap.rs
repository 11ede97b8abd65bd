//! `app=remap`: switches VT-d's translation on, as firmware may have left it, and then off by the unikernel's own means; then
//! an HCA is used, if there is one. For tests.

use unikernel::device::Registers;
use unikernel::iommu::{self, Registers as _};
use unikernel::{ExitCode, Machine, println};

use crate::cmdline::Options;
use crate::hca;

/// Where q35 has the unit.
const UNIT: u64 = 0xfed9_0000;

// Registers and bits of VT-d 4.1, sections 11.4.4 and 11.4.6.
const GLOBAL_COMMAND: u32 = 0x18;
const GLOBAL_STATUS: u32 = 0x1c;
const ROOT_TABLE: u32 = 0x20;
const SET_ROOT_TABLE: u32 = 1 << 30;
const TRANSLATION: u32 = 1 << 31;

pub fn run(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    // A root table without entries: no device reaches anything.
    let Ok(table) = machine.memory(4096) else { return ExitCode::Machine };
    table.fill(core::mem::MaybeUninit::new(0));
    let address = table.as_ptr() as u64;
    // SAFETY: q35 has the unit's registers there, and the unikernel has left them alone since the
    // start. No device masters the bus. The root table is in memory that is this function's for
    // good.
    let Ok(unit) = (unsafe { Registers::foreign(UNIT, 4096) }) else { return ExitCode::NoDevice };
    unit.write(ROOT_TABLE, address as u32);
    unit.write(ROOT_TABLE + 4, (address >> 32) as u32);
    unit.write(GLOBAL_COMMAND, SET_ROOT_TABLE);
    unit.write(GLOBAL_COMMAND, TRANSLATION);
    let on = unit.read(GLOBAL_STATUS);
    let found = iommu::turn_off(&unit);
    let off = unit.read(GLOBAL_STATUS);
    println!("remap: on {on:#x}, then {found:?}, {off:#x}, then {:?}", iommu::turn_off(&unit));
    if on & TRANSLATION == 0 || off & TRANSLATION != 0 {
        return ExitCode::Failed;
    }
    // What it reads and writes now is memory as it is.
    if machine.hcas().next().is_some() { hca::run(machine, options) } else { ExitCode::Success }
}
