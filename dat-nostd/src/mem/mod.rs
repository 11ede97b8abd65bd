//! Memory: protection zones, local memory regions, remote memory regions, buffers.

pub(crate) mod bind;
pub(crate) mod buffers;
#[allow(unsafe_code)]
pub(crate) mod foreign;
pub(crate) mod lmr;
#[allow(unsafe_code)]
pub(crate) mod processor;
pub(crate) mod regions;
pub(crate) mod rmr;
pub(crate) mod view;
pub(crate) mod windows;
pub(crate) mod zone;
pub(crate) mod zones;
