//! Structures of the data path: work queue entries, completions, events, doorbells.
//!
//! Linux's `mlx5_ifc.h` does not describe most of these. The names are those of the C structures in
//! its `device.h` and `qp.h` without the `mlx5_` prefix. Packed words are split into the manual's
//! fields.

pub(crate) mod completion;
pub(crate) mod doorbell;
pub(crate) mod event;
pub(crate) mod wqe;

pub use completion::*;
pub use doorbell::*;
pub use event::*;
pub use wqe::*;
