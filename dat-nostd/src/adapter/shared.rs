//! What completions change beside their endpoint.

use crate::base::handle::SrqHandle;
use crate::base::table::Table;
use crate::mem::rmr::Windows;
use crate::srq::queue::Srq;

/// What completions change beside their EP.
pub(crate) struct Shared<'s> {
    pub(crate) srqs: Table<'s, SrqHandle, Srq>,
    pub(crate) windows: Windows<'s>,
}
