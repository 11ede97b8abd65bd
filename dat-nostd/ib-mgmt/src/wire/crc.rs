//! The two CRCs of an InfiniBand packet, by slicing tables made at compile time.
//!
//! Both are computed least significant bit first, start from all ones and end complemented
//! (IBA volume 1, section 7.8): the invariant CRC with the Ethernet polynomial (reflected 0xedb88320), the
//! variant CRC with polynomial 0x100b (reflected 0xd008).

const CRC32_POLY: u32 = 0xedb8_8320;
const VCRC_POLY: u16 = 0xd008;
const SLICES_32: usize = 16;
const SLICES_16: usize = 8;

/// `TABLES_32[k][b]`: what byte `b` contributes when `k` more bytes follow it.
static TABLES_32: [[u32; 256]; SLICES_32] = tables_32();
static TABLES_16: [[u16; 256]; SLICES_16] = tables_16();

const fn tables_32() -> [[u32; 256]; SLICES_32] {
    let mut t = [[0u32; 256]; SLICES_32];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u32;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 != 0 { (c >> 1) ^ CRC32_POLY } else { c >> 1 };
            bit += 1;
        }
        t[0][i] = c;
        i += 1;
    }
    let mut k = 1;
    while k < SLICES_32 {
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

const fn tables_16() -> [[u16; 256]; SLICES_16] {
    let mut t = [[0u16; 256]; SLICES_16];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u16;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 != 0 { (c >> 1) ^ VCRC_POLY } else { c >> 1 };
            bit += 1;
        }
        t[0][i] = c;
        i += 1;
    }
    let mut k = 1;
    while k < SLICES_16 {
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

#[inline(always)]
fn t32(slice: usize, word: u32, byte: u32) -> u32 {
    TABLES_32[slice][((word >> (8 * byte)) & 0xff) as usize]
}

/// Runs `bytes` through the CRC-32 register `crc` (start with `!0`, complement at the end).
pub fn crc32_update(mut crc: u32, bytes: &[u8]) -> u32 {
    let (chunks, rest) = bytes.as_chunks::<16>();
    for c in chunks {
        let w0 = u32::from_le_bytes([c[0], c[1], c[2], c[3]]) ^ crc;
        let w1 = u32::from_le_bytes([c[4], c[5], c[6], c[7]]);
        let w2 = u32::from_le_bytes([c[8], c[9], c[10], c[11]]);
        let w3 = u32::from_le_bytes([c[12], c[13], c[14], c[15]]);
        crc = t32(15, w0, 0) ^ t32(14, w0, 1) ^ t32(13, w0, 2) ^ t32(12, w0, 3);
        crc ^= t32(11, w1, 0) ^ t32(10, w1, 1) ^ t32(9, w1, 2) ^ t32(8, w1, 3);
        crc ^= t32(7, w2, 0) ^ t32(6, w2, 1) ^ t32(5, w2, 2) ^ t32(4, w2, 3);
        crc ^= t32(3, w3, 0) ^ t32(2, w3, 1) ^ t32(1, w3, 2) ^ t32(0, w3, 3);
    }
    for &b in rest {
        crc = (crc >> 8) ^ TABLES_32[0][usize::from(crc as u8 ^ b)];
    }
    crc
}

/// The complete CRC-32 of `bytes`; on the wire least significant byte first.
pub fn crc32(bytes: &[u8]) -> u32 {
    !crc32_update(!0, bytes)
}

/// Runs `bytes` through the VCRC register `crc` (start with `!0`, complement at the end).
pub fn vcrc_update(mut crc: u16, bytes: &[u8]) -> u16 {
    let (chunks, rest) = bytes.as_chunks::<8>();
    for c in chunks {
        let [lo, hi] = crc.to_le_bytes();
        crc = TABLES_16[7][usize::from(c[0] ^ lo)]
            ^ TABLES_16[6][usize::from(c[1] ^ hi)]
            ^ TABLES_16[5][usize::from(c[2])]
            ^ TABLES_16[4][usize::from(c[3])]
            ^ TABLES_16[3][usize::from(c[4])]
            ^ TABLES_16[2][usize::from(c[5])]
            ^ TABLES_16[1][usize::from(c[6])]
            ^ TABLES_16[0][usize::from(c[7])];
    }
    for &b in rest {
        crc = (crc >> 8) ^ TABLES_16[0][usize::from(crc as u8 ^ b)];
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
    pub(in crate::wire) fn bitwise(bytes: &[u8], width: u32, poly: u64) -> u64 {
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

    #[test]
    fn check_value() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        // RoCE: eight bytes of 0xff stand for the LRH and leave this register.
        assert_eq!(crc32_update(!0, &[0xff; 8]), 0xdebb_20e3);
    }

    proptest! {
        #[test]
        fn equal_to_the_bitwise_register(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(u64::from(crc32(&bytes)), bitwise(&bytes, 32, 0x04c1_1db7));
            prop_assert_eq!(u64::from(vcrc(&bytes)), bitwise(&bytes, 16, 0x100b));
        }

        #[test]
        fn splits_do_not_matter(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..200) {
            let (a, b) = bytes.split_at(at.min(bytes.len()));
            prop_assert_eq!(!crc32_update(crc32_update(!0, a), b), crc32(&bytes));
            prop_assert_eq!(!vcrc_update(vcrc_update(!0, a), b), vcrc(&bytes));
        }
    }
}
