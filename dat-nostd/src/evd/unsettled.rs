//! What was taken from a CQ and is still to be settled.

use driver_mlx::CqeCopy;

/// What was taken from a CQ and is not just a transfer that ended well: what follows from it is still to come.
// Handed on through the adapter, so that the common case needs no room for it on the stack.
#[derive(Debug)]
pub(crate) enum Unsettled {
    /// An entry that cannot be.
    Refused,
    /// A completion that has not been retired.
    Completion(CqeCopy),
}
