//! Settings of the client: one line of `key=value` words, as the unikernel's command line. `args=` is the last one.

use super::message::Name;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr};
use core::str::FromStr;
use core::time::Duration;

/// Where this node is, where its boot image is, and what the image gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings<'a> {
    /// This node's address.
    pub ip: Ipv4Addr,
    /// Length of its subnet's prefix in bits.
    pub prefix_len: u8,
    /// Router to other subnets.
    pub gateway: Option<Ipv4Addr>,
    /// The server.
    pub server: IpAddr,
    /// Name of the image; empty for the server's first one.
    pub image: Name,
    /// Name of the initial RAM disk of a Linux kernel.
    pub initrd: Option<Name>,
    /// Command line of the image; empty for none.
    pub arguments: &'a str,
    /// How long the server may be silent.
    pub patience: Duration,
    /// Largest image or initial RAM disk, in bytes.
    pub max_bytes: u64,
}

/// Keys with the values that they take.
const KEYS: [(&str, &str); 7] = [
    ("ip", "an IPv4 address, perhaps with / and a prefix length from 1 to 32"),
    ("server", "an IPv4 address"),
    ("gateway", "an IPv4 address"),
    ("image", "a name of at most 64 characters"),
    ("initrd", "a name of 1 to 64 characters"),
    ("wait", "seconds from 1 to 600"),
    ("limit", "MiB from 1 to 4096"),
];
/// The last key, whose value is the rest of the line.
const ARGUMENTS: &str = "args=";

/// Reason why a line of settings is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError<'a> {
    /// A word is not one of the keys, `=`, and a value.
    Unknown(&'a str),
    /// A key is given twice.
    Twice(&'static str),
    /// A key has a wrong value.
    Value(&'static str, &'a str),
    /// A required key is missing.
    Missing(&'static str),
}

impl fmt::Display for SettingsError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let takes = |key| KEYS.iter().find(|known| known.0 == key).map_or("", |known| known.1);
        match *self {
            Self::Unknown(word) => {
                write!(f, "`{word}` is unknown; known:")?;
                KEYS.iter().try_for_each(|(key, _)| write!(f, " {key}="))?;
                write!(f, " {ARGUMENTS}")
            }
            Self::Twice(key) => write!(f, "{key}= is given twice"),
            Self::Value(key, value) => write!(f, "{key}={value} is not {}", takes(key)),
            Self::Missing(key) => write!(f, "{key}= is missing; it takes {}", takes(key)),
        }
    }
}

impl<'a> Settings<'a> {
    /// Parses a line, for example `ip=10.0.0.5/24 server=10.0.0.1 image=vmlinuz initrd=initrd.img args=console=ttyS0 quiet`.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn parse(line: &'a str) -> Result<Self, SettingsError<'a>> {
        let (line, arguments) = split_arguments(line);
        let mut values = [None; KEYS.len()];
        for word in line.split_ascii_whitespace() {
            let known = word
                .split_once('=')
                .and_then(|(key, value)| Some((KEYS.iter().position(|known| known.0 == key)?, value)));
            let (index, value) = known.ok_or(SettingsError::Unknown(word))?;
            let slot = values.get_mut(index).ok_or(SettingsError::Unknown(word))?;
            if slot.replace(value).is_some() {
                return Err(SettingsError::Twice(KEYS.get(index).map_or("", |known| known.0)));
            }
        }
        let values = Values(values);
        let (ip, prefix_len) =
            values.judged("ip", address_and_prefix)?.ok_or(SettingsError::Missing("ip"))?;
        let server: Ipv4Addr = values.judged("server", parsed)?.ok_or(SettingsError::Missing("server"))?;
        let within = |range: core::ops::RangeInclusive<u64>| {
            move |text: &str| parsed(text).filter(|number| range.contains(number))
        };
        Ok(Self {
            ip,
            prefix_len,
            gateway: values.judged("gateway", parsed)?,
            server: IpAddr::V4(server),
            image: values.judged("image", Name::new)?.unwrap_or(Name::EMPTY),
            initrd: values.judged("initrd", |text| Name::new(text).filter(|name| *name != Name::EMPTY))?,
            arguments,
            patience: Duration::from_secs(values.judged("wait", within(1..=600))?.unwrap_or(15)),
            max_bytes: values.judged("limit", within(1..=4096))?.unwrap_or(512) << 20,
        })
    }
}

/// Returns the line before the word that begins with `args=`, and the text after it.
fn split_arguments(line: &str) -> (&str, &str) {
    let begins_word = |before: &str| before.chars().next_back().is_none_or(|char| char.is_ascii_whitespace());
    let found = line.match_indices(ARGUMENTS).find_map(|(at, _)| {
        let (before, rest) = line.split_at_checked(at)?;
        Some((before, rest.strip_prefix(ARGUMENTS)?.trim())).filter(|_| begins_word(before))
    });
    found.unwrap_or((line, ""))
}

struct Values<'a>([Option<&'a str>; KEYS.len()]);

impl<'a> Values<'a> {
    fn judged<T>(
        &self,
        key: &'static str,
        judge: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<Option<T>, SettingsError<'a>> {
        let index = KEYS.iter().position(|known| known.0 == key);
        let value = index.and_then(|index| *self.0.get(index)?);
        let Some(value) = value else { return Ok(None) };
        judge(value).map(Some).ok_or(SettingsError::Value(key, value))
    }
}

fn parsed<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn address_and_prefix(text: &str) -> Option<(Ipv4Addr, u8)> {
    let Some((address, len)) = text.split_once('/') else { return Some((parsed(text)?, 24)) };
    Some((parsed(address)?, parsed(len).filter(|len| (1..=32).contains(len))?))
}
