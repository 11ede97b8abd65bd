//! Memory: protection zones, local memory regions, remote memory regions.

pub(crate) mod bind;
pub(crate) mod lmr;
pub(crate) mod regions;
pub(crate) mod rmr;
pub(crate) mod windows;
