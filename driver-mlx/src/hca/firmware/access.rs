//! Access registers. A refusal of an optional register is not retried.

use super::{Firmware, Memory};
use crate::cmd::input;
use crate::error::Error;
use crate::platform::Platform;
use mlx5_prm::commands::access_register_in;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::DeliveryStatus;
use mlx5_prm::value::RegisterId;

/// Reads or writes an access register; `N` is 16 more than its bytes.
pub(in crate::hca) fn access_register<const N: usize, P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    register: RegisterId,
    write: bool,
    data: &mut [u8],
) -> Result<(), Error> {
    let mut command = input::<N>(Opcode::ACCESS_REG, u16::from(!write));
    access_register_in::register_id.set(&mut command, register.0);
    command.iter_mut().skip(16).zip(data.iter()).for_each(|(to, from)| *to = *from);
    let mut out = [0; N];
    firmware.exec(memory, &command, &mut out)?;
    data.iter_mut().zip(out.iter().skip(16)).for_each(|(to, from)| *to = *from);
    Ok(())
}

/// Returns whether an optional command succeeded. A refusal is no error, and is in the trace.
pub(in crate::hca) fn optional(result: Result<(), Error>) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(Error::Command(error)) if error.delivery == DeliveryStatus::OK => Ok(false),
        Err(error) => Err(error),
    }
}
