//! Layouts and constants of the mlx5 Programmer's Reference Manual (PRM), bit-exact and named as
//! the manual names them.
//!
//! Everything here is data about the interface between a ConnectX HCA and its driver: no registers
//! are touched, no memory is owned, nothing is allocated. Driver and emulated HCA share it, so the
//! layouts are proven against a source of their own (see "How it is proven").
//!
//! # How the manual's names map to Rust
//!
//! | manual, Linux's `mlx5_ifc.h` | here |
//! |---|---|
//! | structure `create_cq_in` | module [`commands::create_cq_in`] with `SIZE` and `LAYOUT` |
//! | field `cqc.uar_page` | [`contexts::cqc::uar_page`]: a [`Field`] with `get` and `set` |
//! | embedded structure `create_cq_in.cq_context` | a [`Part`], read as the inner structure |
//! | union | a structure whose members are all [`Kind::Variant`] |
//! | open-ended array `pas[]` | constant of type [`Tail`] |
//! | opcode `MLX5_CMD_OP_CREATE_CQ` | [`Opcode::CREATE_CQ`] |
//! | opcodes `2ERR_QP`, `2RST_QP` | [`Opcode::QP_2ERR`], [`Opcode::QP_2RST`] |
//! | other enumerations | newtypes, also for unnamed values: [`status`], [`event`], [`value`] |
//! | masks | `bitflags` types, as [`value::OptParamMask`] |
//! | a field called `type` | the raw identifier `r#type` |
//!
//! All structures are big-endian byte strings; a [`Field`] reads and writes integers in CPU order.
//! Unnamed bits of a structure are reserved: [`Layout::reserved_bits_set`] finds set bits there.
//!
//! # Layer map
//!
//! - [`init_seg`]: BAR0, its initialization segment, health buffer, timers, and the registers of a
//!   UAR page.
//! - [`cmd`]: command queue entry, mailbox block, signatures. [`opcode`]: opcodes with the layouts
//!   of input and output.
//! - [`commands`], [`contexts`], [`caps`], [`registers`], [`steering`]: contents of commands.
//! - [`datapath`]: WQEs, CQEs, EQEs, doorbells, with byte offsets for code that writes them in
//!   place.
//! - [`status`], [`event`], [`value`]: numbers with names.
//! - [`ALL`]: every layout, for tables, tracing and comparison.
//!
//! # Example
//!
//! The input of CREATE_CQ for 64 entries, and its bytes as the device reads them:
//!
//! ```
//! use mlx5_prm::commands::create_cq_in;
//! use mlx5_prm::contexts::cqc;
//! use mlx5_prm::Opcode;
//!
//! let mut input = [0u8; create_cq_in::pas.len_with(1)];
//! create_cq_in::opcode.set(&mut input, Opcode::CREATE_CQ.0);
//! let context = create_cq_in::cq_context.of_mut(&mut input);
//! cqc::log_cq_size.set(context, 6u8);
//! cqc::uar_page.set(context, 0x10u32);
//! cqc::dbr_addr.set(context, 0x1234_5000u64);
//! create_cq_in::pas.set_quad(&mut input, 0, 0x1234_6000);
//!
//! let opcode = Opcode::of(&input);
//! assert_eq!(opcode.to_string(), "CREATE_CQ");
//! let layout = opcode.input_layout().ok_or("no layout")?;
//! assert_eq!(layout.size, 272);
//! assert_eq!(layout.reserved_bits_set(&input), None);
//! assert_eq!(cqc::uar_page.get(create_cq_in::cq_context.of(&input)), 0x10);
//! # Ok::<(), &str>(())
//! ```
//!
//! # How it is proven
//!
//! The tests take Debian's package of the Linux 6.1 headers (never part of this repository). They
//! compare each field's name, offset and width, and each structure's size and completeness with
//! `mlx5_ifc.h`. Structures that it lacks are compared with the C structures of `device.h` and
//! `qp.h`, and the constants with the headers' enumerators. Without the package the tests report
//! that they are skipped; with `MLX5_TESTS_REQUIRE=1` they fail. The example `layouts` prints all
//! fields.
//!
//! # What is not covered
//!
//! These have only their opcodes: e-switch, LAG, schedulers, general objects and FPGA. These have
//! none of their contents: compressed CQEs, and signature (BSF, PSV) segments. The capability types
//! are general, general-2, Ethernet offloads, ODP, RoCE, atomic and NIC flow tables. Among PPCNT's
//! counter groups only InfiniBand's and 802.3's are here.
#![no_std]
#![forbid(unsafe_code)]

mod layout;

mod all;
mod code;

pub mod caps;
pub mod cmd;
pub mod commands;
pub mod contexts;
pub mod datapath;
pub mod event;
pub mod init_seg;
pub mod later;
pub mod management;
pub mod opcode;
pub mod registers;
pub mod status;
pub mod steering;
pub mod value;

pub use all::ALL;
#[doc(hidden)]
pub use layout::plain_name;
pub use layout::{Entry, Field, Kind, Layout, Leaf, Part, Path, Shown, Tail};
pub use opcode::Opcode;
