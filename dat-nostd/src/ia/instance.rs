//! An open interface adapter instance.

use crate::base::handle::EvdHandle;
use crate::conn::framing::Framing;

/// An open IA.
#[derive(Debug)]
pub struct Ia {
    framing: Framing,
    async_evd: EvdHandle,
    /// Made by `ia_open`, so destroyed by `ia_close`.
    own_async_evd: bool,
    /// The EVD has not been freed under the IA.
    async_alive: bool,
}

impl Ia {
    /// An IA with the consumer's asynchronous EVD. Without one, the caller makes it and sets it.
    pub(crate) fn new(framing: Framing, async_evd: Option<EvdHandle>) -> Self {
        let own_async_evd = async_evd.is_none();
        let async_evd = async_evd.unwrap_or(EvdHandle::from_bits(0));
        Self { framing, async_evd, own_async_evd, async_alive: true }
    }

    pub(crate) fn set_async_evd(&mut self, evd: EvdHandle) {
        self.async_evd = evd;
    }

    /// Its form of CM messages.
    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    /// Its asynchronous EVD, which may have been freed.
    pub(crate) fn async_evd(&self) -> EvdHandle {
        self.async_evd
    }

    /// Returns the EVD for its asynchronous events, unless it was freed.
    pub(crate) fn live_async_evd(&self) -> Option<EvdHandle> {
        self.async_alive.then_some(self.async_evd)
    }

    /// Returns the EVD that its close destroys.
    pub(crate) fn own_async_evd(&self) -> Option<EvdHandle> {
        self.live_async_evd().filter(|_| self.own_async_evd)
    }

    /// An EVD is freed. NetPIPE frees the asynchronous one before it closes the IA, which goes on
    /// without.
    pub(crate) fn evd_freed(&mut self, evd: EvdHandle) {
        self.async_alive &= self.async_evd != evd;
    }
}
