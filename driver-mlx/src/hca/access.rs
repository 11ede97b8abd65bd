//! Access registers: those of bring-up and of the port. What a device may refuse is not asked for twice.

use super::Hca;
use super::exec::input;
use crate::error::Error;
use crate::platform::Platform;
use mlx5_prm::commands::access_register_in;
use mlx5_prm::later;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::registers::paos_reg;
use mlx5_prm::status::DeliveryStatus;
use mlx5_prm::value::RegisterId;

/// `paos_reg.admin_status`: switched off.
const ADMIN_DOWN: u32 = 2;

impl<P: Platform> Hca<'_, P> {
    /// Reads or writes an access register; `N` is 16 more than its bytes.
    pub(super) fn access_register<const N: usize>(
        &mut self,
        register: RegisterId,
        write: bool,
        data: &mut [u8],
    ) -> Result<(), Error> {
        let mut command = input::<N>(Opcode::ACCESS_REG, u16::from(!write));
        access_register_in::register_id.set(&mut command, register.0);
        command.iter_mut().skip(16).zip(data.iter()).for_each(|(to, from)| *to = *from);
        let mut out = [0; N];
        self.exec(&command, &mut out)?;
        data.iter_mut().zip(out.iter().skip(16)).for_each(|(to, from)| *to = *from);
        Ok(())
    }

    /// Switches the port on if somebody has switched it off. INIT_HCA starts the link of one that is on; what owns no port is refused.
    pub(super) fn port_up(&mut self) -> Result<(), Error> {
        let mut register = [0; paos_reg::SIZE];
        paos_reg::local_port.set(&mut register, 1u32);
        if !optional(self.access_register::<32>(RegisterId::PAOS, false, &mut register))?
            || paos_reg::admin_status.get32(&register) != ADMIN_DOWN
        {
            return Ok(());
        }
        let mut register = [0; paos_reg::SIZE];
        paos_reg::local_port.set(&mut register, 1u32);
        paos_reg::admin_status.set(&mut register, 1u32);
        paos_reg::ase.set(&mut register, 1u32);
        optional(self.access_register::<32>(RegisterId::PAOS, true, &mut register)).map(|_| ())
    }

    /// Time-outs by DTOR. A device that refuses it leaves the defaults.
    pub(super) fn read_default_timeouts(&mut self) -> Result<(), Error> {
        let mut register = [0; later::DTOR_LEN];
        let read = self.access_register::<{ 16 + later::DTOR_LEN }>(RegisterId::DTOR, false, &mut register);
        if optional(read)? {
            self.limits.read_register(&register);
        }
        Ok(())
    }

    /// A host that counts as the device expects can do without.
    pub(super) fn set_host_endianness(&mut self) -> Result<(), Error> {
        let mut data = [0; 16];
        data[0] = if cfg!(target_endian = "big") { 0x80 } else { 0 };
        let written = self.access_register::<32>(RegisterId::HOST_ENDIANNESS, true, &mut data);
        if cfg!(target_endian = "big") { written } else { optional(written).map(|_| ()) }
    }
}

/// Whether a command that a device may do without succeeded: that firmware refuses it is no error, and in the trace.
pub(super) fn optional(result: Result<(), Error>) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(Error::Command(error)) if error.delivery == DeliveryStatus::OK => Ok(false),
        Err(error) => Err(error),
    }
}
