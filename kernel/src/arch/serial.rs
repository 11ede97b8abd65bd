//! Serial ports, 16550s: text out and in, and perhaps the log's frames on a second one; no interrupts.

use spin::Once;
use x86_64::instructions::port::Port;

use crate::acpi::register::Register;
use crate::mem;
use crate::paging::Caching;
use crate::uart::{COM, Setting};

const MODEM_CONTROL: u8 = 4;
const LINE_STATUS: u8 = 5;
/// What is sent comes back, and nothing goes out.
const LOOP_BACK: u8 = 1 << 4;
const READY: u8 = 0x03;
/// Any byte that is neither all zeros nor all ones.
const PROBE: u8 = 0xae;
const LINE_STATUS_DATA_READY: u8 = 1;
const LINE_STATUS_THR_EMPTY: u8 = 1 << 5;
/// At 9,600 baud a byte takes 1 ms; a read takes at least 0.1 us. A line that stays busy for longer is not there.
const MAX_POLLS: u32 = 20_000;

/// A port: its first register, and the distance to the next.
///
/// Every wait is bounded, because a management controller may leave its port stuck. The crate `uart_16550` waits without bound.
#[derive(Clone, Copy)]
enum Uart {
    Port(u16),
    Memory { base: usize, stride: u8 },
}

/// The console that is found at the start, and the one that was chosen then.
static FOUND: Once<Option<Uart>> = Once::new();
static CHOSEN: Once<Option<Uart>> = Once::new();
/// The port of the log's frames.
static FRAMES: Once<Option<Uart>> = Once::new();

/// Finds the console: the first port of COM1 to COM4 that is there.
pub fn init() {
    FOUND.call_once(|| COM.into_iter().find_map(|port| Uart::open(Setting::port(port))));
}

/// Uses the port of `setting` for the console from now on, or none. Returns false, without effect, if there is no port. Once,
/// after the page tables are made.
pub fn choose(setting: Option<Setting>) -> bool {
    let chosen = setting.map(Uart::open);
    if matches!(chosen, Some(None)) {
        return false;
    }
    CHOSEN.call_once(|| chosen.flatten());
    true
}

/// Sends the log's frames to the port of `setting`. Returns false if there is no port. Once.
pub fn choose_frames(setting: Setting) -> bool {
    FRAMES.call_once(|| Uart::open(setting)).is_some()
}

/// Returns whether the log's frames have a port.
pub fn has_frames() -> bool {
    FRAMES.get().is_some_and(Option::is_some)
}

/// Sends a byte of a frame of the log.
pub fn send_frame(byte: u8) {
    if let Some(Some(uart)) = FRAMES.get() {
        uart.send(byte);
    }
}

fn console() -> Option<Uart> {
    CHOSEN.get().or_else(|| FOUND.get()).copied().flatten()
}

/// Sends one byte, waiting for room a bounded time.
pub fn send(byte: u8) {
    if let Some(uart) = console() {
        uart.send(byte);
    }
}

/// Takes one byte, if one has come. Whoever waits asks again in time: the port holds 16, and what comes then waits or is lost as
/// the other side has it.
pub fn receive() -> Option<u8> {
    console()?.receive()
}

impl Uart {
    /// Sets the rate, 8N1, FIFOs on, interrupts off, and checks that a byte comes back.
    fn open(setting: Setting) -> Option<Self> {
        let uart = match setting.place {
            Register::Port(port) => Self::Port(port),
            Register::Memory(address) => {
                let page = address & !0xfff;
                let within = (address - page) as usize;
                let len = (within as u64 + 8 * u64::from(setting.stride)).next_multiple_of(4096);
                let base = mem::map_device(page, len, Caching::Uncached).ok()? + within;
                Self::Memory { base, stride: setting.stride }
            }
        };
        uart.write(1, 0x00);
        if let Some(divisor) = setting.divisor {
            let [low, high] = divisor.to_le_bytes();
            [(3, 0x80), (0, low), (1, high)]
                .into_iter()
                .for_each(|(offset, value)| uart.write(offset, value));
        }
        uart.write(3, 0x03);
        uart.write(2, 0xc7);
        uart.write(MODEM_CONTROL, LOOP_BACK | READY);
        uart.write(0, PROBE);
        let there = (0..MAX_POLLS).any(|_| uart.is_data_ready()) && uart.read(0) == PROBE;
        uart.write(MODEM_CONTROL, READY);
        there.then_some(uart)
    }

    fn write(self, offset: u8, value: u8) {
        match self {
            // SAFETY: a 16550's registers, programmed as its data sheet says, or no port's; nothing else uses them.
            Self::Port(port) => unsafe { Port::<u8>::new(port + u16::from(offset)).write(value) },
            Self::Memory { base, stride } => {
                let at = base + usize::from(offset) * usize::from(stride);
                // SAFETY: `open` mapped the eight registers uncached, for good.
                unsafe { core::ptr::write_volatile(at as *mut u8, value) };
            }
        }
    }

    fn read(self, offset: u8) -> u8 {
        match self {
            // SAFETY: as for writing; a read takes a received byte or clears error bits that nothing uses.
            Self::Port(port) => unsafe { Port::<u8>::new(port + u16::from(offset)).read() },
            Self::Memory { base, stride } => {
                let at = base + usize::from(offset) * usize::from(stride);
                // SAFETY: as for writing.
                unsafe { core::ptr::read_volatile(at as *const u8) }
            }
        }
    }

    fn is_data_ready(self) -> bool {
        let status = self.read(LINE_STATUS);
        // A port that is not there any more reads as all ones.
        status & LINE_STATUS_DATA_READY != 0 && status != u8::MAX
    }

    fn send(self, byte: u8) {
        for _ in 0..MAX_POLLS {
            if self.read(LINE_STATUS) & LINE_STATUS_THR_EMPTY != 0 {
                break;
            }
        }
        // At worst a byte is lost.
        self.write(0, byte);
    }

    fn receive(self) -> Option<u8> {
        self.is_data_ready().then(|| self.read(0))
    }
}
