//! Communication ids: slot and generation under a keyed permutation of 32-bit numbers. Ids of
//! different boots of a node thus differ, and do not match by accident.

use ib_types::mix;

/// The permutation.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdCipher {
    keys: [u32; 4],
}

const fn round(half: u16, key: u32) -> u16 {
    (mix((key as u64) << 16 | half as u64) >> 24) as u16
}

impl IdCipher {
    pub(super) const fn new(seed: u64) -> IdCipher {
        let (a, b) = (mix(seed), mix(seed ^ 0x5bd1_e995));
        IdCipher { keys: [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32] }
    }

    /// The communication id of a slot's generation.
    pub(super) fn encode(&self, slot: u16, generation: u32) -> u32 {
        let (mut left, mut right) = (generation as u16, slot);
        for key in self.keys {
            (left, right) = (right, left ^ round(right, key));
        }
        u32::from(left) << 16 | u32::from(right)
    }

    /// Slot, and low 16 bits of the generation, of a communication id.
    pub(super) fn decode(&self, id: u32) -> (u16, u16) {
        let (mut left, mut right) = ((id >> 16) as u16, id as u16);
        for key in self.keys.into_iter().rev() {
            (left, right) = (right ^ round(left, key), left);
        }
        (right, left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_of_two_seeds_differ() {
        let (a, b) = (IdCipher::new(1), IdCipher::new(2));
        let same = (0..1000u16).filter(|slot| a.encode(*slot, 5) == b.encode(*slot, 5)).count();
        assert!(same < 3, "{same}");
    }

    proptest! {
        #[test]
        fn decode_undoes_encode(seed: u64, slot: u16, generation: u32) {
            let cipher = IdCipher::new(seed);
            prop_assert_eq!(cipher.decode(cipher.encode(slot, generation)), (slot, generation as u16));
        }
    }
}
