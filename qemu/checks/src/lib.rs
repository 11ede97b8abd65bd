//! Checks of the project's sources and documents. They need heavy dependencies, so they are no part
//! of `cargo xtask`, which calls this crate's program.
//!
//! | module | content |
//! |---|---|
//! | [`graph`] | import circles among source files; files with unsafe code |
//! | [`fields`] | structs with visible fields |
//! | [`prose`] | a ratchet for words |
//! | [`docs`] | one site from Markdown files and rustdoc, without a broken link |
//! | `sources` | the project's files, and the packages that they belong to |

pub mod docs;
pub mod fields;
pub mod graph;
pub mod prose;
mod sources;
