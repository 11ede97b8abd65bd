//! Places and rates of serial ports, as the command line and ACPI's SPCR name them.

use core::str::FromStr;

use crate::acpi::register::Register;
use crate::pvh::{u32_at, u64_at};

/// I/O ports of COM1 to COM4.
pub const COM: [u16; 4] = [0x3f8, 0x2f8, 0x3e8, 0x2e8];
/// Clock of a 16550 over 16: the rate of divisor 1.
const FASTEST: u64 = 115_200;

/// A serial port, a 16550.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its first register.
    pub place: Register,
    /// Bytes from one register to the next.
    pub stride: u8,
    /// Divisor of its clock, or `None` to keep firmware's.
    pub divisor: Option<u16>,
}

impl Setting {
    /// The port at `port` with 115,200 baud.
    #[must_use]
    pub const fn port(port: u16) -> Self {
        Self { place: Register::Port(port), stride: 1, divisor: Some(1) }
    }

    /// Reads ACPI's Serial Port Console Redirection table. `None` if its port is no 16550.
    #[must_use]
    pub fn from_spcr(table: &[u8; 60]) -> Option<Self> {
        const FULL_16550: u8 = 0;
        const SUBSET_16550: u8 = 1;
        const DESCRIBED_16550: u8 = 0x12;
        if !matches!(table[36], FULL_16550 | SUBSET_16550 | DESCRIBED_16550) {
            return None;
        }
        let address = u64_at(table, 44);
        let place = match table[40] {
            _ if address == 0 => return None,
            0 => Register::Memory(address),
            1 => Register::Port(u16::try_from(address).ok()?),
            _ => return None,
        };
        // The width of a register, in bits, is their distance.
        let stride = if table[41] == 32 { 4 } else { 1 };
        let divisor = match table[58] {
            3 => Some(12),
            4 => Some(6),
            6 => Some(2),
            7 => Some(1),
            // 0 keeps what firmware has set, and other values are reserved.
            _ => None,
        };
        Some(Self { place, stride, divisor })
    }
}

/// `com1` to `com4` or `0xADDRESS`, then perhaps `/STRIDE` for registers in memory, then perhaps a comma and the baud rate.
impl FromStr for Setting {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (place, rate) = text.split_once(',').map_or((text, None), |(place, rate)| (place, Some(rate)));
        let rate = rate.map_or(Ok(FASTEST), |rate| number(rate, 10))?;
        let divides = rate > 0 && FASTEST.is_multiple_of(rate);
        let divisor =
            u16::try_from(if divides { FASTEST / rate } else { 0 }).ok().filter(|divisor| *divisor > 0);
        if divisor.is_none() {
            return Err(());
        }
        if let Some(text) = place.strip_prefix("com") {
            let port = COM.iter().zip(1..).find(|(_, at)| number(text, 10) == Ok(*at)).map(|(port, _)| port);
            return port.map(|port| Self { divisor, ..Self::port(*port) }).ok_or(());
        }
        let (address, stride) =
            place.split_once('/').map_or((place, None), |(address, stride)| (address, Some(stride)));
        let digits = address.strip_prefix("0x").ok_or(())?;
        let address = number(digits, 16)?;
        let stride = stride.map_or(Ok(1), |stride| number(stride, 10))?;
        let place = match u16::try_from(address) {
            Ok(0) => return Err(()),
            Ok(port) if port <= u16::MAX - 7 && stride == 1 => Register::Port(port),
            Ok(_) => return Err(()),
            Err(_) if matches!(stride, 1 | 2 | 4) => Register::Memory(address),
            Err(_) => return Err(()),
        };
        Ok(Self { place, stride: stride as u8, divisor })
    }
}

/// Parses all numbers, because the standard library's parser is a copy for each type.
#[inline(never)]
fn number(text: &str, radix: u32) -> Result<u64, ()> {
    u64::from_str_radix(text, radix).map_err(|_| ())
}

/// Reads the fields of an SPCR of 60 bytes or more.
pub(crate) fn spcr(table: &[u8]) -> Option<Setting> {
    let table: &[u8; 60] = table.first_chunk()?;
    (u32_at(table, 4) >= 60).then(|| Setting::from_spcr(table)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_rates_are_parsed_or_refused() {
        let set = |place, stride, divisor| Ok(Setting { place, stride, divisor: Some(divisor) });
        let parse = str::parse::<Setting>;
        assert_eq!(parse("com2"), set(Register::Port(0x2f8), 1, 1));
        assert_eq!(parse("com4,9600"), set(Register::Port(0x2e8), 1, 12));
        assert_eq!(parse("0x3f0,57600"), set(Register::Port(0x3f0), 1, 2));
        assert_eq!(parse("0xfe032000/4"), set(Register::Memory(0xfe03_2000), 4, 1));
        for wrong in [
            "",
            "com0",
            "com5",
            "com",
            "3f8",
            "0x",
            "0x0",
            "0xfff9",
            "0x3f8/4",
            "0xfe032000/3",
            "com1,0",
            "com1,7",
            "com1,1",
        ] {
            assert_eq!(parse(wrong), Err(()), "{wrong}");
        }
    }

    /// An SPCR of this interface, address space, register width, address and rate.
    fn table(interface: u8, space: u8, width: u8, address: u64, rate: u8) -> [u8; 80] {
        let mut table = [0; 80];
        table[..8].copy_from_slice(b"SPCR\x50\0\0\0");
        (table[36], table[40], table[41], table[58]) = (interface, space, width, rate);
        table[44..52].copy_from_slice(&address.to_le_bytes());
        table
    }

    #[test]
    fn spcr_names_ports_of_servers() {
        // Supermicro X11DAi-N: serial over LAN is COM2 at 115,200 baud.
        let com2 = Some(Setting { place: Register::Port(0x2f8), stride: 1, divisor: Some(1) });
        assert_eq!(spcr(&table(0, 1, 8, 0x2f8, 7)), com2);
        // Registers in memory, four bytes apart, at firmware's rate.
        let memory = Some(Setting { place: Register::Memory(0xfedc_9000), stride: 4, divisor: None });
        assert_eq!(spcr(&table(0x12, 0, 32, 0xfedc_9000, 0)), memory);
        // A PL011, no address, a port beyond 64 KiB, another space, a short table.
        assert_eq!(spcr(&table(3, 0, 32, 0x900_0000, 7)), None);
        assert_eq!(spcr(&table(0, 1, 8, 0, 7)), None);
        assert_eq!(spcr(&table(0, 1, 8, 0x1_0000, 7)), None);
        assert_eq!(spcr(&table(0, 2, 8, 0x3f8, 7)), None);
        assert_eq!(spcr(&table(0, 1, 8, 0x3f8, 7)[..59]), None);
    }
}
