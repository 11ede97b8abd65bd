//! COM1, a 16550: text out and in, no interrupts.

use x86_64::instructions::port::Port;

const BASE: u16 = 0x3f8;
const LINE_STATUS_DATA_READY: u8 = 1;
const LINE_STATUS_THR_EMPTY: u8 = 1 << 5;
/// At 115200 baud a byte takes 87 us; a port read takes at least 0.1 us. A line that stays busy for longer is not there.
const MAX_POLLS: u32 = 10_000;

/// Sets 115200 baud, 8N1, FIFOs on, interrupts off.
pub fn init() {
    for (offset, value) in [(1, 0x00), (3, 0x80), (0, 1), (1, 0), (3, 0x03), (2, 0xc7), (4, 0x03)] {
        // SAFETY: COM1's registers, programmed as the 16550's data sheet says; nothing else uses them.
        unsafe { Port::<u8>::new(BASE + offset).write(value) };
    }
}

/// Sends one byte, waiting for room a bounded time.
pub fn send(byte: u8) {
    for _ in 0..MAX_POLLS {
        // SAFETY: reading the line status register has no effect that matters here.
        if unsafe { Port::<u8>::new(BASE + 5).read() } & LINE_STATUS_THR_EMPTY != 0 {
            break;
        }
    }
    // SAFETY: the transmit register; at worst a byte is lost.
    unsafe { Port::<u8>::new(BASE).write(byte) };
}

/// Takes one byte, if one has come. Whoever waits asks again in time: the port holds 16, and what comes then waits or is lost as
/// the other side has it.
pub fn receive() -> Option<u8> {
    // SAFETY: reading the line status register clears its error bits, which nobody looks at; the received byte is read only when
    // there is one.
    unsafe {
        let status = Port::<u8>::new(BASE + 5).read();
        // A port that is not there reads as all ones.
        let ready = status & LINE_STATUS_DATA_READY != 0 && status != u8::MAX;
        ready.then(|| Port::<u8>::new(BASE).read())
    }
}
