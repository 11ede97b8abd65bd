//! The platform on a firmware whose `Map` returns other addresses, with an emulated HCA.

mod boot_option;
mod fake;
mod handles;
mod images;

use apps::rds::Generation;
use apps::selftest::{self, Level, Storage, Verdict};
use driver_mlx::{Bar, Config, DeviceState, Duration, Hca, HcaStorage, Platform};
use fake::{Quirks, clock, exit_boot_services, firmware, open, with};
use hca_model::Profile;
use platform_uefi::{Device, Error, Level as TaskLevel, functions};
use r_efi::efi::{OPEN_PROTOCOL_BY_DRIVER, OPEN_PROTOCOL_EXCLUSIVE, Status, TPL_APPLICATION, TPL_NOTIFY};

/// Bits of the command register.
const MEMORY: u32 = 2;
const MASTER: u32 = 4;
const DMA: usize = 64 << 20;

/// Nothing of the firmware's is left.
fn assert_empty() {
    with(|state| {
        assert!(state.buffers.is_empty() && state.maps.is_empty(), "memory is left");
        assert!(state.blocks.is_empty() && state.events.is_empty(), "pool or events are left");
        assert!(state.opened.is_empty(), "the function is left");
    });
}

#[test]
fn self_test_passes_over_firmware_calls() {
    let firmware = firmware(Profile::node(0), Quirks::default());
    let device = open(firmware).expect("opened");
    let memories =
        [(); 2].map(|()| (device.dma(DMA).expect("memory"), firmware.memory(4 << 20).expect("memory")));
    let storage = Box::leak(Box::new(Storage::new()));
    let mut text = String::new();
    let out = &mut |line: std::fmt::Arguments<'_>| text += &format!("{line}\n");
    // SAFETY: one region over each memory, which is freed after the HCA is gone.
    let [first, second] = [0, 1].map(|at: usize| unsafe {
        let (dma, host) = &memories[at];
        Some((dma.region().expect("a region"), host.region().expect("a region")))
    });
    let platform = device.platform();
    assert!(platform.is_physical());
    let mut summary = selftest::run(platform, first, storage, (&Config::DEFAULT, false), out);
    let config = (&Config::DEFAULT, Generation::UNKNOWN);
    selftest::layers(platform, second, storage, config, &mut summary, out);
    let verdicts = Level::ALL.map(|level| summary.verdict(level));
    assert_eq!(verdicts, [Verdict::Passed; 7], "{text}");
    device.close();
    for (dma, host) in memories {
        // SAFETY: the HCA was torn down.
        unsafe {
            dma.free();
            host.free();
        }
    }
    assert_empty();
}

#[test]
fn open_enables_decoding_and_bus_mastering_and_close_reverts() {
    let firmware = firmware(Profile::node(0), Quirks::default());
    let before = with(|state| (state.command(), state.attributes));
    assert_eq!(before.0 & (MEMORY | MASTER), MEMORY, "as the specification wants it");
    let device = open(firmware).expect("opened");
    with(|state| {
        assert_eq!(state.command() & (MEMORY | MASTER), MEMORY | MASTER);
        assert_eq!(state.opened, [OPEN_PROTOCOL_BY_DRIVER | OPEN_PROTOCOL_EXCLUSIVE]);
        assert_eq!(state.events.values().map(|event| event.0).collect::<Vec<_>>(), [TPL_NOTIFY]);
        assert_eq!(state.connected, 0);
    });
    device.close();
    with(|state| {
        assert_eq!((state.command(), state.attributes), before);
        assert_eq!(state.connected, 1, "the firmware's driver may have it again");
    });
    assert_empty();
}

#[test]
fn functions_are_listed_with_identity_and_address() {
    let firmware = firmware(Profile::node(0), Quirks::default());
    let list: Vec<_> = functions(firmware).expect("a list").collect();
    assert_eq!(list.len(), 1);
    assert!(list[0].identity().is_some_and(|identity| !identity.virtual_function));
    assert_eq!(list[0].to_string(), "pci 0001:3b:00.1: 15b3:1017");
    assert!(!list[0].masters_bus());
    assert_empty();
}

#[test]
fn failed_open_leaves_the_function_as_it_was() {
    for (quirks, wanted) in [
        (Quirks { kept: true, ..Quirks::default() }, Error::InUse),
        (Quirks { no_bar: true, ..Quirks::default() }, Error::NoBar),
        (Quirks { no_bus_master: true, ..Quirks::default() }, Error::SwitchedOff(2)),
    ] {
        let firmware = firmware(Profile::node(0), quirks);
        assert_eq!(open(firmware).err(), Some(wanted));
        assert_eq!(with(|state| state.command()), MEMORY, "{wanted}");
        assert_empty();
    }
}

#[test]
fn boards_that_refuse_attributes_are_switched_on_by_the_register() {
    let quirks = Quirks { attributes_refused: true, ..Quirks::default() };
    let firmware = firmware(Profile::node(0), quirks);
    let device = open(firmware).expect("opened");
    assert_eq!(with(|state| state.command()) & (MEMORY | MASTER), MEMORY | MASTER);
    device.close();
    assert_eq!(with(|state| state.command()) & MASTER, 0);
}

#[test]
fn memory_that_is_not_mapped_whole_is_refused_and_freed() {
    for quirks in
        [Quirks { short_map: true, ..Quirks::default() }, Quirks { unaligned_map: true, ..Quirks::default() }]
    {
        let firmware = firmware(Profile::node(0), quirks);
        let device = open(firmware).expect("opened");
        assert_eq!(device.dma(DMA).err(), Some(Error::Mapping));
        device.close();
        assert_empty();
    }
    let firmware = firmware(Profile::node(0), Quirks::default());
    let device = open(firmware).expect("opened");
    let refused = device.dma(1 << 40).err();
    assert_eq!(refused, Some(Error::Call("PciIo.AllocateBuffer", Status::OUT_OF_RESOURCES)));
    assert_eq!(refused.expect("refused").to_string(), "PciIo.AllocateBuffer: out of resources");
}

/// Brings the HCA up, and forgets it without a tear-down.
fn abandon(device: &Device, firmware: platform_uefi::Firmware) {
    let (dma, host) = (device.dma(DMA).expect("memory"), firmware.memory(4 << 20).expect("memory"));
    // SAFETY: the memory is never freed.
    let (region, host) = unsafe { (dma.region().expect("a region"), host.region().expect("a region")) };
    let storage = Box::leak(Box::new(HcaStorage::<{ DMA / 4096 }>::new()));
    let hca = Hca::bring_up(device.platform(), region, host, storage.parts(), &Config::DEFAULT);
    std::mem::forget(hca.expect("brought up"));
}

#[test]
fn exit_boot_services_ends_dma_without_allocation() {
    let firmware = firmware(Profile::node(0), Quirks::default());
    let device = std::mem::ManuallyDrop::new(open(firmware).expect("opened"));
    abandon(&device, firmware);
    let state = DeviceState::read(device.platform().bar()).expect("it answers");
    assert_eq!(state.nic_interface, 0, "a driver has it");
    exit_boot_services();
    assert_eq!(with(|state| state.command()) & (MEMORY | MASTER), MEMORY);
    with(|state| state.world.clone()).pass(1_000_000);
    let state = DeviceState::read(device.platform().bar()).expect("it answers");
    assert_eq!(state.nic_interface, 1, "firmware has it");
}

#[test]
fn reset_restores_registers_that_firmware_remembers_wrongly() {
    let firmware = firmware(Profile::node(0), Quirks::default());
    let device = open(firmware).expect("opened");
    abandon(&device, firmware);
    let platform = device.platform();
    // SAFETY: the HCA's driver is gone.
    unsafe {
        assert!(platform.reset_function());
        assert_eq!(with(|state| state.command()) & (MEMORY | MASTER), MEMORY);
        assert!(DeviceState::read(platform.bar()).is_some(), "registers answer again");
        assert!(platform.set_bus_master(true));
        assert_eq!(with(|state| state.command()) & MASTER, MASTER);
        assert!(platform.set_bus_master(false));
    }
    assert_eq!(with(|state| state.command()) & MASTER, 0);
}

#[test]
fn accesses_outside_the_bar_are_harmless() {
    let firmware = firmware(Profile::node(0), Quirks::default());
    let device = open(firmware).expect("opened");
    let bar = device.platform().bar();
    assert_eq!(bar.read32(bar.len()), u32::MAX);
    // SAFETY: no driver operates the function, and no register is there.
    let mut register = unsafe {
        bar.write32(bar.len(), 7);
        bar.doorbell_register(bar.len(), 8)
    };
    driver_mlx::DoorbellRegister::ring(&mut register, 7);
    driver_mlx::DoorbellRegister::write(&mut register, usize::MAX, 7);
}

#[test]
fn idle_stalls_briefly_and_time_is_the_counters() {
    let firmware = firmware(Profile::node(0), Quirks::default());
    assert_eq!(clock(firmware).ticks_per_second(), 1_000_000_000);
    let device = open(firmware).expect("opened");
    with(|state| state.longest_stall = 0);
    let platform = device.platform();
    let (before, began) = (platform.now(), with(|state| state.world.now()));
    platform.idle(before + Duration::from_secs(1));
    platform.idle(before);
    let passed = with(|state| state.world.now()) - began;
    assert_eq!((platform.now() - before).as_nanos(), passed.into());
    assert!(with(|state| state.longest_stall) <= 20 && passed >= 21_000, "{passed} ns");
}

#[test]
fn raised_levels_are_restored_in_reverse() {
    let firmware = firmware(Profile::node(0), Quirks::default());
    {
        let _callback = firmware.raise(TaskLevel::Callback);
        let _notify = firmware.raise(TaskLevel::Notify);
        assert_eq!(with(|state| state.level), TPL_NOTIFY);
    }
    assert_eq!(with(|state| state.level), TPL_APPLICATION);
}

#[test]
fn work_runs_on_a_stack_of_its_own() {
    let firmware = firmware(Profile::node(0), Quirks::default());
    let here = &raw const firmware as usize;
    let ((there, sum), used) = firmware
        .on_stack(256 << 10, || {
            let large = std::hint::black_box([3_u8; 100_000]);
            (large.as_ptr() as usize, large.iter().map(|byte| u32::from(*byte)).sum::<u32>())
        })
        .expect("memory");
    assert_eq!(sum, 300_000);
    assert!(here.abs_diff(there) > 256 << 10, "another stack");
    assert!((100_000..256 << 10).contains(&used), "{used}");
    assert_empty();
}
