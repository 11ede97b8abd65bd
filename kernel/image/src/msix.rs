//! `app=msix`: an Intel 82574 (QEMU's `e1000e`) raises each of three MSI-X vectors by software.
//!
//! Checks that exactly that vector wakes a halted CPU, and that a masked one waits until it is
//! unmasked. If the machine has an HCA, waits of the HCA's driver must leave the card its flags.
//! The card, its registers and ranges in use are handed out once.

use driver_mlx::{Duration, Instant, Platform};
use unikernel::ExitCode;
use unikernel::device::{Conflict, Device, Error, Vectors};
use unikernel::hca::Hardware;
use unikernel::{Clock, Machine, println};

const VENDOR_INTEL: u16 = 0x8086;
const DEVICE_82574: u16 = 0x10d3;

// Registers and bits of the 82574 data sheet, section 10.2.4.
const INTERRUPT_CAUSE_READ: u32 = 0x00c0;
const INTERRUPT_CAUSE_SET: u32 = 0x00c8;
const INTERRUPT_MASK_SET: u32 = 0x00d0;
const VECTOR_ALLOCATION: u32 = 0x00e4;
const CAUSE_RECEIVE_0: u32 = 1 << 20;
const CAUSE_TRANSMIT_0: u32 = 1 << 22;
const CAUSE_OTHER: u32 = 1 << 24;
/// Receive queue 0 to vector 0, transmit queue 0 to vector 1, the rest to vector 2; bit 3 of each field: valid.
const ALLOCATION: u32 = 0x8 | 0x9 << 8 | 0xa << 16;

const CAUSES: [u32; 3] = [CAUSE_RECEIVE_0, CAUSE_TRANSMIT_0, CAUSE_OTHER];
const SECOND: Duration = Duration::from_secs(1);
/// A wait of the HCA's driver, during which the card's interrupt comes.
const DRIVER_WAIT: Duration = Duration::from_millis(20);

pub fn run(machine: &mut Machine) -> ExitCode {
    let found = machine.pci().iter().find(|f| f.vendor() == VENDOR_INTEL && f.device() == DEVICE_82574);
    let Some(&function) = found else {
        println!("error: msix: no network card 8086:10d3 (QEMU: -device e1000e)");
        return ExitCode::NoDevice;
    };
    let has_hca = machine.hcas().next().is_some();
    let hca = match has_hca.then(|| machine.open_hca(0, 1)).transpose() {
        Ok(hca) => hca,
        Err(error) => {
            println!("error: msix: {error}");
            return ExitCode::NoDevice;
        }
    };
    let device = machine.device(&function);
    let in_use = [Some(function), hca.as_ref().map(|hca| *hca.function())];
    let handed_out_again = in_use.iter().flatten().any(|function| machine.device(function).is_some());
    let Some(device) = device.filter(|_| !handed_out_again) else {
        println!("error: msix: the card is not handed out, or a function in use is");
        return ExitCode::Failed;
    };
    match check(machine, &device, hca.as_ref()) {
        Ok(true) => ExitCode::Success,
        Ok(false) => ExitCode::Failed,
        Err(error) => {
            println!("error: msix: {error}");
            ExitCode::NoDevice
        }
    }
}

fn check(machine: &mut Machine, device: &Device, hca: Option<&Hardware>) -> Result<bool, Error> {
    let clock = machine.clock();
    let registers = device.registers(0)?;
    let again = device.registers(0).err();
    if again != Some(Error::Conflict(Conflict::InUse)) {
        println!("error: msix: registers were mapped twice: {again:?}");
        return Ok(false);
    }
    // The table's entry 0 is not the machine's vector 0 then.
    machine.enable_msix(device, 1)?;
    let vectors = machine.enable_msix(device, CAUSES.len() as u16)?;
    // SAFETY: no driver has used the card since the machine's start, and only its interrupt
    // registers are written below: it has no rings to read or write.
    unsafe { device.enable_bus_master() };
    registers.write32(VECTOR_ALLOCATION, ALLOCATION);
    registers.write32(INTERRUPT_MASK_SET, CAUSES[0] | CAUSES[1] | CAUSES[2]);

    let mut good = true;
    for (n, cause) in CAUSES.into_iter().enumerate() {
        let expected = 1 << n;
        registers.read32(INTERRUPT_CAUSE_READ);
        let _ = vectors.take_fired();

        let start = clock.now();
        registers.write32(INTERRUPT_CAUSE_SET, cause);
        let fired = wait_for_any(clock, hca, &vectors, start + SECOND);
        let woken_us = (clock.now() - start).as_micros();
        registers.read32(INTERRUPT_CAUSE_READ);
        // The card may tell one cause more than once: what belongs to the first must not be taken for the second.
        for _ in 0..QUIET_ROUNDS {
            if wait_for_any(clock, None, &vectors, clock.now() + SECOND / 200) == 0 {
                break;
            }
        }

        vectors.set_masked(n as u16, true);
        let _ = vectors.take_fired();
        registers.write32(INTERRUPT_CAUSE_SET, cause);
        let masked = wait_for_any(clock, None, &vectors, clock.now() + SECOND / 100);
        vectors.set_masked(n as u16, false);
        let unmasked = wait_for_any(clock, None, &vectors, clock.now() + SECOND);

        println!(
            "vector {n}: fired {fired:#x} after {woken_us} us, masked {masked:#x}, unmasked {unmasked:#x}, expected {expected:#x}"
        );
        good &= fired == expected && masked == 0 && unmasked == expected;
    }
    let (_, unexpected) = clock.interrupt_counts();
    good &= unexpected == 0;
    if !good {
        println!("error: msix: a vector did not fire as it should ({unexpected} unexpected interrupts)");
    }
    Ok(good)
}

/// Looks for a quiet moment, at most.
const QUIET_ROUNDS: usize = 20;

/// Waits for any of the vectors and takes its flags. The driver of an HCA waits first, as for a
/// command.
fn wait_for_any(clock: Clock, hca: Option<&Hardware>, vectors: &Vectors, deadline: Instant) -> u64 {
    if let Some(hca) = hca {
        let end = clock.now() + DRIVER_WAIT;
        while clock.now() < end {
            hca.platform().idle(end);
        }
    }
    while clock.now() < deadline {
        let fired = vectors.take_fired();
        if fired != 0 {
            return fired;
        }
        clock.idle(deadline);
    }
    vectors.take_fired()
}
