//! What the peer needs, as a line of text.

use core::fmt;

use driver_mlx::{Gid, Lid, Psn, QpNumber, RKey};

/// Address of a side. Displays as the words that [`Address::parse`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Queue pair.
    pub qpn: QpNumber,
    /// Sequence number of the first packet.
    pub psn: Psn,
    /// Port; 0 on Ethernet.
    pub lid: Lid,
    /// GID of the port: on Ethernet the link-local one, which names its MAC address. Not used on InfiniBand, where both sides
    /// are on one subnet.
    pub gid: Option<Gid>,
    /// Key of the memory.
    pub rkey: RKey,
    /// Address of the memory, as the key counts.
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

/// First mistake in a line. Displays as a phrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressError<'a> {
    /// Not a key with a number in its range.
    Word(&'a str),
    /// The line has no such key, or two.
    Key(&'static str),
}

impl fmt::Display for AddressError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(
                f,
                "`{word}` is none of qpn=, psn= (hexadecimal, 24 bits), lid= (decimal, 0 to 49151), rkey= \
                 (hexadecimal, 32 bits), addr= (hexadecimal, 64 bits), gid= (an IPv6 address)"
            ),
            Self::Key(key) => write!(f, "not one {key}="),
        }
    }
}

impl core::error::Error for AddressError<'_> {}

/// Largest unicast LID (IBTA 1.3, 4.1.3).
const MAX_UNICAST_LID: u16 = 0xbfff;

impl Address {
    /// Parses `key=value` words in any order. Only `gid` is optional.
    ///
    /// # Errors
    /// The first mistake.
    pub fn parse(text: &str) -> Result<Self, AddressError<'_>> {
        let words = text.split_ascii_whitespace();
        for word in words.clone() {
            let known = word.split_once('=').is_some_and(|(key, value)| match key {
                "qpn" => hex(value, 24).is_some_and(|qpn| qpn > 1),
                "psn" => hex(value, 24).is_some(),
                "lid" => value.parse().is_ok_and(|lid: u16| lid <= MAX_UNICAST_LID),
                "gid" => value.parse::<core::net::Ipv6Addr>().is_ok(),
                "rkey" => hex(value, 32).is_some(),
                "addr" => hex(value, 64).is_some(),
                _ => false,
            });
            if !known {
                return Err(AddressError::Word(word));
            }
        }
        let one = |key: &'static str| {
            let mut values =
                words.clone().filter_map(move |word| word.split_once('=').filter(|(name, _)| *name == key));
            match (values.next(), values.next()) {
                (Some((_, value)), None) => Ok(value),
                _ => Err(AddressError::Key(key)),
            }
        };
        // Every value was parsed once above.
        let number = |key| one(key).map(|value| hex(value, 64).unwrap_or_default());
        Ok(Self {
            qpn: QpNumber::new(number("qpn")? as u32),
            psn: Psn::new(number("psn")? as u32),
            lid: Lid::new(one("lid")?.parse().unwrap_or_default()),
            gid: one("gid").ok().and_then(|gid| Some(Gid(gid.parse::<core::net::Ipv6Addr>().ok()?.octets()))),
            rkey: RKey::new(number("rkey")? as u32),
            addr: number("addr")?,
        })
    }
}

/// Parses digits without a sign, which `from_str_radix` would take.
fn hex(value: &str, bits: u32) -> Option<u64> {
    let digits = value.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(value, 16).ok().filter(|_| digits)?;
    (u64::BITS - number.leading_zeros() <= bits).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn printed_addresses_parse() {
        let text = example().to_string();
        assert_eq!(text, "qpn=41 psn=fffff0 lid=49151 gid=fe80::1234 rkey=deadbe00 addr=ffff800000001000");
        assert_eq!(Address::parse(&text), Ok(example()));
        let without = Address { gid: None, ..example() };
        assert_eq!(Address::parse(&without.to_string()), Ok(without));
    }

    #[test]
    fn each_mistake_is_named() {
        assert!(Address::parse("qpn=41 psn=0 lid=1 rkey=1 addr=0").is_ok());
        for (text, expected) in [("", "qpn"), ("qpn=41 psn=0 lid=1 rkey=1", "addr"), ("qpn=41 qpn=41", "qpn")]
        {
            assert_eq!(Address::parse(text), Err(AddressError::Key(expected)), "{text}");
        }
        for word in [
            "qpn=1",
            "qpn=1000000",
            "psn=+1",
            "psn=",
            "lid=-1",
            "lid=49152",
            "lid=65537",
            "rkey=100000000",
            "addr=10000000000000000",
            "gid=1.2.3.4",
            "colour=1",
            "qpn",
        ] {
            assert_eq!(Address::parse(word), Err(AddressError::Word(word)));
        }
    }
}
