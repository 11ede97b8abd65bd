//! Conversion between the program's control messages and the protocol's [`Control`].

use crate::abi::abi_of;
use crate::failure::Answer;
use crate::memory::{elements, lent};
use dat_nostd::DmaSlice;
use heapless::Vec;
use rds_nostd::cmsg::{Cmsg, ControlWriter, RdsIovec, RxTrace, SendControl};
use rds_nostd::{Arrival, Control, MAX_IOVS, Profile, RdsError};

/// SGEs of an operation. The capacity is one above the maximum, so that the protocol refuses longer
/// lists.
pub struct Iovs(Vec<DmaSlice<'static>, { MAX_IOVS + 1 }>);

// SAFETY: every call fills the list before it reads it. The pointers that remain between calls,
// when the list may move to another thread, are not followed.
unsafe impl Send for Iovs {}

impl Iovs {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }
}

impl Default for Iovs {
    fn default() -> Self {
        Self::new()
    }
}

/// Control messages of a `sendmsg`.
pub(crate) struct SendArgs(SendControl);

impl SendArgs {
    /// # Errors
    /// [`RdsError::InvalidArgument`]: malformed; [`RdsError::NotSupported`]:
    /// `RDS_CMSG_ZCOPY_COOKIE`.
    pub(crate) fn parse(profile: Profile, bytes: &[u8]) -> Result<Self, RdsError> {
        let control = SendControl::parse(abi_of(profile), bytes)?;
        if control.zcopy.is_some() {
            return Err(RdsError::NotSupported);
        }
        Ok(Self(control))
    }

    /// Converts to the protocol's structure, with the memory that the control messages name.
    ///
    /// # Errors
    /// [`RdsError::InvalidArgument`], [`RdsError::MessageSize`];
    /// [`Failure::Fault`](crate::Failure::Fault): a null pointer.
    ///
    /// # Safety
    /// That memory belongs to the program, and stays mapped while the operation uses it.
    pub(crate) unsafe fn control<'p>(&self, iovs: &'p mut Iovs) -> Answer<Control<'p>> {
        let control = &self.0;
        // SAFETY: this function's contract.
        let lend = |element: &RdsIovec| unsafe { lent(element) };
        let Iovs(iovs) = iovs;
        iovs.clear();
        if let Some(rdma) = &control.rdma {
            // SAFETY: this function's contract.
            for element in unsafe { elements(rdma.local_vec_addr, rdma.nr_local) }?.iter() {
                if iovs.push(lend(&element?)?).is_err() {
                    break;
                }
            }
        }
        let word = |addr| lend(&RdsIovec { addr, bytes: 8 });
        let atomic = control.atomic.as_ref().map(|atomic| word(atomic.local_addr)).transpose()?;
        let map = control.map.as_ref().map(|map| lend(&map.vec)).transpose()?;
        Ok(Control {
            rdma: control.rdma.as_ref().map(|rdma| rdma.with(iovs)),
            atomic: control.atomic.as_ref().zip(atomic).map(|(args, local)| args.with(local)),
            map: control.map.as_ref().zip(map).map(|(args, memory)| (memory, args.flags)),
            dest: control.dest,
            lend: None,
        })
    }

    /// Returns where the program expects the cookie of the memory that it maps, or 0.
    pub(crate) fn cookie_at(&self) -> u64 {
        self.0.map.map_or(0, |map| map.cookie_addr)
    }
}

/// Writes the control messages of an arrival. Returns their length, and whether any was cut. `more`
/// returns further notifications, which are added while there is space.
pub(crate) fn write_control(
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
