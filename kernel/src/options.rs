//! The command line: `key=value` words separated by white space, each key at most once, only keys that the application has named.
//!
//! ```
//! use unikernel::{Key, Options};
//!
//! const KEYS: [Key; 2] =
//!     [Key::new("ip", "an IPv4 address", "this node's own"), Key::new("count", "a number", "how many; default 100")];
//! let options = Options::parse("ip=10.0.0.1", &KEYS).unwrap();
//! let ip: core::net::Ipv4Addr = options.required("ip").unwrap();
//! let count: u32 = options.value("count").unwrap().unwrap_or(100);
//! assert_eq!((ip.octets()[3], count), (1, 100));
//! ```

use core::fmt;
use core::str::FromStr;

use crate::clock::{Choice, Source};
use crate::exit::End;
use crate::uart::Setting;

/// Longest command line taken, in bytes.
pub const MAX_LEN_BYTES: usize = 4096;

/// The word that asks for the list of keys.
pub const HELP: &str = "help";

/// A key that the command line may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What its value is, as in "an IPv4 address".
    pub takes: &'static str,
    /// What it means, and what holds without it.
    pub help: &'static str,
}

impl Key {
    /// A key, what it takes, what it means.
    #[must_use]
    pub const fn new(name: &'static str, takes: &'static str, help: &'static str) -> Self {
        Self { name, takes, help }
    }
}

/// The keys that every image has: what the start takes from the command line.
pub const BOOT_KEYS: [Key; 7] = [
    Key::new(
        "buses",
        "keep or assign",
        "whether the bus numbers that firmware gave to bridges stay; default keep",
    ),
    Key::new(
        "clock",
        "tsc, pm, pit, hpet or cpuid",
        "what time is read from: the TSC, the PM timer, or the TSC measured by the PIT, the HPET or as CPUID says; default tsc, or pm where the TSC does not keep its pace",
    ),
    Key::new(
        "end",
        "off, reset or halt",
        "what the machine does at the end; default QEMU's exit device, else off, or halt on a real machine with a screen",
    ),
    Key::new(
        "frames",
        "com1 to com4, 0xADDRESS or 0xADDRESS/STRIDE, perhaps with ,BAUD",
        "a second serial port for the log's defmt frames",
    ),
    Key::new(
        "log",
        "on or off",
        "whether the console's text is kept in memory for the next boot; default on",
    ),
    Key::new("panic", "off or reset", "what follows the report of a panic or a fault; default off"),
    Key::new(
        "serial",
        "off, com1 to com4, 0xADDRESS or 0xADDRESS/STRIDE, perhaps with ,BAUD",
        "the console's serial port; default ACPI's (SPCR), else the first of com1 to com4 that is there",
    ),
];

/// What is wrong with a command line. Displays as one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error<'a> {
    /// Longer than [`MAX_LEN_BYTES`].
    TooLong,
    /// Not UTF-8.
    NotText,
    /// A word without `=`.
    NotKeyValue(&'a str),
    /// A key that does not exist; those that do.
    UnknownKey(&'a str, &'a [Key]),
    /// A key given twice.
    Twice(&'a str),
    /// A value that the key does not take.
    BadValue {
        /// The key.
        key: &'a str,
        /// What was given.
        value: &'a str,
        /// What would do.
        expected: &'static str,
    },
    /// A key that must be there.
    Missing {
        /// The key.
        key: &'static str,
        /// What would do.
        expected: &'static str,
    },
}

impl fmt::Display for Error<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::TooLong => write!(f, "command line: longer than {MAX_LEN_BYTES} bytes"),
            Error::NotText => write!(f, "command line: not UTF-8"),
            Error::NotKeyValue(word) => {
                write!(f, "command line: `{word}` is not of the form key=value; `{HELP}` lists the keys")
            }
            Error::UnknownKey(key, known) => {
                write!(f, "command line: unknown key `{key}`; known:")?;
                for (i, key) in known.iter().chain(&BOOT_KEYS).enumerate() {
                    write!(f, "{} {}", if i == 0 { "" } else { "," }, key.name)?;
                }
                Ok(())
            }
            Error::Twice(key) => write!(f, "command line: `{key}` is given twice"),
            Error::BadValue { key, value, expected } => {
                write!(f, "command line: {key}={value} is not {expected}")
            }
            Error::Missing { key, expected } => {
                write!(f, "command line: {key}= is missing; it takes {expected}")
            }
        }
    }
}

impl core::error::Error for Error<'_> {}

/// The text from the bytes that the loader passed.
///
/// # Errors
/// [`Error::TooLong`], [`Error::NotText`].
pub fn text(bytes: &[u8]) -> Result<&str, Error<'_>> {
    if bytes.len() > MAX_LEN_BYTES {
        return Err(Error::TooLong);
    }
    core::str::from_utf8(bytes).map_err(|_| Error::NotText)
}

/// What the start takes from the command line; its other words are the application's to judge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boot {
    /// All bridges get new bus numbers.
    pub assign_buses: bool,
    /// The clock, if the command line chooses it.
    pub clock: Option<Choice>,
    /// The machine's end, if the command line chooses it.
    pub end: Option<End>,
    /// The serial port of the log's frames.
    pub frames: Option<Setting>,
    /// The console's serial port, or `Some(None)` for none.
    pub serial: Option<Option<Setting>>,
    /// The console's text is not kept for the next boot.
    pub no_log: bool,
    /// The machine is reset after the report of a panic or a fault.
    pub reset_after_panic: bool,
}

impl Boot {
    /// From the command line.
    ///
    /// # Errors
    /// [`Error::BadValue`].
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub fn parse(text: &str) -> Result<Self, Error<'_>> {
        let [buses, clock, end, frames, log, panic, serial] = &BOOT_KEYS;
        Ok(Self {
            assign_buses: one_of(text, buses, &[("assign", true), ("keep", false)])?.unwrap_or(false),
            clock: one_of(
                text,
                clock,
                &[
                    ("tsc", Choice::Tsc),
                    ("pm", Choice::PmTimer),
                    ("pit", Choice::MeasuredBy(Source::Pit)),
                    ("hpet", Choice::MeasuredBy(Source::Hpet)),
                    ("cpuid", Choice::MeasuredBy(Source::Cpuid)),
                ],
            )?,
            end: one_of(text, end, &[("off", End::Off), ("reset", End::Reset), ("halt", End::Halt)])?,
            frames: value_of(text, frames, |value| value.parse().ok())?,
            serial: value_of(text, serial, |value| match value {
                "off" => Some(None),
                _ => value.parse().ok().map(Some),
            })?,
            no_log: one_of(text, log, &[("off", true), ("on", false)])?.unwrap_or(false),
            reset_after_panic: one_of(text, panic, &[("reset", true), ("off", false)])?.unwrap_or(false),
        })
    }
}

/// Returns what the value of `key` stands for, if the key is given.
fn one_of<'a, T: Copy>(text: &'a str, key: &Key, values: &[(&str, T)]) -> Result<Option<T>, Error<'a>> {
    value_of(text, key, |value| values.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning))
}

/// Returns the value of `key` as `read` reads it, if the key is given.
fn value_of<'a, T>(
    text: &'a str,
    key: &Key,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Error<'a>> {
    let mut words = text.split_ascii_whitespace().filter_map(|word| word.split_once('='));
    let Some((name, value)) = words.find(|(name, _)| *name == key.name) else { return Ok(None) };
    read(value).map(Some).ok_or(Error::BadValue { key: name, value, expected: key.takes })
}

/// A command line whose words are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options<'a> {
    text: &'a str,
    keys: &'a [Key],
}

impl<'a> Options<'a> {
    /// Checks all words against `keys`; values are looked at when they are asked for.
    ///
    /// # Errors
    /// The first word that is wrong, see [`Error`].
    pub fn parse(text: &'a str, keys: &'a [Key]) -> Result<Self, Error<'a>> {
        if text.len() > MAX_LEN_BYTES {
            return Err(Error::TooLong);
        }
        let options = Self { text, keys };
        for (index, word) in text.split_ascii_whitespace().enumerate() {
            if word == HELP {
                continue;
            }
            let (name, _) = word.split_once('=').ok_or(Error::NotKeyValue(word))?;
            if !keys.iter().chain(&BOOT_KEYS).any(|key| key.name == name) {
                return Err(Error::UnknownKey(name, keys));
            }
            let given = |word: &str| word.split_once('=').is_some_and(|(other, _)| other == name);
            if text.split_ascii_whitespace().take(index).any(given) {
                return Err(Error::Twice(name));
            }
        }
        Ok(options)
    }

    /// Whether the word `help` is there.
    #[must_use]
    pub fn wants_help(&self) -> bool {
        self.text.split_ascii_whitespace().any(|word| word == HELP)
    }

    /// The value of `key`, as it was given.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&'a str> {
        let mut words = self.text.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        words.find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// All keys and values, in their order.
    pub fn words(&self) -> impl Iterator<Item = (&'a str, &'a str)> + 'a {
        self.text.split_ascii_whitespace().filter_map(|word| word.split_once('='))
    }

    fn takes(&self, key: &str) -> &'static str {
        self.keys
            .iter()
            .chain(&BOOT_KEYS)
            .find(|known| known.name == key)
            .map_or("a value", |known| known.takes)
    }

    /// The value of `key` as a `T`, if it was given.
    ///
    /// # Errors
    /// [`Error::BadValue`] with what the key takes.
    pub fn value<T: FromStr>(&self, key: &'static str) -> Result<Option<T>, Error<'a>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let expected = self.takes(key);
        value.parse().map(Some).map_err(|_| Error::BadValue { key, value, expected })
    }

    /// The value of `key`, which has to be there.
    ///
    /// # Errors
    /// [`Error::BadValue`], [`Error::Missing`].
    pub fn required<T: FromStr>(&self, key: &'static str) -> Result<T, Error<'a>> {
        self.value(key)?.ok_or(Error::Missing { key, expected: self.takes(key) })
    }

    /// The value of `key` as a number of bytes, with a suffix `K`, `M` or `G` or none, if it was given.
    ///
    /// # Errors
    /// [`Error::BadValue`].
    pub fn bytes(&self, key: &'static str) -> Result<Option<u64>, Error<'a>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let expected = self.takes(key);
        parse_size(value).map(Some).ok_or(Error::BadValue { key, value, expected })
    }
}

/// The list of keys, one a line.
#[derive(Clone, Copy, Debug)]
pub struct Help<'a>(pub &'a [Key]);

impl fmt::Display for Help<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = self.0.iter().chain(&BOOT_KEYS).map(|key| key.name.len()).max().unwrap_or(0);
        f.write_str("command line: words of the form key=value")?;
        for key in self.0.iter().chain(&BOOT_KEYS) {
            write!(f, "\n  {:widest$}  {}: {}", key.name, key.takes, key.help)?;
        }
        Ok(())
    }
}

/// A decimal number with an optional binary suffix `K`, `M` or `G`; nothing when it is not one or does not
/// fit in 64 bits.
#[must_use]
pub fn parse_size(value: &str) -> Option<u64> {
    let (digits, unit) = match value.as_bytes().last()? {
        b'K' | b'k' => (value.get(..value.len() - 1)?, 1 << 10),
        b'M' | b'm' => (value.get(..value.len() - 1)?, 1 << 20),
        b'G' | b'g' => (value.get(..value.len() - 1)?, 1 << 30),
        _ => (value, 1u64),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use std::string::ToString;

    const KEYS: [Key; 3] = [
        Key::new("ip", "an IPv4 address", "this node's own"),
        Key::new("count", "a number of at most 32 bits", "how many; default 100"),
        Key::new("room", "a number of bytes, as in 16M", "memory to take; default 1M"),
    ];

    #[test]
    fn values_are_found_and_typed() {
        let options = Options::parse(" ip=10.0.0.1\tcount=7  room=2M\n", &KEYS).unwrap();
        assert_eq!(options.required::<Ipv4Addr>("ip"), Ok(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(options.value::<u32>("count"), Ok(Some(7)));
        assert_eq!(options.bytes("room"), Ok(Some(2 << 20)));
        let none = Options::parse("", &KEYS).unwrap();
        assert_eq!(
            (none.value::<u32>("count"), none.bytes("room"), none.get("ip")),
            (Ok(None), Ok(None), None)
        );
        assert_eq!(options.words().count(), 3);
    }

    #[test]
    fn each_mistake_is_one_line_that_names_it() {
        let parse = |text| Options::parse(text, &KEYS).unwrap_err().to_string();
        assert_eq!(parse("ip"), "command line: `ip` is not of the form key=value; `help` lists the keys");
        assert_eq!(
            parse("colour=red"),
            "command line: unknown key `colour`; known: ip, count, room, buses, clock, end, frames, log, panic, serial"
        );
        assert_eq!(parse("ip=1.1.1.1 ip=1.1.1.1"), "command line: `ip` is given twice");
        let options = Options::parse("ip=10.0.0 count=4294967296 room=-1", &KEYS).unwrap();
        let line = |error: Error<'_>| error.to_string();
        assert_eq!(
            line(options.required::<Ipv4Addr>("ip").unwrap_err()),
            "command line: ip=10.0.0 is not an IPv4 address"
        );
        assert_eq!(
            line(options.value::<u32>("count").unwrap_err()),
            "command line: count=4294967296 is not a number of at most 32 bits"
        );
        assert_eq!(
            line(options.bytes("room").unwrap_err()),
            "command line: room=-1 is not a number of bytes, as in 16M"
        );
        let none = Options::parse("", &KEYS).unwrap();
        assert_eq!(
            line(none.required::<Ipv4Addr>("ip").unwrap_err()),
            "command line: ip= is missing; it takes an IPv4 address"
        );
    }

    #[test]
    fn help_is_a_word_and_a_table() {
        let options = Options::parse("ip=1.2.3.4 help", &KEYS).unwrap();
        assert!(options.wants_help() && options.get("ip").is_some());
        assert!(!Options::parse("ip=1.2.3.4", &KEYS).unwrap().wants_help());
        let table = Help(&KEYS).to_string();
        assert_eq!(table.lines().count(), 11);
        assert!(table.contains("\n  count   a number of at most 32 bits: how many; default 100"), "{table}");
    }

    #[test]
    fn clock_log_and_panic_are_every_image_s() {
        let by = |text| Boot::parse(text).map(|boot| boot.clock);
        assert_eq!(by("ip=1.2.3.4 clock=pm"), Ok(Some(Choice::PmTimer)));
        assert_eq!((by("clock=tsc"), by("nonsense")), (Ok(Some(Choice::Tsc)), Ok(None)));
        let line = by("clock=sun").unwrap_err().to_string();
        assert_eq!(line, "command line: clock=sun is not tsc, pm, pit, hpet or cpuid");
        assert!(Options::parse("clock=pm panic=off log=on ip=1.2.3.4", &KEYS).is_ok());
        assert_eq!(Boot::parse(""), Ok(Boot::default()));
        let end = Some(End::Halt);
        let all = Boot {
            assign_buses: true,
            clock: None,
            end,
            frames: Some(Setting::port(0x2f8)),
            serial: Some(None),
            no_log: true,
            reset_after_panic: true,
        };
        let line = "panic=reset log=off buses=assign end=halt frames=com2 serial=off";
        assert_eq!(Boot::parse(line), Ok(all));
        assert_eq!(Boot::parse("serial=com1").map(|boot| boot.serial), Ok(Some(Some(Setting::port(0x3f8)))));
        assert!(Boot::parse("serial=com9").is_err());
        let line = Boot::parse("end=on").unwrap_err().to_string();
        assert_eq!(line, "command line: end=on is not off, reset or halt");
        let line = Boot::parse("log=no").unwrap_err().to_string();
        assert_eq!(line, "command line: log=no is not on or off");
    }

    #[test]
    fn length_and_encoding() {
        let long = "x".repeat(MAX_LEN_BYTES + 1);
        assert_eq!(Options::parse(&long, &KEYS), Err(Error::TooLong));
        assert_eq!(text(long.as_bytes()), Err(Error::TooLong));
        assert_eq!(text(b"app=\xff"), Err(Error::NotText));
    }

    #[test]
    fn sizes() {
        let cases = [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("4K", Some(4096)),
            ("64m", Some(64 << 20)),
            ("2G", Some(2 << 30)),
            ("K", None),
            ("+4K", None),
            ("4KK", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("18014398509481984K", None),
            ("4é", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_size(text), expected, "{text}");
        }
    }
}
