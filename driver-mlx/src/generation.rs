//! Generations of an HCA. A recovery ends all objects of the device, but not the consumer's values
//! for them, which are stale from then on.

/// An HCA between two recoveries: the page where its region begins, which no two HCAs share, and the
/// number of recoveries before. Takes one word, because every object carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation(u64);

/// Bits of the count.
const COUNT: u32 = 28;
/// Bits of an HCA's short name in [`Tagged`], and of the number.
const HCA: u32 = 12;
const NUMBER: u32 = 24;

impl Generation {
    /// The first one of an HCA, whose region begins at `region`.
    pub(crate) const fn first(region: usize) -> Self {
        Self((region as u64 >> 12) << COUNT)
    }

    /// The one after.
    pub(crate) const fn next(self) -> Self {
        let mask = (1 << COUNT) - 1;
        Self(self.0 & !mask | (self.0 + 1) & mask)
    }

    /// The age of an object of this generation, for an HCA in generation `now`.
    pub(crate) fn made(self, now: Self) -> Age {
        if self == now {
            Age::Current
        } else if self.0 >> COUNT == now.0 >> COUNT {
            Age::Stale
        } else {
            Age::Foreign
        }
    }

    /// The count with a short name of the HCA, 40 bits in all.
    const fn tag(self) -> u64 {
        let region = self.0 >> COUNT;
        let hca = (region ^ region >> HCA ^ region >> (2 * HCA)) & ((1 << HCA) - 1);
        hca << COUNT | self.0 & ((1 << COUNT) - 1)
    }
}

/// The age of an object, for one HCA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    /// The object is of the current generation.
    Current,
    /// The object is from before a recovery.
    Stale,
    /// The object is of another HCA.
    Foreign,
}

/// A device's number of up to 24 bits with its generation, in one word: consumers compare such
/// names in their fast paths. 1 of 4096 names of another HCA counts as this HCA's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tagged(u64);

impl Tagged {
    /// `number` in a generation.
    pub(crate) const fn new(number: u32, generation: Generation) -> Self {
        Self(generation.tag() << NUMBER | number as u64 & ((1 << NUMBER) - 1))
    }

    /// The number.
    pub(crate) const fn number(self) -> u32 {
        self.0 as u32 & ((1 << NUMBER) - 1)
    }

    /// The age, for an HCA in generation `now`.
    pub(crate) const fn made(self, now: Generation) -> Age {
        let (tag, now) = (self.0 >> NUMBER, now.tag());
        if tag == now {
            Age::Current
        } else if tag >> COUNT == now >> COUNT {
            Age::Stale
        } else {
            Age::Foreign
        }
    }
}

/// Objects that commands name by a number.
pub(crate) trait Object {
    /// The number's type.
    type Number;

    /// The age, for an HCA in generation `now`.
    fn made(&self, now: Generation) -> Age;
    /// The device's number, meaningful in its generation only: commands use `Firmware::resolve`, which
    /// checks that.
    fn name(&self) -> Self::Number;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_belong_to_one_generation_of_one_hca() {
        let first = Generation::first(0x7f12_3456_7000);
        let other = Generation::first(0x7f12_3456_8000);
        let name = Tagged::new(0xff_ffff, first);
        assert_eq!((name.number(), name.made(first)), (0xff_ffff, Age::Current));
        assert_eq!(first.made(first), Age::Current);
        let mut generation = first;
        for _ in 0..300 {
            generation = generation.next();
            assert_eq!((name.made(generation), first.made(generation)), (Age::Stale, Age::Stale));
            assert_eq!(name.made(other), Age::Foreign);
        }
        assert_eq!(first.made(other), Age::Foreign);
        assert_ne!(Tagged::new(0xff_ffff, generation), name);
    }
}
