//! Fields of C structures in native byte order. Callers check lengths: reads beyond the end return
//! 0, and writes there have no effect.

pub(super) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(get(bytes, at))
}

pub(super) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(get(bytes, at))
}

pub(super) fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(get(bytes, at))
}

pub(super) fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

pub(super) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(to) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *to = value;
    }
}

pub(super) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    put(bytes, at, value.to_ne_bytes());
}

pub(super) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, value.to_ne_bytes());
}
