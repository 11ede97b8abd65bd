//! Completions in short (PRM, CQE compression): of receives that follow each other and differ in nothing but their length, one whole CQE (the
//! title) is written, and the lengths in the entry behind it. Entries that this saves stay as they are, and count all the same.

use mlx5_prm::Field;
use mlx5_prm::datapath::{CqeFormat, CqeOpcode, cqe_format, cqe_opcode, cqe_se, cqe64};

/// The most completions of one title (`cmd_hca_cap.cqe_compression_max_num`). The entry behind the title holds eight; there are users who look
/// for the eighth elsewhere.
pub const MOST: usize = 7;

/// What a short completion says besides its length (`cqc.mini_cqe_res_format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MiniFormat {
    /// A hash of an Ethernet packet: none here.
    Hash,
    /// A checksum of one: none here.
    Checksum,
    /// The same, and the counter of the receive WQE.
    ChecksumAndStride,
}

impl MiniFormat {
    /// The format that a context asks for.
    #[must_use]
    pub const fn new(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Hash,
            1 => Self::Checksum,
            3 => Self::ChecksumAndStride,
            _ => return None,
        })
    }
}

const MINI: usize = 8;
const STRIDE_INDEX: Field = Field::bits(0x00, 15, 0);
const BYTE_COUNT: Field = Field::bits(0x04, 31, 0);

/// Completions that are held back to be written in short.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    title: [u8; cqe64::SIZE],
    minis: [[u8; MINI]; MOST],
    len: usize,
    format: MiniFormat,
}

/// What a session is written as.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// The first entry, its owner bit aside.
    pub(crate) title: [u8; cqe64::SIZE],
    /// The entry behind it, if there is more than one completion.
    pub(crate) array: Option<[u8; cqe64::SIZE]>,
    /// Entries that they count as.
    pub(crate) entries: u32,
}

/// A completion without what may differ.
fn common(cqe: &[u8; cqe64::SIZE]) -> [u8; cqe64::SIZE] {
    let mut common = *cqe;
    for field in [cqe64::byte_cnt, cqe64::timestamp_h, cqe64::timestamp_l, cqe64::wqe_counter] {
        field.set(&mut common, 0u8);
    }
    common
}

impl Session {
    /// A session that begins with `cqe`; `None` where that cannot be part of one.
    #[must_use]
    pub fn begin(cqe: &[u8; cqe64::SIZE], format: MiniFormat) -> Option<Self> {
        let [.., op_own] = *cqe;
        let received = [CqeOpcode::RESP_WR_IMM, CqeOpcode::RESP_SEND, CqeOpcode::RESP_SEND_IMM]
            .contains(&cqe_opcode(op_own));
        if !received || cqe_se(op_own) || cqe_format(op_own) != CqeFormat::NO_INLINE_DATA {
            return None;
        }
        let mut session = Self { title: *cqe, minis: [[0; MINI]; MOST], len: 0, format };
        session.put(cqe);
        Some(session)
    }

    fn put(&mut self, cqe: &[u8; cqe64::SIZE]) {
        let Some(mini) = self.minis.get_mut(self.len) else { return };
        if self.format == MiniFormat::ChecksumAndStride {
            STRIDE_INDEX.set(mini, cqe64::wqe_counter.get32(cqe));
        }
        BYTE_COUNT.set(mini, cqe64::byte_cnt.get32(cqe));
        self.len += 1;
    }

    /// Takes a further completion, or not.
    #[must_use]
    pub fn add(&mut self, cqe: &[u8; cqe64::SIZE]) -> bool {
        let next = (cqe64::wqe_counter.get32(&self.title) as u16).wrapping_add(self.len as u16);
        let follows = cqe64::wqe_counter.get32(cqe) as u16 == next && common(cqe) == common(&self.title);
        if !follows || self.len == MOST {
            return false;
        }
        self.put(cqe);
        true
    }

    /// What is to be written.
    #[must_use]
    pub fn written(&self) -> Written {
        if self.len < 2 {
            return Written { title: self.title, array: None, entries: 1 };
        }
        let mut title = self.title;
        cqe64::byte_cnt.set(&mut title, self.len as u32);
        cqe64::format.set(&mut title, CqeFormat::COMPRESSED.0);
        let mut array = [0; cqe64::SIZE];
        for (to, mini) in array.chunks_exact_mut(MINI).zip(&self.minis) {
            to.copy_from_slice(mini);
        }
        Written { title, array: Some(array), entries: self.len as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(counter: u16, bytes: u32) -> [u8; 64] {
        let mut cqe = [0; 64];
        cqe64::qpn.set(&mut cqe, 0x123u32);
        cqe64::timestamp_l.set(&mut cqe, u32::from(counter));
        cqe64::wqe_counter.set(&mut cqe, counter);
        cqe64::byte_cnt.set(&mut cqe, bytes);
        cqe64::opcode.set(&mut cqe, CqeOpcode::RESP_SEND.0);
        cqe
    }

    #[test]
    fn receives_in_a_row_are_one_title_and_their_lengths() {
        for format in [MiniFormat::Hash, MiniFormat::Checksum, MiniFormat::ChecksumAndStride] {
            let mut session = Session::begin(&received(0xfffe, 100), format).expect("a receive");
            for i in 1..MOST as u16 {
                assert!(session.add(&received(0xfffeu16.wrapping_add(i), 100 + u32::from(i))));
            }
            assert!(!session.add(&received(0xfffeu16.wrapping_add(MOST as u16), 7)), "it is full");
            let written = session.written();
            assert_eq!(written.entries, 7);
            assert_eq!(cqe64::byte_cnt.get32(&written.title), 7);
            assert_eq!(cqe64::wqe_counter.get32(&written.title), 0xfffe);
            assert_eq!(written.title[63], CqeOpcode::RESP_SEND.0 << 4 | 3 << 2);
            let array = written.array.expect("several");
            let strides =
                if format == MiniFormat::ChecksumAndStride { [[0xff, 0xff], [0, 4]] } else { [[0; 2]; 2] };
            for (at, [high, low], bytes) in [(8, strides[0], 101), (48, strides[1], 106)] {
                assert_eq!(array[at..at + 8], [0, 0, high, low, 0, 0, 0, bytes]);
            }
            assert_eq!(array[56..], [0; 8]);
        }
    }

    #[test]
    fn what_differs_ends_a_session() {
        let first = received(5, 64);
        let session = Session::begin(&first, MiniFormat::Hash).expect("a receive");
        for (field, value) in [
            (cqe64::wqe_counter, 7),
            (cqe64::qpn, 0x124),
            (cqe64::immediate, 1),
            (cqe64::se, 1),
            (cqe64::opcode, CqeOpcode::RESP_SEND_IMM.0.into()),
            (cqe64::format, CqeFormat::INLINE_DATA32_SEG.0.into()),
        ] {
            let mut next = received(6, 64);
            assert!({ session }.add(&next));
            field.set(&mut next, value as u32);
            assert!(!{ session }.add(&next));
        }
        for opcode in [CqeOpcode::REQ, CqeOpcode::RESP_ERR, CqeOpcode::RESP_SEND_INV] {
            let mut other = first;
            cqe64::opcode.set(&mut other, opcode.0);
            assert!(Session::begin(&other, MiniFormat::Hash).is_none(), "{opcode}");
        }
        let alone = session.written();
        assert!(alone.array.is_none() && alone.title == first);
    }
}
