//! The variant CRC of a packet, by slicing tables made at compile time.
//!
//! It is computed least significant bit first, starts from all ones and ends complemented (IBTA 1.3, 7.8.2), with polynomial
//! 0x100b (reflected 0xd008).

const POLYNOMIAL: u16 = 0xd008;
const SLICES: usize = 8;

/// Bytes of the variant CRC.
pub const VCRC_LEN: usize = 2;

/// `TABLES[k][b]`: what byte `b` contributes when `k` more bytes follow it.
static TABLES: [[u16; 256]; SLICES] = tables();

const fn tables() -> [[u16; 256]; SLICES] {
    let mut t = [[0u16; 256]; SLICES];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u16;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 != 0 { (c >> 1) ^ POLYNOMIAL } else { c >> 1 };
            bit += 1;
        }
        t[0][i] = c;
        i += 1;
    }
    let mut k = 1;
    while k < SLICES {
        let mut i = 0;
        while i < 256 {
            let c = t[k - 1][i];
            t[k][i] = (c >> 8) ^ t[0][(c & 0xff) as usize];
            i += 1;
        }
        k += 1;
    }
    t
}

/// Runs `bytes` through the VCRC register `crc` (start with `!0`, complement at the end).
fn vcrc_update(mut crc: u16, bytes: &[u8]) -> u16 {
    let (chunks, rest) = bytes.as_chunks::<8>();
    for c in chunks {
        let [lo, hi] = crc.to_le_bytes();
        crc = TABLES[7][usize::from(c[0] ^ lo)]
            ^ TABLES[6][usize::from(c[1] ^ hi)]
            ^ TABLES[5][usize::from(c[2])]
            ^ TABLES[4][usize::from(c[3])]
            ^ TABLES[3][usize::from(c[4])]
            ^ TABLES[2][usize::from(c[5])]
            ^ TABLES[1][usize::from(c[6])]
            ^ TABLES[0][usize::from(c[7])];
    }
    for &b in rest {
        crc = (crc >> 8) ^ TABLES[0][usize::from(crc as u8 ^ b)];
    }
    crc
}

/// The variant CRC of a link packet, given from the LRH to the ICRC; on the wire least significant byte first.
pub fn vcrc(bytes: &[u8]) -> u16 {
    !vcrc_update(!0, bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Independent of the tables and of the reflected form: a shift register fed bit by bit, as section 7.8 draws it,
    /// with the polynomial as the standard writes it, result bits mirrored at the end.
    pub(in crate::infiniband::packet) fn bitwise(bytes: &[u8], width: u32, poly: u64) -> u64 {
        let mask = (1u64 << width) - 1;
        let mut register = mask;
        for byte in bytes {
            for bit in 0..8 {
                let top = register >> (width - 1) & 1;
                register = register << 1 & mask;
                if top != u64::from(byte >> bit & 1) {
                    register ^= poly;
                }
            }
        }
        let mut mirrored = 0;
        for bit in 0..width {
            mirrored |= (register >> bit & 1) << (width - 1 - bit);
        }
        mirrored ^ mask
    }

    proptest! {
        #[test]
        fn equal_to_the_bitwise_register(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(u64::from(vcrc(&bytes)), bitwise(&bytes, 16, 0x100b));
        }

        #[test]
        fn splits_do_not_matter(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..200) {
            let (a, b) = bytes.split_at(at.min(bytes.len()));
            prop_assert_eq!(!vcrc_update(vcrc_update(!0, a), b), vcrc(&bytes));
        }
    }
}
