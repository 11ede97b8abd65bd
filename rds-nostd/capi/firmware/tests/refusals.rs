//! `mlx_open` refuses incomplete platforms and configurations.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_void};
use mlx_firmware::life::open;
use mlx_firmware::{MlxConfig, MlxPlatform};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const ENODEV: c_int = -19;
const ENOMEM: c_int = -12;
const EINVAL: c_int = -22;
const DMA: usize = (4 << 20) + 4096;

/// Admits one call at a time, as the header demands.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of requests for memory, and index of the one to refuse.
static ASKED: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Registers of a device that does not respond.
unsafe extern "C" fn bar(_: *mut c_void, len: *mut usize) -> *mut c_void {
    let registers: &'static mut [u64] = vec![u64::MAX; 0x1000].leak();
    // SAFETY: the library passes a valid pointer.
    unsafe { *len = size_of_val(registers) };
    registers.as_mut_ptr().cast()
}

unsafe extern "C" fn memory(_: *mut c_void, len: usize, device_address: *mut u64) -> *mut c_void {
    assert!(len.is_multiple_of(4096), "whole pages and not {len}");
    if ASKED.fetch_add(1, Ordering::Relaxed) == REFUSED.load(Ordering::Relaxed) {
        return core::ptr::null_mut();
    }
    let pages: &'static mut [[u8; 4096]] = vec![[0; 4096]; len / 4096 + 1].leak();
    let to_page = pages.as_ptr().cast::<u8>().align_offset(4096);
    let first = pages.as_mut_ptr().cast::<u8>().wrapping_add(to_page);
    if !device_address.is_null() {
        // SAFETY: the library passes a valid pointer.
        unsafe { *device_address = first.expose_provenance() as u64 };
    }
    first.cast()
}

/// Advances the clock by a millisecond per call.
unsafe extern "C" fn now(_: *mut c_void) -> u64 {
    static CLOCK: AtomicU64 = AtomicU64::new(0);
    CLOCK.fetch_add(1_000_000, Ordering::Relaxed)
}

unsafe extern "C" fn idle(_: *mut c_void, _: u64) {}
unsafe extern "C" fn panic(_: *mut c_void, _: *const c_char, _: usize) {}

static SAID: Mutex<String> = Mutex::new(String::new());

unsafe extern "C" fn say(_: *mut c_void, text: *const c_char, len: usize) {
    // SAFETY: the library passes a text of this length.
    let text = unsafe { core::slice::from_raw_parts(text.cast(), len) };
    *SAID.lock().unwrap() = String::from_utf8_lossy(text).into_owned();
}

const PLATFORM: MlxPlatform = MlxPlatform {
    context: core::ptr::null_mut(),
    bar: Some(bar),
    memory: Some(memory),
    now: Some(now),
    idle: Some(idle),
    panic: Some(panic),
    say: Some(say),
    map: None,
    unmap: None,
    read_config: None,
    write_config: None,
    reset: None,
    bus_master: None,
    sync_for_device: None,
    sync_for_cpu: None,
};
const CONFIG: MlxConfig = MlxConfig { address: 1, shared_keys: 0, seed: [0; 2], boot: 0, dma_length: DMA };

/// Returns the result of `mlx_open` and its log text.
fn answer(platform: MlxPlatform, config: MlxConfig) -> (c_int, String) {
    SAID.lock().unwrap().clear();
    // SAFETY: the functions meet the header's requirements, except for the tested one.
    let answer = unsafe { open(&platform, &config) };
    (answer, SAID.lock().unwrap().clone())
}

#[test]
fn a_function_that_is_missing() {
    let _alone = alone();
    let missing = [
        MlxPlatform { bar: None, ..PLATFORM },
        MlxPlatform { memory: None, ..PLATFORM },
        MlxPlatform { now: None, ..PLATFORM },
        MlxPlatform { idle: None, ..PLATFORM },
        MlxPlatform { panic: None, ..PLATFORM },
    ];
    for platform in missing {
        let (answer, said) = answer(platform, CONFIG);
        assert_eq!(answer, EINVAL);
        assert!(said.contains("function is missing"), "{said}");
    }
    // A reset leaves bus mastering off, and no function could switch it on.
    unsafe extern "C" fn reset(_: *mut c_void) -> c_int {
        0
    }
    let (result, said) = answer(MlxPlatform { reset: Some(reset), ..PLATFORM }, CONFIG);
    assert_eq!(result, EINVAL);
    assert!(said.contains("with reset, bus_master"), "{said}");
    // SAFETY: null is refused.
    assert_eq!(unsafe { open(core::ptr::null(), &CONFIG) }, EINVAL);
    assert_eq!(answer(PLATFORM, MlxConfig { dma_length: 5000, ..CONFIG }).0, EINVAL);
}

#[test]
fn memory_that_was_refused_is_asked_for_again() {
    let _alone = alone();
    // The HCA's memory is refused first, then the library's own.
    for (refused, asked) in [(0, 1), (1, 2)] {
        ASKED.store(0, Ordering::Relaxed);
        REFUSED.store(refused, Ordering::Relaxed);
        let (answer, said) = answer(PLATFORM, CONFIG);
        assert_eq!((answer, ASKED.load(Ordering::Relaxed)), (ENOMEM, asked), "{said}");
    }
    // Memory is donated once, and then reused.
    ASKED.store(0, Ordering::Relaxed);
    REFUSED.store(usize::MAX, Ordering::Relaxed);
    for _ in 0..2 {
        let (answer, said) = answer(PLATFORM, CONFIG);
        assert_eq!((answer, ASKED.load(Ordering::Relaxed)), (ENODEV, 2), "{said}");
    }
}
