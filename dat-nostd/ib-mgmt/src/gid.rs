//! Global identifiers: the 128-bit addresses of ports and multicast groups.
//! (InfiniBand Architecture Specification, volume 1, section 4.1.)

/// A global identifier, most significant byte first, as on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The all-zero GID: "not given".
    pub const ZERO: Gid = Gid([0; 16]);
    /// Link-local subnet prefix, the default of a subnet that nobody configured.
    pub const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;

    /// Joins a subnet prefix and an interface identifier (a port GUID).
    pub const fn new(prefix: u64, interface_id: u64) -> Gid {
        Gid((((prefix as u128) << 64) | interface_id as u128).to_be_bytes())
    }

    /// The upper 64 bits: subnet prefix.
    pub const fn prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The lower 64 bits: interface identifier, on InfiniBand the port GUID.
    pub const fn interface_id(self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }

    /// Whether this is a multicast GID (first byte 0xff).
    pub const fn is_multicast(self) -> bool {
        self.0[0] == 0xff
    }

    /// Whether all bytes are zero.
    pub const fn is_zero(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }
}

impl core::fmt::Display for Gid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

impl core::fmt::Debug for Gid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_join_and_split() {
        let gid = Gid::new(Gid::DEFAULT_PREFIX, 0x0002_c903_0012_3456);
        assert_eq!(gid.0, [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0x12, 0x34, 0x56]);
        assert_eq!(gid.prefix(), 0xfe80_0000_0000_0000);
        assert_eq!(gid.interface_id(), 0x0002_c903_0012_3456);
        assert!(!gid.is_multicast() && !gid.is_zero());
        assert_eq!(gid.to_string(), "fe80::2:c903:12:3456");
    }
}
