//! All three libraries in a program without operating system, standard library and allocator: that it links is the test.
//!
//! It is what the firmware of an appliance with a fixed address map would be: an echo service on RDS and on DAT. Build it with
//! `cargo build -p freestanding --target x86_64-unknown-none` (or `aarch64-unknown-none`). On a host it only says so.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod board;
#[cfg(target_os = "none")]
mod echo;

/// Why the service ended, for whoever looks at the board with a debugger.
#[cfg(target_os = "none")]
static LAST_ERROR: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// The linker's default entry.
#[cfg(target_os = "none")]
// SAFETY: the symbol is the program's entry, and nothing else has its name.
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    if let Err(error) = echo::serve(board::Board) {
        LAST_ERROR.store(error.code(), core::sync::atomic::Ordering::Relaxed);
    }
    loop {
        core::hint::spin_loop();
    }
}

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

#[cfg(not(target_os = "none"))]
fn main() {
    println!("This program is for bare metal: cargo build -p freestanding --target x86_64-unknown-none");
}
