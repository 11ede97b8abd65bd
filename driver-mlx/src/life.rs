//! Whose an object is: a recovery makes an end of all objects, but not of the values by which a consumer knows them.

/// The HCA that made an object, and which of its device's lives it belongs to: the page where the HCA's region begins, for no two HCAs have
/// the same, and the number of recoveries before. One word, because there is one in every object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Life(u64);

/// Bits of the count.
const COUNT: u32 = 28;
/// Bits of an HCA's short name in [`Named`], and of the number.
const HCA: u32 = 12;
const NUMBER: u32 = 24;

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

    /// When an object of this life was made, in life `now` of an HCA.
    pub(crate) fn made(self, now: Self) -> Made {
        if self == now {
            Made::Now
        } else if self.0 >> COUNT == now.0 >> COUNT {
            Made::Before
        } else {
            Made::Elsewhere
        }
    }

    /// The count with a short name of the HCA, 40 bits in all.
    const fn tag(self) -> u64 {
        let region = self.0 >> COUNT;
        let hca = (region ^ region >> HCA ^ region >> (2 * HCA)) & ((1 << HCA) - 1);
        hca << COUNT | self.0 & ((1 << COUNT) - 1)
    }
}

/// When an object was made, as the HCA sees it that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// In the present life.
    Now,
    /// Before a recovery.
    Before,
    /// By another HCA.
    Elsewhere,
}

/// A device's number of up to 24 bits with the life that it belongs to, in one word: consumers
/// compare such names in their fast paths. Another HCA's is taken for one of this in 1 of 4096.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Named(u64);

impl Named {
    /// `number` in life `life`.
    pub(crate) const fn new(number: u32, life: Life) -> Self {
        Self(life.tag() << NUMBER | number as u64 & ((1 << NUMBER) - 1))
    }

    /// The number.
    pub(crate) const fn number(self) -> u32 {
        self.0 as u32 & ((1 << NUMBER) - 1)
    }

    /// When it was made, in life `now` of an HCA.
    pub(crate) const fn made(self, now: Life) -> Made {
        let (tag, now) = (self.0 >> NUMBER, now.tag());
        if tag == now {
            Made::Now
        } else if tag >> COUNT == now >> COUNT {
            Made::Before
        } else {
            Made::Elsewhere
        }
    }
}

/// What commands name by a number.
pub(crate) trait Object {
    /// The number's type.
    type Number;

    /// When it was made, in life `now` of an HCA.
    fn made(&self, now: Life) -> Made;
    /// What the device calls it, meaningful in its life only: a command takes it from `Hca::named`, which looks.
    fn name(&self) -> Self::Number;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_belong_to_one_life_of_one_hca() {
        let first = Life::first(0x7f12_3456_7000);
        let other = Life::first(0x7f12_3456_8000);
        let name = Named::new(0xff_ffff, first);
        assert_eq!((name.number(), name.made(first)), (0xff_ffff, Made::Now));
        assert_eq!(first.made(first), Made::Now);
        let mut life = first;
        for _ in 0..300 {
            life = life.next();
            assert_eq!((name.made(life), first.made(life)), (Made::Before, Made::Before));
            assert_eq!(name.made(other), Made::Elsewhere);
        }
        assert_eq!(first.made(other), Made::Elsewhere);
        assert_ne!(Named::new(0xff_ffff, life), name);
    }
}
