//! Device memory commands (PRM, command reference).

use super::refusal::{Outcome, Refusal};
use crate::device::Device;
use crate::object::memic::{LOG_MAX_ALIGNMENT, LOG_UNIT, MemicError, Operation};
use mlx5_prm::commands::*;
use mlx5_prm::status::CmdStatus;

/// `op_mod` of MODIFY_MEMIC: an operation address is given out, or back.
const GIVE: u16 = 0;
const TAKE: u16 = 1;

fn refused(error: MemicError, field: &'static str, start: u64) -> Refusal {
    match error {
        MemicError::Outside => Refusal::param(field, format!("{start:#x}: outside the device's memory")),
        // What makes Linux look elsewhere.
        MemicError::Full => Refusal::new(CmdStatus::NO_RES, field, "no room for it in the range"),
        MemicError::Missing => {
            Refusal::new(CmdStatus::BAD_RES, field, format!("{start:#x}: nothing of this kind and length"))
        }
        MemicError::Named(keys) => Refusal::busy(field, format!("named by {keys} memory keys")),
        MemicError::Operation => Refusal::busy(field, "an operation address of it is given out"),
    }
}

impl Device {
    pub(super) fn alloc_memic(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let len = alloc_memic_in::memic_size.get(input);
        if len == 0 || !len.is_multiple_of(1 << LOG_UNIT) {
            let text = format!("{len}, not a multiple of {}", 1 << LOG_UNIT);
            return Err(Refusal::param("alloc_memic_in.memic_size", text));
        }
        let align = alloc_memic_in::log_memic_addr_alignment.get32(input);
        if align > LOG_MAX_ALIGNMENT {
            let text = format!("{align}, at most {LOG_MAX_ALIGNMENT}");
            return Err(Refusal::param("alloc_memic_in.log_memic_addr_alignment", text));
        }
        let range = alloc_memic_in::range_start_addr.get(input);
        let range_len = alloc_memic_in::range_size.get(input);
        self.charge_memic();
        let start = self
            .objects
            .memic
            .alloc(range, range_len, len, LOG_UNIT + align)
            .map_err(|error| refused(error, "alloc_memic_in.range_start_addr", range))?;
        alloc_memic_out::memic_start_addr.set(output, start);
        Ok(())
    }

    pub(super) fn dealloc_memic(&mut self, input: &[u8]) -> Outcome {
        let start = dealloc_memic_in::memic_start_addr.get(input);
        let len = dealloc_memic_in::memic_size.get(input);
        self.meter.charge_bytes(len.min(crate::object::memic::SIZE as u64));
        self.objects
            .memic
            .free(start, len)
            .map_err(|error| refused(error, "dealloc_memic_in.memic_start_addr", start))
    }

    pub(super) fn modify_memic(&mut self, op_mod: u16, input: &[u8], output: &mut [u8]) -> Outcome {
        let number = modify_memic_in::memic_operation_type.get32(input);
        let Some(operation) = Operation::from_type(number) else {
            return Err(Refusal::param("modify_memic_in.memic_operation_type", format!("{number:#x}")));
        };
        let start = modify_memic_in::memic_start_addr.get(input);
        let memic = &mut self.objects.memic;
        let done = match op_mod {
            GIVE => memic
                .give_operation(start, operation)
                .map(|address| modify_memic_out::memic_operation_addr.set(output, address)),
            TAKE => memic.take_operation(start, operation),
            _ => return Err(Refusal::op_mod(op_mod)),
        };
        done.map_err(|error| refused(error, "modify_memic_in.memic_start_addr", start))
    }

    /// Counts a look at every allocation.
    fn charge_memic(&mut self) {
        let parts = self.objects.memic.len();
        self.meter.charge(parts as u64);
    }
}
