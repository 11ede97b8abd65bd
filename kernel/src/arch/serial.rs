//! The serial port, a 16550: text out and in, no interrupts. The first of the four usual places that has one.

use core::sync::atomic::{AtomicU16, Ordering};

use x86_64::instructions::port::Port;

/// COM1 to COM4.
const PLACES: [u16; 4] = [0x3f8, 0x2f8, 0x3e8, 0x2e8];
const MODEM_CONTROL: u16 = 4;
const LINE_STATUS: u16 = 5;
/// What is sent comes back, and nothing goes out.
const LOOP_BACK: u8 = 1 << 4;
const READY: u8 = 0x03;
/// Any byte that is neither all zeros nor all ones.
const PROBE: u8 = 0xae;
const LINE_STATUS_DATA_READY: u8 = 1;
const LINE_STATUS_THR_EMPTY: u8 = 1 << 5;
/// At 115200 baud a byte takes 87 us; a port read takes at least 0.1 us. A line that stays busy for longer is not there.
const MAX_POLLS: u32 = 10_000;

/// The port in use; 0 is none.
static BASE: AtomicU16 = AtomicU16::new(0);

/// Finds the port and sets 115200 baud, 8N1, FIFOs on, interrupts off.
pub fn init() {
    let found = PLACES.into_iter().find(|base| is_there(*base)).unwrap_or(0);
    BASE.store(found, Ordering::Relaxed);
}

fn write(base: u16, offset: u16, value: u8) {
    // SAFETY: a 16550's registers, programmed as its data sheet says, or nobody's ports; nothing else uses them.
    unsafe { Port::<u8>::new(base + offset).write(value) };
}

fn read(base: u16, offset: u16) -> u8 {
    // SAFETY: as above; reading takes a received byte or clears error bits that nobody looks at.
    unsafe { Port::<u8>::new(base + offset).read() }
}

/// Programs the port and sends it a byte that comes back.
fn is_there(base: u16) -> bool {
    for (offset, value) in [(1, 0x00), (3, 0x80), (0, 1), (1, 0), (3, 0x03), (2, 0xc7)] {
        write(base, offset, value);
    }
    write(base, MODEM_CONTROL, LOOP_BACK | READY);
    write(base, 0, PROBE);
    let ready = |_| read(base, LINE_STATUS) & LINE_STATUS_DATA_READY != 0;
    let there = (0..MAX_POLLS).any(ready) && read(base, 0) == PROBE;
    write(base, MODEM_CONTROL, READY);
    there
}

/// Sends one byte, waiting for room a bounded time.
pub fn send(byte: u8) {
    let base = BASE.load(Ordering::Relaxed);
    if base == 0 {
        return;
    }
    for _ in 0..MAX_POLLS {
        if read(base, LINE_STATUS) & LINE_STATUS_THR_EMPTY != 0 {
            break;
        }
    }
    // At worst a byte is lost.
    write(base, 0, byte);
}

/// Takes one byte, if one has come. Whoever waits asks again in time: the port holds 16, and what comes then waits or is lost as
/// the other side has it.
pub fn receive() -> Option<u8> {
    let base = BASE.load(Ordering::Relaxed);
    if base == 0 {
        return None;
    }
    let status = read(base, LINE_STATUS);
    // A port that is not there any more reads as all ones.
    let ready = status & LINE_STATUS_DATA_READY != 0 && status != u8::MAX;
    ready.then(|| read(base, 0))
}
