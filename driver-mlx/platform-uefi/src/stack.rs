//! A stack of its own for code that needs more than the firmware's.

use crate::error::Result;
use crate::firmware::{Firmware, PAGE};
use core::mem::MaybeUninit;

/// Content of untouched stack.
const PAINT: u64 = 0x5aa5_5aa5_5aa5_5aa5;

impl Firmware {
    /// Runs `work` on a stack of `bytes`, and returns its result and the bytes of stack that it
    /// used, those of firmware calls included.
    ///
    /// The specification promises 128 KiB of stack, without a guard page. Firmware calls and timer
    /// events of `work` run on the new stack too.
    ///
    /// # Errors
    /// [`Error::Call`](crate::Error::Call): too little memory. `work` has not run.
    pub fn on_stack<R>(self, bytes: usize, work: impl FnOnce() -> R) -> Result<(R, usize)> {
        let memory = self.memory(bytes.max(PAGE))?;
        let (start, len) = (memory.start().cast::<u64>(), memory.len());
        let words = len / size_of::<u64>();
        for index in 0..words {
            // SAFETY: the memory has as many words, in whole pages.
            unsafe { start.add(index).write(PAINT) };
        }
        let mut call = Call { work: Some(work), result: MaybeUninit::uninit() };
        // SAFETY: the end of the memory is aligned to a page, and the memory is nobody else's until
        // the call has returned.
        unsafe { switch(start.as_ptr().byte_add(len).cast(), (&raw mut call).cast(), call.entry()) };
        // SAFETY: as above; all words were written.
        let untouched = (0..words).take_while(|index| unsafe { start.add(*index).read() } == PAINT).count();
        // SAFETY: no region was made of the memory, and the stack is empty.
        unsafe { memory.free() };
        // SAFETY: `run` has written it.
        Ok((unsafe { call.result.assume_init() }, len - untouched * size_of::<u64>()))
    }
}

struct Call<W, R> {
    work: Option<W>,
    result: MaybeUninit<R>,
}

impl<W: FnOnce() -> R, R> Call<W, R> {
    fn entry(&self) -> Entry {
        run::<W, R>
    }
}

/// A function that `switch` calls.
#[cfg(target_arch = "x86_64")]
type Entry = unsafe extern "sysv64" fn(*mut u8);
#[cfg(target_arch = "aarch64")]
type Entry = unsafe extern "C" fn(*mut u8);

macro_rules! run {
    ($abi:literal) => {
        /// Calls the work. A panic ends the program here.
        unsafe extern $abi fn run<W: FnOnce() -> R, R>(call: *mut u8) {
            // SAFETY: `on_stack` passed its own `Call`, which it does not use meanwhile.
            let call = unsafe { &mut *call.cast::<Call<W, R>>() };
            if let Some(work) = call.work.take() {
                call.result.write(work());
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
run!("sysv64");
#[cfg(target_arch = "aarch64")]
run!("C");

/// Calls `entry(argument)` on the stack that ends at `top`.
///
/// # Safety
/// 1. `top` is the end of unused memory, large enough for the call, and a multiple of 16.
/// 2. `entry` may be called with `argument`.
unsafe fn switch(top: *mut u8, argument: *mut u8, entry: Entry) {
    // SAFETY: `r12` keeps the old stack, as each function of this ABI keeps it. The caller promised
    // the rest.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {entry}",
            "mov rsp, r12",
            top = in(reg) top,
            entry = in(reg) entry,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("sysv64"),
        );
    }
    // SAFETY: as above, with `x20`.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "mov x20, sp",
            "mov sp, {top}",
            "blr {entry}",
            "mov sp, x20",
            top = in(reg) top,
            entry = in(reg) entry,
            in("x0") argument,
            out("x20") _,
            clobber_abi("C"),
        );
    }
}
