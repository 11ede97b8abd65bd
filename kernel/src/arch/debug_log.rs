//! defmt frames on QEMU's debug console, port 0xe9, byte by byte (wider writes are dropped there), and on the serial port that
//! the command line chooses for them.

use core::sync::atomic::{AtomicBool, Ordering};

use spin::Once;
use x86_64::instructions::interrupts;
use x86_64::instructions::port::Port;

use crate::arch::{clock, serial};

const PORT: u16 = 0xe9;

static PRESENT: Once<bool> = Once::new();
static TAKEN: AtomicBool = AtomicBool::new(false);
static INTERRUPTS_WERE_ON: AtomicBool = AtomicBool::new(false);
static ENCODER: spin::Mutex<defmt::Encoder> = spin::Mutex::new(defmt::Encoder::new());

defmt::timestamp!("{=u64:us}", clock::now() / 1000);

/// Finds out whether there is a debug console: it reads as its own port number.
pub fn init() {
    // SAFETY: reading the port has no effect.
    PRESENT.call_once(|| unsafe { Port::<u8>::new(PORT).read() } == PORT as u8);
}

/// Whether frames go anywhere.
pub fn is_present() -> bool {
    has_console() || serial::has_frames()
}

fn has_console() -> bool {
    PRESENT.get().copied().unwrap_or(false)
}

fn send(bytes: &[u8]) {
    for byte in bytes {
        serial::send_frame(*byte);
    }
    if has_console() {
        for byte in bytes {
            // SAFETY: the debug console's port, or nobody's.
            unsafe { Port::<u8>::new(PORT).write(*byte) };
        }
    }
}

#[defmt::global_logger]
struct Logger;

// SAFETY: one CPU. Interrupts stay off from acquire to release, so that no other code runs meanwhile but a fault's
// report, which does not log.
unsafe impl defmt::Logger for Logger {
    fn acquire() {
        let were_on = interrupts::are_enabled();
        interrupts::disable();
        // A Format implementation that itself logs is a defect that would tear both frames.
        assert!(!TAKEN.swap(true, Ordering::Acquire), "defmt: log statement inside a log statement");
        INTERRUPTS_WERE_ON.store(were_on, Ordering::Relaxed);
        ENCODER.lock().start_frame(send);
    }

    unsafe fn flush() {}

    unsafe fn release() {
        ENCODER.lock().end_frame(send);
        let were_on = INTERRUPTS_WERE_ON.load(Ordering::Relaxed);
        TAKEN.store(false, Ordering::Release);
        if were_on {
            interrupts::enable();
        }
    }

    unsafe fn write(bytes: &[u8]) {
        ENCODER.lock().write(bytes, send);
    }
}
