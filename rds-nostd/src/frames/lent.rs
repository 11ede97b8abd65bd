//! Payloads that are not copied. Of a message that is sent from memory of the application the frames have nothing but the headers; of one
//! that was received they are lent to the application as they are.

use core::iter::successors;

use dat_nostd::DmaSlice;

use crate::frames::{Frame, Frames, HEADERS_PER_FRAME, Marks, STRIDE, Use};
use crate::ids::{MessageId, OperationId};
use crate::message::FramesHandle;
use crate::wire::{FRAGMENT_LEN, HEADER_LEN, fragments};

/// Where a lent payload lies. Of one of several pieces the operation knows: then both are 0, and addresses count from the payload's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lent {
    pub(crate) address: u64,
    pub(crate) lmr_context: u32,
    /// What keeps the registration, and tells the application of the end.
    pub(crate) operation: OperationId,
}

impl Lent {
    /// What stands for the region of several pieces: no region is called so.
    pub(crate) const SCATTERED: u32 = 0;
}

/// Headers of a lent message in one frame: a power of two, so that nobody has to divide.
const PER_FRAME: usize = 1 << HEADERS_PER_FRAME.ilog2();

/// Frames for the headers of a lent message of so many bytes.
pub(crate) const fn frames_of_lent(len: usize) -> usize {
    fragments(len).div_ceil(PER_FRAME)
}

/// The place of fragment `index`'s header in its frame, in cache lines.
#[inline(always)]
pub(crate) const fn header_place(index: u16) -> usize {
    index as usize % PER_FRAME
}

impl Frame {
    /// Makes the message that starts here one with a lent payload.
    pub(crate) fn lend(&mut self, lent: Lent) {
        self.marks |= Marks::LENT;
        self.frames = fragments(self.len as usize) as u16;
        self.elsewhere = [lent.address, u64::from(lent.lmr_context) << 32 | u64::from(lent.operation.bits())];
    }

    /// Where the payload lies, if it is lent.
    #[inline(always)]
    pub(crate) fn lent(&self) -> Option<Lent> {
        if !self.is(Marks::LENT) {
            return None;
        }
        let [address, rest] = self.elsewhere;
        let operation = OperationId::from_bits(rest as u16)?;
        Some(Lent { address, lmr_context: (rest >> 32) as u32, operation })
    }
}

impl Frames<'_> {
    /// Lends a received message, which is in no queue, to the application, as loan `number`.
    pub(crate) fn lend(&mut self, message: MessageId, number: u64) -> FramesHandle {
        let frame = self.message_mut(message);
        (frame.used, frame.last_post) = (Use::Lent, number);
        FramesHandle { message, number }
    }

    /// Whether frames are lent as this.
    pub(crate) fn is_lent(&self, handle: FramesHandle) -> bool {
        let frame = self.message(handle.message);
        frame.used == Use::Lent && frame.last_post == handle.number
    }

    /// The bytes of a received message, fragment by fragment.
    pub(crate) fn payloads(&self, message: MessageId) -> impl Iterator<Item = DmaSlice<'_>> {
        let mut left = self.message(message).len as usize;
        successors(Some(message.first()), |&frame| self.at(frame).next).map_while(move |frame| {
            let len = left.min(FRAGMENT_LEN);
            left -= len;
            self.memory()?.slice(frame.index() * STRIDE + HEADER_LEN, len)
        })
    }
}
