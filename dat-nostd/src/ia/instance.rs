//! An open interface adapter instance.

use crate::base::handle::EvdHandle;
use crate::conn::framing::Framing;

/// An open IA.
#[derive(Debug)]
pub struct Ia {
    pub(crate) framing: Framing,
    pub(crate) async_evd: EvdHandle,
    /// Made by `ia_open`, so destroyed by `ia_close`.
    pub(crate) own_async_evd: bool,
    /// The EVD has not been freed under the IA.
    pub(crate) async_alive: bool,
}
