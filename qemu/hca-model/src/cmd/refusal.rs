//! Why firmware refuses a command, and what the output then holds (PRM, command interface).

use crate::log::Subject;
use mlx5_prm::cmd::cmd_out;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status firmware gives.
    pub status: CmdStatus,
    /// The field at fault, `structure.field`; empty when there is none.
    pub field: String,
    /// In words.
    pub text: String,
}

impl Refusal {
    /// A refusal because of `field`.
    pub fn new(status: CmdStatus, field: impl Into<String>, text: impl Into<String>) -> Self {
        Self { status, field: field.into(), text: text.into() }
    }

    /// BAD_PARAM because of `field`.
    pub fn param(field: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(CmdStatus::BAD_PARAM, field, text)
    }

    /// BAD_RES: `field` names an object that does not exist.
    pub fn missing(field: impl Into<String>, number: u32) -> Self {
        Self::new(CmdStatus::BAD_RES, field, format!("{number:#x} does not exist"))
    }

    /// BAD_RES_STATE, as real cards say it: the object is referred to.
    pub fn busy(field: impl Into<String>, by: impl Into<String>) -> Self {
        Self::new(CmdStatus::BAD_RES_STATE, field, by)
    }

    /// BAD_OP: the command does not have `op_mod`.
    pub fn op_mod(op_mod: u16) -> Self {
        Self::new(CmdStatus::BAD_OP, "op_mod", format!("{op_mod:#x}"))
    }

    /// NO_RES: the table is full.
    pub fn full(what: &str) -> Self {
        Self::new(CmdStatus::NO_RES, "", format!("no more {what}"))
    }

    /// Makes the output of the refused command. Answers what the log calls it.
    pub(super) fn answer(&self, opcode: Opcode, output: &mut Vec<u8>) -> Subject {
        // A syndrome tells NVIDIA's support which check it was; here it is made of opcode and status.
        let syndrome = 0x00e0_0000 | u32::from(opcode.0) << 4 | u32::from(self.status.0 & 0xf);
        output.clear();
        output.resize(16, 0);
        cmd_out::status.set(output, self.status.0);
        cmd_out::syndrome.set(output, syndrome);
        Subject::Command { opcode, status: self.status, syndrome }
    }
}

/// Whether a command was carried out.
pub type Outcome = Result<(), Refusal>;

/// Commands that were refused since power-on. Each is counted once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refused {
    /// Those for which the function has used up what it may have.
    pub(super) for_quota: u32,
    /// All others.
    pub(super) as_invalid: u32,
}

impl Refused {
    /// One more.
    pub(super) fn count(&mut self, status: CmdStatus) {
        let counter = match status {
            CmdStatus::NO_RES | CmdStatus::LIM_ERR => &mut self.for_quota,
            _ => &mut self.as_invalid,
        };
        *counter = counter.wrapping_add(1);
    }
}
