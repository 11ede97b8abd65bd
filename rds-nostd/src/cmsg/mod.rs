//! Control messages in the layout of C programs, the structures of `setsockopt` that share their
//! fields, and socket addresses. For a C layer above this crate: it converts bytes and dereferences
//! no address of a program.
//!
//! | type | name | payload, bytes | goes with |
//! |---|---|---|---|
//! | 1 | `RDS_CMSG_RDMA_ARGS` | [`RdsRdmaArgs`], 56 | `sendmsg` |
//! | 2 | `RDS_CMSG_RDMA_DEST` | cookie, 8 | both |
//! | 3 | `RDS_CMSG_RDMA_MAP` | [`RdsGetMrArgs`], 32 | `sendmsg` |
//! | 4 | `RDS_CMSG_RDMA_STATUS` | [`RdmaNotify`](crate::RdmaNotify), 16 or 8 | `recvmsg` |
//! | 5 | `RDS_CMSG_CONG_UPDATE` | ports, folded by 64, 8 | `recvmsg` |
//! | 6, 7, 8, 9 | `RDS_CMSG_ATOMIC_FADD`, `_CSWP`, `RDS_CMSG_MASKED_ATOMIC_FADD`, `_CSWP` | [`RdsAtomicArgs`], 72 | `sendmsg` |
//! | 11 | `RDS_CMSG_RXPATH_LATENCY` | [`RxTrace`], 32 | `recvmsg` |
//! | 12 | `RDS_CMSG_ZCOPY_COOKIE` | cookie, 4 | `sendmsg` |
//! | 13 | `RDS_CMSG_ZCOPY_COMPLETION` | [`ZcopyCookies`], 36 | `recvmsg` |
//!
//! An [`Abi`] selects the layout: Linux, illumos, or rds(3SOCKET). [`SendControl::parse`] reads the
//! control messages of `sendmsg`, and [`Rds::recvmsg_control`](crate::Rds::recvmsg_control) writes
//! those of `recvmsg`. Sources: Linux `include/uapi/linux/rds.h`, `net/rds/send.c`, `put_cmsg` in
//! `net/core/scm.c`; illumos `sys/rds.h`; rds(3SOCKET).

mod abi;
mod address;
mod args;
mod buffer;
mod error;
mod fields;
mod interface;
mod latency;
mod message;
mod receive;
mod send;
#[cfg(test)]
mod tests;

pub use abi::Abi;
pub use address::{SOCKADDR_LEN, decode_address, encode_address};
pub use args::{
    RdsAtomicArgs, RdsFreeMrArgs, RdsGetMrArgs, RdsGetMrForDestArgs, RdsIovec, RdsRdmaArgs, RxTrace,
    RxTraceOption, ZcopyCookies,
};
pub use buffer::{ControlReader, ControlWriter};
pub use error::CmsgError;
pub use interface::{IFREQ_LEN, InterfaceField, encode_ifreq, named_interface};
pub use message::{Cmsg, MAX_PAYLOAD_LEN};
pub use send::SendControl;
