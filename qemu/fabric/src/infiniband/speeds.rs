//! Link widths and speeds of a port.

/// Widths and speeds that a port supports, as bits of `ptys_reg.ib_proto_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speeds(u32);

/// SDR, DDR, QDR.
const UP_TO_QDR: u32 = 0x7;
const FDR: u32 = 0x10;
const EDR: u32 = 0x20;
const HDR: u32 = 0x40;
const NDR: u32 = 0x80;

impl Speeds {
    /// All speeds up to EDR, as a ConnectX-5 supports them.
    pub const EDR: Self = Self(UP_TO_QDR | FDR | EDR);
    /// All speeds up to HDR.
    pub const HDR: Self = Self(Self::EDR.0 | HDR);
    /// All speeds up to NDR.
    pub const NDR: Self = Self(Self::HDR.0 | NDR);

    /// Returns the speeds of a port that has these bits of PTYS. Unknown bits are left out.
    #[must_use]
    pub const fn from_ptys(bits: u32) -> Self {
        Self(bits & Self::NDR.0)
    }

    /// Returns the speeds as bits of PTYS.
    #[must_use]
    pub const fn ptys(self) -> u32 {
        self.0
    }

    /// Returns the fastest speed as a bit of PTYS.
    #[must_use]
    pub const fn fastest(self) -> u32 {
        1 << (31 - (self.0 | 1).leading_zeros())
    }

    /// Returns `PortInfo.LinkSpeedExtSupported`: FDR, EDR, HDR, NDR.
    #[must_use]
    pub const fn extended(self) -> u8 {
        (self.0 >> 4 & 0xf) as u8
    }

    /// Returns `PortInfo.LinkSpeedExtActive` of the fastest speed.
    #[must_use]
    pub const fn extended_active(self) -> u8 {
        (self.fastest() >> 4 & 0xf) as u8
    }

    /// Returns the widths as PTYS has them: 1x and 4x, and 2x from HDR on.
    #[must_use]
    pub const fn widths(self) -> u32 {
        if self.0 & HDR != 0 { 0x7 } else { 0x5 }
    }

    /// Returns the widths as `PortInfo.LinkWidthSupported` has them.
    #[must_use]
    pub const fn port_info_widths(self) -> u8 {
        if self.0 & HDR != 0 { 0x13 } else { 0x3 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_the_same_in_every_form() {
        for (speeds, ptys, fastest, extended, active) in [
            (Speeds::EDR, 0x37, 0x20, 0x3, 2),
            (Speeds::HDR, 0x77, 0x40, 0x7, 4),
            (Speeds::NDR, 0xf7, 0x80, 0xf, 8),
        ] {
            assert_eq!((speeds.ptys(), speeds.fastest()), (ptys, fastest));
            assert_eq!((speeds.extended(), speeds.extended_active()), (extended, active));
        }
    }
}
