//! Effects of completions on connections.

/// What looking at a completion makes necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Nothing.
    None,
    /// The peer's data came before its confirmation.
    Establish,
    /// The connection is broken.
    Fail,
}
