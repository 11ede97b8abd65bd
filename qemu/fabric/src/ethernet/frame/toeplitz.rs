//! The Toeplitz hash of receive side scaling.

/// Bytes of a key: enough for two IPv6 addresses and two ports.
const KEY_LEN: usize = 40;

/// Returns the hash of at most 36 bytes: addresses and ports as in the packet, sources first. Bytes
/// after them have no effect.
#[must_use]
pub fn toeplitz(key: &[u8; KEY_LEN], input: impl IntoIterator<Item = u8>) -> u32 {
    let (window, mut rest) = key
        .split_first_chunk()
        .map_or((0, &[][..]), |(first, rest)| (u64::from(u32::from_be_bytes(*first)), rest));
    let mut window = window;
    let mut hash = 0;
    for byte in input {
        let Some((next, after)) = rest.split_first() else { break };
        rest = after;
        // Bits 39 to 8 are the key at the input's first bit. Each bit of the input moves it by one.
        window = window << 8 | u64::from(*next);
        for bit in 0..8 {
            if byte & 0x80 >> bit != 0 {
                hash ^= (window >> (8 - bit)) as u32;
            }
        }
    }
    hash
}
