//! Plain text on the serial port and, where the BIOS left one, on the text screen: out from any context; in, from the port, for whoever asks.

pub use crate::println;

use crate::line::{LineError, LineReader};
use crate::paging::MapError;
use core::fmt::{self, Write};
use spin::Mutex;
use x86_64::instructions::interrupts::without_interrupts;

use crate::arch::{log_memory, screen, serial};

/// Prints one line on the console.
#[macro_export]
macro_rules! println {
    () => { $crate::console::print(format_args!("\n")) };
    ($($arg:tt)*) => { $crate::console::print(format_args!("{}\n", format_args!($($arg)*))) };
}
static CONSOLE: Mutex<Serial> = Mutex::new(Serial);

struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            show(byte);
            log_memory::put(byte);
        }
        Ok(())
    }
}

fn show(byte: u8) {
    if byte == b'\n' {
        serial::send(b'\r');
    }
    serial::send(byte);
    screen::put(byte);
}

/// Prepares the port.
pub(crate) fn init() {
    serial::init();
}

/// Shows the log that the boot before left in memory, and keeps from now on this one's. Each of its lines stands behind a bar.
pub(crate) fn keep_log() -> Result<(), MapError> {
    log_memory::open(|lost, bytes| {
        println!("log of the previous boot ({lost} bytes of its beginning are lost):");
        let mut begins = true;
        for byte in bytes {
            if begins {
                "| ".bytes().for_each(show);
            }
            begins = byte == b'\n';
            // Whatever was in that memory: text and line feeds only.
            show(if byte == b'\n' || byte == b' ' || byte.is_ascii_graphic() { byte } else { b'?' });
        }
        if !begins {
            show(b'\n');
        }
    })
}

/// Prints. Interrupts are held off meanwhile, so that a handler that prints cannot wait for the one that it
/// interrupted.
pub fn print(text: fmt::Arguments<'_>) {
    without_interrupts(|| {
        // Writing to the port does not fail; a failing Display has nobody to be told.
        let _ = CONSOLE.lock().write_fmt(text);
    });
}

/// For reports of faults and panics, which end the machine: prints whether or not the code that failed was
/// printing, on a line of its own.
pub(crate) fn print_regardless(text: fmt::Arguments<'_>) {
    without_interrupts(|| match CONSOLE.try_lock() {
        Some(mut console) => {
            let _ = console.write_fmt(text);
        }
        None => {
            let _ = Serial.write_fmt(format_args!("\n{text}"));
        }
    });
}

/// Bytes taken in one call of [`Input::poll`]: a sender without pause does not keep the caller.
const BYTES_PER_POLL: usize = 4096;

/// What is typed. Whoever waits for a line polls every few milliseconds.
#[derive(Debug, Default)]
pub struct Input(LineReader);

impl Input {
    /// Nothing read yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(LineReader::new())
    }

    /// Takes what has come, and hands `take` the line that it completes, if it does.
    pub fn poll<R>(&mut self, take: impl FnOnce(Result<&str, LineError>) -> R) -> Option<R> {
        for _ in 0..BYTES_PER_POLL {
            match self.0.push(serial::receive()?) {
                Ok(Some(line)) => return Some(take(Ok(line))),
                Ok(None) => {}
                Err(error) => return Some(take(Err(error))),
            }
        }
        None
    }
}
