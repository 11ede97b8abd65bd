//! Whose an object is: a recovery makes an end of all objects, but not of the values by which a consumer knows them.

/// The HCA that made an object, and which of its device's lives it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Life {
    /// Where the HCA's region begins: no two HCAs have the same.
    hca: usize,
    /// Recoveries before.
    count: u32,
}

impl Life {
    /// The first one of an HCA, whose region begins at `region`.
    pub(crate) const fn first(region: usize) -> Self {
        Self { hca: region, count: 0 }
    }

    /// The one after.
    pub(crate) const fn next(self) -> Self {
        Self { hca: self.hca, count: self.count.wrapping_add(1) }
    }

    /// Whether both are lives of one HCA.
    pub(crate) const fn same_hca(self, other: Self) -> bool {
        self.hca == other.hca
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
