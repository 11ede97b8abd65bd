//! Checks that every command passes before its handler sees it: opcode, system state, lengths, reserved bits.

use super::devx;
use super::refusal::{Outcome, Refusal};
use super::table::Command;
use crate::device::Life;
use crate::profile::Strictness;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::{Kind, Layout};
use std::borrow::Cow;

/// What is odd about a command that is carried out all the same: the field, and what is wrong with it.
pub(super) type Remark = (String, String);

/// Whether the structure ends in an open array (perhaps inside its last member).
fn has_tail(layout: &Layout) -> bool {
    layout.entries.iter().any(|entry| match entry.kind {
        Kind::Tail(_) => true,
        Kind::Struct(_, inner) | Kind::Variant(_, inner) => has_tail(inner),
        _ => false,
    })
}

/// The system state allows `opcode`.
pub(super) fn state(opcode: Opcode, command: &Command, life: Life) -> Outcome {
    let allowed = match life {
        Life::Disabled => matches!(opcode, Opcode::ENABLE_HCA | Opcode::NOP),
        Life::Enabled => command.early,
        Life::Initialized => true,
    };
    if allowed {
        return Ok(());
    }
    let text = match life {
        Life::Disabled => "before ENABLE_HCA",
        _ => "before INIT_HCA",
    };
    Err(Refusal::new(CmdStatus::BAD_SYS_STATE, "", text))
}

/// Lengths and reserved bits of the input, and the length of the output, are as the layouts say. Answers the input; a
/// lenient device takes what is missing of it for zero and makes remarks.
pub(super) fn shape<'a>(
    opcode: Opcode,
    command: &Command,
    input: &'a [u8],
    output_len: usize,
    strictness: Strictness,
    remarks: &mut Vec<Remark>,
) -> Result<Cow<'a, [u8]>, Refusal> {
    let (Some(layout), Some(output)) = (opcode.input_layout(), opcode.output_layout()) else {
        return Err(Refusal::new(CmdStatus::BAD_OP, "opcode", "not supported"));
    };
    // A capability block may be cut short: what is missing is zero.
    let shortest = if opcode == Opcode::SET_HCA_CAP { 16 } else { layout.size };
    let mut tolerate = |refusal: Refusal| match strictness {
        Strictness::Strict => Err(refusal),
        Strictness::Lenient => {
            remarks.push((refusal.field, refusal.text));
            Ok(())
        }
    };
    let bad_length = |text: String| Refusal::new(CmdStatus::BAD_INP_LEN, layout.name, text);
    let mut whole = Cow::Borrowed(input);
    if input.len() < shortest {
        tolerate(bad_length(format!("{} bytes, at least {shortest}", input.len())))?;
        whole.to_mut().resize(shortest, 0);
    }
    if input.len() > layout.size && !has_tail(layout) {
        tolerate(bad_length(format!("{} bytes, {} expected", input.len(), layout.size)))?;
    }
    let shortest = if command.partial { output.size.min(16) } else { output.size };
    if output_len < shortest {
        let text = format!("{output_len} bytes, at least {shortest}");
        let refusal = Refusal::new(CmdStatus::BAD_OUTP_LEN, output.name, text);
        // Status and syndrome have to fit.
        if output_len < 16 {
            return Err(refusal);
        }
        tolerate(refusal)?;
    }
    let mut named = Cow::Borrowed(input);
    for field in devx::unnamed_fields(opcode).iter().map(|at| *at..at + 4) {
        if let Some(bytes) = named.to_mut().get_mut(field) {
            bytes.fill(0);
        }
    }
    // The user: in the same place of every command.
    if input.get(2..4).is_some_and(|uid| uid != [0; 2])
        && let Some(uid) = named.to_mut().get_mut(2..4)
    {
        uid.fill(0);
    }
    if let Some((offset, bits)) = layout.reserved_bits_set(&named) {
        let field = format!("{}+{offset:#x}", layout.name);
        tolerate(Refusal::param(field, format!("reserved bits {bits:#010x} set")))?;
    }
    Ok(whole)
}
