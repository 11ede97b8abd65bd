//! Panics planted by tests in the places where the server contains panics.

/// A contained place, with the number of its HCA or the token of its cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Messages and poll of an HCA.
    Turn(usize),
    /// A peer's request at an HCA, by copies.
    Copy(u64),
    /// Frames of a cable from a joined server.
    Cable(u64),
    /// Socket event.
    Event(u64),
    /// Update of an HCA's socket events to wait for.
    Interest(usize),
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Place>> = const { std::cell::Cell::new(None) };
}

/// Plants a panic at `place`, once.
#[cfg(test)]
pub fn plant(place: Place) {
    PLANTED.set(Some(place));
}

/// Panics if a test planted a panic at `place`.
#[inline]
pub fn here(place: Place) {
    #[cfg(test)]
    if PLANTED.get() == Some(place) {
        PLANTED.set(None);
        panic!("planted at {place:?}");
    }
    let _ = place;
}
