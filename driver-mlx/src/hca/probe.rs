//! Firmware whose health counter stands is asked something.

use super::Hca;
use super::exec::input;
use crate::cmd::Tail;
use crate::error::{Error, FatalCause};
use crate::platform::Platform;
use crate::types::Instant;
use mlx5_prm::commands::{query_issi_in, query_issi_out};
use mlx5_prm::opcode::Opcode;

impl<P: Platform> Hca<'_, P> {
    /// Firmware whose counter stands may run all the same; if it does not answer a command either, the device has failed.
    pub(super) fn probe(&mut self, now: Instant, stands: bool) {
        let Some(ticket) = self.health.probe else {
            if stands {
                let query = input::<{ query_issi_in::SIZE }>(Opcode::QUERY_ISSI, 0);
                // Without a free slot other commands tell, which wait as long.
                self.health.probe = self.issue(&query, Tail::NONE, query_issi_out::SIZE, false).ok();
            }
            return;
        };
        match self.poll_command(ticket, &mut [0; query_issi_out::SIZE]) {
            Ok(false) => {}
            Err(Error::Timeout { .. }) if stands => self.set_fatal(now, FatalCause::Hung),
            _ => self.health.probe = None,
        }
    }
}
