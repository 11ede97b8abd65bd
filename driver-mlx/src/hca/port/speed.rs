//! PTYS, by which ports of either medium read the speed of their link.

use super::state::PORT;
use crate::error::Error;
use crate::hca::firmware::{Firmware, access_register, optional};
use crate::hca::memory::Memory;
use crate::platform::Platform;
use mlx5_prm::registers::ptys_reg;
use mlx5_prm::value::RegisterId;

/// Reads PTYS for the protocols of `mask`. `None` where the function may not read it.
pub(super) fn read_ptys<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    mask: u32,
) -> Result<Option<[u8; ptys_reg::SIZE]>, Error> {
    let mut register = [0; ptys_reg::SIZE];
    ptys_reg::local_port.set(&mut register, PORT);
    ptys_reg::proto_mask.set(&mut register, mask);
    let read = access_register::<{ 16 + ptys_reg::SIZE }, P>(
        firmware,
        memory,
        RegisterId::PTYS,
        false,
        &mut register,
    );
    Ok(optional(read)?.then_some(register))
}
