//! Copies between bytes and quadwords, in which the adapter lends frame memory.

use dat_nostd::DmaWord;

/// Bytes per step.
const STEP: usize = 64;

/// Copies bytes to quadwords. Fills the last quadword with 0, and drops bytes that do not fit.
#[inline(always)]
pub(crate) fn put(words: &[DmaWord], bytes: &[u8]) {
    let bytes = bytes.get(..words.len() * 8).unwrap_or(bytes);
    let (steps, rest) = bytes.as_chunks::<STEP>();
    let (wide, words) = split(words, steps.len());
    for (words, bytes) in wide.iter().zip(steps) {
        let (quads, _) = bytes.as_chunks::<8>();
        for (word, quad) in words.iter().zip(quads) {
            word.store(u64::from_ne_bytes(*quad));
        }
    }
    if !rest.is_empty() {
        put_rest(words, rest);
    }
}

#[inline]
fn put_rest(words: &[DmaWord], bytes: &[u8]) {
    let (quads, tail) = bytes.as_chunks::<8>();
    let (whole, rest) = words.split_at_checked(quads.len()).unwrap_or((words, &[]));
    for (word, quad) in whole.iter().zip(quads) {
        word.store(u64::from_ne_bytes(*quad));
    }
    if let Some(word) = rest.first().filter(|_| !tail.is_empty()) {
        let mut last = [0; 8];
        for (to, from) in last.iter_mut().zip(tail) {
            *to = *from;
        }
        word.store(u64::from_ne_bytes(last));
    }
}

/// Copies quadwords to bytes, up to the shorter of both.
#[inline(always)]
pub(crate) fn get(words: &[DmaWord], bytes: &mut [u8]) {
    let room = bytes.len().min(words.len() * 8);
    let (bytes, _) = bytes.split_at_mut(room);
    let (steps, rest) = bytes.as_chunks_mut::<STEP>();
    let (wide, words) = split(words, steps.len());
    for (words, bytes) in wide.iter().zip(steps) {
        let (quads, _) = bytes.as_chunks_mut::<8>();
        for (quad, word) in quads.iter_mut().zip(words) {
            *quad = word.load().to_ne_bytes();
        }
    }
    if !rest.is_empty() {
        get_rest(words, rest);
    }
}

#[inline]
fn get_rest(words: &[DmaWord], bytes: &mut [u8]) {
    let (quads, tail) = bytes.as_chunks_mut::<8>();
    let (whole, rest) = words.split_at_checked(quads.len()).unwrap_or((words, &[]));
    for (word, quad) in whole.iter().zip(quads) {
        *quad = word.load().to_ne_bytes();
    }
    if let Some(word) = rest.first() {
        let last = word.load().to_ne_bytes();
        for (to, from) in tail.iter_mut().zip(last) {
            *to = from;
        }
    }
}

/// Returns the first `steps` groups of [`STEP`] bytes, and the rest.
#[inline]
fn split(words: &[DmaWord], steps: usize) -> (&[[DmaWord; STEP / 8]], &[DmaWord]) {
    let at = (steps * (STEP / 8)).min(words.len());
    let (wide, rest) = words.split_at_checked(at).unwrap_or_default();
    (wide.as_chunks().0, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        /// Every copy to quadwords and back returns the same bytes, and writes nothing beyond the
        /// last quadword.
        #[test]
        fn bytes_come_back(data in prop::collection::vec(any::<u8>(), 0..200)) {
            let words: Vec<DmaWord> = (0..32).map(|_| DmaWord::new(u64::MAX)).collect();
            put(&words, &data);
            let mut back = std::vec![0; data.len()];
            get(&words, &mut back);
            prop_assert_eq!(&back, &data);
            let untouched = &words[data.len().div_ceil(8)..];
            prop_assert!(untouched.iter().all(|word| word.load() == u64::MAX));
        }
    }

    #[test]
    fn more_than_there_is_room_for_is_left_out() {
        let words: Vec<DmaWord> = (0..5).map(|_| DmaWord::new(0)).collect();
        put(&words, &[7; 100]);
        let mut back = [1; 100];
        get(&words, &mut back);
        assert!(back[..40].iter().all(|&byte| byte == 7) && back[40..].iter().all(|&byte| byte == 1));
    }
}
