//! Communication management (IBA volume 1, chapter 12).

pub mod message;
