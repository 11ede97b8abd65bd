//! What a completion still in its queue means to the consumer and to the connection.

/// What a completion means.
#[derive(Clone, Copy)]
pub(crate) enum Meaning {
    /// Nothing for the consumer: of a freed EP, suppressed, or our own.
    Nothing,
    /// An event, and whether it notifies beyond its mere arrival.
    Deliver { unsignalled: bool },
}

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
