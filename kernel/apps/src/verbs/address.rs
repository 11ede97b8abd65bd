//! What one side has to know of the other, as a line of text.

use core::fmt;

use driver_mlx::{Gid, Lid, Psn, QpNumber, RKey};

/// A side's numbers. Displays as the words that [`Address::parse`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its queue pair.
    pub qpn: QpNumber,
    /// Sequence number of its first packet.
    pub psn: Psn,
    /// Its port.
    pub lid: Lid,
    /// Its port's GID, which is told but not used: peers are on one subnet.
    pub gid: Option<Gid>,
    /// Key of its memory.
    pub rkey: RKey,
    /// Address of its memory, as the key counts.
    pub addr: u64,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qpn={:x} psn={:x} lid={}", self.qpn.get(), self.psn.get(), self.lid.get())?;
        if let Some(gid) = self.gid {
            write!(f, " gid={gid}")?;
        }
        write!(f, " rkey={:x} addr={:x}", self.rkey.get(), self.addr)
    }
}

/// What is wrong with a line. Displays as a phrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressError<'a> {
    /// A word that is not one of the keys with a number that fits.
    Word(&'a str),
    /// A key given twice.
    Twice(&'a str),
    /// A key that is not there.
    Missing(&'static str),
}

impl fmt::Display for AddressError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(
                f,
                "`{word}` is none of qpn=, psn= (hexadecimal, 24 bits), lid= (decimal, 1 to 49151), rkey= (hexadecimal, \
                 32 bits), addr= (hexadecimal, 64 bits), gid= (an IPv6 address)"
            ),
            Self::Twice(key) => write!(f, "{key}= is given twice"),
            Self::Missing(key) => write!(f, "{key}= is missing"),
        }
    }
}

impl core::error::Error for AddressError<'_> {}

/// The largest LID of a single port (IBTA 1.3, 4.1.3).
const MAX_UNICAST_LID: u16 = 0xbfff;

impl Address {
    /// Reads `key=value` words in any order: `qpn`, `psn`, `lid`, `rkey`, `addr`, and perhaps `gid`.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(text: &str) -> Result<Self, AddressError<'_>> {
        let (mut qpn, mut psn, mut lid, mut gid, mut rkey, mut addr) = (None, None, None, None, None, None);
        for word in text.split_ascii_whitespace() {
            let bad = AddressError::Word(word);
            let (key, value) = word.split_once('=').ok_or(bad)?;
            let twice = match key {
                "qpn" => qpn.replace(QpNumber::new(hex24(value).filter(|n| *n > 1).ok_or(bad)?)).is_some(),
                "psn" => psn.replace(Psn::new(hex24(value).ok_or(bad)?)).is_some(),
                "lid" => {
                    let number = value.parse().ok().filter(|n| (1..=MAX_UNICAST_LID).contains(n));
                    lid.replace(Lid::new(number.ok_or(bad)?)).is_some()
                }
                "gid" => {
                    let text: core::net::Ipv6Addr = value.parse().map_err(|_| bad)?;
                    gid.replace(Gid(text.octets())).is_some()
                }
                "rkey" => {
                    let number = hex(value).and_then(|n| u32::try_from(n).ok());
                    rkey.replace(RKey::new(number.ok_or(bad)?)).is_some()
                }
                "addr" => addr.replace(hex(value).ok_or(bad)?).is_some(),
                _ => return Err(bad),
            };
            if twice {
                return Err(AddressError::Twice(key));
            }
        }
        Ok(Self {
            qpn: qpn.ok_or(AddressError::Missing("qpn"))?,
            psn: psn.ok_or(AddressError::Missing("psn"))?,
            lid: lid.ok_or(AddressError::Missing("lid"))?,
            gid,
            rkey: rkey.ok_or(AddressError::Missing("rkey"))?,
            addr: addr.ok_or(AddressError::Missing("addr"))?,
        })
    }
}

fn hex(value: &str) -> Option<u64> {
    // `from_str_radix` also takes a sign.
    if value.bytes().all(|b| b.is_ascii_hexdigit()) { u64::from_str_radix(value, 16).ok() } else { None }
}

fn hex24(value: &str) -> Option<u32> {
    hex(value).and_then(|n| u32::try_from(n).ok()).filter(|n| n >> 24 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    fn example() -> Address {
        Address {
            qpn: QpNumber::new(0x41),
            psn: Psn::new(0xff_fff0),
            lid: Lid::new(49151),
            gid: Some(Gid::new(Gid::DEFAULT_PREFIX, 0x1234)),
            rkey: RKey::new(0xdead_be00),
            addr: 0xffff_8000_0000_1000,
        }
    }

    #[test]
    fn what_is_printed_is_read() {
        let text = example().to_string();
        assert_eq!(text, "qpn=41 psn=fffff0 lid=49151 gid=fe80::1234 rkey=deadbe00 addr=ffff800000001000");
        assert_eq!(Address::parse(&text), Ok(example()));
        let without = Address { gid: None, ..example() };
        assert_eq!(Address::parse(&without.to_string()), Ok(without));
    }

    #[test]
    fn each_mistake_is_named() {
        let good = "qpn=41 psn=0 lid=1 rkey=1 addr=0";
        assert!(Address::parse(good).is_ok());
        for (text, expected) in [
            ("", "qpn= is missing"),
            ("qpn=41 psn=0 lid=1 rkey=1", "addr= is missing"),
            ("qpn=41 qpn=41", "qpn= is given twice"),
            ("qpn=1", "`qpn=1` is none of"),
            ("qpn=1000000", "`qpn=1000000` is none of"),
            ("psn=+1", "`psn=+1` is none of"),
            ("psn=", "`psn=` is none of"),
            ("lid=0", "`lid=0` is none of"),
            ("lid=49152", "`lid=49152` is none of"),
            ("lid=65537", "`lid=65537` is none of"),
            ("rkey=100000000", "`rkey=100000000` is none of"),
            ("addr=10000000000000000", "`addr=10000000000000000` is none of"),
            ("gid=1.2.3.4", "`gid=1.2.3.4` is none of"),
            ("colour=1", "`colour=1` is none of"),
            ("qpn", "`qpn` is none of"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }
}
