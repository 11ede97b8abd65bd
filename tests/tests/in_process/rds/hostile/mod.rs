//! RDS against a peer that speaks its protocol wrongly: a plain DAT consumer that posts frames of its own making. One test for
//! each kind of wrong, and for each rule of what is received.
//!
//! | rule | test |
//! |---|---|
//! | lengths of frames, fragments and messages; checksums; interleaved fragments | [`frames`] |
//! | acknowledgements, numbers, retransmissions, maps, pings, credits, extensions | [`rules`] |
//! | requests in a wrong version or another's name, floods of them | [`requests`], `in_process_rds_connect` |
//! | keys that are guessed, stale, or another's | [`memory`], `in_process_rds_isolation` |

mod frames;
mod memory;
mod peer;
mod requests;
mod rules;
