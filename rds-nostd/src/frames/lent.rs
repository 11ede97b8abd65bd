//! Zero-copy payloads. The frames of an outgoing message with a payload in application memory
//! contain only headers. The frames of a received message are lent to the application in place.

use core::iter::successors;

use dat_nostd::DmaSlice;

use crate::frames::{Frame, Frames, HEADERS_PER_FRAME, Marks, STRIDE, Unread, Use};
use crate::ids::{MessageId, OperationId, SocketHandle};
use crate::message::FramesHandle;
use crate::wire::{FRAGMENT_LEN, HEADER_LEN, fragments};

/// Location of a lent payload. With several segments only the operation stores it: both fields are
/// 0, and addresses are offsets in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lent {
    pub(crate) address: u64,
    pub(crate) lmr_context: u32,
    /// The operation that holds the registration and notifies the application.
    pub(crate) operation: OperationId,
}

impl Lent {
    /// Context of a payload with several segments, which no LMR has.
    pub(crate) const SCATTERED: u32 = 0;
}

/// Headers of a lent message per frame: a power of two, to avoid divisions.
const PER_FRAME: usize = 1 << HEADERS_PER_FRAME.ilog2();

/// Returns the number of frames for the headers of a lent message.
pub(crate) const fn frames_of_lent(len: usize) -> usize {
    fragments(len).div_ceil(PER_FRAME)
}

/// Returns the position of fragment `index`'s header in its frame, in cache lines.
#[inline]
pub(crate) const fn header_place(index: u16) -> usize {
    index as usize % PER_FRAME
}

impl Frame {
    /// Turns the message that starts here into one with a lent payload.
    pub(crate) fn lend(&mut self, lent: Lent) {
        self.marks |= Marks::LENT;
        self.frames = fragments(self.len as usize) as u16;
        self.extra = [lent.address, u64::from(lent.lmr_context) << 32 | u64::from(lent.operation.bits())];
    }

    /// Returns the location of the payload, if it is lent.
    #[inline]
    pub(crate) fn lent(&self) -> Option<Lent> {
        if !self.is(Marks::LENT) {
            return None;
        }
        let [address, rest] = self.extra;
        let operation = OperationId::from_bits(rest as u16)?;
        Some(Lent { address, lmr_context: (rest >> 32) as u32, operation })
    }
}

impl Frames<'_> {
    /// Lends a received message, which is in no inbox, to a socket's application.
    pub(crate) fn lend(&mut self, unread: &Unread, owner: SocketHandle) -> FramesHandle {
        let Unread { place, len, .. } = *unread;
        let number = match place.message() {
            // The arena's number is enough, because it uses each place once.
            None => self.at(place.frame()).sequence,
            Some(message) => {
                let number = self.next_number();
                let frame = self.message_mut(message);
                (frame.used, frame.last_post) = (Use::Lent, number);
                number
            }
        };
        FramesHandle { place, number, len, owner }
    }

    /// Returns the number of frames that a lent message counts as, or `None` for an invalid handle.
    pub(crate) fn lent_frames(&self, handle: &FramesHandle) -> Option<usize> {
        let Some(message) = handle.place.message() else {
            return self.is_record_lent(handle.place, handle.number).then_some(1);
        };
        let frame = self.message(message);
        let is_lent = frame.used == Use::Lent && frame.last_post == handle.number;
        is_lent.then_some(usize::from(frame.frames))
    }

    /// Returns the bytes of a lent message, fragment by fragment.
    pub(crate) fn lent_payloads(&self, handle: FramesHandle) -> impl Iterator<Item = DmaSlice<'_>> {
        let message = handle.place.message();
        let record = match message {
            None => self.record_payload(handle.place, handle.len),
            Some(_) => None,
        };
        record.into_iter().chain(message.into_iter().flat_map(|message| self.payloads(message)))
    }

    /// Returns the bytes of a received message, fragment by fragment.
    fn payloads(&self, message: MessageId) -> impl Iterator<Item = DmaSlice<'_>> {
        let mut left = self.message(message).len as usize;
        successors(Some(message.first()), |&frame| self.at(frame).next).map_while(move |frame| {
            let len = left.min(FRAGMENT_LEN);
            left -= len;
            self.memory()?.slice(frame.index() * STRIDE + HEADER_LEN, len)
        })
    }
}
