//! Every operation of a reliable connection, both ways, on the driver alone: no connection manager, the two sides' numbers are
//! exchanged by hand as lines of text ([`Address`]). The peer is another node of this kind or a program on Linux's verbs.
//!
//! Strict lockstep: the client moves first, the server answers with the same operation, and both look at every byte:
//!
//! | phase | client and server in turn |
//! |---|---|
//! | hello | a control message each |
//! | send | a message of pattern bytes |
//! | write | RDMA write into the peer's target, then WRITTEN |
//! | read | the owner fills its source and says READY, the peer reads it |
//! | compare and swap | one that matches and one that does not, on the peer's word, then SWAPPED |
//! | fetch and add | on the peer's word, then ADDED |
//! | done | a control message each |
//!
//! | module | subject |
//! |---|---|
//! | `address` | the lines |
//! | `agreement` | what both sides know: pattern, sizes, words, control messages, the memory's layout |
//! | `endpoint` | queues, memory, posting and completions |
//! | `run` | the order of things |

mod address;
mod agreement;
mod endpoint;
mod error;
mod run;

pub use address::{Address, AddressError};
pub use agreement::{MAX_MESSAGE, Operation, pattern, size};
pub use error::VerbsError;
pub use run::{Config, OperationResult, Verbs};
