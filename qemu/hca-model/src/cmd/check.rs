//! Checks that every command passes before its handler sees it: opcode, system state, lengths, reserved bits.

use super::devx;
use super::refusal::{Outcome, Refusal};
use crate::device::Life;
use crate::profile::Strictness;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::{Kind, Layout};
use std::borrow::Cow;

/// What is odd about a command that is carried out all the same: the field, and what is wrong with it.
pub(super) type Remark = (String, String);

/// Commands that the device carries out between ENABLE_HCA and INIT_HCA (PRM, driver start-up).
fn before_init(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::ENABLE_HCA
            | Opcode::DISABLE_HCA
            | Opcode::QUERY_ISSI
            | Opcode::SET_ISSI
            | Opcode::QUERY_PAGES
            | Opcode::MANAGE_PAGES
            | Opcode::QUERY_HCA_CAP
            | Opcode::SET_HCA_CAP
            | Opcode::QUERY_ADAPTER
            | Opcode::ACCESS_REG
            | Opcode::INIT_HCA
            | Opcode::TEARDOWN_HCA
            | Opcode::SET_DRIVER_VERSION
            | Opcode::NOP
    )
}

/// Commands whose output the driver may ask for in part (a capability block, a page list, a context).
fn output_may_be_cut(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::QUERY_HCA_CAP
            | Opcode::QUERY_QP
            | Opcode::QUERY_CQ
            | Opcode::QUERY_EQ
            | Opcode::QUERY_MKEY
            | Opcode::QUERY_SRQ
            | Opcode::QUERY_XRC_SRQ
            | Opcode::QUERY_RMP
    )
}

/// Whether the structure ends in an open array (perhaps inside its last member).
fn has_tail(layout: &Layout) -> bool {
    layout.entries.iter().any(|entry| match entry.kind {
        Kind::Tail(_) => true,
        Kind::Struct(_, inner) | Kind::Variant(_, inner) => has_tail(inner),
        _ => false,
    })
}

/// The system state allows `opcode`.
pub(super) fn state(opcode: Opcode, life: Life) -> Outcome {
    let allowed = match life {
        Life::Disabled => matches!(opcode, Opcode::ENABLE_HCA | Opcode::NOP),
        Life::Enabled => before_init(opcode),
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
    let shortest = if output_may_be_cut(opcode) { output.size.min(16) } else { output.size };
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
