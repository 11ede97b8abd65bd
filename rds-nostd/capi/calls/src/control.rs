//! What goes along with a message: from the program's control messages, and to them.

use crate::abi::abi_of;
use crate::failure::Answer;
use crate::memory::{elements, lent};
use dat_nostd::DmaSlice;
use heapless::Vec;
use rds_nostd::cmsg::{Cmsg, ControlWriter, RdsIovec, RxTrace, SendControl};
use rds_nostd::{Arrival, Control, MAX_PIECES, Profile, RdsError};

/// Memory that an operation moves: room for one piece more than any operation takes, which is then refused.
pub struct Pieces(Vec<DmaSlice<'static>, { MAX_PIECES + 1 }>);

// SAFETY: a call fills it and makes use of it; between calls, in which another thread may get it, nobody looks at what it has.
unsafe impl Send for Pieces {}

impl Pieces {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }
}

impl Default for Pieces {
    fn default() -> Self {
        Self::new()
    }
}

/// What a `sendmsg` asks for beside its message.
pub(crate) struct Asked(SendControl);

impl Asked {
    /// # Errors
    /// [`RdsError::InvalidArgument`]; [`RdsError::NotSupported`]: to send without a copy.
    pub(crate) fn parse(profile: Profile, bytes: &[u8]) -> Result<Self, RdsError> {
        let control = SendControl::parse(abi_of(profile), bytes)?;
        if control.zcopy.is_some() {
            return Err(RdsError::NotSupported);
        }
        Ok(Self(control))
    }

    /// The same as the protocol takes it, with the memory that it names.
    ///
    /// # Errors
    /// [`RdsError::InvalidArgument`], [`RdsError::MessageSize`]; [`Failure::Fault`](crate::Failure::Fault): a null pointer.
    ///
    /// # Safety
    /// That memory is the program's, and stays as long as it is used.
    pub(crate) unsafe fn control<'p>(&self, pieces: &'p mut Pieces) -> Answer<Control<'p>> {
        let control = &self.0;
        // SAFETY: this function's contract.
        let lend = |element: &RdsIovec| unsafe { lent(element) };
        let Pieces(pieces) = pieces;
        pieces.clear();
        if let Some(rdma) = &control.rdma {
            // SAFETY: this function's contract.
            for element in unsafe { elements(rdma.local_vec_addr, rdma.nr_local) }?.iter() {
                if pieces.push(lend(&element?)?).is_err() {
                    break;
                }
            }
        }
        let word = |addr| lend(&RdsIovec { addr, bytes: 8 });
        let atomic = control.atomic.as_ref().map(|atomic| word(atomic.local_addr)).transpose()?;
        let map = control.map.as_ref().map(|map| lend(&map.vec)).transpose()?;
        Ok(Control {
            rdma: control.rdma.as_ref().map(|rdma| rdma.with(pieces)),
            atomic: control.atomic.as_ref().zip(atomic).map(|(args, local)| args.with(local)),
            map: control.map.as_ref().zip(map).map(|(args, memory)| (memory, args.flags)),
            dest: control.dest,
            lend: None,
        })
    }

    /// Where the program wants the cookie of memory that was mapped.
    pub(crate) fn cookie_at(&self) -> u64 {
        self.0.map.map_or(0, |map| map.cookie_addr)
    }
}

/// Writes what came along; how many bytes, and whether something had no room. `more` gives further ends of operations, as many as there is
/// room for.
pub(crate) fn told(
    profile: Profile,
    room: &mut [u8],
    (arrival, latency): (&Arrival, Option<RxTrace>),
    mut more: impl FnMut() -> Option<rds_nostd::RdmaNotify>,
) -> (usize, bool) {
    let mut writer = ControlWriter::new(abi_of(profile), room);
    match arrival {
        Arrival::RdmaStatus(first) => {
            let mut next = Some(*first);
            let mut left = writer.room_for_statuses();
            while let Some(notify) = next {
                writer.push(&Cmsg::RdmaStatus(notify));
                left -= 1;
                next = if left > 0 { more() } else { None };
            }
        }
        Arrival::CongestionUpdate(ports) => {
            writer.push(&Cmsg::CongUpdate(*ports));
        }
        Arrival::Message(message) => {
            if let Some(cookie) = message.cookie {
                writer.push(&Cmsg::RdmaDest(cookie));
            }
            if let Some(trace) = latency {
                writer.push(&Cmsg::RxpathLatency(trace));
            }
        }
        Arrival::Lent(_) | Arrival::Nothing => {}
    }
    writer.finish()
}
