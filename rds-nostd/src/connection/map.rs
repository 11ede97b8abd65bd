//! What a connection has to do with congestion maps: ours on its way to the peer, the peer's on its way here.

/// The state of both maps' transport.
#[derive(Debug)]
pub(crate) struct MapState {
    /// Fragments of our map that must go first.
    pub(crate) to_send: u8,
    /// Our map changed since its first fragment was posted.
    pub(crate) changed: bool,
    /// Our map changed since the last one that the peer has for certain; and the number of the last post of a map.
    pub(crate) owed: bool,
    pub(crate) post: u64,
    /// A socket was refused because of the peer's map: the next one must be heard of, if by connecting anew.
    pub(crate) wanted: bool,
    /// A first fragment of the peer's map has arrived.
    pub(crate) begun: bool,
    /// The peer's map has ports that take no more.
    pub(crate) some_marked: bool,
}

impl MapState {
    pub(crate) const EMPTY: Self = Self {
        to_send: 0,
        changed: false,
        owed: false,
        post: 0,
        wanted: false,
        begun: false,
        some_marked: false,
    };

    /// Whether something of our map is to be sent.
    #[inline(always)]
    pub(crate) const fn is_due(&self) -> bool {
        self.to_send > 0 || self.changed
    }

    pub(crate) const fn reset(&mut self) {
        self.to_send = 0;
        self.post = u64::MAX;
        self.begun = false;
    }
}
