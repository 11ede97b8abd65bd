//! What the data path reads and writes: work queue entries, completions, events, doorbells.
//!
//! Linux's `mlx5_ifc.h` does not describe most of these; the names are those of the C structures in its `device.h` and `qp.h`
//! without the `mlx5_` prefix, with packed words taken apart into the manual's fields.

pub(crate) mod completion;
pub(crate) mod doorbell;
pub(crate) mod event;
pub(crate) mod wqe;

pub use completion::*;
pub use doorbell::*;
pub use event::*;
pub use wqe::*;
