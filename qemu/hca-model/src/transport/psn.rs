//! Packet sequence numbers: 24 bits, compared round the corner (IBTA 9.7.2).

/// A packet sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Psn(u32);

const MASK: u32 = 0x00ff_ffff;

impl Psn {
    /// The low 24 bits of `value`.
    pub(super) const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    pub(super) const fn get(self) -> u32 {
        self.0
    }

    pub(super) const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & MASK)
    }

    pub(super) const fn next(self) -> Self {
        self.plus(1)
    }

    pub(super) const fn previous(self) -> Self {
        self.plus(MASK)
    }

    /// How far this lies ahead of `earlier`, 0 to 2^24 - 1.
    pub(super) const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & MASK
    }

    /// Whether this comes before `other`: it lies within the 2^23 numbers behind it.
    pub(super) const fn is_before(self, other: Self) -> bool {
        self.since(other) & 0x0080_0000 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::Psn;

    #[test]
    fn numbers_wrap() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(Psn::new(0).previous(), last);
        assert_eq!(Psn::new(5).since(last), 6);
        assert!(last.is_before(Psn::new(0)) && !Psn::new(0).is_before(last));
        assert!(!Psn::new(9).is_before(Psn::new(9)));
        assert!(Psn::new(1).is_before(Psn::new(0x80_0000)));
        assert!(!Psn::new(0).is_before(Psn::new(0x80_0001)), "more than half the circle behind is ahead");
    }
}
