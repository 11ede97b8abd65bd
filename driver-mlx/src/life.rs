//! Whose an object is: a recovery makes an end of all objects, but not of the values by which a consumer knows them.

/// The HCA that made an object, and which of its device's lives it belongs to: the page where the HCA's region begins, for no two HCAs have
/// the same, and the number of recoveries before. One word, because there is one in every object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Life(u64);

/// Bits of the count.
const COUNT: u32 = 28;

impl Life {
    /// The first one of an HCA, whose region begins at `region`.
    pub(crate) const fn first(region: usize) -> Self {
        Self((region as u64 >> 12) << COUNT)
    }

    /// The one after.
    pub(crate) const fn next(self) -> Self {
        let mask = (1 << COUNT) - 1;
        Self(self.0 & !mask | (self.0 + 1) & mask)
    }

    /// Whether both are lives of one HCA.
    pub(crate) const fn same_hca(self, other: Self) -> bool {
        self.0 >> COUNT == other.0 >> COUNT
    }
}

/// What commands name by a number.
pub(crate) trait Object {
    /// The number's type.
    type Number;

    /// When it was made.
    fn life(&self) -> Life;
    /// What the device calls it, meaningful in its life only: a command takes it from `Hca::named`, which looks.
    fn name(&self) -> Self::Number;
}
